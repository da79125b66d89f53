"""Failed writes of checkpoints: each is reported, and leaves the earlier ones."""

import concurrent.futures
import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoints.states import arrived, like
from etils import epath
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals
from gemjax.checkpoints import CheckpointWriteError, files, turns


@pytest.mark.parametrize("after", ["save", "latest", "load", "close", "wait"])
def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path, monkeypatch, after):
    failed = concurrent.futures.Future()
    failed.set_exception(OSError("no space left"))
    checkpoints, trace = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5)
    checkpoints.save(like(), trace)
    with monkeypatch.context() as patched:
        patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)
        checkpoints.save(like(), arrivals.Gamma(3).trace(7), wait=False)
    calls = {"save": lambda: checkpoints.save(like(), trace), "load": lambda: checkpoints.load(like())}
    with pytest.raises(OSError, match="no space left"):
        calls.get(after, lambda: getattr(checkpoints, after) if after == "latest" else getattr(checkpoints, after)())()
    if after != "close":
        assert checkpoints.latest == 5  # The error is raised once; the previous checkpoint is complete.
        checkpoints.close()


def test_the_error_of_a_run_is_not_replaced_by_that_of_a_write(tmp_path, monkeypatch):
    failed = concurrent.futures.Future()
    failed.set_exception(OSError("no space left"))
    monkeypatch.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)

    def interrupted():
        with gemjax.Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), wait=False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        interrupted()
    assert "the last checkpoint was not written: " in raised.value.__notes__[0]
    assert "no space left" in raised.value.__notes__[0]


@contextlib.contextmanager
def files_that_may_not_grow():
    """Limit the size of files, as a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


MANY_ARRAYS = """
import resource, sys
from checkpoints.states import arrived, like
import gemjax
from gemjax import arrivals
from gemjax.checkpoints import CheckpointWriteError

resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
with gemjax.Checkpoints(sys.argv[1]) as checkpoints:
    for _ in range(8):
        try:
            checkpoints.save(arrived(like(), 1_000), arrivals.Gamma(3).trace(1_000))
        except CheckpointWriteError as error:
            print(error)
"""


@pytest.mark.slow
def test_arrays_that_are_still_written_when_one_has_failed_leave_no_traceback(tmp_path):
    command = [sys.executable, "-c", MANY_ARRAYS, str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[1])])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.stdout.count("could not be written: File too large") == 8
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(tmp_path, wait):
    params = jax.random.normal(jax.random.key(0), (50_000,))
    state = arrived(gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), params, num_workers=3))
    trace = arrivals.Gamma(3).trace(9)
    wrong = r"of 2 commits could not be written: File too large \(.* free\); the newest good one is of 1 commits"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, trace.first(1))
        with files_that_may_not_grow(), pytest.raises(CheckpointWriteError, match=wrong) as refused:
            checkpoints.save(state, trace.first(2), wait=wait) or checkpoints.wait()
        assert refused.value.errno == errno.EFBIG
        assert checkpoints.latest == 1
        checkpoints.save(state, trace.first(3), wait=wait)
        checkpoints.save(state, trace.first(4), wait=wait)
        assert checkpoints.load(state)[1] == trace.first(4)
    assert sorted(name for name in os.listdir(tmp_path) if files.UNFINISHED not in name) == ["3", "4"]
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_that_cannot_be_replaced_stays(tmp_path, wait):
    params = jax.random.normal(jax.random.key(0), (50_000,))
    state = arrived(gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), params, num_workers=3))
    trace = arrivals.Gamma(3).trace(5)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, trace, {"note": "first"})
        with (
            files_that_may_not_grow(),
            pytest.raises(CheckpointWriteError, match="the newest good one is of 5 commits"),
        ):
            checkpoints.save(state, trace, {"note": "second"}, wait=wait) or checkpoints.wait()
        loaded, _, metadata = checkpoints.load(state)
        assert metadata == {"note": "first"}
        np.testing.assert_array_equal(loaded.params, params)
        checkpoints.save(state, trace, {"note": "third"}, wait=wait)
        assert checkpoints.metadata == {"note": "third"}
        # Threads of Orbax whose write has failed may still make its folder, which the next save removes.
        assert [name for name in os.listdir(tmp_path) if files.UNFINISHED not in name] == ["5"]
    gc.collect()


@pytest.mark.slow
def test_a_checkpoint_whose_replacement_is_incomplete_is_restored(tmp_path, monkeypatch):
    """The state of the folder after a crash during the write."""
    interrupted, trace, write = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5), concurrent.futures.Future()
    interrupted.save(like(), trace, {"note": "first"})
    with monkeypatch.context() as patched:
        patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: write)
        interrupted.save(like(), trace, {"note": "second"}, wait=False)
    with gemjax.Checkpoints(tmp_path) as checkpoints, monkeypatch.context() as patched:
        patched.setattr(turns, "PATIENCE", 0)
        assert checkpoints.load(like())[2] == {"note": "first"}
    write.set_exception(OSError("killed"))
    with pytest.raises(CheckpointWriteError, match="killed"):
        interrupted.wait()
    files.set_aside(tmp_path, 5)  # As after a crash just before the new checkpoint gets its name.
    (replaced,) = tmp_path.iterdir()
    assert replaced.name != "5"
    for read_only in (False, True):
        with gemjax.Checkpoints(tmp_path, read_only=read_only) as checkpoints:
            assert checkpoints.load(like())[2] == checkpoints.metadata == {"note": "first"}
            assert checkpoints.commits == [5]
    assert os.listdir(tmp_path) == [replaced.name]  # It may be that of a writer at work.
    shutil.copytree(replaced, tmp_path / "5")  # As after a crash just after the write.
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.commits == [5]
        checkpoints.save(like(), arrivals.Gamma(3).trace(7))
    assert sorted(os.listdir(tmp_path)) == ["5", "7"]


@pytest.mark.parametrize("error", [OSError(), MemoryError()])
def test_an_error_without_a_message_is_named(tmp_path, monkeypatch, error):
    failed = concurrent.futures.Future()
    failed.set_exception(error)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)
        with pytest.raises(CheckpointWriteError, match=rf"could not be written: {type(error).__name__} \(its arrays"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))


def test_an_error_that_is_not_of_writing_is_raised_unchanged(tmp_path, monkeypatch):
    failed = concurrent.futures.Future()
    failed.set_exception(KeyError("no such leaf"))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)
            with pytest.raises(KeyError, match="no such leaf"):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.latest == 5


def test_files_of_a_failed_write_may_vanish_while_the_folder_is_opened(tmp_path, monkeypatch):
    """A thread of that write may remove them; the next write succeeds all the same."""

    def vanished(path, **_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "ocdbt.process_0")

    (tmp_path / "7.orbax-checkpoint-tmp" / "ocdbt.process_0").mkdir(parents=True)
    monkeypatch.setattr(type(epath.Path(tmp_path)), "rmtree", vanished)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]
