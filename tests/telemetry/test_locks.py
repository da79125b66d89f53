import errno
import os
import subprocess
import sys
import threading
import types

import pytest

from gemjax.telemetry import locks
from gemjax.telemetry.locks import lock, unlock


def test_a_file_or_folder_has_one_holder(tmp_path):
    for path, flags in ((tmp_path / "file", os.O_RDWR | os.O_CREAT), (tmp_path, os.O_RDONLY)):
        held, refused = lock(path, flags), []

        def other(path=path, flags=flags, refused=refused):
            try:
                unlock(lock(path, flags))
            except BlockingIOError:
                refused.append(path)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert refused == [path]
        unlock(held)
        unlock(held)  # Ends nothing else.
        unlock(lock(path, flags))


def test_nothing_is_made_to_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "missing")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from gemjax.telemetry.locks import lock

lock(sys.argv[1])
began, beginning = os.pipe()
if not os.fork():
    os.write(beginning, b"1")
    sys.stdin.read()
    os._exit(0)
os.read(began, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_keep_the_lock_of_one_that_is_killed(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", KILLED, path], stdin=subprocess.PIPE) as process:
        process.wait(60)
        unlock(lock(path))  # The forked process still waits for its input.


FORKED = """
import ctypes, os, sys
from gemjax.telemetry.locks import lock, unlock

held = lock(sys.argv[1])
if not ctypes.CDLL(None).fork():  # Python's hooks for forks do not run, as if a program were being started.
    sys.stdin.read()
    os._exit(0)
unlock(held)
unlock(lock(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_ends_though_another_process_has_a_copy_of_the_open_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", FORKED, path], stdin=subprocess.PIPE) as process:
        assert process.wait(60) == 0


def test_errors_of_locking_are_passed_over_unless_they_matter(tmp_path, monkeypatch):
    """Network file systems have many."""

    def flock(opened, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(locks, "fcntl", types.SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8))
    unlock(lock(tmp_path, os.O_RDONLY))
    with pytest.raises(OSError, match="Input/output error"):
        lock(tmp_path, os.O_RDONLY, strict=True)
