"""The event log of a run: one JSON object a line, written as things happen, read as data only."""

import json
import math
import os
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from gemjax.trace import COLUMNS, Trace

EVENTS = (
    "start", "dispatch", "ready", "commit", "drop", "reject", "fault", "retire", "hang", "late", "join", "leave", "end",
)  # fmt: skip


class EventLog:
    """Appends events to a JSONL file.

    Every line has ``event`` (one of ``gemjax.eventlog.EVENTS``) and ``time`` (seconds since the run began, or virtual time).
    ``dispatch`` adds worker and step; ``ready`` too; ``commit``, ``reject`` (it was not finite) and ``drop`` (the method
    refused it) add worker, step, ``pulled_at`` (the version that was read), ``draw`` (see :class:`gemjax.Trace`), staleness,
    ``loss`` (``null`` if not finite) and what diagnostics were asked for.

    Args:
      path: the file; appended to if it exists, so a resumed run continues its log (a last line that a crash cut short is
        taken off first).
    """

    def __init__(self, path: str | os.PathLike):
        _drop_cut_line(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

    def write(self, event: str, time: float, **fields: Any) -> None:
        """Appends one event; floats that are not finite become ``null``."""
        record = {"event": event, "time": round(time, 6)} | {name: _plain(value) for name, value in fields.items()}
        self._file.write(self._encode(record) + "\n")

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The events of a log, in order.

    Raises:
      ValueError: if a line is not an event; the message names file and line. A last line cut short by a crash is left out.
    """
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            try:
                record = json.loads(line)
                valid = isinstance(record, dict) and record.get("event") in EVENTS and "time" in record
            except json.JSONDecodeError:
                record, valid = {}, False
            if not valid:
                raise ValueError(
                    f"{os.fspath(path)}, line {number}: not an event of a gemjax log: {line.strip()[:80]!r}"
                )
            yield record


def trace_of(path: str | os.PathLike, num_workers: int) -> Trace:
    """The trace that a log records: its applied commits.

    A run that was continued from a checkpoint older than its log makes some commits again: those replace the first ones.
    """
    commits: list[dict[str, Any]] = []
    for event in read(path):
        if event["event"] == "start":
            del commits[event.get("commits", 0) :]
        elif event["event"] == "commit":
            commits.append(event)
    names = [
        name for name in COLUMNS if name != "draw" or all("draw" in event for event in commits)
    ]  # Older logs: none.
    columns = {name: np.array([event[name] for event in commits]) for name in names}
    return Trace(**columns, num_workers=num_workers)


def _drop_cut_line(path: str | os.PathLike) -> None:
    """Takes off what follows the last line break; a new event would otherwise be glued to it."""
    if not os.path.exists(path):
        return
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            begin = max(0, end - 4096)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
