"""What happened in a run on devices: its history, its trace, its event log."""

import array
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gemjax.engines.devices.hardware.waiters import Arrival
from gemjax.engines.result import History, check_rejections, concatenate
from gemjax.protocol.trace import COLUMNS, Trace
from gemjax.telemetry.eventlog import EventLog

# What the host knows of a commit; a row of the history is these and the numbers of its report.
KNOWN = ("worker", "step", "draw", "time", "dispatched", "began", "ready", "pulled_at")
COUNTS = ("worker", "step", "draw", "pulled_at")


class Pending(NamedTuple):
    """A commit that was dispatched, but whose report has not been read yet."""

    arrival: Arrival
    time: float
    draw: int
    report: Any


class Records:
    """What happened: the history's rows, the clock as the reports tell it, the event log."""

    def __init__(
        self,
        num_workers: int,
        recorded: Trace | None,
        log: EventLog | None,
        rejected: int = 0,
        dropped: int = 0,
        earlier: History | None = None,
    ):
        self.num_workers, self.recorded, self.log = num_workers, recorded, log
        self.commits = 0 if recorded is None else len(recorded)
        self.rejected, self.dropped = rejected, dropped
        self.rejected_in_a_row = 0
        self._earlier = earlier or {}  # The history of the run that this one continues.
        self._columns: list[array.array] = []  # 8 bytes a number; what they are is told when somebody asks.
        self._reported: Mapping[str, np.dtype] = {}
        self._told = 0
        self._epoch = 0.0

    def begin(self, reported: Mapping[str, np.dtype], **fields: Any) -> None:
        """Starts the clock; a continued run goes on from the time of the last commit.

        ``reported`` has the numbers of a report by name, with the types that they have in the history.
        """
        self._reported = reported
        self._columns = [array.array("d") for _ in (*KNOWN, *reported)]
        at = {name: index for index, name in enumerate(reported)}
        self._applied, self._dropped, self._staleness = at["applied"], at["dropped"], at["staleness"]
        before = 0.0 if self.recorded is None else float(self.recorded.time[-1:].sum())
        self._epoch = time.perf_counter() - before
        self.event("start", before, num_workers=self.num_workers, commits=self.commits, **fields)

    def now(self) -> float:
        """Seconds since the run began, in the log's resolution (so that a log gives back the trace)."""
        return round(time.perf_counter() - self._epoch, 6)

    def event(self, event: str, now: float, **fields: Any) -> None:
        if self.log is not None:
            self.log.write(event, now, **fields)

    def commit(self, pending: Pending, report: list[float]) -> None:
        """Notes a commit that the central device has finished."""
        arrival, now, draw, _ = pending
        applied, dropped = report[self._applied] > 0, report[self._dropped] > 0
        began = arrival.dispatched if arrival.began is None else arrival.began - self._epoch
        ready = arrival.ready - self._epoch
        pulled_at = self.commits - int(report[self._staleness])
        known = (arrival.worker, arrival.step, draw, now, arrival.dispatched, began, ready, pulled_at)
        for column, value in zip(self._columns, (*known, *report), strict=True):
            column.append(value)
        self.commits += applied
        self.dropped += dropped
        rejected = not applied and not dropped
        self.rejected += rejected
        self.rejected_in_a_row = 0 if applied else self.rejected_in_a_row + rejected
        if self.log is not None:
            self.log.write("ready", ready, worker=arrival.worker, step=arrival.step, began=round(began, 6))
            fields = dict(zip(("worker", "step", "draw"), known[:3], strict=True))
            fields |= {
                name: int(value) if dtype.kind in "iu" else value
                for (name, dtype), value in zip(self._reported.items(), report, strict=True)
                if name not in ("applied", "dropped")
            }
            kind = "commit" if applied else "drop" if dropped else "reject"
            self.log.write(kind, now, **fields, pulled_at=pulled_at)
        if rejected:
            check_rejections(self.rejected_in_a_row, self.num_workers, self.history)

    def history(self, *, new: bool = False) -> History:
        """All rows as columns, those of the run before included, or those since the last call with ``new``."""
        first, earlier = (self._told, {}) if new else (0, self._earlier)
        if new:
            self._told = len(self._columns[0]) if self._columns else 0
        if not self._columns or len(self._columns[0]) == first:
            return dict(earlier)
        return concatenate([earlier, {name: self._column(name, first) for name in (*KNOWN, *self._reported)}])

    def _column(self, name: str, first: int = 0) -> np.ndarray:
        numbers = np.array(self._columns[(*KNOWN, *self._reported).index(name)][first:])
        return numbers.astype(self._reported.get(name, np.int64 if name in COUNTS else np.float64))

    def trace(self) -> Trace:
        """The applied commits, those before this run included."""
        history = {name: self._column(name) for name in (*COLUMNS, "applied")} if self._columns else {}
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            dtype = np.float64 if name == "time" else np.int32
            column = history[name][history["applied"]].astype(dtype) if history else np.empty(0, dtype)
            columns[name] = column if self.recorded is None else np.concatenate([getattr(self.recorded, name), column])
        return Trace(**columns, num_workers=self.num_workers)
