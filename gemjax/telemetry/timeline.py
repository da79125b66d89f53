"""The timeline of a run: the cycles of its workers."""

import array
import dataclasses
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from gemjax.telemetry.eventlog import OUTCOMES

ARRIVALS = (*OUTCOMES, "fault", "interrupt")  # The events that end a cycle.
TIMES = ("dispatch", "began", "ready")  # Of a cycle, logged before the event that ends it.
SLACK = 2e-6  # A log has microseconds.
ALWAYS = ("worker", "step", "time", *TIMES, "staleness", "pulled_at", "loss")
Columns = dict[str, np.ndarray]


@runtime_checkable
class Recorded(Protocol):
    """A :class:`gemjax.Result`, or whatever else has the history and the trace of a run."""

    @property
    def history(self) -> Mapping[str, np.ndarray]: ...

    @property
    def trace(self) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The cycles of all workers, from dispatch to commit, in the order in which they ended.

    Attributes:
      cycles: columns of equal length: ``event`` (``commit``, ``drop``, ``reject``, ``fault`` or ``interrupt``), ``worker``,
        ``step``, the times ``dispatch`` (its view was sent to the worker), ``began`` (the view arrived there), ``ready`` (the
        gradient was finished) and ``time`` (it was committed), ``staleness``, ``pulled_at``, ``loss`` and other measurements;
        NaN where a value is not known.
      incidents: the other events, as they were logged: faults with their errors, retirements, pauses, ….
      num_workers: number of workers N.
      measured: True if the times at which gradients were finished are known. They are not in a simulated run, where a
        worker begins when its last cycle ended, or, if that is later, when the commit that made its view was applied.
      devices: name of each worker's device; empty if not known.
      central: name of the central variable's device; empty if not known.
      sizes: bytes of a view and of a gradient, ``view_bytes`` and ``gradient_bytes``, if they travel between hosts.
    """

    cycles: Columns
    incidents: tuple[dict[str, Any], ...]
    num_workers: int
    measured: bool
    devices: tuple[str, ...] = ()
    central: str = ""
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def only(self, *events: str) -> Columns:
        """Return the cycles that ended with one of ``events``, as columns."""
        rows = np.isin(self.cycles["event"], events)
        return {name: column[rows] for name, column in self.cycles.items()}


def timeline(
    source: "Recorded | Iterable[Mapping[str, Any]] | Mapping[str, np.ndarray]", num_workers: int | None = None
) -> "Timeline":
    """Order the records of a run by the cycles of its workers.

    Args:
      source: the events of a log, from :func:`gemjax.eventlog.read`, a result, or its ``history``. Of a history that was
        simulated in part, the part that was measured last is taken.
      num_workers: number of workers N; default that of the result or of the log's start, or else the largest worker plus one.

    Raises:
      ValueError: if a cycle ends before it begins, a worker is not among the ``num_workers``, the log is of another number of
        workers, or the history lacks a column.

    >>> import gemjax
    >>> events = [{"event": "dispatch", "time": 0.0, "worker": 0, "step": 0},
    ...           {"event": "ready", "time": 0.8, "worker": 0, "step": 0},
    ...           {"event": "commit", "time": 1.0, "worker": 0, "step": 0, "pulled_at": 0, "staleness": 0, "loss": 2.0}]
    >>> cycles = gemjax.timeline(events).cycles
    >>> [cycles[name].item() for name in ("event", "dispatch", "ready", "time")]
    ['commit', 0.0, 0.8, 1.0]
    """
    if isinstance(source, Recorded) and not callable(source.trace):  # That of a Progress is a method.
        source, num_workers = source.history, num_workers or source.trace.num_workers
    if isinstance(source, str) or not isinstance(source, Iterable):
        raise TypeError(
            f"the run is of type {type(source).__name__}; give the result, its history or the events of a log"
        )
    if isinstance(source, Mapping):
        cycles, incidents, start = _of_history(cast("Mapping[str, np.ndarray]", source)), [], {}
    else:
        cycles, incidents, start = _of_events(source)
    seen = int(cycles["worker"].max(initial=-1)) + 1
    cycles = _measured_last(cycles) if isinstance(source, Mapping) else cycles
    logged, devices = start.get("num_workers"), tuple(start.get("devices", ()))
    if None not in (logged, num_workers) and logged != num_workers:
        raise ValueError(f"the log is of a run with {logged} workers, but the run has {num_workers} workers")
    num_workers = num_workers or logged or max(seen, 1)
    if seen > num_workers:
        raise ValueError(f"worker {seen - 1} takes part, but the run has {num_workers} workers")
    if devices and len(devices) != num_workers:
        raise ValueError(f"the log names {len(devices)} devices, but the run has {num_workers} workers")
    measured = bool(np.isfinite(cycles["ready"]).any())
    _fill(cycles, num_workers)
    within = np.clip(cycles["began"], cycles["dispatch"], cycles["ready"])
    rounded = np.abs(within - cycles["began"]) <= SLACK
    cycles["began"] = np.where(rounded, within, cycles["began"])
    for earlier, later in (("dispatch", "began"), ("began", "ready"), ("ready", "time")):
        early = np.flatnonzero(cycles[later] < cycles[earlier] - SLACK)
        if len(early):
            worker, step = (int(cycles[name][early[0]]) for name in ("worker", "step"))
            raise ValueError(f"worker {worker}, step {step}: {later} is earlier than {earlier}")
        cycles[later] = np.maximum(cycles[later], cycles[earlier])
    sizes = {name: start[name] for name in ("view_bytes", "gradient_bytes") if start.get(name) is not None}
    return Timeline(cycles, tuple(incidents), num_workers, measured, devices, start.get("central", ""), sizes)


class _Rows:
    """Rows of cycles, column by column: eight bytes per number; unknown values are NaN."""

    def __init__(self):
        self.kinds = array.array("b")  # Indices of ARRIVALS.
        self.columns = {name: array.array("d") for name in ALWAYS}

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, kind: str, event: Mapping[str, Any], times: Mapping[str, float]) -> None:
        self.kinds.append(ARRIVALS.index(kind))
        for name, value in event.items():
            if isinstance(value, numbers.Real) and name not in TIMES:
                self._set(name, float(value))
        for name, value in times.items():
            self._set(name, value)

    def _set(self, name: str, value: float) -> None:
        column, rows = self.columns.setdefault(name, array.array("d")), len(self)
        if len(column) < rows - 1:  # It was not known in the rows before.
            column.extend([np.nan] * (rows - 1 - len(column)))
        column.append(value)

    def cut(self, count: int) -> None:
        del self.kinds[count:]
        for column in self.columns.values():
            del column[count:]

    def of(self, kind: str) -> np.ndarray:
        """Return the indices of the rows of a kind."""
        return np.flatnonzero(np.array(self.kinds) == ARRIVALS.index(kind))

    def cut_beyond(self, kind: str, count: int, begin: int) -> bool:
        """Cut at the first row of ``kind`` that is beyond ``count`` of them and not before ``begin``; True if there is one."""
        beyond = self.of(kind)[max(0, count) :]
        beyond = beyond[beyond >= begin]
        if beyond.size:
            self.cut(int(beyond[0]))
        return bool(beyond.size)

    def end_at(self, time: float) -> None:
        """Move later times back to `time`."""
        for name in (*TIMES, "time"):
            if len(self.columns[name]):
                column = np.frombuffer(self.columns[name])
                np.minimum(column, time, out=column)  # NaN stays.

    def arrays(self) -> Columns:
        columns: Columns = {"event": np.array(ARRIVALS)[np.frombuffer(self.kinds, np.int8)]}
        for name in list(self.columns):
            column = np.frombuffer(self.columns.pop(name))
            columns[name] = np.concatenate([column, np.full(len(self) - len(column), np.nan)])
        return columns | {name: columns[name].astype(np.int64) for name in ("worker", "step")}


def _of_events(events: Iterable[Mapping[str, Any]]) -> tuple[Columns, list[dict], Mapping[str, Any]]:
    """Return cycles, incidents and the last start; commits that a continued run made again replace the first ones."""
    rows = _Rows()
    incidents: list[dict[str, Any]] = []
    running: dict[tuple[int, int], dict[str, float]] = {}
    applied, before = array.array("q"), 0  # The row of each commit; the number of commits before the log begins.
    start: Mapping[str, Any] = {}
    missing: dict[str, int] = {}  # Of each refusal: the count of the run minus that of the log.
    for event in events:
        if not isinstance(event, Mapping):
            raise TypeError(
                f"an event is of type {type(event).__name__}, but must be a dict; give the events of gemjax.eventlog.read(path)"
            )
        kind = event["event"]
        cycle = (event.get("worker", -1), event.get("step", -1))
        if kind == "start":
            commits = event.get("commits", 0)
            if not (commits or event.get("rejected") or event.get("dropped")):  # The run is begun anew.
                rows.cut(0)
                del applied[:], incidents[:]
                missing.clear()
            before = min(before, commits) if start or len(rows) else commits
            start, kept = event, commits - before
            if cut := kept < len(applied):
                rows.cut(applied[kept])
                del applied[kept:]
            for refusal, name in (("reject", "rejected"), ("drop", "dropped")):
                if (count := event.get(name)) is None:  # Older logs have none.
                    missing.setdefault(refusal, 0)
                    continue
                cut |= rows.cut_beyond(refusal, count - missing.get(refusal, count), applied[-1] + 1 if applied else 0)
                missing[refusal] = count - len(rows.of(refusal))
            if cut:
                incidents = [incident for incident in incidents if incident["time"] <= event["time"]]
            rows.end_at(event["time"])
            _end_at(event["time"], incidents)
            running.clear()
        elif kind == "dispatch":
            running[cycle] = {"dispatch": event["time"]}
        elif kind == "ready":
            times = running.setdefault(cycle, {})
            times["ready"] = event["time"]
            if "began" in event:
                times["began"] = event["began"]
        elif kind in ARRIVALS:
            if kind == "commit":
                applied.append(len(rows))
            rows.add(kind, event, running.pop(cycle, {}))
        if kind not in ("start", "dispatch", "ready", "commit", "drop", "reject"):
            incidents.append(dict(event))
    return rows.arrays(), incidents, start


def _end_at(time: float, incidents: list[dict[str, Any]]) -> None:
    """End incidents at ``time``, that of the last commit, from which a continued run goes on."""
    for incident in incidents:
        if incident["event"] in ("pause", "evaluation"):
            incident["seconds"] = min(incident["seconds"], max(0.0, time - incident["time"]))
        incident["time"] = min(incident["time"], time)


def _of_history(history: Mapping[str, np.ndarray]) -> Columns:
    if not history:
        return _Rows().arrays()
    if missing := sorted({"worker", "step", "time", "applied", "dropped"} - history.keys()):
        raise ValueError(f"the history has no column {missing[0]}; give result.history as a run returned it")
    applied, dropped = history["applied"], history["dropped"]
    columns: Columns = {"event": np.where(applied, "commit", np.where(dropped, "drop", "reject"))}
    columns |= {name: np.full(len(applied), np.nan) for name in ALWAYS}
    names = {"dispatched": "dispatch"} | dict.fromkeys(("applied", "dropped"))
    for name, column in history.items():
        if (kept := names.get(name, name)) is not None:
            columns[kept] = np.array(column, np.int64 if name in ("worker", "step") else np.float64)
    return columns


def _measured_last(cycles: Columns) -> Columns:
    """Return the cycles of the last run on devices, if there is one: its seconds cannot be added to virtual time."""
    measured = np.flatnonzero(np.isfinite(cycles["ready"]))
    if not len(measured):
        return cycles
    begin = np.flatnonzero(np.diff(measured) > 1).max(initial=-1) + 1  # Behind the last gap.
    return {name: column[measured[begin] : measured[-1] + 1] for name, column in cycles.items()}


def _fill(cycles: Columns, num_workers: int) -> None:
    """Fill in unknown times: a worker begins when its last cycle ended or its view was made, whichever is later.

    The view arrives at once, and the gradient is committed as soon as it is finished.
    """
    begin, views = _views(cycles)
    last = np.full(num_workers, begin)
    for row, (worker, time) in enumerate(zip(cycles["worker"], cycles["time"], strict=True)):
        if np.isnan(cycles["dispatch"][row]):
            cycles["dispatch"][row] = min(max(last[worker], views[row]), time)
        last[worker] = time
    for name, other in (("began", "dispatch"), ("ready", "time")):
        cycles[name] = np.where(np.isnan(cycles[name]), cycles[other], cycles[name])


def _views(cycles: Columns) -> tuple[float, np.ndarray]:
    """Return the time at which the cycles begin, and per cycle that of the commit that made its view, if that is known.

    The cycles of a run that continues another one, whose commits they lack, begin one mean interval before the first of them.
    """
    applied = cycles["event"] == "commit"
    times = cycles["time"][applied]
    clock = cycles["pulled_at"] + cycles["staleness"]  # Commits applied before each cycle ended.
    known = np.flatnonzero(np.isfinite(clock))
    if not (len(known) and len(times)):
        return 0.0, np.zeros(len(clock))
    before = clock[known[0]] - np.count_nonzero(applied[: known[0]])  # Those of a run that this one continues.
    made = np.where(np.isfinite(clock), cycles["pulled_at"] - before, 0).astype(np.int64)
    first, last = float(cycles["time"].min()), float(cycles["time"].max())
    begin = max(0.0, first - (last - first) / (len(clock) - 1)) if before > 0 and last > first else 0.0
    return begin, np.where((made > 0) & (made <= len(times)), times[np.clip(made, 1, len(times)) - 1], begin)
