"""Checkpoints that are written: in the background, failed, interrupted, and at the end of the process."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.running.checkpoints.states import like, saved_in
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals, testing
from gemjax.engines.running.checkpoints import CheckpointWriteError, folder

save_checkpointables = ocp.save_checkpointables


@pytest.fixture
def held(monkeypatch):
    """Let writes of Orbax wait for the event that is returned."""
    go = threading.Event()

    def wait_and_save(*args, **options):
        assert go.wait(60)
        save_checkpointables(*args, **options)

    monkeypatch.setattr(ocp, "save_checkpointables", wait_and_save)
    yield go
    go.set()


def failing(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(ocp, "save_checkpointables", fail)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_run_goes_on_while_its_checkpoint_is_written(tmp_path, engine):
    """The checkpoint holds the state at the save, although later commits reuse its buffers."""
    loss_fn, params, batches = testing.quadratic(dimension=20_000)
    tx, then = gemjax.gem(0.1, num_workers=3), {}
    with gemjax.Checkpoints(tmp_path) as checkpoints:

        def callback(progress):
            if progress.commits > 20:
                return
            state, trace = progress.state(), progress.trace()
            then[progress.commits] = jax.tree.map(np.array, state), trace
            checkpoints.save(state, trace, {"commits": progress.commits}, wait=False)

        if engine == "simulate":
            trace = arrivals.Gamma(3).trace(24)
            gemjax.simulate(tx, loss_fn, params, batches, trace, stops=range(0, 24, 4), callback=callback)
        else:
            gemjax.run_on_devices(tx, loss_fn, params, batches, 24, num_workers=3, callback=callback, callback_every=4)
        state, recorded, metadata = checkpoints.load(gemjax.initial_state(tx, params, num_workers=3))
    assert len(then) > 1
    expected, trace = then[max(then)]
    assert recorded == trace
    assert metadata == {"commits": max(then)}
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_write_in_the_background_has_a_copy_of_state_and_metadata(tmp_path, held):
    state, metadata = jax.tree.map(jnp.copy, like()), {"epoch": 1, "rates": [0.1]}
    expected = jax.tree.map(np.array, state)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, arrivals.Gamma(3).trace(5), metadata, wait=False)
        assert not checkpoints.wait(timeout=0)
        metadata["rates"].append(0.2)
        for leaf in jax.tree.leaves(state):
            leaf.delete()  # As a commit does, which donates the state.
        held.set()
        assert checkpoints.wait(timeout=60)
        found, _, loaded = checkpoints.load(like())
    assert loaded == {"epoch": 1, "rates": [0.1]}
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_ctrl_c_ends_the_wait_for_a_write_and_not_the_write(tmp_path, held, monkeypatch):
    began, wait_and_save = threading.Event(), ocp.save_checkpointables
    monkeypatch.setattr(ocp, "save_checkpointables", lambda *args, **how: began.set() or wait_and_save(*args, **how))

    def interrupt():
        assert began.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # It interrupts the wait of that thread.

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        thread.join()
        held.set()
        assert checkpoints.commits == [5]
        assert checkpoints.load(like())[1] == arrivals.Gamma(3).trace(5)


@pytest.mark.slow
def test_two_objects_write_one_after_the_other(tmp_path, held):
    """The second one would remove the files of the first as those of a failed write."""
    first, second = gemjax.Checkpoints(tmp_path), gemjax.Checkpoints(tmp_path)
    first.save(like(), arrivals.Gamma(3).trace(5), wait=False)
    held.set()
    second.save(like(), arrivals.Gamma(3).trace(6))
    first.close()
    assert saved_in(tmp_path) == ["5", "6"]


@pytest.mark.parametrize("after", ["save", "latest", "load", "close", "wait"])
def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path, monkeypatch, after):
    checkpoints, trace = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5)
    checkpoints.save(like(), trace)
    with monkeypatch.context() as patched:
        failing(patched, OSError("no space left"))
        checkpoints.save(like(), arrivals.Gamma(3).trace(7), wait=False)
        while not checkpoints._writing.done():
            checkpoints._writing.exception(60)
    calls = {"save": lambda: checkpoints.save(like(), trace), "load": lambda: checkpoints.load(like())}
    with pytest.raises(OSError, match="no space left"):
        calls.get(after, lambda: getattr(checkpoints, after) if after == "latest" else getattr(checkpoints, after)())()
    assert checkpoints.latest == 5  # The error is raised once; the previous checkpoint is complete.
    checkpoints.close()


def test_the_error_of_a_run_is_not_replaced_by_that_of_a_write(tmp_path, monkeypatch):
    failing(monkeypatch, OSError("no space left"))

    def interrupted():
        with gemjax.Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), wait=False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        interrupted()
    assert "the last checkpoint was not written: " in raised.value.__notes__[0]
    assert "no space left" in raised.value.__notes__[0]


FULL_DISK = """
import resource, sys
import jax, gemjax
from engines.running.checkpoints.states import arrived
from gemjax import arrivals

