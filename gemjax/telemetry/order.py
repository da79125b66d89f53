"""Check that the events of a log are complete and in order."""

import array
from typing import Any, NamedTuple

import numpy as np

from gemjax.protocol.checks import MOST_WORKERS
from gemjax.protocol.trace import Trace
from gemjax.telemetry.schema import EARLIER_DIGITS, OUTCOMES, SLACK

FAILURES = (
    "fault",
    "interrupt",
    "hang",
    "leave",
)  # The current gradient is lost; the worker may be dispatched with the same step again.
LINES = "lines are missing, repeated or out of order"


class _Cycle(NamedTuple):
    """A gradient that has not yet arrived at the central variable."""

    dispatched: float
    ready: float | None = None


class Succession:
    """Check of each event against those before it.

    The clock of a log counts its commits. A commit, drop or reject has the clock at its worker's pull and the number of commits
    since then; their sum is the clock. A worker's steps increase, and so do the times of commits. In a run on devices
    every step is dispatched in order, and is ready before it arrives. A ``start`` may go back to an earlier clock (a run
    continued from a checkpoint), never forward.
    """

    def __init__(self):
        self.num_workers: int | None = None
        self._empty, self._started = True, False
        self._before = 0  # Commits made before the log begins.
        self._commits = _Commits()
        self._begin(0.0, on_devices=False)

    @property
    def clock(self) -> int:
        """Commits so far."""
        return self._before + len(self._commits)

    def check(self, record: dict[str, Any]) -> None:
        """Check the next event.

        Raises:
          ValueError: if it does not follow from those before.
        """
        event = record["event"]
        if event == "start":
            self._start(record)
        worker = record.get("worker", 0)
        if worker >= (self.num_workers or MOST_WORKERS):
            raise ValueError(
                f"worker is {worker}, but the run has {self.num_workers or f'at most {MOST_WORKERS}'} workers"
            )
        if event == "dispatch":
            self._dispatch(worker, record["step"], record["time"])
        elif event == "ready":
            self._ready(worker, record)
        elif event in OUTCOMES:
            self._arrive(worker, record)
        elif event in FAILURES:
            self._cycles.pop((worker, record.get("step", self._newest.get(worker, -1))), None)
        self._empty = False

    def check_continued(self, trace: Trace) -> None:
        """Check that a run may be logged next which goes on after the commits of ``trace``.

        Raises:
          ValueError: if these are not in the log.
        """
        if self.num_workers not in (None, trace.num_workers):
            raise ValueError(f"is of a run with {self.num_workers} workers, but this one has {trace.num_workers}")
        if self._empty or len(trace) <= self._before:
            return
        if len(trace) > self.clock:
            raise ValueError(f"ends after {self.clock} commits, but this run goes on after {len(trace)}")
        for name, column in self._commits.columns().items():
            of_run = getattr(trace, name)[self._before :]
            if not np.allclose(of_run, column[: len(of_run)], rtol=0, atol=SLACK):
                raise ValueError(f"is of another run, whose commits have another {name}")

    def _begin(self, time: float, *, on_devices: bool) -> None:
        """Begin with no worker dispatched and no gradient in flight."""
        self._began = self._time = time
        self._on_devices = on_devices
        self._free: dict[int, float] = {}  # Per worker, the time of its last dispatch or arrival.
        self._cycles: dict[tuple[int, int], _Cycle] = {}
        self._newest: dict[int, int] = {}  # Per worker, the step it was dispatched with last,
        self._last: dict[int, int] = {}  # and the step of its last arrival.

    def _start(self, record: dict[str, Any]) -> None:
        commits, number, devices = record.get("commits", 0), record.get("num_workers"), record.get("devices")
        if number is not None and not 0 < number <= MOST_WORKERS:
            raise ValueError(f"num_workers is {number}, expected 1 to {MOST_WORKERS}")
        if None not in (number, self.num_workers) and number != self.num_workers:
            raise ValueError(f"the run continues with {number} workers, but it had {self.num_workers}")
        self.num_workers = number or self.num_workers
        if devices is not None and len(devices) != (self.num_workers or len(devices)):
            raise ValueError(f"it names {len(devices)} devices for {self.num_workers} workers")
        if self._empty:  # A continued run may write a new log.
            self._before = commits
        if commits > self.clock:
            raise ValueError(f"the run continues after {commits} commits, but {self.clock} came before it: {LINES}")
        self._before = min(self._before, commits)
        self._commits.cut(commits - self._before)
        if record["time"] < self._commits.time - SLACK:
            raise ValueError(f"time is {record['time']}, but its last commit was made at {self._commits.time}: {LINES}")
        self._begin(record["time"], on_devices=devices is not None)
        self._started = True

    def _dispatch(self, worker: int, step: int, time: float) -> None:
        if not self._started:
            raise ValueError(f"worker {worker} is dispatched in a run that has not started: {LINES}")
        self._last_before(worker, step)
        newest = self._newest.setdefault(worker, step)
        if step not in (newest, newest + 1):
            raise ValueError(f"worker {worker} is dispatched with step {step} after {newest}: {LINES}")
        if (worker, step) in self._cycles:
            raise ValueError(f"worker {worker} is dispatched with step {step} again without a failure: {LINES}")
        if time < (free := self._free.get(worker, self._began)) - SLACK:
            raise ValueError(f"time is {time}, earlier than {free}, the last event of worker {worker}: {LINES}")
        self._newest[worker], self._free[worker], self._on_devices = step, time, True
        self._cycles[worker, step] = _Cycle(time)

    def _ready(self, worker: int, record: dict[str, Any]) -> None:
        cycle = self._cycle(worker, record)
        ready, began = record["time"], record.get("began", cycle.dispatched)
        if cycle.ready is not None:
            raise ValueError(f"step {record['step']} of worker {worker} was ready before: {LINES}")
        slack = SLACK + EARLIER_DIGITS * began
        if not cycle.dispatched - slack <= began <= ready + slack:
            raise ValueError(f"dispatched at {cycle.dispatched}, began at {began}, ready at {ready}: times decrease")
        self._cycles[worker, record["step"]] = cycle._replace(ready=ready)

    def _cycle(self, worker: int, record: dict[str, Any]) -> _Cycle:
        cycle = self._cycles.get((worker, record["step"]))
        if cycle is None:
            raise ValueError(f"worker {worker} was not dispatched with step {record['step']}: {LINES}")
        return cycle

    def _arrive(self, worker: int, record: dict[str, Any]) -> None:
        event, step, time = record["event"], record["step"], record["time"]
        version = record["pulled_at"] + record["staleness"]
        if version != self.clock:
            raise ValueError(
                f"it is {event} {version} by its pulled_at and staleness, but {self.clock} commits came before it: {LINES}"
            )
        last = self._last_before(worker, step)
        if time < self._time - SLACK:
            raise ValueError(f"time is {time}, earlier than {self._time} before it: {LINES}")
        if self._on_devices:
            if (ready := self._cycle(worker, record).ready) is None:
                raise ValueError(f"step {step} of worker {worker} was not ready: {LINES}")
            if time < ready - SLACK:
                raise ValueError(f"ready at {ready}, arrived at {time}: times decrease")
            if (worker, step - 1) in self._cycles or (worker in self._last and step != last + 1):
                raise ValueError(f"step {step} of worker {worker} arrives before its step {step - 1}: {LINES}")
            next_one = self._cycles.get((worker, step + 1))
            if next_one is not None and next_one.dispatched < time - SLACK:
                raise ValueError(
                    f"it arrived at {time}, after worker {worker} was dispatched with its next step: {LINES}"
                )
            del self._cycles[worker, step]
            self._free[worker] = max(self._free[worker], time)
        self._last[worker], self._time = step, time
        if event == "commit":
            self._commits.add(worker, step, time)

    def _last_before(self, worker: int, step: int) -> int:
        """Return the step of the worker's last arrival, which must be before ``step``."""
        last = self._last.get(worker, self._commits.last_of(worker))
        if step <= last:
            raise ValueError(f"step {step} of worker {worker} arrived before (its last is {last}): {LINES}")
        return last


