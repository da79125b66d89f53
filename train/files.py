"""Files that are there whole or not at all."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Writes `text`; whoever reads `path`, after a crash too, finds all of it or what was there before."""
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # Or a file might have its name and, after a power cut, no content.
    os.replace(unfinished, path)