params = jax.random.normal(jax.random.key(0), (50_000,))
state = arrived(gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), params, num_workers=3))
trace, hard = arrivals.Gamma(3).trace(9), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
with gemjax.Checkpoints(sys.argv[1]) as checkpoints:
    checkpoints.save(state, trace.first(1), {"note": "first"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # As on a full disk.
    for commits, wait in ((1, True), (2, True), (2, False)):
        try:
            checkpoints.save(state, trace.first(commits), {"note": "second"}, wait=wait) or checkpoints.wait()
        except gemjax.CheckpointWriteError as error:
            print(error.errno, error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert checkpoints.commits == [1] and checkpoints.load(state)[2] == {"note": "first"}
    checkpoints.save(state, trace.first(3))
    checkpoints.save(state, trace.first(4), wait=False)
    assert checkpoints.load(state)[1] == trace.first(4)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": _paths()})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(str(errno.EFBIG))]
    assert len(lines) == 3
    assert "of 2 commits could not be written: File too large (its arrays take" in lines[1]
    assert all("the newest good one is of 1 commits" in line for line in lines)
    assert [name for name in saved_in(tmp_path) if folder.UNFINISHED not in name] == ["3", "4"]


def test_a_checkpoint_whose_replacement_is_incomplete_is_restored(tmp_path):
    """The state of the folder after a crash during the write."""
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"note": "first"})
    replaced = (tmp_path / "5").rename(tmp_path / f"{folder.REPLACED}5")  # Just before the new one gets its name.
    for read_only in (False, True):
        with gemjax.Checkpoints(tmp_path, read_only=read_only) as checkpoints:
            assert checkpoints.load(like())[2] == checkpoints.metadata == {"note": "first"}
            assert checkpoints.commits == [5]
    shutil.copytree(replaced, tmp_path / "5")  # Just after it.
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.commits == [5]
        checkpoints.save(like(), arrivals.Gamma(3).trace(7))
    assert saved_in(tmp_path) == ["5", "7"]


@pytest.mark.parametrize(
    ("error", "kind", "wrong"),
    [
        (OSError(), CheckpointWriteError, r"could not be written: OSError \(its arrays"),
        (MemoryError(), CheckpointWriteError, r"could not be written: MemoryError \(its arrays"),
        (KeyError("no such leaf"), KeyError, "no such leaf"),
    ],
)
def test_an_error_of_writing_is_named_and_another_one_is_raised_unchanged(tmp_path, monkeypatch, error, kind, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            failing(patched, error)
            with pytest.raises(kind, match=wrong):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.latest == 5


def test_a_device_without_memory_for_the_copy_is_an_error_of_writing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(jnp, "array", full)
        with pytest.raises(
            CheckpointWriteError, match=r"of 5 commits could not be written: RuntimeError: RESOURCE_EXHAUSTED"
        ):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), wait=False)


def test_a_system_without_more_threads_writes_none(tmp_path, monkeypatch):
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_more)
            with pytest.raises(CheckpointWriteError, match="can't start new thread"):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert saved_in(tmp_path) == ["5"]


AT_THE_END = """
import sys
import gemjax, jax.numpy as jnp
checkpoints = gemjax.Checkpoints(sys.argv[1])
state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=2), jnp.ones(300_000))
checkpoints.save(state, gemjax.Trace([], num_workers=2), wait=False)
"""


@pytest.mark.slow
def test_a_write_that_failed_before_the_process_ends_is_reported_then(tmp_path):
    begin, end = AT_THE_END.split("checkpoints.save")
    unwritable = "checkpoints.folder.rmdir(), checkpoints.folder.touch()\ncheckpoints.save"
    command = [
        sys.executable,
        "-c",
        begin + unwritable + end + "checkpoints._writing.exception()",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": _paths()})
    assert done.stderr.startswith("gemjax: a checkpoint could not be written: FileExistsError")


@pytest.mark.slow
def test_a_write_in_the_background_is_finished_before_the_process_ends(tmp_path):
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": _paths()})
    assert (done.returncode, done.stderr) == (0, "")
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=2), jnp.ones(300_000))
    assert gemjax.Checkpoints(tmp_path).load(state)[1] == gemjax.Trace([], num_workers=2)


def _paths():
    tests = Path(__file__).parents[3]
    return os.pathsep.join(map(str, [tests.parent, tests]))
