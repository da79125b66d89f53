"""Turns at Orbax of the threads of one process: it cannot write in one thread while it reads or writes in another."""

import contextlib
import os
import threading
from collections.abc import Iterator

from gemjax.protocol.compat import jax_is_in_use

PATIENCE = 300.0  # Seconds, after which a write that does not end, as on a broken file server, keeps no thread waiting.
_changed = threading.Condition()
_reading: list[int] = []  # Threads that read.
_writing: list["Write"] = []
_forked = False


class Write:
    """The turn of a write, which begins when no other thread reads or writes, nor finishes a write in the background."""

    def __init__(self):
        self._thread: int | None = threading.get_ident()

    def begin(self) -> "Write":
        """Begin the turn.

        Raises:
          BlockingIOError: if others have not ended in time.
        """
        with _changed:
            if not _changed.wait_for(lambda: _is_free(self._thread), PATIENCE):
                raise BlockingIOError(f"another thread of this process has read or written for {PATIENCE:.0f} s")
            _writing.append(self)
        return self

    def is_of(self, thread: int | None) -> bool:
        """Return True if ``thread`` itself has begun this write, as when a signal handler reads meanwhile."""
        return self._thread == thread

    def in_background(self) -> None:
        """Let another thread finish the write, for which this one may wait."""
        self._thread = None

    def end(self) -> None:
        """End the turn; may be called again."""
        with _changed:
            if self in _writing:
                _writing.remove(self)
            _changed.notify_all()


def is_writing() -> bool:
    """Return True if a thread writes, or finishes a write in the background."""
    return bool(_writing)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Wait until no other thread reads or writes, and keep them waiting meanwhile.

    Raises:
      RuntimeError: in a forked process, see :func:`check_not_forked`.
    """
    check_not_forked()
    me = threading.get_ident()
    with _changed:
        _changed.wait_for(lambda: _is_free(me), PATIENCE)
        _reading.append(me)
    try:
        yield
    finally:
        with _changed:
            _reading.remove(me)
            _changed.notify_all()


def _is_free(thread: int | None) -> bool:
    """Return True if nothing reads or writes but ``thread``, whose signal handler may do so meanwhile."""
    return all(one == thread for one in _reading) and all(write.is_of(thread) for write in _writing)


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
