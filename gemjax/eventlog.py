"""The event log of a run: one JSON object a line, written as things happen, read as data only."""

import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from gemjax.trace import COLUMNS, Trace

EVENTS = (
    "start", "dispatch", "ready", "commit", "drop", "reject", "fault", "retire", "hang", "late", "join", "leave", "end",
    "pause", "idle",
)  # fmt: skip

# What is checked when a log is read: fields that an event cannot do without besides its time, and kinds of fields;
# whatever else was measured is a number or null.
_CYCLE = ("worker", "step")
NEEDED = {
    "dispatch": _CYCLE,
    "ready": _CYCLE,
    "commit": (*_CYCLE, "pulled_at"),
    "drop": (*_CYCLE, "pulled_at"),
    "reject": (*_CYCLE, "pulled_at"),
    "fault": _CYCLE,
    "retire": ("worker",),
    "hang": _CYCLE,
    "late": _CYCLE,
    "join": ("worker",),
    "leave": ("worker",),
    "end": ("worker",),
    "pause": ("seconds",),
    "idle": ("seconds",),
}
KINDS = {"event": "text", "time": "time", "staleness": "count", "draw": "count"} | dict.fromkeys(
    NEEDED["commit"], "count"
)
KINDS_OF = {
    "start": KINDS | {"num_workers": "count", "commits": "count", "devices": "list of names", "central": "text"},
    "ready": KINDS | {"began": "time"},
    "fault": KINDS | {"error": "text"},
    "pause": KINDS | {"seconds": "time"},
    "idle": KINDS | {"seconds": "time"},
}
LINE_BEGINS = b'{"event":"'
LONGEST_LINE = 1 << 20  # Bytes; an event has a few hundred.


class EventLog:
    """Appends events to a JSONL file.

    Every line has ``event`` (one of ``gemjax.eventlog.EVENTS``) and ``time`` (seconds since the run began, or virtual time).
    ``start`` adds the number of workers, the commits made before, and the devices. ``dispatch`` adds worker and step;
    ``ready`` too, and ``began``, the time when the worker had its view. ``commit``, ``reject`` (it was not finite) and
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
        field that is missing or of another kind, a worker out of range, a commit that does not follow from those before.
        The message names file, line and what is wrong.
    """
    name = os.fspath(path)
    progress = _Progress()
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
            try:
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    _check_cut_line(line)
                    return
                record = _parse(line)
                progress.check(record)
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
    try:
        return Trace(**columns, num_workers=num_workers)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: its commits are no trace of {num_workers} workers: {error}") from error


def _check_cut_line(line: bytes) -> None:
    """A file without line breaks may be anything; what a crash leaves begins like an event."""
    if not line.startswith(LINE_BEGINS[: len(line)]):
        raise ValueError("the last line is neither whole nor the beginning of an event")


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) >= LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE} bytes")
    try:
        record = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"it is a JSON {type(record).__name__}, expected an object")
    event = record.get("event")
    if not isinstance(event, str) or event not in EVENTS:
        raise ValueError(f"event is {event!r}, expected one of {', '.join(EVENTS)}")
    for field in ("time", *NEEDED.get(event, ())):
        if field not in record:
            raise ValueError(f"a {event} has a {field}, and this one has none")
    kinds = KINDS_OF.get(event, KINDS)
    for field, value in record.items():
        kind = kinds.get(field, "number or null")
        if not _is(kind, value):
            raise ValueError(f"{field} is {repr(value)[:60]}, expected a {kind}")
    return record


def _is(kind: str, value: Any) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "list of names":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if kind == "count":
        return number and isinstance(value, int) and 0 <= value < 2**31
    if kind == "time":
        return number and value >= 0
    return number or value is None or isinstance(value, bool)


class _Progress:
    """What the events so far say about the next one."""

    def __init__(self):
        self.num_workers = 2**31
        self.commits: int | None = 0  # Applied so far; none where the log cannot tell.

    def check(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event == "start":
            self.num_workers = record.get("num_workers", self.num_workers)
            self.commits = record.get("commits")
        if record.get("worker", 0) >= self.num_workers:
            raise ValueError(f"worker is {record['worker']}, but the run has {self.num_workers} workers")
        if event in ("drop", "reject"):
            self.commits = None  # In a simulated run, versions count them too.
        if event != "commit" or self.commits is None:
            return
        version = record["pulled_at"] + record.get("staleness", self.commits - record["pulled_at"])
        if version != self.commits:
            raise ValueError(
                f"it is commit {version} by its pulled_at and staleness, but {self.commits} came before it: lines are missing, "
                "repeated or out of order"
            )
        self.commits += 1


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


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
