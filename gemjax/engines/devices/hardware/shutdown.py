"""Threads that are inside compiled code when the interpreter ends abort it; so its end waits for them, for a while."""

import atexit
import sys
import time
import weakref
from typing import Protocol

AT_MOST = 60.0  # Seconds; gradients may take long.


class Threads(Protocol):
    """Some daemon threads."""

    def are_inside(self) -> bool:
        """Whether one of them computes or waits in compiled code, which it will leave by itself."""
        ...


_all: weakref.WeakKeyDictionary[Threads, float] = weakref.WeakKeyDictionary()


def wait_for(threads: Threads, seconds: float = AT_MOST) -> None:
    """Has the end of the interpreter wait until none of ``threads`` is inside, but for no longer than ``seconds``.

    A daemon thread that wants the interpreter's lock back while that ends is ended on the spot; below the frames of compiled
    code (``block_until_ready``, readers of data) this is an exception that nothing may catch: "FATAL: exception not
    rethrown", status 134, after a run that went well. Threads that wait in Python are ended quietly.
    """
    _all[threads] = seconds


@atexit.register
def _wait() -> None:
    began = time.perf_counter()
    while inside := [seconds for threads, seconds in list(_all.items()) if threads.are_inside()]:
        if time.perf_counter() > began + max(inside):
            print(
                f"gemjax: threads are busy still {max(inside):g} s after the end; it goes without them", file=sys.stderr
            )
            return
        time.sleep(0.01)
