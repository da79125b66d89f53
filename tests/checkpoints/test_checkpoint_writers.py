"""Writers of one folder of checkpoints wait for each other, and none waits for ever."""

import concurrent.futures
import contextlib
import errno
import logging
import os
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path

import optax
import pytest
from checkpoints.states import arrived
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals, testing
from gemjax.checkpoints import CheckpointWriteError, files, lock, quiet, turns
from gemjax.engines.running import interrupts
from gemjax.telemetry import locks

_, PARAMS, _ = testing.quadratic()


def like():
    tx = optax.chain(optax.clip_by_global_norm(1.0), gemjax.gem(0.1, num_workers=3))
    return arrived(gemjax.initial_state(tx, PARAMS, num_workers=3), 30)


def test_a_writer_waits_for_the_write_of_another_object(tmp_path, monkeypatch):
    """Otherwise it would remove the files of that write as those of a failed one."""
    write, first, second = concurrent.futures.Future(), gemjax.Checkpoints(tmp_path), gemjax.Checkpoints(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(ocp, "save_checkpointables_async", lambda path, *_, **__: os.mkdir(path) or write)
        first.save(like(), arrivals.Gamma(3).trace(5), wait=False)
    refused = r"the checkpoint of 6 commits could not be written: .*another object of this one, has been writing there"
    with contextlib.ExitStack() as patched:
        patched.enter_context(monkeypatch.context()).setattr(lock, "PATIENCE", 0)
        patched.callback(write.set_result, True)
        with pytest.raises(CheckpointWriteError, match=refused):
            second.save(like(), arrivals.Gamma(3).trace(6))
    second.save(like(), arrivals.Gamma(3).trace(7))
    assert first.wait()
    assert sorted(os.listdir(tmp_path)) == ["5", "7"]


class Asked:
    """In place of the condition of turns: it notes whether a thread would go on, and lets it."""

    def __init__(self):
        self.free = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_for(self, free, patience):
        self.free.append(free())
        return True

    def notify_all(self):
        pass


@pytest.mark.parametrize(
    ("first", "second", "free"),
    [("read", "write", False), ("write", "read", False), ("read", "read", False), ("write", "write", False)],
)
def test_no_thread_reads_or_writes_while_another_one_does(first, second, free, monkeypatch):
    """Orbax would lose what it notes of the arrays that it writes, or take the folder of one write for that of another."""
    monkeypatch.setattr(turns, "_changed", asked := Asked())

    def turn(kind):
        if kind == "read":
            return turns.reading()
        return contextlib.closing(types.SimpleNamespace(close=turns.Write().begin().end))

    def other():
        with turn(second):
            pass

    def in_a_thread():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    with turn(first):
        in_a_thread()
    in_a_thread()
    assert asked.free == [True, free, True]


@pytest.mark.slow
def test_one_thread_loads_while_another_saves(tmp_path):
    saved, loaded, state = threading.Event(), [], like()

    def load():
        while not saved.is_set():
            loaded.append(gemjax.Checkpoints(tmp_path, read_only=True).load(state)[2]["note"])

    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(state, arrivals.Gamma(3).trace(1), {"note": 1})
        thread = threading.Thread(target=load)
        thread.start()
        try:
            for commits in range(2, 22):
                checkpoints.save(state, arrivals.Gamma(3).trace(commits), {"note": commits}, wait=commits % 2 == 0)
        finally:
            checkpoints.wait()
            saved.set()
            thread.join()
    assert loaded == sorted(loaded)
    assert loaded


@pytest.mark.slow
def test_other_threads_log_and_warn_while_one_loads(tmp_path, monkeypatch, caplog):
    """Also if a ``catch_warnings`` of theirs begins before the read and ends after it, or the other way round."""
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    read, scopes = ocp.load_checkpointables, contextlib.ExitStack()

    def during(*args, **options):
        logging.getLogger("training").error("a record")
        scopes.enter_context(warnings.catch_warnings())
        with pytest.warns(UserWarning, match="a warning"):
            warnings.warn("a warning", stacklevel=1)
        return read(*args, **options)

    monkeypatch.setattr(ocp, "load_checkpointables", during)
    before = list(warnings.filters)
    checkpoints.load(like())
    assert [record.message for record in caplog.records] == ["a record"]
    scopes.close()
    after = [entry for entry in warnings.filters if entry not in before]
    assert all(entry in quiet.WARNINGS for entry in after), after
    monkeypatch.setattr(ocp, "load_checkpointables", read)
    checkpoints.load(like())
    assert warnings.filters == before


def test_late_answers_to_a_read_are_discarded_in_a_process_that_never_writes(tmp_path, monkeypatch):
    """They come when another process has removed the checkpoint that is read."""
    gemjax.Checkpoints(tmp_path).save(like(), arrivals.Gamma(3).trace(5))
    reported = []
    interrupts.take_no_more(quiet._is_late)
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    gemjax.Checkpoints(tmp_path, read_only=True).load(like())
    late = types.SimpleNamespace(object=None, exc_value=RuntimeError(quiet.LATE))
    other = types.SimpleNamespace(object=None, exc_value=RuntimeError("another"))
    for ignored in (late, other):
        sys.unraisablehook(ignored)
    assert reported == [other]


@pytest.mark.slow
def test_threads_may_save_at_the_same_time(tmp_path):
    """Orbax takes the folders of one write for those of another one."""
    failed = []

    def save(thread):
        try:
            with gemjax.Checkpoints(tmp_path / str(thread), keep=1) as checkpoints:
                for commits in range(1, 16):
                    checkpoints.save(like(), arrivals.Gamma(3).trace(commits), wait=commits % 3 == 0)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [gemjax.Checkpoints(tmp_path / str(thread)).latest for thread in range(3)] == [15] * 3


def test_a_checkpoint_may_be_loaded_while_it_is_replaced(tmp_path, monkeypatch):
    set_aside, loaded = files.set_aside, []

    def then_load(folder, commits):
        set_aside(folder, commits)
        loaded.append(gemjax.Checkpoints(folder).load(like())[2])

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"note": "first"})
        monkeypatch.setattr(files, "set_aside", then_load)
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"note": "second"})
        assert loaded == [{"note": "first"}]
        assert checkpoints.metadata == {"note": "second"}
    assert os.listdir(tmp_path) == ["5"]


