import os
import subprocess
import sys
import threading

import pytest

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
