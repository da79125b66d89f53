"""The lock of a folder of checkpoints: its holder is the only writer, so unfinished files are those of dead writers."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Not a Unix system.
    fcntl = None

LOCK = "writing.lock"  # A file, because network file systems lock nothing that cannot be opened for writing.
PATIENCE = 300.0  # Seconds.
NO_LOCKS = (
    errno.ENOLCK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EINVAL,
)  # What file systems without locks say.
_busy: set[tuple[Path, int]] = set()  # Folders and threads that are inside ``alone_in``.
_held: set[int] = set()  # Locked files of this process.


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
    _busy.add(me)
    try:
        yield
    finally:
        _busy.discard(me)


def hold(folder: Path) -> Callable[[], None]:
    """Wait until no other object or process writes to ``folder``, and keep others out until the returned function is called.

    The lock ends at the latest with its process. Where the file system has no locks, there is none.

    Raises:
      BlockingIOError: if another one writes for longer than ``PATIENCE``.
      OSError: if the folder cannot be written to.
    """
    path, deadline = folder / LOCK, time.monotonic() + PATIENCE
    while (held := _try(path)) is None:
        if time.monotonic() >= deadline:
            raise BlockingIOError(
                f"another process, or another object of this one, has been writing there for {PATIENCE:g} s; wait for its "
                "end, stop it, or give another folder"
            )
        time.sleep(0.02)
    _held.add(held)

    def release() -> None:
        nonlocal held
        mine, held = held, None
        if mine is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # While it is locked, so that no other writer has locked this file.
            _held.discard(mine)
            with contextlib.suppress(OSError):
                os.close(mine)

    return release


def _try(path: Path) -> int | None:
    """Return the locked file, or ``None`` if another one has locked it or has just removed it."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(opened), os.stat(path)):
            return opened
    except OSError as error:
        if error.errno in NO_LOCKS:
            return opened
        if not isinstance(error, (BlockingIOError, FileNotFoundError)) and error.errno != errno.ESTALE:
            os.close(opened)
            raise
    os.close(opened)
    return None


def _forget() -> None:
    """Close the locked files in a forked process, which does not write them and may live longer than the one that does."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
