"""The event log of a run: one JSON object per line, written during the run, read as data only."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from gemjax.protocol.checks import check_path
from gemjax.protocol.trace import COLUMNS, Trace
from gemjax.telemetry.locks import close_after, lock, unlock

__all__ = ["EVENTS", "NEEDED", "EventLog", "read", "trace_of"]

OUTCOMES = ("commit", "drop", "reject")  # Of a gradient that arrives at the central variable.
# Every event, and the fields that it must have besides its time.
NEEDED: dict[str, tuple[str, ...]] = {
    "start": (),
    **dict.fromkeys(("dispatch", "ready", "fault", "interrupt", "hang", "late"), ("worker", "step")),
    **dict.fromkeys(OUTCOMES, ("worker", "step", "pulled_at", "staleness")),
    **dict.fromkeys(("retire", "join", "leave", "end"), ("worker",)),
    **dict.fromkeys(("pause", "idle"), ("seconds",)),
    "evaluation": ("commits", "seconds"),
}
EVENTS = tuple(NEEDED)
LINE_BEGINS = b'{"event":"'
LONGEST_LINE = 1 << 20  # Bytes; an event has a few hundred.


class EventLog:
    """A JSONL file that events are appended to.

    Every line has ``event`` (one of ``gemjax.eventlog.EVENTS``) and ``time`` (seconds since the run began, or virtual time).
    ``start`` adds the number of workers, the numbers of earlier commits (``commits``, ``rejected``, ``dropped``),
    and the devices. ``dispatch`` adds worker and step; ``ready`` also adds ``began``, the time when the view arrived at the
    worker. ``commit``, ``reject`` (not finite) and ``drop`` (refused by the method) add worker, step, ``pulled_at`` (the
    version that was read), ``draw`` (see :class:`gemjax.Trace`), staleness, ``loss`` (``null`` if not finite) and the requested
    diagnostics, and ``read_at`` if workers read block by block. ``fault`` adds worker, step and ``error``; ``retire``
    (the worker kept raising) worker, step and its last ``error``; ``interrupt`` (the worker was called back; its gradient is
    lost), ``hang`` (it is silent), ``late`` (a gradient arrived that the run had given up), ``end`` (it has no more periods of
    local steps), ``leave`` and ``join`` worker and step; ``pause`` the ``seconds`` of a callback or checkpoint; ``evaluation``
    its seconds and the ``commits`` before it; ``idle`` the seconds without any event. On a Ray cluster ``start`` also has the
    bytes of a view and of a gradient, a ``commit`` its ``network`` time in seconds and the parts of it, ``to_host``, ``wire``
    and ``to_device``, and ``leave`` the ``error`` by which a worker was lost.

    One run at a time writes to a file, whatever the number of objects, threads and processes that have opened it.

    Args:
      path: the file; appended to if it exists, so a resumed run continues its log (a last line that a crash cut short is
        removed first).

    Raises:
      TypeError: if ``path`` is no path.
      ValueError: if the file is no event log.
    """

    def __init__(self, path: str | os.PathLike):
        check_path("path", path)
        cut = _cut_at(path) is not None
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._absolute = os.path.abspath(path)
        if cut:
            with contextlib.suppress(BlockingIOError), self.alone():  # A run that goes on may have written half a line.
                pass
        self._encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

    @contextlib.contextmanager
    def alone(self, trace: Trace | None = None) -> Iterator[None]:
        """Keep other runs, of this process or another one, from writing to the file; engines do so during a run.

        Args:
          trace: commits after which the run goes on; default: they are not compared with those in the log.

        Raises:
          BlockingIOError: if another one writes to it: a log with the events of both could not be read.
          ValueError: if the log is closed, or its commits are not those of ``trace``.
        """
        if self._file.closed:
            raise ValueError(f"the log {self._file.name} is closed; make another gemjax.EventLog of this path")
        try:
            locked = lock(self._absolute)
        except BlockingIOError:
            raise BlockingIOError(
                f"the log {self._file.name} is in use by another run; wait for its end, or give each run a log of its own"
            ) from None
        try:
            self._file.flush()
            if (size := _cut_at(self._absolute)) is not None:  # Of a run that was killed.
                os.truncate(self._absolute, size)
            if trace is not None:
                self.check_continued(trace)
            yield
        finally:
            # `close` raises the error of a full disk again, after the run has returned its result.
            try:
                with contextlib.suppress(OSError):
                    if not self._file.closed:
                        self._file.flush()  # Before another run may write.
            finally:
                unlock(locked)

    def check_continued(self, trace: Trace) -> None:
        """Check that a run which goes on after the commits of ``trace`` may be appended.

        Raises:
          ValueError: if the log is of another run, or cannot be read.
        """
        before, columns, num_workers = _commits(self._absolute)
        advice = "give this run a log of its own"
        if num_workers not in (None, trace.num_workers):
            raise ValueError(
                f"the log {self._file.name} is of a run with {num_workers} workers, but this one has {trace.num_workers}; "
                f"{advice}"
            )
        if before is None or len(trace) <= before:
            return
        if len(trace) > (last := before + len(columns["worker"])):
            raise ValueError(
                f"the log {self._file.name} ends after {last} commits, but this run goes on after {len(trace)}; {advice}"
            )
        for name in ("worker", "step"):
            if not np.array_equal(getattr(trace, name)[before:], columns[name][: len(trace) - before]):
                raise ValueError(
                    f"the log {self._file.name} is of another run, whose commits have another {name}; {advice}"
                )

    def write(self, /, event: str, time: float, **fields: Any) -> None:
        """Append one event; floats that are not finite become ``null``, and such a ``began`` is refused."""
        record = {"event": event, "time": round(time, 6)} | {
            name: _plain(name, value) for name, value in fields.items()
        }
        with self._named():
            self._file.write(self._encode(record) + "\n")

    def flush(self) -> None:
        """Hand written events to the operating system."""
        with self._named():
            self._file.flush()

    def sync(self) -> None:
        """Force written events to disk, before the length of the log is stored elsewhere."""
        with self._named():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._named():
            self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Add the name of the file to an error; those of writing to an open file have none."""
        try:
            yield
        except OSError as error:
            if error.filename is None and error.errno is not None:
                error.filename = self._file.name
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        close_after(raised, self.close, "the log could not be closed, either")


