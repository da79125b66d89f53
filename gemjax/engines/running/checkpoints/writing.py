"""Threads that write, whose end the interpreter waits for."""

import atexit
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from gemjax.batches.threads import start_thread

ORBAX = threading.Lock()  # Orbax cannot write in one thread while it reads or writes in another.
_writing: set[Future] = set()


def in_background(write: Callable[[], None]) -> Future:
    """Return a future for ``write()``, which a thread calls, so that Ctrl-C ends a wait for it and not the write."""
    done = Future()

    def run():
        try:
            write()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    _writing.add(done)
    done.add_done_callback(_writing.discard)
    try:
        start_thread(run, name="gemjax-checkpoint")
    except RuntimeError as error:  # The system has no more threads.
        done.set_exception(OSError(*error.args))
    return done


def _finish_writes() -> None:
    """Wait at the end of the interpreter for writes that nothing has waited for."""
    for done in list(_writing):
        if (error := done.exception()) is not None:
            print(f"gemjax: a checkpoint could not be written: {error!r}", file=sys.stderr)


# Before the pools of threads end, which Orbax needs; `atexit` would be too late. Functions are called in reverse order.
ThreadPoolExecutor(1).shutdown()
getattr(threading, "_register_atexit", atexit.register)(_finish_writes)
