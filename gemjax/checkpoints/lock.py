"""The lock of a folder of checkpoints: its holder is the only writer, so unfinished files are those of dead writers."""

import os
import time
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # Not a Unix system.
    fcntl = None

LOCK = "writing.lock"  # A file, because network file systems lock nothing that cannot be opened for writing.
PATIENCE = 300.0  # Seconds.


def hold(folder: Path) -> Callable[[], None]:
    """Wait until no other object or process writes to ``folder``, and keep others out until the returned function is called.

    The lock ends with its process at the latest. Where the file system has no locks, there is none.

    Raises:
      BlockingIOError: if another one writes for longer than ``PATIENCE``.
    """
    path, deadline = folder / LOCK, time.monotonic() + PATIENCE
    while (held := _try(path)) is None:
        if time.monotonic() >= deadline:
            raise BlockingIOError(
                f"another process, or another object of this one, has been writing there for {PATIENCE:g} s; wait for its "
                "end, stop it, or give another folder"
            )
        time.sleep(0.02)

    def release() -> None:
        nonlocal held
        if held is not None:
            path.unlink(missing_ok=True)  # While it is locked, so that no other writer has locked this file.
            os.close(held)
            held = None

    return release


def _try(path: Path) -> int | None:
    """Return the locked file, or ``None`` if another one has locked it or has just removed it."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(opened), os.stat(path)):
            return opened
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # Such as a network file system without locks.
        return opened
    os.close(opened)
    return None
