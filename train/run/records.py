"""Records of a run, event log and metrics: writing, checksums, and the checks before a command uses them."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gemjax
from gemjax import Trace
from gemjax.telemetry import eventlog
from train.common.errors import RecordError
from train.common.files import naming

METRICS = ("commits", "time", "test_loss", "test_accuracy")  # Required fields of a line of metrics.
FURTHER = ("train_loss", "gap", "rejected", "dropped")  # Its other fields.
INCREASING = ("commits", "time")  # Fields of metrics that never decrease.
CHUNK = 1 << 20  # Bytes to read at once.
ROUNDED = 2e-6  # The log has times in microseconds.


class RunLog(gemjax.EventLog):
    """The event log of a run; its errors name the file.

    Args:
      path: file of the log.
      on_commit: called after each commit is written.
    """

    def __init__(self, path: str | os.PathLike, on_commit: Callable[[], None]):
        super().__init__(path)
        self._path, self._on_commit = path, on_commit

    def write(self, event: str, time: float, **fields: Any) -> None:
        try:  # A context manager is too slow for each event.
            super().write(event, time, **fields)
        except OSError as error:
            error.filename = os.fspath(self._path)
            raise
        if event == "commit":
            self._on_commit()

    def flush(self) -> None:
        with naming(self._path):
            super().flush()

    def sync(self) -> None:
        with naming(self._path):
            super().sync()

    def close(self) -> None:
        with naming(self._path):
            super().close()

    def check_continued(self, trace: gemjax.Trace) -> None:
        """Check nothing again: the log was compared with the checkpoint when the run was restored."""


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


def read_metrics(path: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """Read metrics as columns; values that were not finite are NaN, and an incomplete last line is skipped.

    Args:
      path: the file; without it there are no columns.
      size: bytes to read; all if `None`.

    Raises:
      ValueError: if a line was not written by a run, or is not later than the one before; the message names file and line.
    """
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        lines = file.read(-1 if size is None else size).split(b"\n")[:-1]
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines, start=1):
        rows.append(_metrics(line, f"{path}, line {number}", rows[-1] if rows else {}))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _metrics(line: bytes, where: str, before: Mapping[str, float]) -> dict[str, float]:
    """Parse one line of metrics; `where` names file and line in errors, `before` is the line before."""
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or any(isinstance(value, (str, list, dict)) for value in row.values()):
            raise ValueError("expected an object of numbers")
        if missing := [name for name in METRICS if name not in row]:
            raise ValueError(f"it has no {', '.join(missing)}")
        if unknown := row.keys() - {*METRICS, *FURTHER}:
            raise ValueError(f"it has an unknown field {ascii(min(unknown))[:60]}")
        values = {name: math.nan if value is None else value for name, value in row.items()}
        values = {name: value if abs(value) < 2**53 else float(value) for name, value in values.items()}  # Keeps ints.
        for name in INCREASING:
            value, earlier = values[name], before.get(name, 0)
            if not earlier <= value < math.inf or (name == "commits" and before and value == earlier):
                raise ValueError(f"{name} is {value} after {earlier}: lines are missing, repeated or out of order")
        return values
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}: not metrics of a run: {error}; the line is {line[:80]!r}") from error


def check_trace(logged: Trace, recorded: Trace, path: Path, size: int, applied: int) -> None:
    """Check that the log up to a checkpoint has the commits of the trace in that checkpoint.

    Args:
      logged: trace of the log.
      recorded: trace of the checkpoint.
      path: file of the log.
      size: bytes of the log up to the checkpoint.
      applied: applied commits at the checkpoint; the trace of a simulation also has others, and is then not compared.

    Raises:
      RecordError: if not, with the line of the first commit that differs.
    """
    remedy = "restore the file, or start a new run in another folder"
    if len(logged) != applied:
        raise RecordError(
            f"{path} has {len(logged)} commits up to the checkpoint, but the checkpoint has {applied}; {remedy}"
        )
    if len(recorded) != applied:
        return
    for name in ("worker", "pulled_at", "step", "time"):
        ours, theirs = getattr(logged, name), getattr(recorded, name)
        rounding = 1e-12 * np.abs(theirs) + ROUNDED if name == "time" else 0
        differs = np.flatnonzero(np.abs(ours - theirs) > rounding)
        if len(differs):
            row = differs[0]
            raise RecordError(
                f"{path}, line {_lines(path, size)[row]}: {name} of commit {row} is {ours[row]}, but {theirs[row]} in the "
                f"checkpoint; {remedy}"
            )


def _lines(path: Path, size: int) -> list[int]:
    """Return the line of each commit."""
    lines: list[int] = []
    for number, event in enumerate(eventlog.read(path, size), start=1):
        if event["event"] == "start":
            del lines[event.get("commits", 0) :]
        elif event["event"] == "commit":
            lines.append(number)
    return lines


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


def settings_of(found: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the settings in the metadata of a checkpoint, each with the commits before it; those of older versions have none.

    Raises:
      RecordError: if they are damaged.
    """
    settings = found.get("settings", [])
    try:
        return [
            (int(commits), {str(name): float(value) for name, value in fields.items()}) for commits, fields in settings
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"the settings in the checkpoint are damaged: {ascii(settings)[:60]}") from error
