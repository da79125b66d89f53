"""The original files of a data set, in a folder that the user names: found, or answered with what to put where."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from train.common.errors import DataError


def find(title: str, files: Iterable[str], manual_dir: str | None, mend: str) -> Path:
    """The folder `manual_dir`, which holds `files`.

    Raises:
      FileNotFoundError: if it does not, or none is given; the message ends with `mend`.
    """
    if manual_dir is None:
        raise FileNotFoundError(f"{title} is not prepared yet and no manual_dir is given. {mend}")
    folder = Path(manual_dir).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{title}: there is no folder {folder}. {mend}")
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise FileNotFoundError(f"{title}: {folder} lacks {', '.join(missing)}. {mend}")
    return folder


def check(title: str, file: Path, size: int | None, sha256: str) -> None:
    """Compare a file with what is registered of it: bytes, where `size` is given, and SHA-256.

    Raises:
      DataError: if it is another file, or a part of it.
    """
    if size is not None and file.stat().st_size != size:
        raise DataError(f"{file} has {file.stat().st_size:,} bytes, but {title}'s file has {size:,}")
    with file.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
            raise DataError(f"{file} is not {title}'s file: its SHA-256 differs")
