"""The event loop of a run on devices: the only thread that dispatches, and the only one that touches the central variable."""

import collections
import time
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from gemjax.engines.programs import Programs
from gemjax.engines.records import Pending, Records
from gemjax.engines.result import Callback, Progress, RunFailedError, RunWarning
from gemjax.engines.waiters import Arrival, Waiters
from gemjax.local_steps import PeriodsEndError
from gemjax.members import Members
from gemjax.policies import Policy

PATIENCE = 60.0  # Seconds without an arrival after which the run says what it waits for.


class Out(NamedTuple):
    """A worker that computes."""

    dispatched: float  # Seconds since the run began.
    expires: float  # time.perf_counter().


class Scheduler:
    """Sends workers off, commits what they bring, as a :class:`gemjax.Policy` says.

    A worker that takes part is in one of three places: ``out`` computing, ``held`` with a gradient that may not commit yet, or
    ``waiting`` to be sent off.
    """

    def __init__(
        self, programs: Programs, waiters: Waiters, records: Records, num_commits: int, policy: Policy, members: Members
    ):
        self.programs, self.waiters, self.records = programs, waiters, records
        self.num_commits, self.policy, self.members = num_commits, policy, members
        self.pending: collections.deque[Pending] = collections.deque()
        self.out: dict[int, Out] = {}  # In the order of dispatch.
        self.held: list[Arrival] = []
        self.waiting: collections.deque[int] = collections.deque()
        self.absent = set(members.absent)
        self.silent: set[int] = set()
        self.faults = [0] * programs.num_workers
        # Commits dispatched so far; more than the clock at the centre if some were rejected, which only shortens staleness.
        self.clock = max(programs.behind)
        self.pulled_at = [self.clock - behind for behind in programs.behind]
        self.quorum_at = float("inf")  # When the grace after the quorum is over.
        self.heard_at = 0.0  # time.perf_counter() of the last arrival, or of what kept us from looking.
        self.call_at = float("inf")  # When the callback is to be called whether or not anybody has arrived.
        self.noticed = False  # Whether it has been said that nobody has arrived since.
        self.last_words: tuple[str, BaseException | None] = ("", None)  # Of the last worker that was given up.

    def run(self, callback: Callback | None, callback_every: int, callback_seconds: float | None = None) -> bool:
        """Commits until there are enough; returns whether the callback ended it before."""
        self.programs.warm_up()
        self.members.on_request(self.waiters.wake)
        if self.programs.ahead is not None:
            self.programs.ahead.on_read(self.waiters.wake)
        self.records.begin(self.programs.reported, **self.programs.placement.names())
        present = [worker for worker in range(self.programs.num_workers) if worker not in self.absent]
        self.waiting.extend(sorted(present, key=lambda worker: self.pulled_at[worker]))
        self.admit()
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
                self.call_at = ended + patience
                called_at = self.records.commits
        if callback is not None and self.records.commits > called_at:
            self.call(callback)
        return False

    @property
    def lacking(self) -> bool:
        """Whether more commits are needed than have been made or are being made."""
        return self.records.commits + len(self.pending) < self.num_commits

    def step(self) -> None:
        """Waits until something happens and deals with it."""
        for kind, worker in self.members.requests():
            if kind == "look":
                self.call_at = 0.0
            else:
                (self.join if kind == "join" else self.leave)(worker)
        self.move()
        if not self.lacking:
            return
        self.check_somebody_is_there()
        arrival = self.waiters.next(self.timeout())
        if arrival is not None:
            self.heard_at, self.noticed = arrival.ready, False
            self.arrive(arrival)
        elif not self.noticed and time.perf_counter() >= self.heard_at + PATIENCE:
            self.notice()
        self.expire()
        self.move()

    def move(self) -> None:
        """Has all that can happen now happen; one may let the other happen again."""
        while self.release() | self.admit():
            pass

    def timeout(self) -> float | None:
        """Seconds until a deadline, a grace or the time to a callback is over, or, if there is none, the patience.

        ``None`` if that is over, too.
        """
        patience = None if self.noticed else PATIENCE
        until = min(self.quorum_at, self.call_at)
        if self.policy.deadline is not None and self.out:
            until = min(until, next(iter(self.out.values())).expires)
        return patience if until == float("inf") else max(0.0, until - time.perf_counter())

    def admit(self) -> bool:
        """Sends off those that wait, as many as may go; whether any did."""
        waited = len(self.waiting)
        while self.waiting and self.lacking and self.policy.admits(len(self.out) + len(self.held)):
            worker = next(filter(self.programs.is_ready, self.waiting), None)
            if worker is None:  # Their batches are being read, which wakes.
                break
            self.waiting.remove(worker)
            if self.pulled_at[worker] < self.clock and not self.policy.may_commit(
                self.clock - 1, [*self.pulled_at_of_others(), self.pulled_at[worker]]
            ):
                self.pull_again(worker)
            self.dispatch(worker)
        return len(self.waiting) < waited

    def dispatch(self, worker: int) -> None:
        step = self.programs.steps[worker]
        now = self.records.now()
        try:
            # Data that cannot be read is no fault of one worker: it raises here.
            selection = self.programs.select(worker)
        except PeriodsEndError as end:
            self.last_words = f"every worker has made its commits: {end}", end
            self.records.event("end", now, worker=worker, step=step)
            return
        self.records.event("dispatch", now, worker=worker, step=step)
        deadline = self.policy.deadline
        expires = float("inf") if deadline is None else time.perf_counter() + deadline
        self.out[worker] = Out(now, expires)
        try:
            gradient = self.programs.compute(worker, selection)
        except Exception as error:  # Small computations run at once on CPU devices, and raise here.
            self.waiters.failed(worker, step, now, error)
        else:
            self.waiters.watch(worker, step, now, self.programs.view(worker), gradient)

    def arrive(self, arrival: Arrival) -> None:
        """Takes in what a worker brings: a gradient, or a fault."""
        worker = arrival.worker
        sent = self.out.get(worker)
        if sent is None or sent.dispatched != arrival.dispatched:
            self.late(arrival)
            return
        del self.out[worker]
        if arrival.error is not None:
            self.fault(arrival, arrival.error)
            return
        self.held.append(arrival)
        if len(self.held) == self.policy.quorum > 1:
            self.quorum_at = time.perf_counter() + self.policy.grace

    def release(self) -> bool:
        """Commits what may be committed, and has its workers wait to be sent off again; whether there was any."""
        held = len(self.held)
        if self.policy.quorum > 1:
            if self.held and (not (self.out or self.waiting) or time.perf_counter() >= self.quorum_at):
                self.quorum_at = float("inf")
                self.commit_together()
            return len(self.held) < held
        while self.held and self.lacking:
            first = next((i for i, arrival in enumerate(self.held) if self.may_commit(arrival)), None)
            if first is None:
                break
            ready = self.held.pop(first)
            if self.commit(ready):
                self.waiting.append(ready.worker)
        return len(self.held) < held

    def may_commit(self, arrival: Arrival) -> bool:
        if self.policy.max_staleness is None:
            return True
        return self.policy.may_commit(self.clock, self.pulled_at_of_others(arrival.worker))

    def pulled_at_of_others(self, worker: int | None = None) -> list[int]:
        """The clock at which the others that are out or held have pulled."""
        others = {*self.out, *(arrival.worker for arrival in self.held)} - {worker}
        return [self.pulled_at[other] for other in others]

    def commit_together(self) -> None:
        """Commits all that is held; only then do its workers pull."""
        committed = []
        while self.held and self.lacking:
            arrival = self.held.pop(0)
            if self.commit(arrival):
                committed.append(arrival.worker)
        for worker in committed[:-1]:  # The last one has pulled with its commit.
            self.pull_again(worker)
        self.waiting.extend(committed)

    def commit(self, arrival: Arrival) -> bool:
        """Commits a gradient and has its worker pull; whether it got to the centre."""
        worker, now = arrival.worker, self.records.now()
        try:
            gradient = self.programs.bring(arrival.gradient)
        except Exception as error:
            self.fault(arrival, error)
            return False
        self.faults[worker] = 0
        draw = self.programs.draws[worker]
        report = self.programs.commit(worker, gradient)
        # Its memory is free now for what is computed next; kept until the report is there, every commit takes fresh pages.
        self.pending.append(Pending(arrival._replace(gradient=None), now, draw, report))
        self.clock += 1
        self.pulled_at[worker] = self.clock
        return True

    def pull_again(self, worker: int) -> None:
        self.programs.pull_again(worker)
        self.pulled_at[worker] = self.clock

    def fault(self, arrival: Arrival, error: BaseException) -> None:
        """A worker raised: it pulls afresh and tries its step again, and is retired if that does not help."""
        worker = arrival.worker
        self.faults[worker] += 1
        now = self.records.now()
        self.records.event("fault", now, worker=worker, step=arrival.step, error=repr(error)[:500])
        if self.faults[worker] <= self.policy.retries:
            self.pull_again(worker)
            self.waiting.append(worker)
            return
        self.give_up(f"worker {worker} at its step {arrival.step}: {error!r}", error)
        self.records.event("retire", now, worker=worker, step=arrival.step)

    def expire(self) -> None:
        """Retires workers whose deadline is over; not while some have arrived and wait, after a long callback, say."""
        if self.policy.deadline is None or not self.waiters.nobody_waits():
            return
        while self.out and next(iter(self.out.values())).expires <= time.perf_counter():
            worker = next(iter(self.out))
            del self.out[worker]
            self.silent.add(worker)
            step = self.programs.steps[worker]
            self.records.event("hang", self.records.now(), worker=worker, step=step)
            self.give_up(f"worker {worker}, silent for more than {self.policy.deadline} s at its step {step}")

    def give_up(self, last: str, error: BaseException | None = None) -> None:
        """Notes what to say if nobody is left."""
        self.last_words = f"all {self.programs.num_workers} workers were given up; the last was {last}", error

    def late(self, arrival: Arrival) -> None:
        """A worker that was given up, or had left, brings what nobody waits for any more."""
        self.records.event("late", self.records.now(), worker=arrival.worker, step=arrival.step)
        if arrival.worker in self.silent:
            self.silent.discard(arrival.worker)
            self.enter(arrival.worker)

    def join(self, worker: int) -> None:
        if not self.takes_part(worker):
            self.absent.discard(worker)
            self.silent.discard(worker)
            self.enter(worker)

    def takes_part(self, worker: int) -> bool:
        """Whether the worker has not left and was not given up."""
        return worker in self.out or worker in self.waiting or any(held.worker == worker for held in self.held)

    def enter(self, worker: int) -> None:
        self.faults[worker] = 0
        self.records.event("join", self.records.now(), worker=worker, step=self.programs.steps[worker])
        self.pull_again(worker)
        self.waiting.append(worker)

    def leave(self, worker: int) -> None:
        if worker in self.absent:
            return
        self.absent.add(worker)
        self.silent.discard(worker)
        self.out.pop(worker, None)
        self.held = [arrival for arrival in self.held if arrival.worker != worker]
        self.waiting = collections.deque(one for one in self.waiting if one != worker)
        if len(self.held) < self.policy.quorum:
            self.quorum_at = float("inf")
        self.records.event("leave", self.records.now(), worker=worker, step=self.programs.steps[worker])

    def notice(self) -> None:
        """Says, once until somebody arrives, what the run waits for: it may be for ever, and nobody would know why."""
        self.noticed = True
        self.finish()
        self.records.event("idle", self.records.now(), seconds=PATIENCE)
        if self.records.log is not None:
            self.records.log.flush()
        words = [
            f"{what}: {_numbers(workers)}"
            for what, workers in (
                ("computing", self.out),
                ("held by the policy", [arrival.worker for arrival in self.held]),
                ("waiting to be sent off, or for their data", self.waiting),
                ("have left", self.absent),
            )
            if workers
        ]
        if not (self.out or self.held or self.waiting):
            words.append("it goes on when one joins (Members.join), and ends if none will (Members.close)")
        elif self.out and self.policy.deadline is None:
            words.append("a worker that is silent is given up if the policy has a deadline")
        warnings.warn(
            f"nothing has happened in this run for {PATIENCE:g} s; workers {'; '.join(words)}", RunWarning, stacklevel=2
        )

    def check_somebody_is_there(self) -> None:
        """Raises :class:`RunFailedError` if nobody is left who could commit; one who has left may come again, unless told."""
        closed = self.members.closed
        if self.out or self.held or self.waiting or (self.absent and not closed):
            return
        words, error = self.last_words
        if self.absent:
            words = f"workers {_numbers(self.absent)} have left and none joins any more{words and '; '}{words}"
        done = self.records.commits + len(self.pending)
        raise RunFailedError(f"{done} of {self.num_commits} commits are made, but {words}") from error

    def drain(self, *, wait: bool) -> None:
        """Reads the reports of finished commits; of the oldest even if it has to wait for it."""
        while self.pending and (wait or self.pending[0].report.is_ready()):
            pending = self.pending.popleft()
            self.records.commit(pending, self.programs.read(pending.report))
            wait = wait and not self.lacking

    def finish(self) -> None:
        """Reads all reports that are still to come."""
        while self.pending:
            pending = self.pending.popleft()
            self.records.commit(pending, self.programs.read(pending.report))

    def call(self, callback: Callback) -> bool:
        self.finish()
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
        stop = bool(callback(progress))
        records.event("pause", began, seconds=round(records.now() - began, 6))
        return stop


def _numbers(workers: Iterable[int], most: int = 8) -> str:
    named = sorted(workers)
    return ", ".join(map(str, named[:most])) + (f" and {len(named) - most} more" if len(named) > most else "")
