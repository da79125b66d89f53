"""Files that are there whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Most of what writes files draws nothing.
    from matplotlib.figure import Figure


class RecordError(ValueError):
    """What a run has recorded is damaged; one line that says what, and what to do about it."""


def write_whole(path: str | os.PathLike, content: str | bytes | Iterable[str]) -> None:
    """Writes `content`, all at once or part by part; whoever reads `path`, after a crash too, finds all of it or what was
    there before. A link in its place is replaced, not followed."""
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # What a crash has left, or a link to somewhere else.
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        for part in [content] if isinstance(content, (str, bytes)) else content:
            file.write(part if isinstance(part, bytes) else part.encode())
        file.flush()
        os.fsync(file.fileno())  # Or a file might have its name and, after a power cut, no content.
    os.replace(unfinished, path)


def write_picture(path: str | os.PathLike, figure: Figure, dpi: int = 110) -> None:
    """Writes `figure` as PNG, as :func:`write_whole` does."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=dpi)
    write_whole(path, png.getvalue())
