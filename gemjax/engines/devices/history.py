"""The history of a run on devices: rows, trace and event log."""

import array
import collections
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemjax.engines.devices.hardware.waiters import Arrival
from gemjax.engines.result import (
    LAST,
    REFUSED,
    History,
    check_rejections,
    concatenate,
    rejections_to_fail,
    type_of_column,
    warn_of_refusals,
)
from gemjax.protocol.trace import COLUMNS, Trace
from gemjax.telemetry.eventlog import EventLog

# Facts about a commit that the host knows; a row of the history has these columns and the numbers of its report.
KNOWN = ("worker", "step", "draw", "time", "dispatched", "began", "ready", "pulled_at")
COUNTS = ("worker", "step", "draw", "pulled_at", "interrupted")


class Pending(NamedTuple):
    """A dispatched commit whose report has not been read."""

    arrival: Arrival
    time: float
    draw: int
    report: Any


class RunHistory:
    """Rows of the history, events of the log, and the reports of pending commits, for which ``read`` waits.

    If the run continues another one, ``recorded``, ``rejected``, ``dropped`` and ``earlier`` are the trace, counts and history
    of that one.
    """

    def __init__(
        self,
        read: Callable[[Any], list],
        num_workers: int,
        recorded: Trace | None,
        log: EventLog | None,
        rejected: int,
        dropped: int,
        earlier: History,
    ):
        self.num_workers, self.recorded, self.log = num_workers, recorded, log
        self.commits = 0 if recorded is None else len(recorded)  # Applied, according to the reports read so far.
        self.rejected, self.dropped = rejected, dropped
        self.applied_at = 0.0 if recorded is None or not len(recorded) else float(recorded.time[-1])  # The last commit.
        self.pending: collections.deque[Pending] = collections.deque()
        # Called with the number of commits before a refused one.
        self.on_refusal: Callable[[int], None] = lambda commits: None
        self._read = read
        self._rejected_in_a_row = self._dropped_in_a_row = 0
        self._earlier = earlier
        self._columns: dict[str, array.array] = {}  # 8 bytes per number; `history` converts them.
        self._read_at = array.array("q")  # Per row, the clocks of its blocks, if workers read block by block.
        self._reported: Mapping[str, np.dtype] = {}
        self._measured: Sequence[str] = ()
        self._returned = 0  # Rows that `history(new=True)` has returned.
        self._epoch = 0.0

    def begin(self, reported: Mapping[str, np.dtype], measured: Sequence[str] = (), **fields: Any) -> None:
        """Start the clock, in a continued run at the time of its last commit.

        ``reported`` maps the names of a report's numbers to their types in the history; ``measured`` names what arrivals
        have measured.
        """
        self._reported, self._measured = reported, measured
        wide = {"int64": "q", "uint64": "Q"}  # Types whose numbers are not exact in floats of 64 bits.
        kinds = {name: wide.get(kind.name, "d") for name, kind in reported.items()}
        kinds = dict.fromkeys((*KNOWN, *measured), "d") | kinds
        self._columns = {name: array.array(kind) for name, kind in kinds.items()}
        before = max(0.0, self.applied_at, *map(float, self._earlier.get("time", ())[-1:]))  # The last may be refused.
        self._epoch = time.perf_counter() - before
        counts = {"commits": self.commits, "rejected": self.rejected, "dropped": self.dropped}
        self.event("start", before, num_workers=self.num_workers, **counts, **fields)

    def now(self) -> float:
        """Return the seconds since the run began, in the log's resolution, so that the log contains the exact trace."""
        return self.at(time.perf_counter())

    def at(self, seconds: float) -> float:
        """Return the time of ``time.perf_counter()`` on the run's clock."""
        return round(seconds - self._epoch, 6)

    def event(self, event: str, now: float, **fields: Any) -> None:
        """Write an event to the log, if there is one."""
        if self.log is not None:
            self.log.write(event, now, **fields)

    def flush(self) -> None:
        """Write the log's buffered events."""
        if self.log is not None:
            self.log.flush()

    def read_all(self) -> None:
        """Read all pending reports, then raise the first error."""
        failure: Exception | None = None
        while self.pending:
            try:
                self.read_next()
            except Exception as error:  # The commits behind it have been made.
                failure = failure or error
        if failure is not None:
            raise failure

    def read_next(self) -> None:
        """Wait for the report of the oldest pending commit and record it."""
        arrival, now, draw, sent = self.pending.popleft()
        report = dict(zip(self._reported, self._read(sent), strict=True))
        applied, dropped = report["applied"] > 0, report["dropped"] > 0
        began = arrival.dispatched if arrival.began is None else arrival.began - self._epoch
        ready = arrival.ready - self._epoch
        identity = {"worker": arrival.worker, "step": arrival.step, "draw": draw}
        times = {"time": now, "dispatched": arrival.dispatched, "began": began, "ready": ready}
        pulled_at = self.commits - int(report["staleness"])
        blocks = {"read_at": np.asarray(sent["read_at"]).tolist()} if "read_at" in sent else {}
        self._read_at.extend(blocks.get("read_at", ()))
        measured = {name: arrival.measured[name] for name in self._measured}
        for name, value in (identity | times | {"pulled_at": pulled_at} | measured | report).items():
            self._columns[name].append(value)
        if applied:
            self.commits, self.applied_at = self.commits + 1, now
        self.dropped += dropped
        rejected = not applied and not dropped
        self.rejected += rejected
        self._rejected_in_a_row = 0 if applied else self._rejected_in_a_row + rejected
        self._dropped_in_a_row = self._dropped_in_a_row + 1 if dropped else 0
        if not applied:
            self.on_refusal(self.commits)
        if self.log is not None:
            self.log.write("ready", ready, worker=arrival.worker, step=arrival.step, began=began)
            numbers = {
                name: int(value) if self._reported[name].kind in "iu" else value
                for name, value in report.items() if name not in ("applied", "dropped")
            }  # fmt: skip
            kind = "commit" if applied else "drop" if dropped else "reject"
            measured = {name: round(value, 6) for name, value in measured.items()}
            self.log.write(kind, now, **identity, **numbers, **measured, pulled_at=pulled_at, **blocks)
        if self._dropped_in_a_row == REFUSED * self.num_workers:  # Once, and not again at each multiple.
            warn_of_refusals(self._dropped_in_a_row, 2)
        if rejected:
            least = rejections_to_fail(self.num_workers)
            check_rejections(self._rejected_in_a_row, least, self.commits, self.history)

    def recent_loss(self) -> float:
        """Return the mean finite loss of the last commits; NaN if there are none."""
        losses = [loss for loss in self._columns["loss"][-LAST:] if math.isfinite(loss)]
        return sum(losses) / len(losses) if losses else math.nan

    def history(self, *, new: bool = False) -> History:
        """Return all rows as columns, including those of the earlier run, or with ``new`` the rows since the last such call."""
        first, earlier = (self._returned, {}) if new else (0, self._earlier)
        if new:
            self._returned = len(self._columns.get("loss", ()))
        if len(self._columns.get("loss", ())) == first:
            return dict(earlier)
        return concatenate([earlier, {name: self._column(name, first) for name in self._columns}])

    def _column(self, name: str, first: int = 0) -> np.ndarray:
        numbers = np.array(self._columns[name][first:])
        kind = self._reported.get(name, np.int64 if name in COUNTS else np.float64)
        return numbers.astype(type_of_column(kind), copy=False)

    def trace(self) -> Trace:
        """Return the applied commits, including those before this run."""
        history = {name: self._column(name) for name in (*COLUMNS, "applied")} if self._columns else {}
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            dtype = np.float64 if name == "time" else np.int32
            column = history[name][history["applied"]].astype(dtype) if history else np.empty(0, dtype)
            columns[name] = column if self.recorded is None else np.concatenate([getattr(self.recorded, name), column])
        read_at = None if self.recorded is None else self.recorded.read_at
        if self._read_at:
            own = np.array(self._read_at).reshape(len(history["applied"]), -1)[history["applied"]]
            read_at = own if read_at is None else np.concatenate([read_at, own])
        if read_at is not None and len(read_at) == len(columns["worker"]):
            columns["read_at"] = read_at
        return Trace(**columns, num_workers=self.num_workers)
