"""What happened in a run on devices: its history, its trace, its event log."""

import dataclasses
import time
from typing import Any

import numpy as np

from gemjax.engines.result import History, check_rejections
from gemjax.engines.waiters import Arrival
from gemjax.eventlog import EventLog
from gemjax.trace import COLUMNS, Trace


@dataclasses.dataclass
class Pending:
    """A commit that was dispatched, but whose report has not been read yet."""

    arrival: Arrival
    time: float
    draw: int
    report: Any


class Records:
    """What happened: the history's rows, the clock as the reports tell it, the event log."""

    def __init__(
        self, num_workers: int, recorded: Trace | None, log: EventLog | None, rejected: int = 0, dropped: int = 0
    ):
        self.num_workers, self.recorded, self.log = num_workers, recorded, log
        self.commits = 0 if recorded is None else len(recorded)
        self.rejected, self.dropped = rejected, dropped
        self.rejected_in_a_row = 0
        self.rows: list[dict[str, Any]] = []
        self._told = 0
        self._epoch = 0.0

    def begin(self, **fields: Any) -> None:
        """Starts the clock; a continued run goes on from the time of the last commit."""
        before = 0.0 if self.recorded is None else float(self.recorded.time[-1:].sum())
        self._epoch = time.perf_counter() - before
        self.event("start", before, num_workers=self.num_workers, commits=self.commits, **fields)

    def now(self) -> float:
        """Seconds since the run began, in the log's resolution (so that a log gives back the trace)."""
        return round(time.perf_counter() - self._epoch, 6)

    def event(self, event: str, now: float, **fields: Any) -> None:
        if self.log is not None:
            self.log.write(event, now, **fields)

    def commit(self, pending: Pending, report: dict[str, Any]) -> None:
        """Notes a commit that the central device has finished."""
        arrival = pending.arrival
        applied, dropped = bool(report["applied"]), bool(report["dropped"])
        row = {
            "worker": arrival.worker,
            "step": arrival.step,
            "draw": pending.draw,
            "time": pending.time,
            "dispatched": arrival.dispatched,
            "began": arrival.dispatched if arrival.began is None else arrival.began - self._epoch,
            "ready": arrival.ready - self._epoch,
        } | report
        row["pulled_at"] = self.commits - row["staleness"]
        self.rows.append(row)
        self.commits += applied
        self.dropped += dropped
        rejected = not applied and not dropped
        self.rejected += rejected
        self.rejected_in_a_row = 0 if applied else self.rejected_in_a_row + rejected
        if self.log is not None:
            elsewhere = ("time", "dispatched", "began", "ready", "applied", "dropped")
            fields = {name: row[name] for name in row if name not in elsewhere}
            began = round(row["began"], 6)
            self.log.write("ready", row["ready"], worker=arrival.worker, step=arrival.step, began=began)
            self.log.write("commit" if applied else "drop" if dropped else "reject", row["time"], **fields)
        if rejected:
            check_rejections(self.rejected_in_a_row, self.num_workers, self.history)

    def history(self, *, new: bool = False) -> History:
        """All rows as columns, or those since the last call with ``new``."""
        rows = self.rows[self._told :] if new else self.rows
        if new:
            self._told = len(self.rows)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}

    def trace(self) -> Trace:
        """The applied commits, those before this run included."""
        applied = [row for row in self.rows if row["applied"]]
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            column = np.array([row[name] for row in applied], np.float64 if name == "time" else np.int32)
            columns[name] = column if self.recorded is None else np.concatenate([getattr(self.recorded, name), column])
        return Trace(**columns, num_workers=self.num_workers)
