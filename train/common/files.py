"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import shlex
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from train.common.errors import UsageError

if TYPE_CHECKING:  # Most commands that write files draw nothing.
    from matplotlib.figure import Figure


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # Errors of a full disk.


def in_shell(path: str | os.PathLike) -> str:
    """Return a path as one word of a command line that is no flag and no home folder.

    >>> in_shell("my runs"), in_shell("-a"), in_shell("~/a")
    ("'my runs'", './-a', "'./~/a'")
    """
    word = os.fspath(path)
    return shlex.quote(f"./{word}" if word.startswith(("-", "~")) else word)


def in_words(error: OSError) -> str:
    """Return an error in one line: the file, the cause and, if the disk is full, the free space.

    >>> in_words(FileNotFoundError(errno.ENOENT, "No such file or directory", "originals.zip"))
    'originals.zip: No such file or directory'
    """
    if error.filename is None or error.strerror is None:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    if error.errno not in FULL:
        return f"{path}: {error.strerror}"
    from gemjax.engines.memory import readable  # A command that has written a file has imported JAX already.

    # The folder of the file may be removed already.
    folder = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    return f"{path} could not be written: {error.strerror} ({readable(shutil.disk_usage(folder).free)} are free)"


def numbered(path: Path) -> Iterator[Path]:
    """Yield a path, and others with a number behind its name."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


def reserve(path: Path) -> Path:
    """Create a new folder, with a number behind its name if that is taken, and return its path."""

    def is_made(path: Path) -> bool:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            return False
        return True

    return next(filter(is_made, numbered(path)))


def release(path: Path) -> None:
    """Remove a reserved folder, and the one of all runs, if nothing is in it."""
    with contextlib.suppress(OSError):
        path.rmdir()
        path.parent.rmdir()


def check_out(path: str | os.PathLike, flag: str = "--out") -> None:
    """Check that a folder can be made at `path`, or written to if it exists; nothing is made.

    Raises:
      UsageError: if not, or if it is the address of a bucket or the like.
    """
    if ":/" in os.fspath(path):
        from gemjax.protocol.checks import told_of_address  # This imports JAX, and most paths are no addresses.

        if wrong := told_of_address(path):
            raise UsageError(f"{flag} {wrong}")
    existing = Path(path).absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"{flag} {path} cannot be made: {existing} is no folder with permission to write; choose another one"
        )


@contextlib.contextmanager
def alone(folder: str | os.PathLike) -> Iterator[None]:
    """Lock a folder against other processes that do the same, where the file system has locks.

    The lock is no file, and ends with the process at the latest.

    Raises:
      BlockingIOError: if another process has locked the folder.
    """
    from gemjax.telemetry.locks import lock, unlock  # A command that locks a folder has imported JAX already.

    try:
        locked = lock(folder, os.O_RDONLY)
    except BlockingIOError:
        raise BlockingIOError(
            f"{folder} is in use by another process, such as a run that goes on; wait for its end, or stop it"
        ) from None
    try:
        yield
    finally:
        unlock(locked)


def sync(path: Path) -> None:
    """Flush a file to disk, if it exists."""
    if path.exists():
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def append_whole(path: str | os.PathLike, line: str) -> None:
    """Append a line, or nothing if the disk has no room for all of it."""
    with open(path, "ab", buffering=0) as file:
        size, content = file.seek(0, os.SEEK_END), line.encode()
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            error.filename = os.fspath(path)
            file.truncate(size)
            raise


def write_whole(path: str | os.PathLike, content: str | bytes | Iterable[str]) -> None:
    """Write `content`, all at once or part by part.

    A reader of `path` finds all of it or the previous content, after a crash too. Links are followed, and a device such as
    `/dev/null` is written to.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # Opening a folder is an error.
        with open(path, "wb") as device:
            _write_parts(device, content)
        return
    path = path.resolve()
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.unfinished")  # Another process may write it, too.
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            _write_parts(file, content)
            file.flush()
            os.fsync(file.fileno())  # Otherwise a power cut could leave the name without the content.
        os.replace(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()  # On a full disk it would take the room of the next file.
        if isinstance(error, OSError):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _write_parts(file: IO[bytes], content: str | bytes | Iterable[str]) -> None:
    for part in [content] if isinstance(content, (str, bytes)) else content:
        file.write(part if isinstance(part, bytes) else part.encode(errors="surrogateescape"))


def write_picture(path: str | os.PathLike, figure: Figure) -> None:
    """Write `figure` with :func:`write_whole`, in the format of the name's ending, such as PDF; without an ending as PNG."""
    picture, kind = io.BytesIO(), Path(path).suffix[1:] or "png"
    # A date in the file would change it each time.
    figure.savefig(picture, format=kind, dpi=200, metadata={"CreationDate": None} if kind == "pdf" else None)
    write_whole(path, picture.getvalue())
