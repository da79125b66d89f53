"""Files that a run appends lines to, checked against their sizes and checksums in a checkpoint."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.common.errors import RecordError

CHUNK = 1 << 20  # Bytes to read at once.


class Record:
    """A file that a run appends lines to. A checkpoint holds its size and its checksum at that moment.

    Args:
      path: the file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._hash, self._hashed = hashlib.sha256(), 0

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def sync(self) -> None:
        """Flush the file to disk, if it exists."""
        if self.path.exists():
            with open(self.path, "rb+") as file:
                os.fsync(file.fileno())

    def checksum(self, size: int) -> str:
        """Return the SHA-256 of the first `size` bytes; those of an earlier call are not read again."""
        if size < self._hashed:
            self._hash, self._hashed = hashlib.sha256(), 0
        if size > self._hashed:
            with open(self.path, "rb") as file:
                file.seek(self._hashed)
                while self._hashed < size and (part := file.read(min(CHUNK, size - self._hashed))):
                    self._hash.update(part)
                    self._hashed += len(part)
        return self._hash.hexdigest()

    def ends_a_line(self, size: int) -> bool:
        """Return True if the first `size` bytes are whole lines."""
        if size == 0:
            return True
        with open(self.path, "rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def check_size(self, size: int, checkpoint: str) -> None:
        """Check that the file has the lines that it had when a checkpoint was written.

        Raises:
          RecordError: if not.
        """
        remedy = "restore the file, or start a new run in another folder"
        if self.size < size:
            raise RecordError(
                f"{self.path} has {self.size} bytes, but had {size} when {checkpoint} was written: lines are missing at its "
                f"end; {remedy}"
            )
        if not self.ends_a_line(size):
            raise RecordError(
                f"{self.path} was changed: no line ends where the file ended when {checkpoint} was written; {remedy}"
            )

    def check_content(self, size: int, expected: str, checkpoint: str) -> None:
        """Check that the first `size` bytes have the checksum that they had when a checkpoint was written.

        Raises:
          RecordError: if not.
        """
        if self.checksum(size) != expected:
            raise RecordError(
                f"{self.path} was changed after {checkpoint} was written: the checksum of its first {size} bytes is another; "
                "restore the file, or start a new run in another folder"
            )


def check_records(records: Mapping[str, Record], checkpoint: Mapping[str, Any], path: Path) -> None:
    """Check records against the sizes and checksums in the metadata of a checkpoint.

    Args:
      records: the records by name.
      checkpoint: the metadata.
      path: folder of the checkpoints.

    Raises:
      RecordError: if a record is shorter than it was then, or was changed.
    """
    sizes, named = sizes_of(checkpoint, records, path), f"the checkpoint in {path}"
    for name, record in records.items():
        record.check_size(sizes[name], named)
    checksums = checkpoint.get("sha256")  # Older checkpoints have none.
    for name, expected in (checksums if isinstance(checksums, dict) else {}).items():
        if name in records:
            records[name].check_content(sizes[name], expected, named)


def sizes_of(found: Any, names: Mapping[str, Record], where: Path) -> dict[str, int]:
    """Return the sizes of the records in the metadata of a checkpoint.

    Raises:
      RecordError: if it has no valid size of a record.
    """
    sizes = {name: found.get(name) for name in names}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise RecordError(
                f"the checkpoint in {where} has no size of {names[name].path.name} ({name} is {ascii(size)[:60]}), so this "
                "run cannot be resumed; start a new run in another folder"
            )
    return sizes
