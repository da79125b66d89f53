"""Files that are there whole or not at all."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Writes `text`; whoever reads `path`, after a crash too, finds all of it or what was there before."""
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
