"""Locks of files and folders, for what has one writer at a time."""

import contextlib
import errno
import itertools
import os
from collections.abc import Callable

try:
    import fcntl
except ImportError:  # Not a Unix system.
    fcntl = None

# What file systems without locks say.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_numbers = itertools.count()
_held: dict[int, int] = {}  # Open files by numbers that are given once; the system reuses those of closed files.


def lock(path: str | os.PathLike, flags: int = os.O_RDWR, *, strict: bool = False) -> int:
    """Lock a file or folder until :func:`unlock` or the end of the process. Where the file system has no locks, there is none.

    Args:
      path: what to lock.
      flags: those of ``os.open``.
      strict: True to raise errors of locking other than those of a file system without locks; False to go
        on without a lock after any error but ``BlockingIOError``.

    Returns:
      The argument of :func:`unlock`, a number that no other lock gets.

    Raises:
      BlockingIOError: if another one has locked it, in this process or elsewhere.
      OSError: if it cannot be opened.
    """
    if fcntl is None and os.path.isdir(path):  # Such systems do not open folders.
        return -1
    opened = os.open(path, flags, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        missing = isinstance(error, OSError) and not isinstance(error, BlockingIOError)
        if not missing or (strict and error.errno not in NO_LOCKS):
            os.close(opened)
            raise
    number = next(_numbers)
    _held[number] = opened
    return number


def unlock(number: int) -> None:
    """End a lock; a second call does nothing."""
    opened = _held.pop(number, None)
    if opened is not None:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                # A program that is just being started has a copy of the open file, with which the lock would go on.
                fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def close_after(raised: BaseException | None, close: Callable[[], None], words: str) -> None:
    """Close a writer at the end of a ``with`` block.

    If ``raised`` ends the block, an error of ``close`` becomes a note of it, because it may hold the result of a run.
    """
    try:
        close()
    except Exception as error:
        if raised is None:
            raise
        raised.add_note(f"{words}: {error}")
