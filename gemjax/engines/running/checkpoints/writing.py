"""Threads that write, whose end the interpreter waits for."""

import atexit
import concurrent.futures.thread
import sys
import threading
from collections.abc import Callable

from gemjax.batches.threads import start_thread

ORBAX = threading.Lock()  # Orbax cannot write in one thread while it reads or writes in another.
unseen: set[concurrent.futures.Future] = set()  # Writes that nothing has waited for.


def in_background(write: Callable[[], None]) -> concurrent.futures.Future:
    """Return a future for ``write()``, which a thread calls, so that Ctrl-C ends a wait for it and not the write."""
    done = concurrent.futures.Future()

    def run():
        try:
            write()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    unseen.add(done)
    try:
        start_thread(run, name="gemjax-checkpoint")
    except RuntimeError as error:  # The system has no more threads.
        done.set_exception(OSError(*error.args))
    return done


def _finish_writes() -> None:
    """Wait at the end of the interpreter for writes that nothing has waited for."""
    for done in list(unseen):
        if (error := done.exception()) is not None:
            print(f"gemjax: a checkpoint could not be written: {error!r}", file=sys.stderr)


# Functions are called in reverse order, this one before that of `concurrent.futures.thread`, which ends the pools of threads:
# Orbax needs them. `atexit` would be too late.
getattr(threading, "_register_atexit", atexit.register)(_finish_writes)
