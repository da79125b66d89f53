"""The lock of a folder of checkpoints: its holder is the only writer, so unfinished files are those of dead writers."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gemjax.engines.running.interrupts import Held
from gemjax.telemetry.locks import lock, unlock

LOCK = "writing.lock"  # A file, because network file systems lock nothing that cannot be opened for writing.
PATIENCE = 300.0  # Seconds.
_busy: set[tuple[Path, int]] = set()  # Folders and threads that are inside ``alone_in``.


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Mark this thread as one that prepares a write, which a signal handler may interrupt to begin another one.

    Raises:
      BlockingIOError: if the thread prepares one already: it would wait for itself.
    """
    me = folder, threading.get_ident()
    if me in _busy:
        raise BlockingIOError(
            "this thread is saving there already; let the signal handler set a flag, and save afterwards"
        )
    try:
        _busy.add(me)
        yield
    finally:
        _busy.discard(me)


def hold(folder: Path, held: Held) -> Callable[[], None]:
    """Wait until no other object or process writes to ``folder``, and keep others out until the returned function is called.

    The lock ends at the latest with its process. Where the file system has no locks, there is none. Inside of ``held`` the
    first Ctrl-C ends the waiting, and does not come between a lock and its release.

    Raises:
      BlockingIOError: if another one writes for longer than ``PATIENCE``.
      OSError: if the folder cannot be written to.
    """
    path, deadline = folder / LOCK, time.monotonic() + PATIENCE
    while (mine := _try(path)) is None:
        if time.monotonic() >= deadline:
            raise BlockingIOError(
                f"another process, or another object of this one, has been writing there for {PATIENCE:g} s; wait for its "
                "end, stop it, or give another folder"
            )
        with held.open():
            time.sleep(0.02)
    locked: int | None = mine

    def release() -> None:
        nonlocal locked
        mine, locked = locked, None
        if mine is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # While it is locked, so that no other writer has locked this file.
            with contextlib.suppress(OSError):
                unlock(mine)

    return release


def _try(path: Path) -> int | None:
    """Return the locked file, or ``None`` if another one has locked it or has just removed it."""
    try:
        opened = lock(path, os.O_RDWR | os.O_CREAT, strict=True)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        raise
    try:
        if os.path.samestat(os.fstat(opened), os.stat(path)):
            return opened
    except BaseException as error:  # Also Ctrl-C.
        if not isinstance(error, FileNotFoundError) and getattr(error, "errno", None) != errno.ESTALE:
            unlock(opened)
            raise
    unlock(opened)
    return None
