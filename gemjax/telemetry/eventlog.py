"""The event log of a run: one JSON object a line, written as things happen, read as data only."""

import json
import math
import os
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from gemjax.protocol.trace import COLUMNS, Trace
from gemjax.telemetry.order import Succession
from gemjax.telemetry.schema import EVENTS, LONGEST_LINE, NEEDED, parse

__all__ = ["EVENTS", "NEEDED", "EventLog", "read", "trace_of"]

LINE_BEGINS = b'{"event":"'


class EventLog:
    """Appends events to a JSONL file.

    Every line has ``event`` (one of ``gemjax.eventlog.EVENTS``) and ``time`` (seconds since the run began, or virtual time, up
    to 2**43). ``start`` adds the number of workers, the commits made before, and the devices. ``dispatch`` adds worker and
    step; ``ready`` too, and ``began``, the time when the worker had its view. ``commit``, ``reject`` (it was not finite) and
    ``drop`` (the method refused it) add worker, step, ``pulled_at`` (the version that was read), ``draw`` (see
    :class:`gemjax.Trace`), staleness, ``loss`` (``null`` if not finite) and what diagnostics were asked for. ``fault`` adds
    worker, step and ``error``; ``retire`` (it kept raising) and ``end`` (it has made its commits) the worker; ``pause`` the
    ``seconds`` that a callback took; ``idle`` for how many seconds nothing had happened.

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

    def sync(self) -> None:
        """Has what was written on disk, power cuts notwithstanding; for what is to know how long the log is."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The events of a log, in order, each checked before it is handed out.

    A log is data: JSON, nothing else, and never trusted. A crash leaves at most one line cut short, the last; it is left
    out, as :class:`EventLog` takes it off when the run goes on.

    Raises:
      ValueError: if the file is no event log, was damaged, or was changed: a line that is not JSON, an unknown event, a
        field that is missing or of another kind, a worker out of range, a line that does not follow from those before
        (commits, drops and rejects by clock, step, draw and time; on devices what was sent off and ready, too; a start by
        the commits it goes on after). The message names file, line and what is wrong. Whole lines that are missing at the
        end are what a crash leaves, and other numbers of the right kind what another run leaves: no reader can tell.
    """
    name = os.fspath(path)
    succession = Succession()
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
            try:
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    _check_cut_line(line)
                    return
                record = parse(line)
                succession.check(record)
            except ValueError as error:
                shown = line[:80].decode(errors="replace").strip()
                raise ValueError(
                    f"{name}, line {number}: not an event of a gemjax log: {error}; the line is {shown!r}"
                ) from None
            yield record


def trace_of(path: str | os.PathLike, num_workers: int) -> Trace:
    """The trace that a log records: its applied commits.

    A run that was continued from a checkpoint older than its log makes some commits again: those replace the first ones.

    Raises:
      ValueError: as :func:`read` does, or if the commits are no trace of ``num_workers`` workers.
    """
    columns: dict[str, list] = {name: [] for name in COLUMNS}
    drawn = True
    for number, event in enumerate(read(path)):
        if event["event"] == "start":
            if number == 0 and event.get("commits", 0):
                raise ValueError(
                    f"{os.fspath(path)}: it begins after {event['commits']} commits, which are no part of it"
                )
            for column in columns.values():
                del column[event.get("commits", 0) :]
        elif event["event"] == "commit":
            drawn = drawn and "draw" in event  # Older logs have none.
            for name, column in columns.items():
                column.append(event.get(name))
    if not drawn:
        del columns["draw"]
    try:
        return Trace(**{name: np.array(column) for name, column in columns.items()}, num_workers=num_workers)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: its commits are no trace of {num_workers} workers: {error}") from error


def _check_cut_line(line: bytes) -> None:
    """A file without line breaks may be anything; what a crash leaves begins like an event."""
    if not line.startswith(LINE_BEGINS[: len(line)]):
        raise ValueError("the last line is neither whole nor the beginning of an event")


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
