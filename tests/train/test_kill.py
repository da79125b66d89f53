"""Runs that are killed again and again, at random moments of their lives: a simulation ends as the one that was not."""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from engines.problems import assert_close, assert_same_bits

import gemjax
from gemjax import eventlog
from train.config import Config
from train.methods import METHODS
from train.runfolder import RunFolder
from train.task import make_task

ROOT = Path(__file__).parents[2]
SIMULATED = (
    "digits --engine simulate --workers 3 --epochs 5 --batch-size 32 --seed 3 --checkpoint-every 20 --eval-seconds 9"
)
ON_DEVICES = "digits --method asgd --learning-rate 0.05 --workers 3 --epochs 5 --batch-size 32 --checkpoint-every 20"
UNFINISHED = re.compile(r"\d+\..*tmp")  # What Orbax writes to before a checkpoint gets its name.
MOMENTS = ("any", "records", "checkpoint")


class Whole(NamedTuple):
    """The run that nobody kills, and how long it takes."""

    folder: RunFolder
    flags: list[str]
    environment: dict[str, str]
    seconds: float
    commits: int


def start(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "train", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


def finish(environment, *arguments):
    process = start(environment, *arguments)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def is_running(process, seconds):
    """Whether it still is after so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def until(process, is_there):
    """Waits until `is_there()`; returns whether the process was still running then."""
    while not is_there():
        if not is_running(process, 0.002):
            return False
    return True


def names_in(folder):
    return set(os.listdir(folder.checkpoints_path)) if folder.checkpoints_path.exists() else set()


def size_of(folder):
    """Bytes of the records: some hundred a commit, more on devices."""
    return sum(path.stat().st_size for path in (folder.events, folder.metrics) if path.exists())


def a_moment(kind, folder, whole, rng):
    """A random moment in the life of a process that is about to work in `folder`: waits for it, and says whether it came."""
    if kind == "any":  # While it imports, reads data, compiles, trains, or draws its picture.
        return lambda process: is_running(process, rng.random() * whole.seconds)
    if kind == "records":
        size = size_of(folder) + rng.randrange(size_of(whole.folder) // 5)  # A step of the way.
        return lambda process: until(process, lambda: size_of(folder) > size)
    if kind == "checkpoint":
        seen, skipped = names_in(folder), rng.randrange(4)

        def is_being_written():
            nonlocal skipped
            found = {name for name in names_in(folder) if UNFINISHED.match(name)} - seen
            if found and skipped:
                seen.update(found)
                skipped -= 1
                return False
            return bool(found)

        return lambda process: until(process, is_being_written)
    last = str(whole.commits)  # All is trained; what is left is the summary and the picture.
    return lambda process: (
        until(process, lambda: last in names_in(folder)) and is_running(process, 0.1 * rng.random() * whole.seconds)
    )


def is_killed(process, moment):
    """Kills the process when it is time; false if it had come to its end by itself."""
    try:
        moment(process)
    finally:
        process.kill()
        output = process.communicate()[0]
    assert process.returncode in (-9, 0), output
    return process.returncode == -9


def killed_again_and_again(whole, kills, seed, check):
    """Kills and resumes, at last when all is trained; then lets the run end. Yields it, and those that ended before.

    `check(folder)` looks at what each kill leaves behind.
    """
    rng = random.Random(seed)
    kinds = [MOMENTS[k % len(MOMENTS)] for k in range(kills - 1)]
    rng.shuffle(kinds)
    kinds.insert(0, "end")
    number = 0
    while kinds:
        folder = RunFolder(whole.folder.path.parent / f"cut-{number}")
        moment = a_moment(kinds[-1], folder, whole, rng)
        if is_killed(start(whole.environment, *begin_or_resume(whole, folder)), moment):
            kinds.pop()
            check(folder)
        else:
            yield folder
            number += 1
    folder = RunFolder(whole.folder.path.parent / f"cut-{number}")
    finish(whole.environment, *begin_or_resume(whole, folder))
    yield folder


def begin_or_resume(whole, folder):
    if folder.config.exists():
        return "--resume", str(folder.path)
    return *whole.flags, "--out", str(folder.path)


def a_whole_run(tmp_path, flags):
    # What is compiled once need not be again. An entry that a kill cuts short is compiled anew, too.
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    flags = [*flags.split(), "--data-dir", str(tmp_path / "data")]
    finish(environment, *flags, "--out", str(tmp_path / "first"))
    folder, began = RunFolder(tmp_path / "whole"), time.perf_counter()
    finish(environment, *flags, "--out", str(folder.path))
    seconds = time.perf_counter() - began
    return Whole(folder, flags, environment, seconds, len(loaded(folder).trace))


class Loaded(NamedTuple):
    state: Any
    trace: gemjax.Trace


def loaded(folder):
    """State and trace of the newest checkpoint."""
    config = Config.load(folder.config)
    like = gemjax.initial_state(METHODS[config.method](config), make_task(config).params, num_workers=config.workers)
    with folder.checkpoints() as checkpoints:
        return Loaded(*checkpoints.load(like)[:2])


def summary_of(folder):
    """What does not depend on how fast it went."""
    summary = json.loads(folder.summary.read_text())
    return {name: value for name, value in summary.items() if name not in ("seconds", "commits_per_second")}


def whole_lines(path):
    return path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""


@pytest.mark.slow
def test_a_simulation_killed_at_random_moments_ends_as_the_one_that_was_not(tmp_path):
    """The parameters, the whole state, the trace, the event log and the evaluations, bit for bit."""
    whole = a_whole_run(tmp_path, SIMULATED)

    def check(folder):
        for name in ("events", "metrics"):
            assert getattr(whole.folder, name).read_bytes().startswith(whole_lines(getattr(folder, name)))

    expected = loaded(whole.folder)
    for cut in killed_again_and_again(whole, 12, seed=5, check=check):
        found = loaded(cut)
        assert_same_bits(found.state, expected.state)
        assert found.trace == expected.trace
        assert cut.events.read_bytes() == whole.folder.events.read_bytes()
        assert cut.metrics.read_bytes() == whole.folder.metrics.read_bytes()
        assert summary_of(cut) == summary_of(whole.folder)
        assert cut.picture.exists()


@pytest.mark.slow
def test_a_run_on_devices_goes_on_after_being_killed_at_random_moments(tmp_path):
    """Its order is not to be had again; but the log holds every commit once, and replays to what was reached."""
    whole = a_whole_run(tmp_path, ON_DEVICES)
    config = Config.load(whole.folder.config)
    task, tx = make_task(config), METHODS[config.method](config)

    def check(folder):
        """The reader refuses commits that are missing, repeated or out of order."""
        if folder.events.exists():
            list(eventlog.read(folder.events))

    for folder in killed_again_and_again(whole, 8, seed=6, check=check):
        state, trace = loaded(folder)
        assert len(trace) == task.num_commits
        assert eventlog.trace_of(folder.events, 3) == trace
        kinds = [event["event"] for event in eventlog.read(folder.events)]
        assert kinds.count("commit") == kinds.count("ready") == len(trace)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(state.params)))
        replay = gemjax.simulate(tx, task.loss_fn, task.params, task.batches, trace, seed=config.seed)
        assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=1e-2)
        assert folder.finished(task.num_commits)
