"""Where each worker of a run on devices is, and what becomes of those that fail, fall silent, leave and come."""

import collections
from collections.abc import Iterable
from typing import NamedTuple

from gemjax.engines.devices.deadlines import Deadlines
from gemjax.engines.devices.hardware.programs import Programs
from gemjax.engines.devices.hardware.waiters import Arrival, Waiters
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.records import Records
from gemjax.engines.result import RunFailedError


class Out(NamedTuple):
    """A worker that computes."""

    dispatched: float  # Seconds since the run began.
    expires: float  # When it is to be there, by the clock of the deadlines.


class Workers:
    """Where workers are: one that takes part is ``out`` computing, ``held`` with a gradient that may not commit yet,
    ``waiting`` to be sent off, or ``returning``: it has joined while its thread is still busy with what it began before.

    The others have left (``absent``), are ``silent`` beyond their deadline, or were retired.
    """

    def __init__(self, programs: Programs, waiters: Waiters, records: Records, policy: Policy, members: Members):
        self.programs, self.waiters, self.records = programs, waiters, records
        self.policy, self.members = policy, members
        self.deadlines = Deadlines(policy.deadline)
        self.out: dict[int, Out] = {}  # In the order of dispatch.
        self.held: list[Arrival] = []
        self.waiting: collections.deque[int] = collections.deque()
        self.returning: dict[int, float] = {}  # When each is to be there.
        self.absent = set(members.absent)
        self.silent: set[int] = set()
        self.faults = [0] * programs.num_workers  # In a row.
        # Commits dispatched so far; more than the clock at the centre if some were rejected, which only shortens staleness.
        self.clock = max(programs.behind)
        self.pulled_at = [self.clock - behind for behind in programs.behind]
        self.last_words: tuple[str, BaseException | None] = ("", None)  # Of the last worker that was given up.

    def begin(self) -> None:
        """Has all who are there wait to be sent off, those first whose view is the oldest."""
        present = [worker for worker in range(self.programs.num_workers) if worker not in self.absent]
        self.waiting.extend(sorted(present, key=lambda worker: self.pulled_at[worker]))

    def check_any_left(self, done: int, wanted: int) -> None:
        """Raises :class:`RunFailedError` if nobody is left who could commit; one who has left may come again, unless told."""
        if self.out or self.held or self.waiting or self.returning or (self.absent and not self.members.closed):
            return
        words, error = self.last_words
        if self.absent:
            words = f"workers {numbers(self.absent)} have left and none joins any more{words and '; '}{words}"
        raise RunFailedError(f"{done} of {wanted} commits are made, but {words}") from error

    def takes_part(self, worker: int) -> bool:
        """Whether the worker has not left and was not given up."""
        return (
            worker in self.out
            or worker in self.waiting
            or worker in self.returning
            or any(held.worker == worker for held in self.held)
        )

    def pulled_at_of_others(self, worker: int | None = None) -> list[int]:
        """The clock at which the others that are out or held have pulled."""
        others = {*self.out, *(arrival.worker for arrival in self.held)} - {worker}
        return [self.pulled_at[other] for other in others]

    def may_commit(self, arrival: Arrival) -> bool:
        """Whether the policy lets a gradient commit now."""
        if self.policy.max_staleness is None:
            return True
        return self.policy.may_commit(self.clock, self.pulled_at_of_others(arrival.worker))

    def is_outdated(self, worker: int) -> bool:
        """Whether the policy would never let a gradient commit that began now on what the worker has pulled."""
        pulled_at = self.pulled_at[worker]
        if self.policy.max_staleness is None or pulled_at == self.clock:
            return False
        return not self.policy.may_commit(self.clock - 1, [*self.pulled_at_of_others(), pulled_at])

    def pull_again(self, worker: int) -> bool:
        """Has a worker pull without a commit; whether it got its view. If not, that is its fault, and dealt with."""
        error = self._pull(worker)
        if error is not None:
            self.fault(worker, error)
        return error is None

    def _pull(self, worker: int) -> Exception | None:
        try:
            self.programs.pull_again(worker)
        except RunFailedError:  # It is the centre that failed.
            raise
        except Exception as error:
            return error
        self.pulled_at[worker] = self.clock
        return None

    def fault(self, worker: int, error: BaseException | None) -> None:
        """A worker raised: it pulls afresh and waits to try its step again, and is retired if that does not help.

        That what it pulls cannot be sent to it is the next fault of its.
        """
        step = self.programs.steps[worker]
        while error is not None:
            self.faults[worker] += 1
            now = self.records.now()
            self.records.event("fault", now, worker=worker, step=step, error=repr(error)[:500])
            if self.faults[worker] > self.policy.retries:
                self.give_up(f"worker {worker} at its step {step}: {error!r}", error)
                self.records.event("retire", now, worker=worker, step=step)
                return
            error = self._pull(worker)
        self.waiting.append(worker)

    def expire(self) -> None:
        """Retires those whose deadline is over, but not who has arrived and only waits to be looked at."""
        now = self.deadlines.now
        for worker, (_, expires) in list(self.out.items()):
            if expires > now:
                break
            if self.waiters.watches(worker):
                del self.out[worker]
                self._fall_silent(worker)
                self.records.event("hang", self.records.now(), worker=worker, step=self.programs.steps[worker])
        for worker, expires in list(self.returning.items()):
            if expires <= now and self.waiters.watches(worker):
                del self.returning[worker]
                self._fall_silent(worker)

    def next_deadline(self) -> float:
        """When the first of those that are awaited is to be there; infinite if nobody is."""
        first = next(iter(self.out.values()), None)
        out = float("inf") if first is None else first.expires
        return min(out, *self.returning.values()) if self.returning else out

    def _fall_silent(self, worker: int) -> None:
        self.silent.add(worker)
        step = self.programs.steps[worker]
        self.give_up(f"worker {worker}, silent for more than {self.policy.deadline} s at its step {step}")

    def give_up(self, last: str, error: BaseException | None = None) -> None:
        """Notes what to say if nobody is left."""
        self.last_words = f"all {self.programs.num_workers} workers were given up; the last was {last}", error

    def late(self, arrival: Arrival) -> None:
        """A worker that was given up, or had left, brings what nobody waits for any more."""
        worker = arrival.worker
        self.records.event("late", self.records.now(), worker=worker, step=arrival.step)
        if worker in self.silent or worker in self.returning:
            self.silent.discard(worker)
            self.returning.pop(worker, None)
            self.enter(worker)

    def answer_requests(self) -> bool:
        """Has those join and leave who are to; whether somebody wants the callback to have a look."""
        look = False
        for kind, worker in self.members.requests():
            if kind == "look":
                look = True
            else:
                (self.join if kind == "join" else self.leave)(worker)
        return look

    def join(self, worker: int) -> None:
        """Has a worker take part; one whose thread is busy still as soon as it is not.

        It could not be heard before; and of one that hangs, gradient after gradient would pile up on its device.
        """
        if self.takes_part(worker):
            return
        self.absent.discard(worker)
        self.silent.discard(worker)
        if self.waiters.watches(worker):
            self.returning[worker] = self.deadlines.from_now()
        else:
            self.enter(worker)

    def enter(self, worker: int) -> None:
        self.faults[worker] = 0
        self.records.event("join", self.records.now(), worker=worker, step=self.programs.steps[worker])
        if self.pull_again(worker):
            self.waiting.append(worker)

    def leave(self, worker: int) -> None:
        if worker in self.absent:
            return
        self.absent.add(worker)
        self.silent.discard(worker)
        self.returning.pop(worker, None)
        self.out.pop(worker, None)
        self.held = [arrival for arrival in self.held if arrival.worker != worker]
        self.waiting = collections.deque(one for one in self.waiting if one != worker)
        self.records.event("leave", self.records.now(), worker=worker, step=self.programs.steps[worker])


def numbers(workers: Iterable[int], most: int = 8) -> str:
    """Workers by their numbers, the first ``most`` of them.

    >>> numbers({3, 1, 2}), numbers(range(10), most=2)
    ('1, 2, 3', '0, 1 and 8 more')
    """
    named = sorted(workers)
    return ", ".join(map(str, named[:most])) + (f" and {len(named) - most} more" if len(named) > most else "")
