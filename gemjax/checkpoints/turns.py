"""Calls of Orbax that no exception of a signal handler interrupts, and the turns of the threads that make them."""

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gemjax.engines.devices.hardware.compat import jax_is_in_use, settings_here

T = TypeVar("T")

PATIENCE = 300.0  # Seconds, after which a write that does not end, as on a broken file server, keeps no thread waiting.
_changed = threading.Condition()
_this_thread = threading.local()
_reading: list[int] = []  # Threads that read.
_writing: list["Write"] = []
_forked = False


def uninterrupted(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Return ``call()``, made by a thread of its own, and the exception that a signal handler raised meanwhile.

    The caller raises it afterwards. In an interrupted call threads of Orbax would wait without end, and the process with them,
    or the next read would find nothing. A second exception, or one with a true attribute ``at_once``, ends the wait, and the
    thread goes on alone. Inside of such a thread the call is made there.

    Raises:
      BaseException: that of ``call``; or that of a signal handler, if it ends the wait or ``call`` fails, too.
    """
    if getattr(_this_thread, "is_uninterrupted", False):
        return call(), None
    made: list[tuple[Any, BaseException | None]] = []
    once, ended = threading.Lock(), threading.Lock()
    settings, context = settings_here(), contextvars.copy_context()
    ended.acquire()

    def make() -> None:
        if not once.acquire(blocking=False):
            return
        _this_thread.is_uninterrupted = True
        try:
            with settings():
                made.append((context.run(call), None))
        except BaseException as error:
            made.append((None, error))
        finally:
            _this_thread.is_uninterrupted = False
            ended.release()

    def start() -> None:
        try:
            threading.Thread(target=make, name="gemjax-orbax", daemon=True).start()
        except RuntimeError as error:  # The system has no more threads, or the interpreter ends.
            if "new thread" not in str(error):
                raise
            make()

    started, interruption = False, None
    while not made:
        try:
            if not started:  # After an exception it is unknown whether the thread runs; a second one would do nothing.
                start()
                started = True
            while not made:  # In turns, because a signal that comes just before a wait does not end it.
                ended.acquire(timeout=1.0)
        except BaseException as error:
            if interruption is not None or getattr(error, "at_once", False):
                raise
            interruption = error
    value, failure = made.pop()
    if failure is not None:
        raise failure if interruption is None else interruption
    return value, interruption


class Write:
    """The turn of a write, which waits until no other thread reads. Several may write at a time."""

    def __init__(self):
        me = threading.get_ident()
        with _changed:
            _changed.wait_for(lambda: all(one == me for one in _reading), PATIENCE)
            _writing.append(self)

    def end(self) -> None:
        """End the turn; may be called again."""
        with _changed:
            if self in _writing:
                _writing.remove(self)
            _changed.notify_all()


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Wait until no other thread reads and none writes, and keep them waiting meanwhile; a thread may read while it reads.

    Raises:
      RuntimeError: in a forked process, see :func:`check_not_forked`.
    """
    check_not_forked()
    me = threading.get_ident()
    with _changed:
        _changed.wait_for(lambda: all(one == me for one in _reading) and not _writing, PATIENCE)
        _reading.append(me)
    try:
        yield
    finally:
        with _changed:
            _reading.remove(me)
            _changed.notify_all()


def check_not_forked() -> None:
    """Raise ``RuntimeError`` in a process forked from one that has used JAX, where compiling hangs and reading aborts."""
    if _forked:
        raise RuntimeError(
            "this process was forked from one that uses JAX, whose threads it does not have, so checkpoints cannot be read or "
            "written here; start it with multiprocessing.get_context('spawn'), or as a program of its own"
        )


def _begin_anew() -> None:
    """Forget the turns of threads that a forked process does not have."""
    global _changed, _forked
    # Without threads of JAX, those of TensorStore have not begun either.
    _forked = jax_is_in_use()
    _changed = threading.Condition()
    _reading.clear()
    _writing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
