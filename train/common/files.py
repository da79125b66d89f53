"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Most of what writes files draws nothing.
    from matplotlib.figure import Figure


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # There is no room for what was to be written.


def in_words(error: OSError) -> str:
    """One line that says what went wrong: the file, the cause and, if that is a full disk, the space that is free.

    >>> in_words(FileNotFoundError(errno.ENOENT, "No such file or directory", "originals.zip"))
    'originals.zip: No such file or directory'
    """
    if error.filename is None or error.strerror is None:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    if error.errno not in FULL:
        return f"{path}: {error.strerror}"
    from gemjax.engines.memory import readable  # Where something was written, JAX is imported already.

    return f"{path} could not be written: {error.strerror} ({readable(shutil.disk_usage(path.parent).free)} are free)"


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Gives an `OSError` the name of the file; what is raised while an open file is written has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def check_out(path: str | os.PathLike, flag: str = "--out") -> None:
    """Raises unless a folder can be made at `path`, or written to if it is there; makes nothing.

    Raises:
      OSError: with `flag`, the path, and what stands in the way.
    """
    path = Path(path)
    there = path.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"{flag} {path} cannot be made: {there} is not a folder; choose another one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{flag} {path} cannot be written: no permission to write in {there}; choose another one")


def append_whole(path: str | os.PathLike, line: str) -> None:
    """Appends a line, or nothing if there is no room for all of it."""
    with naming(path), open(path, "ab", buffering=0) as file:
        size, content = file.seek(0, os.SEEK_END), line.encode()
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            raise


def write_whole(path: str | os.PathLike, content: str | bytes | Iterable[str]) -> None:
    """Writes `content`, all at once or part by part; whoever reads `path`, after a crash too, finds all of it or what was
    there before. A link in its place is replaced, not followed."""
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # What a crash has left, or a link to somewhere else.
    try:
        with naming(path), open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            for part in [content] if isinstance(content, (str, bytes)) else content:
                file.write(part if isinstance(part, bytes) else part.encode())
            file.flush()
            os.fsync(file.fileno())  # Or a file might have its name and, after a power cut, no content.
    except OSError:
        unfinished.unlink(missing_ok=True)  # On a full disk it is in the way of what comes next.
        raise
    os.replace(unfinished, path)


def write_picture(path: str | os.PathLike, figure: Figure, dpi: int = 110) -> None:
    """Writes `figure` as PNG, as :func:`write_whole` does."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=dpi)
    write_whole(path, png.getvalue())
