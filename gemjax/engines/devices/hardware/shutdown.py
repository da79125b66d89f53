"""The end of the interpreter waits for threads inside compiled code, which would abort it."""

import atexit
import sys
import time
import weakref
from typing import Protocol

AT_MOST = 60.0  # Seconds; a gradient may take long.


class Threads(Protocol):
    """Some daemon threads."""

    def are_inside(self) -> bool:
        """Return True if a thread is in compiled code, which it leaves by itself."""
        ...


_all: weakref.WeakKeyDictionary[Threads, float] = weakref.WeakKeyDictionary()


def wait_for(threads: Threads, seconds: float = AT_MOST) -> None:
    """Let the end of the interpreter wait, for at most ``seconds``, until none of ``threads`` is in compiled code.

    A daemon thread that requests the interpreter's lock during the end is stopped at once. Below the frames of compiled
    code (``block_until_ready``, readers of data) this is an exception that nothing may catch: "FATAL: exception not
    rethrown", status 134, after a successful run. Threads that wait in Python stop without an error.
    """
    _all[threads] = seconds


@atexit.register
def _wait() -> None:
    began = time.perf_counter()
    while inside := [seconds for threads, seconds in list(_all.items()) if threads.are_inside()]:
        if time.perf_counter() > began + max(inside):
            print(
                f"gemjax: threads are still busy {max(inside):g} s after the end; not waiting any longer",
                file=sys.stderr,
            )
            return
        time.sleep(0.01)