class _Commits:
    """The commits so far, in 20 bytes each, which can be cut back to any of them."""

    def __init__(self):
        self._worker, self._step, self._earlier = (array.array("i") for _ in range(3))
        self._time = array.array("d")
        self._newest: dict[int, int] = {}  # Per worker, its last row; `_earlier` has the one before, -1 if none.

    def __len__(self) -> int:
        return len(self._worker)

    @property
    def time(self) -> float:
        """Time of the last one."""
        return self._time[-1] if self._time else 0.0

    def columns(self) -> dict[str, np.ndarray]:
        """Return workers, steps and times."""
        return {"worker": np.array(self._worker), "step": np.array(self._step), "time": np.array(self._time)}

    def last_of(self, worker: int) -> int:
        """Return the step of a worker's last commit; -1 if there is none."""
        row = self._newest.get(worker, -1)
        return self._step[row] if row >= 0 else -1

    def add(self, worker: int, step: int, time: float) -> None:
        self._earlier.append(self._newest.get(worker, -1))
        self._newest[worker] = len(self._worker)
        for column, value in ((self._worker, worker), (self._step, step)):
            column.append(value)
        self._time.append(time)

    def cut(self, count: int) -> None:
        """Remove all but the first `count`."""
        for row in range(len(self._worker) - 1, count - 1, -1):
            self._newest[self._worker[row]] = self._earlier[row]
        for column in (self._worker, self._step, self._time, self._earlier):
            del column[count:]