@pytest.mark.slow
def test_the_files_of_a_killed_process_are_removed_but_not_those_of_a_running_one(tmp_path, monkeypatch):
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import pathlib
from gemjax.checkpoints import lock
from gemjax.engines.running.interrupts import Held
folder = pathlib.Path({str(tmp_path)!r})
release = lock.hold(folder, Held())
(folder / "7.orbax-checkpoint-tmp" / "part").mkdir(parents=True)
print("writing", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"writing\n"
        with gemjax.Checkpoints(tmp_path) as checkpoints, monkeypatch.context() as patched:
            patched.setattr(lock, "PATIENCE", 0)
            with pytest.raises(CheckpointWriteError, match="another process"):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert (tmp_path / "7.orbax-checkpoint-tmp" / "part").is_dir()
        writer.kill()
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), None])
def test_a_file_system_without_locks_has_checkpoints(tmp_path, monkeypatch, error):
    def no_locks(*_):
        raise error

    fake = None if error is None else types.SimpleNamespace(flock=no_locks, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8)
    monkeypatch.setattr(locks, "fcntl", fake)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


def test_a_failed_write_in_a_folder_that_has_become_read_only_is_reported(tmp_path, monkeypatch):
    """Neither the lock nor the files can be removed then; the next write of this object has the lock all the same."""
    write, unlink = concurrent.futures.Future(), os.unlink

    def refused(path, *arguments, **options):
        if os.path.basename(path) == lock.LOCK:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, *arguments, **options)

    def no_cleaning(folder):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: write)
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), wait=False)
            patched.setattr(files, "clean", no_cleaning)
            patched.setattr(os, "unlink", refused)
            write.set_exception(OSError(errno.EROFS, os.strerror(errno.EROFS)))
            with pytest.raises(CheckpointWriteError, match="5 commits could not be written: Read-only file system"):
                checkpoints.wait(60)
        monkeypatch.setattr(lock, "PATIENCE", 0)
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    with gemjax.Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        os.rmdir(tmp_path / "run" / "checkpoints")
        os.rmdir(tmp_path / "run")
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.commits == [5]


