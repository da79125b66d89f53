"""The event log of a run: one JSON object a line, written as things happen, read as data only."""

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from gemjax.trace import Trace

EVENTS = ("start", "dispatch", "ready", "commit", "reject", "fault", "retire", "end")


class EventLog:
    """Appends events to a JSONL file.

    Every line has ``event`` (one of ``gemjax.eventlog.EVENTS``) and ``time`` (seconds since the run began, or virtual time).
    ``dispatch`` adds worker and step; ``ready`` too; ``commit`` and ``reject`` add worker, step, ``pulled_at`` (the version
    that was read), staleness, ``loss`` (``null`` if not finite) and what diagnostics were asked for.

    Args:
      path: the file; appended to if it exists, so a resumed run continues its log.
    """

    def __init__(self, path: str | os.PathLike):
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

    def __enter__(self) -> "EventLog":
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
                valid = False
            if not valid:
                raise ValueError(f"{os.fspath(path)}, line {number}: not an event of a gemjax log: {line.strip()[:80]!r}")
            yield record


def trace_of(path: str | os.PathLike, num_workers: int) -> Trace:
    """The trace that a log records: its applied commits."""
    commits = [event for event in read(path) if event["event"] == "commit"]
    columns = {name: np.array([event[name] for event in commits]) for name in ("worker", "pulled_at", "step", "time")}
    return Trace(**columns, num_workers=num_workers)


def _plain(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return round(float(value), 9) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
