"""The event loop of a run on devices: the only thread that dispatches, and the only one that touches the central variable."""

import collections
import time
import warnings

from gemjax.engines.checks import ends_run
from gemjax.engines.devices.hardware.programs import Programs
from gemjax.engines.devices.hardware.waiters import Arrival, Waiters
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.notice import notice
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.records import Pending, Records
from gemjax.engines.devices.reports import Reports
from gemjax.engines.devices.roster import Out, Workers
from gemjax.engines.result import Callback, Progress, RunWarning
from gemjax.protocol.local_steps import PeriodsEndError

ROOM = 8  # Gradients that queue at a device; JAX has the caller wait for those beyond 32 on a CPU device.
PATIENCE = 60.0  # Seconds without an arrival after which the run says what it waits for.


class Scheduler:
    """Sends workers off, commits what they bring, as a :class:`gemjax.Policy` says."""

    def __init__(
        self, programs: Programs, waiters: Waiters, records: Records, num_commits: int, policy: Policy, members: Members
    ):
        self.programs, self.waiters, self.records = programs, waiters, records
        self.num_commits, self.policy, self.members = num_commits, policy, members
        self.workers = Workers(programs, waiters, records, policy, members)
        self.deadlines = self.workers.deadlines
        self.reports = Reports(programs, records)
        self.quorum_at = float("inf")  # When the grace after the quorum is over.
        self.heard_at = 0.0  # time.perf_counter() of the last arrival, or of what kept us from looking.
        self.call_at = float("inf")  # When the callback is to be called whether or not anybody has arrived.
        self.noticed = False  # Whether it has been said that nobody has arrived since.

    def run(self, callback: Callback | None, callback_every: int, callback_seconds: float | None = None) -> bool:
        """Commits until there are enough; returns whether the callback ended it before."""
        self.programs.warm_up()
        with self.members.waking(self.waiters.wake):
            if self.programs.ahead is not None:
                self.programs.ahead.on_read(self.waiters.wake)
            self.records.begin(self.programs.reported, **self.programs.placement.names())
            self.workers.begin()
            self.admit()
            return self._loop(callback, callback_every, callback_seconds)

    def _loop(self, callback: Callback | None, callback_every: int, callback_seconds: float | None) -> bool:
        self.heard_at = time.perf_counter()
        called_at = self.records.commits
        patience = float("inf") if callback is None or callback_seconds is None else callback_seconds
        self.call_at = self.heard_at + patience
        while self.records.commits < self.num_commits:
            if self.lacking:
                self.step()
            self.drain(wait=not self.lacking)
            if self.records.commits >= called_at + callback_every or time.perf_counter() >= self.call_at:
                began = time.perf_counter()
                if callback is not None and self.call(callback):
                    return self.records.commits < self.num_commits
                ended = time.perf_counter()
                self.heard_at += ended - began  # It is no silence of the workers.
                self.deadlines.resume()
                self.call_at = ended + patience
                called_at = self.records.commits
        if callback is not None and self.records.commits > called_at:
            self.call(callback)
        return False

    @property
    def lacking(self) -> bool:
        """Whether more commits are needed than have been made or are being made."""
        return self.records.commits + len(self.reports.pending) < self.num_commits

    def step(self) -> None:
        """Waits until something happens and deals with it."""
        if self.workers.answer_requests():
            self.call_at = 0.0
        self.move()
        if not self.lacking:
            return
        self.workers.check_any_left(self.records.commits + len(self.reports.pending), self.num_commits)
        arrival = self.waiters.next(self.timeout())
        if arrival is not None:
            # What arrived during a callback was ready before its end.
            self.heard_at, self.noticed = max(self.heard_at, arrival.ready), False
            self.arrive(arrival)
        elif not self.noticed and time.perf_counter() >= self.heard_at + PATIENCE:
            self.notice()
        if self.deadlines.look():
            self.workers.expire()
        self.move()

    def move(self) -> None:
        """Has all that can happen now happen; one may let the other happen again."""
        while self.release() | self.admit():
            pass

    def timeout(self) -> float | None:
        """Seconds until a grace, the time to a callback or the patience is over, or the deadlines are to be looked at."""
        until = min(self.quorum_at, self.call_at, float("inf") if self.noticed else self.heard_at + PATIENCE)
        wait = float("inf") if until == float("inf") else max(0.0, until - time.perf_counter())
        if self.policy.deadline is not None and (first := self.workers.next_deadline()) < float("inf"):
            wait = min(wait, self.deadlines.wait(first))
        return None if wait == float("inf") else wait

    def admit(self) -> bool:
        """Sends off those that wait, as many as may go; whether any did."""
        workers, waited = self.workers, len(self.workers.waiting)
        places = self.programs.placement.workers
        queues = collections.Counter(places[worker] for worker in workers.out)

        def may_go(worker: int) -> bool:
            return queues[places[worker]] < ROOM and self.programs.is_ready(worker)

        while workers.waiting and self.lacking and self.policy.admits(len(workers.out) + len(workers.held)):
            worker = next(filter(may_go, workers.waiting), None)
            if worker is None:  # Their batches are being read, which wakes, or their devices have enough to do.
                break
            workers.waiting.remove(worker)
            if not workers.is_outdated(worker) or workers.pull_again(worker):
                self.dispatch(worker)
                queues[places[worker]] += worker in workers.out
        return len(workers.waiting) < waited

    def dispatch(self, worker: int) -> None:
        """Sends a worker off; what cannot be read for it from a source is a fault of its, other data raise."""
        step, now = self.programs.steps[worker], self.records.now()
        try:
            selection = self.programs.select(worker)
        except PeriodsEndError as end:
            self.workers.last_words = f"every worker has made its commits: {end}", end
            self.records.event("end", now, worker=worker, step=step)
            return
        except Exception as error:
            if self.programs.ahead is None:
                raise
            self.workers.fault(worker, error)
            return
        self.records.event("dispatch", now, worker=worker, step=step)
        self.workers.out[worker] = Out(now, self.deadlines.from_now())
        try:
            gradient = self.programs.compute(worker, selection)
            self.waiters.watch(worker, step, now, self.programs.view(worker), gradient)
        except Exception as error:  # Small computations run at once on CPU devices, and raise here.
            self.waiters.failed(worker, step, now, error)

    def arrive(self, arrival: Arrival) -> None:
        """Takes in what a worker brings: a gradient, or a fault."""
        workers, worker = self.workers, arrival.worker
        sent = workers.out.get(worker)
        if sent is None or sent.dispatched != arrival.dispatched:
            workers.late(arrival)
            return
        del workers.out[worker]
        if arrival.error is not None:
            workers.fault(worker, arrival.error)
            return
        workers.held.append(arrival)

    def release(self) -> bool:
        """Commits what may be committed, and has its workers wait to be sent off again; whether there was any."""
        workers, held = self.workers, len(self.workers.held)
        if not held:
            self.quorum_at = float("inf")
            return False
        if self.policy.quorum > 1:
            if held < self.policy.quorum:  # Somebody may have left.
                self.quorum_at = float("inf")
            elif self.quorum_at == float("inf"):  # It is there, or was left over by commits that were then refused.
                self.quorum_at = time.perf_counter() + self.policy.grace
            if not (workers.out or workers.waiting) or time.perf_counter() >= self.quorum_at:
                self.quorum_at = float("inf")
                self.commit_together()
            return len(workers.held) < held
        while workers.held and self.lacking:
            first = next((i for i, arrival in enumerate(workers.held) if workers.may_commit(arrival)), None)
            if first is None:
                break
            ready = workers.held.pop(first)
            if self.commit(ready):
                workers.waiting.append(ready.worker)
        return len(workers.held) < held

    def commit_together(self) -> None:
        """Commits all that is held; only then do its workers pull."""
        workers, committed = self.workers, []
        while workers.held and self.lacking:
            arrival = workers.held.pop(0)
            if self.commit(arrival):
                committed.append(arrival.worker)
        for worker in committed:
            # The last one has pulled with its commit.
            if workers.pulled_at[worker] == workers.clock or workers.pull_again(worker):
                workers.waiting.append(worker)

    def commit(self, arrival: Arrival) -> bool:
        """Commits a gradient and has its worker pull; whether it has its next view. If not, that is its fault, and dealt with.

        A gradient that cannot be brought to the centre is lost; once it is there, its commit is made, whether or not the
        worker still hears of it.
        """
        workers, worker, now = self.workers, arrival.worker, self.records.now()
        try:
            gradient = self.programs.bring(arrival.gradient)
        except Exception as error:
            workers.fault(worker, error)
            return False
        draw = self.programs.draws[worker]
        report = self.programs.commit(worker, gradient)
        # Its memory is free now for what is computed next; kept until the report is there, every commit takes fresh pages.
        self.reports.pending.append(Pending(arrival._replace(gradient=None), now, draw, report))
        workers.faults[worker] = 0
        workers.clock += 1
        workers.pulled_at[worker] = workers.clock
        try:
            self.programs.deliver(worker)
        except Exception as error:
            workers.fault(worker, error)
            return False
        return True

    def notice(self) -> None:
        """Says, once until somebody arrives, what the run waits for."""
        self.noticed = True
        self.reports.read_all()
        self.records.event("idle", self.records.now(), seconds=PATIENCE)
        if self.records.log is not None:
            self.records.log.flush()
        warnings.warn(notice(self.workers, PATIENCE), RunWarning, stacklevel=2)

    def drain(self, *, wait: bool) -> None:
        """Reads the reports of finished commits; of the oldest even if it has to wait for it."""
        pending = self.reports.pending
        while pending and (wait or pending[0].report.is_ready()):
            self.reports.read_next()
            wait = wait and not self.lacking

    def call(self, callback: Callback) -> bool:
        """Tells the callback how far the run is; returns whether it is to end."""
        self.reports.read_all()
        records = self.records
        if records.log is not None:
            records.log.flush()
        began = records.now()
        progress = Progress(
            commits=records.commits,
            total=self.num_commits,
            rejected=records.rejected,
            dropped=records.dropped,
            params=self.programs.params,
            model_state=self.programs.model_state,
            state=self.programs.gather,
            trace=records.trace,
            history=records.history(new=True),
        )
        stop = ends_run(callback(progress))
        records.event("pause", began, seconds=round(records.now() - began, 6))
        return stop
