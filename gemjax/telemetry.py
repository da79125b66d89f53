"""What a run did with its time: the cycles of its workers, and their statistics."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

ARRIVALS = ("commit", "drop", "reject", "fault")  # How a cycle may end.
Columns = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The cycles of all workers, from dispatch to commit, in the order in which they ended.

    Attributes:
      cycles: columns of equal length: ``event`` (``commit``, ``drop``, ``reject`` or ``fault``), ``worker``, ``step``, the
        times ``dispatch`` (the worker was sent its view), ``began`` (it had it), ``ready`` (its gradient was finished) and
        ``time`` (it was taken up), ``staleness``, ``pulled_at``, ``loss`` and what else was reported, NaN where it was not.
      incidents: the other events, as they were logged: faults with their errors, retirements, pauses, ….
      num_workers: number of workers N.
      measured: whether there are times of dispatch; in a simulated run a worker starts when its last cycle ended.
      devices: the device of each worker, by name; empty if not known.
      central: the device of the central variable; empty if not known.
    """

    cycles: Columns
    incidents: tuple[dict[str, Any], ...]
    num_workers: int
    measured: bool
    devices: tuple[str, ...] = ()
    central: str = ""

    def only(self, *events: str) -> Columns:
        """The cycles that ended so, as columns."""
        rows = np.isin(self.cycles["event"], events)
        return {name: column[rows] for name, column in self.cycles.items()}


def timeline(
    source: "Iterable[Mapping[str, Any]] | Mapping[str, np.ndarray]", num_workers: int | None = None
) -> Timeline:
    """Orders what was recorded of a run by the cycles of its workers.

    Args:
      source: the events of a log, as :func:`gemjax.eventlog.read` gives them, or the ``history`` of a result.
      num_workers: number of workers N; default what the log's start says, or else the largest worker plus one.

    Raises:
      ValueError: if a cycle ends before it begins, or a worker is not among the ``num_workers``.

    >>> import gemjax
    >>> events = [{"event": "dispatch", "time": 0.0, "worker": 0, "step": 0},
    ...           {"event": "ready", "time": 0.8, "worker": 0, "step": 0},
    ...           {"event": "commit", "time": 1.0, "worker": 0, "step": 0, "pulled_at": 0, "staleness": 0, "loss": 2.0}]
    >>> cycles = gemjax.timeline(events).cycles
    >>> [cycles[name].item() for name in ("event", "dispatch", "ready", "time")]
    ['commit', 0.0, 0.8, 1.0]
    """
    if isinstance(source, Mapping):
        rows, incidents, start = _of_history(cast("Mapping[str, np.ndarray]", source)), [], {}
    else:
        rows, incidents, start = _of_events(source)
    cycles = _columns(rows)
    seen = int(cycles["worker"].max(initial=-1)) + 1
    num_workers = num_workers or start.get("num_workers") or max(seen, 1)
    if seen > num_workers:
        raise ValueError(f"worker {seen - 1} commits, but the run has {num_workers} workers")
    measured = bool(np.isfinite(cycles["ready"]).any())
    _fill(cycles, num_workers)
    for earlier, later in (("dispatch", "began"), ("began", "ready"), ("ready", "time")):
        early = np.flatnonzero(cycles[later] < cycles[earlier] - 2e-6)  # Times are rounded to microseconds.
        if len(early):
            worker, step = (int(cycles[name][early[0]]) for name in ("worker", "step"))
            raise ValueError(f"worker {worker}, step {step}: {later} is earlier than {earlier}")
        cycles[later] = np.maximum(cycles[later], cycles[earlier])
    return Timeline(
        cycles, tuple(incidents), num_workers, measured, tuple(start.get("devices", ())), start.get("central", "")
    )


def _of_events(events: Iterable[Mapping[str, Any]]) -> tuple[list[dict], list[dict], Mapping[str, Any]]:
    """Cycles, incidents and the last start; commits that a continued run made again replace the first ones."""
    rows: list[dict[str, Any]] = []
    incidents: list[dict[str, Any]] = []
    running: dict[tuple[int, int], dict[str, float]] = {}
    applied: list[int] = []  # Of each commit, its row.
    start: Mapping[str, Any] = {}
    for event in events:
        kind = event["event"]
        cycle = (event.get("worker", -1), event.get("step", -1))
        if kind == "start":
            start, commits = event, event.get("commits", 0)
            if commits < len(applied):
                del rows[applied[commits] :], applied[commits:]
                incidents = [incident for incident in incidents if incident["time"] <= event["time"]]
            _end_at(event["time"], rows, incidents)
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
            measured = {name: value for name, value in event.items() if kind != "fault" or name != "error"}
            rows.append(measured | running.pop(cycle, {}))
        if kind not in ("start", "dispatch", "ready", "commit", "drop", "reject"):
            incidents.append(dict(event))
    return rows, incidents, start


def _end_at(time: float, rows: list[dict[str, Any]], incidents: list[dict[str, Any]]) -> None:
    """A continued run goes on from the time of its last commit: what came after that in the run before ends there."""
    for row in rows:
        for name in ("dispatch", "began", "ready", "time"):
            if row.get(name, time) > time:
                row[name] = time
    for incident in incidents:
        if incident["event"] == "pause":
            incident["seconds"] = min(incident["seconds"], max(0.0, time - incident["time"]))
        incident["time"] = min(incident["time"], time)


def _of_history(history: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    if not history:
        return []
    names = {"dispatched": "dispatch"}
    applied, dropped = history["applied"], history["dropped"]
    columns = {names.get(name, name): column for name, column in history.items() if name not in ("applied", "dropped")}
    columns["event"] = np.where(applied, "commit", np.where(dropped, "drop", "reject"))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _columns(rows: list[dict[str, Any]]) -> Columns:
    """A column for everything that a row has; what is not known is NaN."""
    always = ("worker", "step", "time", "dispatch", "began", "ready", "staleness", "pulled_at", "loss")
    names = dict.fromkeys((*always, *(name for row in rows for name in row)))
    columns: Columns = {"event": np.array([str(row["event"]) for row in rows], dtype="U6")}
    for name in names:
        if name == "event":
            continue
        values = [row.get(name) for row in rows]
        columns[name] = np.array([np.nan if value is None else value for value in values], np.float64)
    for name in ("worker", "step"):
        columns[name] = columns[name].astype(np.int64)
    return columns


def _fill(cycles: Columns, num_workers: int) -> None:
    """Times that are not known: a worker goes on where it stopped, has its view at once, and never waits."""
    last = np.zeros(num_workers)
    for row, worker in enumerate(cycles["worker"]):
        if np.isnan(cycles["dispatch"][row]):
            cycles["dispatch"][row] = min(last[worker], cycles["time"][row])
        last[worker] = cycles["time"][row]
    for name, other in (("began", "dispatch"), ("ready", "time")):
        cycles[name] = np.where(np.isnan(cycles[name]), cycles[other], cycles[name])
