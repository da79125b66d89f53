"""Runs that are killed again and again: a simulation ends as the one that was not."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from engines.problems import assert_close, assert_same_bits

import gemjax
from gemjax import eventlog
from train.config import Config
from train.methods import METHODS
from train.runfolder import RunFolder
from train.task import make_task

ROOT = Path(__file__).parents[2]
FLAGS = (
    "digits --engine simulate --workers 3 --epochs 6 --batch-size 32 --seed 3 --checkpoint-every 20 --eval-seconds 9"
)
ON_DEVICES = "digits --method asgd --learning-rate 0.05 --workers 3 --epochs 8 --batch-size 32 --checkpoint-every 20"
UNFINISHED = re.compile(r"\d+\..*tmp")  # What Orbax writes to before a checkpoint gets its name.


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "train", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def is_running(process, seconds):
    """Whether it still is after so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def until_there(process, is_there):
    """Waits until `is_there()`; returns whether the process was still running then."""
    while not is_there():
        if not is_running(process, 0.002):
            return False
    return True


def kill(process, when):
    """Kills the process at once when it is time."""
    try:
        in_time = when(process)
    finally:
        process.kill()
        output = process.communicate()[0]
    assert in_time, output
    assert process.returncode == -9, output


def steps(folder):
    """Commits of the checkpoints that have their names."""
    names = os.listdir(folder.checkpoints_path) if folder.checkpoints_path.exists() else []
    return {int(name) for name in names if name.isdigit()}


def a_new_checkpoint(folder):
    known = steps(folder)
    return lambda process: until_there(process, lambda: steps(folder) - known)


def a_checkpoint_that_is_being_written(folder):
    """Another one than the first, so that there is one to fall back on."""

    def is_there():
        return steps(folder) and any(UNFINISHED.match(name) for name in os.listdir(folder.checkpoints_path))

    return lambda process: until_there(process, is_there)


def records_beyond_a_new_checkpoint(folder, size):
    """When the event log has grown by so many bytes, some hundred a commit, since there is one."""

    def when(process):
        if not a_new_checkpoint(folder)(process):
            return False
        enough = folder.events.stat().st_size + size
        return until_there(process, lambda: folder.events.stat().st_size >= enough)

    return when


def a_folder(folder):
    return lambda process: until_there(process, folder.config.exists)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


def finish(*arguments):
    process = start(*arguments)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_as_the_run_that_was_not_killed(tmp_path, data_dir):
    """The parameters, the whole state, the trace, the event log and the evaluations, bit for bit."""
    whole, cut = (RunFolder(tmp_path / name) for name in ("whole", "cut"))
    flags = [*FLAGS.split(), "--data-dir", data_dir]
    finish(*flags, "--out", str(whole.path))
    kill(start(*flags, "--out", str(cut.path)), a_folder(cut))
    for when in (
        a_checkpoint_that_is_being_written(cut),
        a_new_checkpoint(cut),
        *(records_beyond_a_new_checkpoint(cut, random.Random(k).randrange(20_000)) for k in range(2)),
    ):
        kill(start("--resume", str(cut.path)), when)
    done = max(steps(cut))
    output = finish("--resume", str(cut.path))
    assert 0 < done < len(loaded(whole)[1])
    assert "test accuracy" in output
    for mine, theirs in zip(loaded(cut), loaded(whole), strict=True):
        if isinstance(mine, gemjax.Trace):
            assert mine == theirs
            assert eventlog.trace_of(cut.events, 3) == eventlog.trace_of(whole.events, 3)
        else:
            assert_same_bits(mine, theirs)
    assert cut.events.read_bytes() == whole.events.read_bytes()
    assert cut.metrics.read_bytes() == whole.metrics.read_bytes()


@pytest.mark.slow
def test_a_run_on_devices_goes_on_after_being_killed(tmp_path, data_dir):
    """Its order is not to be had again; but the log holds every commit once, and replays to what was reached."""
    folder = RunFolder(tmp_path / "run")
    kill(
        start(*ON_DEVICES.split(), "--data-dir", data_dir, "--out", str(folder.path)),
        a_checkpoint_that_is_being_written(folder),
    )
    for size in (0, 3_000, 9_000):
        kill(start("--resume", str(folder.path)), records_beyond_a_new_checkpoint(folder, size))
    finish("--resume", str(folder.path))
    config = Config.load(folder.config)
    task = make_task(config)
    state, trace = loaded(folder)
    assert len(trace) == task.num_commits
    assert eventlog.trace_of(folder.events, 3) == trace
    kinds = [event["event"] for event in eventlog.read(folder.events)]
    assert kinds.count("start") >= 4
    assert kinds.count("commit") == len(trace)
    tx = METHODS[config.method](config)
    replay = gemjax.simulate(tx, task.loss_fn, task.params, task.batches, trace, seed=config.seed)
    assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=1e-2)


def loaded(folder):
    """State and trace of the newest checkpoint."""
    config = Config.load(folder.config)
    like = gemjax.initial_state(METHODS[config.method](config), make_task(config).params, num_workers=config.workers)
    with folder.checkpoints() as checkpoints:
        return checkpoints.load(like)[:2]