def test_a_system_without_more_threads_writes_none_and_keeps_no_lock(tmp_path, monkeypatch):
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: concurrent.futures.Future())
            patched.setattr(threading.Thread, "start", no_more)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        monkeypatch.setattr(lock, "PATIENCE", 0)
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


def test_a_lock_that_has_gone_stale_is_tried_again_and_other_errors_are_reported(tmp_path, monkeypatch):
    """As on a network file system after another host has removed the file."""
    errors = [errno.ESTALE, errno.EIO]

    def flock(*_):
        if errors:
            number = errors.pop(0)
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks, "fcntl", types.SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointWriteError, match="Input/output error"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.commits == [5]


@pytest.mark.slow
def test_the_newest_is_loaded_though_it_is_removed_between_its_choice_and_its_reading(tmp_path, monkeypatch):
    with gemjax.Checkpoints(tmp_path, keep=1) as writer:
        writer.save(like(), arrivals.Gamma(3).trace(5))
        reader = gemjax.Checkpoints(tmp_path, read_only=True)
        identity, calls = reader._identity, []

        def then_save(commits):
            found = identity(commits)
            calls.append(commits)
            if len(calls) == 2:  # After the first choice of the newest.
                writer.save(like(), arrivals.Gamma(3).trace(7))
            return found

        monkeypatch.setattr(reader, "_identity", then_save)
        assert len(reader.load(like())[1]) == 7


FORKED = """
import concurrent.futures, multiprocessing, os, sys
import gemjax
from orbax.checkpoint import v1 as ocp

stdin = os.dup(0)  # multiprocessing closes the other one.

def child():
    print("forked", flush=True)
    os.read(stdin, 1)

ocp.save_checkpointables_async = lambda path, *_, **__: os.mkdir(path) or concurrent.futures.Future()
state = gemjax.initial_state(gemjax.asgd(0.1), 0.0)
gemjax.Checkpoints(sys.argv[1]).save(state, gemjax.Trace([]), wait=False)
multiprocessing.get_context("fork").Process(target=child).start()
os._exit(0)  # As if it were killed.
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_during_a_write_neither_keeps_the_lock_nor_waits_for_the_write(tmp_path, monkeypatch):
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"forked\n"
        process.wait()
        monkeypatch.setattr(lock, "PATIENCE", 0)
        lock.hold(tmp_path, interrupts.Held())()
        assert process.communicate(timeout=60) == (b"", None)  # The forked process ends, too.


IN_A_FORK = """
import concurrent.futures, os, sys, warnings
import gemjax
from gemjax import arrivals

warnings.simplefilter("ignore")  # JAX and Python advise against fork.
checkpoints, trace = gemjax.Checkpoints(sys.argv[1]), arrivals.Gamma(3).trace(20)
early = os.fork() if sys.argv[2] == "early" else None
if early:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(early, 0)[1]))
from checkpoints.states import arrived, like  # Uses JAX.
checkpoints.save(arrived(like()), trace)
if early == 0:
    sys.exit(checkpoints.load(like())[1] != trace)
child = os.fork()
if child == 0:
    print("read", checkpoints.metadata, checkpoints.commits)
    checkpoints._writing = concurrent.futures.Future()  # As if the fork had come during a write in the background.
    calls = (lambda: checkpoints.save(None, trace), lambda: checkpoints.load(None), lambda: checkpoints.metadata)
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code or checkpoints.load(like())[1] != trace)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("when", ["early", "late"])
def test_checkpoints_are_refused_in_a_process_forked_after_jax_was_used(tmp_path, when):
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[1])])
    command = [sys.executable, "-c", IN_A_FORK, str(tmp_path), when]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, timeout=120)
    assert done.returncode == 0, done.stderr
    refused = done.stdout.count("this process was forked from one that uses JAX")
    assert refused == (3 if when == "late" else 0)
    assert done.stdout.startswith("read {} [20]\n" if when == "late" else "")
