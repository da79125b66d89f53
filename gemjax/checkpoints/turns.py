"""Turns at Orbax of the threads of one process, which no exception of a signal handler interrupts."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from gemjax.engines.devices.hardware.compat import jax_is_in_use, settings_here

T = TypeVar("T")

PATIENCE = 300.0  # Seconds, after which a write that does not end, as on a broken file server, keeps no thread waiting.
_changed = threading.Condition()
_reading: list[int] = []  # Threads that read: one, unless patience has ended.
_writing: list["Write"] = []
_forked = False


def uninterrupted(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Return ``call()``, made by a thread of its own, and the exception that a signal handler raised meanwhile.

    The caller raises it then. In an interrupted call threads of Orbax would wait without end, and the process with them, or
    the next read would find nothing. A second exception ends the wait.

    Raises:
      BaseException: that of ``call``; or that of a signal handler, if a second one or that of ``call`` follows.
    """
    done: Future[T] = Future()
    once, settings = threading.Lock(), settings_here()

    def make() -> None:
        if not once.acquire(blocking=False):
            return
        try:
            with settings():
                done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    def start() -> None:
        try:
            threading.Thread(target=make, name="gemjax-orbax", daemon=True).start()
        except RuntimeError as error:  # The system has no more threads, or the interpreter ends.
            if "new thread" not in str(error):
                raise
            make()

    started, interruption = False, None
    while True:
        try:
            if not started:  # After an exception it is unknown whether the thread runs; a second one would do nothing.
                start()
                started = True
            while not done.done():  # In turns, because a signal that comes just before a wait does not end it.
                wait([done], 1.0)
            return done.result(), interruption
        except BaseException as error:
            if interruption is not None:
                raise interruption from None
            if done.done() and error is done.exception():
                raise
            interruption = error


class Write:
    """The turn of a write, which waits until no thread reads. Several may write at a time."""

    def __init__(self):
        with _changed:
            _changed.wait_for(lambda: not _reading, PATIENCE)
            _writing.append(self)

    def end(self) -> None:
        """End the turn; may be called again."""
        with _changed:
            if self in _writing:
                _writing.remove(self)
            _changed.notify_all()


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Wait until no thread reads or writes, and keep others waiting meanwhile.

    Raises:
      RuntimeError: in a forked process, see :func:`check_not_forked`.
    """
    check_not_forked()
    me = threading.get_ident()
    with _changed:
        _changed.wait_for(lambda: not _reading and not _writing, PATIENCE)
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
