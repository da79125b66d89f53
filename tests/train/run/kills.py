"""Starting `python -m train`, and killing it again and again at random moments of its life."""

import json
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
from train.task.methods import METHODS
from train.task.task import make_task

ROOT = Path(__file__).parents[3]
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