def read(path: str | os.PathLike, size: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a log in order.

    A crash cuts short at most one line, the last. It is skipped, and :class:`EventLog` removes it when the run is continued.

    Args:
      path: file of the log.
      size: bytes to read, up to the end of a line; ``None`` (default) reads the whole log.

    Raises:
      ValueError: if a line is no event of a log; the message names file and line.
    """
    with open(path, "rb") as file:
        begin = 0
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
            begin += len(line)
            if size is not None and begin > size:
                return
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE and _begins_like_an_event(line):
                return
            try:
                yield _parsed(line)
            except ValueError as error:
                shown = line[:80].decode(errors="replace").strip()
                raise ValueError(
                    f"{os.fspath(path)}, line {number}: not an event of a gemjax log: {error}; the line is {shown!r}"
                ) from None


def _parsed(line: bytes) -> dict[str, Any]:
    record = json.loads(line)
    event = record.get("event") if isinstance(record, dict) else None
    if event not in EVENTS:
        raise ValueError(f"event is {event!r}, expected one of {', '.join(EVENTS)}")
    for field in ("time", *NEEDED[event]):
        if not isinstance(record.get(field), (int, float)):
            raise ValueError(f"{field} of a {event} is {record.get(field)!r}, expected a number")
    return record


def _commits(path: str | os.PathLike, size: int | None = None) -> tuple[int | None, dict[str, list], int | None]:
    """Return the commits of a log in columns, the number of commits before them, and the number of workers.

    Both numbers are ``None`` if they are not known. Commits that a continued run made again replace the first ones.
    """
    columns: dict[str, list] = {name: [] for name in (*COLUMNS, "read_at")}
    before = num_workers = None
    for event in read(path, size):
        if event["event"] == "start":
            num_workers, commits = event.get("num_workers", num_workers), event.get("commits", 0)
            before = commits if before is None else min(before, commits)
            for column in columns.values():
                del column[commits - before :]
        elif event["event"] == "commit":
            before = before or 0
            for name, column in columns.items():
                column.append(event.get(name))
    return before, columns, num_workers


def trace_of(path: str | os.PathLike, num_workers: int, size: int | None = None) -> Trace:
    """Return the trace that a log records: its applied commits.

    A run continued from a checkpoint that is older than its log makes some commits again; these replace the first ones.
    ``size`` is that of :func:`read`.

    Raises:
      ValueError: as :func:`read` does, or if the commits are no trace of ``num_workers`` workers.
    """
    before, columns, _ = _commits(path, size)
    if before:
        raise ValueError(f"{os.fspath(path)}: it begins after {before} commits, which it does not contain")
    for name in ("draw", "read_at"):  # A log that was made by hand has no draws.
        if None in columns[name] or not columns[name]:
            del columns[name]
    try:
        return Trace(**{name: np.array(column) for name, column in columns.items()}, num_workers=num_workers)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: its commits are no trace of {num_workers} workers: {error}") from error


def _begins_like_an_event(line: bytes) -> bool:
    return line.startswith(LINE_BEGINS[: len(line)])


def _cut_at(path: str | os.PathLike) -> int | None:
    """Return the size of a log without the text after its last line break, to which an event would be appended.

    ``None`` if there is no such text.

    Raises:
      ValueError: if the file does not begin like a log.
    """
    if not os.path.exists(path):
        return None
    with open(path, "rb+") as file:  # "rb" would wait for the writer of a named pipe.
        first = file.readline(LONGEST_LINE)
        if not _begins_like_an_event(first):
            raise ValueError(f"{os.fspath(path)} is no event log; move it away, or give another path for the log")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LONGEST_LINE))
        last = file.read().rpartition(b"\n")[2]
    return size - len(last) if last else None


def rounded(value: float) -> float | None:
    """Return a float as a log has it: with nine significant digits, or ``None`` if it is not finite."""
    return float(f"{value:.9g}") if math.isfinite(value) else None


def _plain(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, float):
        return value
    return round(value, 6) if name == "began" else rounded(value)
