"""Errors of checkpoints, with the folder, the cause and the advice in one message."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gemjax.engines.memory import readable

# TensorStore raises ValueErrors.
IO_ERROR = re.compile("os_error_code=|(Error|Failed) writing|RESOURCE_EXHAUSTED")
ADVICE = "restore it from a copy, remove its folder to continue from an earlier checkpoint if there is one, or start a new run"


class CheckpointError(ValueError):
    """A checkpoint that is damaged, of another run, or not written by gemjax; or a state that is not finite, and not saved.

    The message, one line, names the folder.
    """


class CheckpointWriteError(OSError):
    """A checkpoint that could not be written, for example because the disk is full; earlier ones remain valid.

    The message names the folder, the cause, the free space, and the newest good checkpoint.
    """

    def __str__(self) -> str:
        return self.strerror or super().__str__()


def is_io_error(error: BaseException) -> bool:
    """Return True if the error is one of I/O or memory, and not one of the program."""
    return isinstance(error, (OSError, MemoryError)) or IO_ERROR.search(str(error)) is not None


@contextlib.contextmanager
def reading(checkpoint: str) -> Iterator[None]:
    """Raise :class:`CheckpointError` if Orbax refuses to read; its messages have many lines and do not name the folder.

    An error of I/O or memory is raised as it is, because the checkpoint may be good.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if is_io_error(cause):
                raise cause from None
            cause = cause.__cause__
        first_line = ascii(str(error).strip().partition("\n")[0][:160])[1:-1]
        raise CheckpointError(
            f"{checkpoint} cannot be read into this run's state; it is damaged, or of another method "
            f"({type(error).__name__}: {first_line}); {ADVICE}"
        ) from error


def write_error(error: Exception, folder: Path, commits: int, size: int, newest: int | None) -> CheckpointWriteError:
    """Make the error of a failed write.

    Args:
      error: error of the write.
      folder: folder of the checkpoints.
      commits: commits of the checkpoint that could not be written.
      size: bytes of its arrays.
      newest: commits of the newest good checkpoint; ``None`` if there is none.
    """
    first_line = str(error).strip().partition("\n")[0][:200]
    number, cause = getattr(error, "errno", None), f"{type(error).__name__}: {first_line}".removesuffix(": ")
    if found := re.search(r"os_error_code='(\d+)'", str(error)):
        number = int(found[1])
    if number is not None:
        cause = os.strerror(number)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return CheckpointWriteError(
        number,
        f"{folder}: the checkpoint of {commits} commits could not be written: {cause} (its arrays take "
        f"{readable(size)}, {readable(shutil.disk_usage(there).free)} are free); "
        + ("there is no other" if newest is None else f"the newest good one is of {newest} commits"),
    )
