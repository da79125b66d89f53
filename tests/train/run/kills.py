"""Processes of `python -m train` that are killed repeatedly at random moments."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gemjax
from train.config.config import Config
from train.run.folder import RunFolder
from train.task.methods import make_method
from train.task.task import make_task

ROOT = Path(__file__).parents[3]
UNFINISHED = re.compile(r"\d+\.unfinished-")  # Folder of a checkpoint before it gets its name.
MOMENTS = ("any", "records", "checkpoint")


class Whole(NamedTuple):
    """An uninterrupted run, and about the duration of another one, which finds its compiled programs."""

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
    """Return True if the process is still running after so many seconds."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def wait_until(process, condition):
    """Wait until `condition()` holds or the process ends; return True if it was still running."""
    while not condition():
        if not is_running(process, 0.002):
            return False
    return True


def names_in(folder):
    return set(os.listdir(folder.saved)) if folder.saved.exists() else set()


def size_of(folder):
    """Return the bytes of the records: about a hundred per commit, more on devices."""
    return sum(path.stat().st_size for path in (folder.events, folder.metrics) if path.exists())


def random_moment(kind, folder, whole, rng):
    """Return a function that waits for a random moment of a process that works in `folder`, and is true if it came."""
    if kind == "any":  # While it imports, reads data, compiles, trains, or draws its picture.
        return lambda process: is_running(process, rng.random() * whole.seconds)
    if kind == "records":
        size = size_of(folder) + rng.randrange(size_of(whole.folder) // 5)  # At most a fifth of the run.
        return lambda process: wait_until(process, lambda: size_of(folder) > size)
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

        return lambda process: wait_until(process, is_being_written)
    last = str(whole.commits)  # Training is complete; the summary and the picture are still missing.
    return lambda process: (
        wait_until(process, lambda: last in names_in(folder))
        and is_running(process, 0.1 * rng.random() * whole.seconds)
    )


def is_killed(process, moment):
    """Kill the process at `moment`; return False if it ended by itself before."""
    try:
        moment(process)
    finally:
        process.kill()
        output = process.communicate()[0]
    assert process.returncode in (-9, 0), output
    return process.returncode == -9


def killed_repeatedly(whole, kills, seed, check):
    """Yield runs that were killed and resumed until they ended; the last kill comes after training is complete.

    `check(folder)` is called after each kill. The seed chooses the moments and, for few kills, their kinds.
    """
    rng = random.Random(seed)
    kinds = [MOMENTS[(seed + k) % len(MOMENTS)] for k in range(kills - 1)]
    rng.shuffle(kinds)
    kinds.insert(0, "end")
    number = 0
    while kinds:
        folder = RunFolder(whole.folder.path.parent / f"cut-{number}")
        moment = random_moment(kinds[-1], folder, whole, rng)
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
    """Return the arguments that continue a run, or begin it if it was killed before it made its folder."""
    if folder.config.exists():
        return "--resume", str(folder.path)
    return *whole.flags, "--out", str(folder.path)


def uninterrupted_run(tmp_path, flags):
    # The runs share compiled programs. An entry that a kill leaves incomplete is compiled again.
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    flags = [*flags.split(), "--data-dir", str(tmp_path / "data")]
    folder, began = RunFolder(tmp_path / "whole"), time.perf_counter()
    finish(environment, *flags, "--out", str(folder.path))
    seconds = 0.6 * (time.perf_counter() - began)  # Later runs find its compiled programs.
    return Whole(folder, flags, environment, seconds, len(load(folder).trace))


class Loaded(NamedTuple):
    state: Any
    trace: gemjax.Trace


def load(folder):
    """Load state and trace of the newest checkpoint."""
    config = Config.load(folder.config)
    like = gemjax.initial_state(make_method(config), make_task(config).params, num_workers=config.workers)
    with folder.checkpoints() as checkpoints:
        return Loaded(*checkpoints.load(like)[:2])


def summary_of(folder):
    """Return the fields of the summary that do not depend on the speed of the run."""
    summary = folder.read_summary()
    return {name: value for name, value in summary.items() if name not in ("seconds", "commits_per_second")}


def complete_lines(path):
    return path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
