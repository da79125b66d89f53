"""The state machine of an asynchronous run with real workers, from events to instructions."""

import collections
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.watchdog import Watchdog
from gemjax.protocol.trace import Draws

INFINITY = float("inf")
NO_VIEW = -1  # In `pulled_at`: the worker has to pull.


class Dispatch(NamedTuple):
    """Start the worker's next gradient; :meth:`Roster.arrived` receives the ``number``, which is unique in the run."""

    worker: int
    step: int
    number: int


class Commit(NamedTuple):
    """Commit the worker's gradient and send the worker its next view; ``arrival`` is as given to :meth:`Roster.arrived`."""

    worker: int
    arrival: Any


class Pull(NamedTuple):
    """Send the worker a fresh view without a commit."""

    worker: int


class Read(NamedTuple):
    """Let the worker read a block of its view anew; after the last block the view is sent."""

    worker: int
    block: int


class Interrupt(NamedTuple):
    """Ask a worker that computes to end early; its gradient will be dropped when it arrives."""

    worker: int


class Confirm(NamedTuple):
    """Read the reports of all commits, report those that were refused, and call :meth:`Roster.confirmed`."""


class Record(NamedTuple):
    """Write an event to the log."""

    event: str
    worker: int
    step: int
    error: BaseException | None = None


class Computing(NamedTuple):
    """A gradient that has been dispatched and has not arrived."""

    number: int
    deadline: float
    called_back: bool = False


class Roster:
    """Worker states, and the decisions of a run: which worker computes, commits, pulls, is retired, leaves or returns.

    Pure: it runs no programs or threads, has no input or output, and reads no clock. The caller reports each event by calling a
    method, then executes what :meth:`instruct` returns until that is ``None``. It reports the outcome of an instruction before
    it asks for the next: :meth:`committed`, :meth:`pulled`, :meth:`block_read`, or :meth:`fault` if a dispatch, a commit or the
    delivery of a view raises. A dispatch ends with exactly one of :meth:`ended`, :meth:`fault`, :meth:`arrived` (at any later
    time, also if the worker was given up) or, if the worker is lost, :meth:`disappeared`.

    A worker is in one place at a time: ``computing``, ``ready`` (its gradient waits to be committed), ``pulling`` (it needs a
    fresh view), ``filling`` (it reads its view block by block; a round has one read, of the worker that was dispatched longest
    ago, so that gradients that finish meanwhile are committed in between), ``waiting`` (to be dispatched), ``returning`` (it
    has joined, but still computes an earlier gradient), or outside: ``absent``, ``lost`` (its process or host, or there is none
    yet), ``silent`` beyond its deadline, or ``retired``. A place maps its workers to what is known of them there, in order of
    entry: first finished, first committed, first dispatched.

    ``clock`` and ``pulled_at`` count commits; ``now`` and ``at`` are seconds by the caller's clock; deadlines are times of the
    watchdog. A commit whose report has not been read counts as applied until :meth:`refused` takes it back, so that no
    staleness is underestimated. Before a gradient is dropped for its staleness, all reports are read.

    Args:
      policy: when gradients are dispatched and committed, and when a worker is given up.
      num_commits: commits to reach.
      commits: commits made before.
      behind: commits since each worker's pull.
      steps: next step of each worker, which the caller counts before :meth:`committed`.
      devices: device of each worker; at most ``ROOM`` gradients are computed on one at a time.
      absent: workers that do not take part at the start.
      lost: workers that are not there yet at the start; :meth:`returned` reports that they are.
      now: the time now.
      draws: those of the workers from a shared stream. One that is outside holds none.
      num_blocks: blocks in which a worker reads its view. The first one is read by the pull; 0 if that reads all.
    """

    ROOM = 8  # Gradients at a time per device; JAX blocks the caller beyond 32 on a CPU device.
    TIMES_LOST = 20  # How often a worker is lost without a commit in between; the next time it is retired.
    PATIENCE = 60.0  # Seconds without an arrival after which the run describes the stall.

    def __init__(
        self, policy: Policy, num_commits: int, *, commits: int = 0, behind: Sequence[int], steps: Sequence[int],
        devices: Sequence[Hashable], absent: Iterable[int] = (), lost: Iterable[int] = (), now: float = 0.0,
        draws: Draws | None = None, num_blocks: int = 0,
    ):  # fmt: skip
        self.policy, self.num_commits, self.steps, self.devices = policy, num_commits, steps, devices
        self._quorum, self._num_blocks = policy.quorum or 1, num_blocks
        self.clock, self.pulled_at = commits, [commits - since for since in behind]
        self.watchdog = Watchdog(policy.deadline, now)
        self.closed = False  # True once no worker can join any more.
        self.computing: dict[int, Computing] = {}
        self.ready: dict[int, Any] = {}  # With the arrival.
        self.pulling: dict[int, None] = {}
        self.filling: dict[int, int] = {}  # With the next block.
        self.returning: dict[int, Computing] = {}
        self.absent: dict[int, Computing | None] = dict.fromkeys(absent)
        self.lost: dict[int, None] = {worker: None for worker in lost if worker not in self.absent}
        self.silent: dict[int, Computing | None] = {}
        self.retired: dict[int, BaseException | None] = {}  # With the error of one that has made all its commits.
        self.draws = Draws(range(len(self.steps))) if draws is None else draws
        outside = {*self.absent, *self.lost}
        for worker in outside:
            self.draws.give_back(worker)
        takes_part = set(range(len(self.steps))) - outside
        self.waiting: dict[int, None] = dict.fromkeys(sorted(takes_part, key=lambda worker: -behind[worker]))
        self._active = (self.computing, self.ready, self.pulling, self.filling, self.waiting, self.returning)
        places = (*self._active, self.absent, self.lost, self.silent, self.retired)
        # The place of each worker; ``_put`` alone moves it.
        self._place: dict[int, dict[int, Any]] = {worker: place for place in places for worker in place}
        self._prepared: set[int] = set()  # Workers whose batch is available.
        self.reading: dict[int, float] = {}  # Workers whose batch is being read, with the deadline; INFINITY if silent.
        self.interruptions = [0] * len(self.steps)  # Since the worker's last commit.
        self._confirmed = True  # False if a commit counts whose report has not been read.
        self._dispatches, self._turns = 0, [0] * len(self.steps)  # The latest number, and that of each worker.
        self._faults = [0] * len(self.steps)  # Per worker, in a row.
        self._times_lost = [0] * len(self.steps)  # Per worker, since its last commit.
        self._silences = [0] * len(self.steps)  # Per worker, since a gradient of any worker arrived in time.
        self._records: collections.deque[Record] = collections.deque()
        # Why workers were given up, the newest last, also those that take part again.
        self._given_up: dict[int, tuple[str, BaseException | None]] = {}
        self._quorum_at = INFINITY  # End of the grace period that follows the quorum.
        self._releasing = False  # True while the gradients of a quorum commit.
        self._may_read = True  # One block of one worker per round.
        self._arrived_at, self._in_time_at, self._warned = now, now, False

    def instruct(self, now: float) -> Dispatch | Commit | Pull | Read | Interrupt | Confirm | Record | None:
        """Return the next instruction, or ``None`` if an event has to come first."""
        ready, computing = self._too_old() if self.policy.interrupt is not None else ([], [])
        if (ready or computing) and not self._confirmed:
            return Confirm()
        for worker in ready:
            self._drop(worker)
        if self._records:
            return self._records.popleft()
        if computing:
            worker = computing[0]
            self.computing[worker] = self.computing[worker]._replace(called_back=True)
            return Interrupt(worker)
        if (worker := self._next_to_commit(now)) is not None:
            return Commit(worker, self.ready[worker])
        for worker in list(self.pulling):
            if self.pulled_at[worker] < self.clock:
                return Pull(worker)
            self._fill(worker)
        if self.filling and self._may_read and self.is_short:
            self._may_read = False
            worker = min(self.filling, key=self._turns.__getitem__)
            return Read(worker, self.filling[worker])
        if not (self.is_short and self.policy.admits(len(self.computing) + len(self.ready))):
            return None
        load = collections.Counter(self.devices[worker] for worker in self.computing)
        free = (w for w in self.waiting if w in self._prepared and load[self.devices[w]] < self.ROOM)
        if (worker := next(free, None)) is None:
            return None
        if self._is_outdated(worker):
            return Pull(worker)
        self._dispatches += 1
        self._turns[worker] = self._dispatches
        self._prepared.discard(worker)
        self._put(worker, self.computing, Computing(self._dispatches, self.watchdog.deadline()))
        return Dispatch(worker, self.steps[worker], self._dispatches)

    @property
    def is_short(self) -> bool:
        """True if commits are missing even if all pending ones are applied."""
        return self.clock < self.num_commits

    @property
    def unprepared(self) -> list[int]:
        """Workers whose next batch is needed; :meth:`prepared` reports that it is available."""
        workers = (*self.pulling, *self.filling, *self.waiting)
        return [w for w in workers if w not in self._prepared] if self.is_short else []

    def timeout(self, now: float) -> float:
        """Return the seconds until the roster needs attention without an event."""
        if self.filling:
            return 0.0
        wait = max(0.0, min(self._quorum_at, INFINITY if self._warned else self._arrived_at + self.PATIENCE) - now)
        return min(wait, self.watchdog.wait(self._first_deadline()))

    def begin_round(self, now: float) -> list[int]:
        """Begin a round and advance the watchdog; return workers beyond their deadline, which may just have finished."""
        self._may_read = True
        may_give_up = self.watchdog.look(now)
        # A gradient that arrived meanwhile is noted already.
        self._arrived_at = min(now, self._arrived_at + self.watchdog.skipped)
        self._in_time_at = min(now, self._in_time_at + self.watchdog.skipped)
        if not may_give_up or self._first_deadline() > self.watchdog.polled:
            return []
        deadlines = {worker: gradient.deadline for worker, gradient in (self.computing | self.returning).items()}
        return [worker for worker, expires in (deadlines | self.reading).items() if expires <= self.watchdog.polled]

    def describe_stall(self, now: float) -> str | None:
        """Describe what the run waits for, once per stall, if no worker has arrived for ``PATIENCE`` seconds."""
        if self._warned or now < self._arrived_at + self.PATIENCE:
            return None
        self._warned = True
        places = {
            "computing": self.computing,
            "held by the policy": self.ready,
            "waiting for a device or for their data": self.pulling | self.filling | self.waiting,
            "have joined, but still compute an earlier gradient": self.returning,
            "have left": self.absent,
            "are lost or not started yet, and awaited": self.lost,
            "are silent beyond their deadline": self.silent,
            "were retired": self.retired,
        }
        words = [f"{what}: {numbers(workers)}" for what, workers in places.items() if workers]
        if reasons := self._reasons():
            words.append(f"the last that was given up is {reasons[-1][0]}")
        if not any(self._active):
            words.append("the run continues when a worker joins (Members.join) and fails if none can (Members.close)")
        elif (self.computing or self.returning or self.reading) and self.policy.deadline is None:
            words.append("a deadline in the policy would give up a silent worker")
        finished = "finished" if self.policy.deadline is None else "finished in time"
        return f"no worker has {finished} for {self.PATIENCE:g} s; workers {'; '.join(words)}"

    def failure(self) -> tuple[str, BaseException | None] | None:
        """Return a message and its cause if no worker can commit, now or after joining again."""
        if any(self._active) or self._may_return:
            return None
        ended = {worker: end for worker, end in self.retired.items() if end is not None}
        if not (reasons := self._reasons()):
            error = next(reversed(ended.values()), None)
            return self._failed(f"every worker has made its commits: {error}" if ended else ""), error
        words = f"all {'others' if self.absent else f'{len(self.steps)} workers'} were given up"
        if ended:
            words = f"workers {numbers(ended)} have made all their commits, and the others were given up"
        last, error = reasons[-1]
        return self._failed(f"{words}; the last was {last}"), error

    def lateness(self, now: float) -> str | None:
        """Return a message if all workers that still take part miss the deadline again and again.

        Each has missed it more often than its retries since a gradient of any worker was in time, ``PATIENCE`` seconds ago or
        more. One that is silent meanwhile does not count: it may be dead.
        """
        deadline, retries = self.policy.deadline, self.policy.retries
        late = sorted(worker for place in self._active if place is not self.ready for worker in place)
        if deadline is None or not late or self._may_return:
            return None
        if any(self._silences[worker] <= retries for worker in late):
            return None
        if (seconds := now - self._in_time_at) < max(self.PATIENCE, (retries + 1) * deadline):
            return None
        return self._failed(
            f"no gradient was in time for {seconds:.0f} s, in which workers {numbers(late)} have missed the deadline of "
            f"{deadline:g} s more than {retries} times each; give the policy a longer one; the last that was given up is "
            f"{list(self._given_up.values())[-1][0]}"
        )

    def _reasons(self) -> list[tuple[str, BaseException | None]]:
        """Return why the workers that are outside for it were given up, the newest last."""
        given_up = self.silent.keys() | {worker for worker, end in self.retired.items() if end is None}
        return [why for worker, why in self._given_up.items() if worker in given_up]

    @property
    def _may_return(self) -> bool:
        return bool(self.lost or (self.absent and not self.closed))

    def _failed(self, words: str) -> str:
        if self.absent:
            words = f"workers {numbers(self.absent)} have left and none can join any more{words and '; '}{words}"
        return f"{self.clock} of {self.num_commits} commits are made, but {words}"

    def arrived(self, worker: int, number: int, at: float, arrival: Any, error: BaseException | None = None) -> None:
        """Accept a gradient or its error, once per dispatch and only if its worker still takes part."""
        awaited = self.computing.get(worker)
        if awaited is None or awaited.number != number:
            self._record("late", worker)
            if self._in_progress(worker, number) is None:
                return
            if worker in self.absent:
                self.absent[worker] = None
            else:
                self._enter(worker)
            return
        self._arrived_at, self._warned = max(self._arrived_at, at), False
        if error is not None:
            self.fault(worker, error)
        elif awaited.called_back:
            self._drop(worker)
        else:
            self._put(worker, self.ready, arrival)
            self._silences, self._in_time_at = [0] * len(self.steps), max(self._in_time_at, at)

    def committed(self, worker: int) -> None:
        """Count a commit, and the pull that follows it."""
        self.clock += 1
        self._confirmed = False
        self.pulled_at[worker] = self.clock
        self._faults[worker] = self._times_lost[worker] = self.interruptions[worker] = 0
        if self._quorum == 1:
            self._fill(worker)
        else:
            self._put(worker, self.pulling)

    def refused(self, commits: int) -> None:
        """Take back the commit made at clock ``commits``, which was rejected or dropped according to its report."""
        self.clock -= 1
        self.pulled_at = [at - (at > commits) for at in self.pulled_at]

    def confirmed(self) -> None:
        """Note that the reports of all commits have been read."""
        self._confirmed = True

    def pulled(self, worker: int) -> None:
        """Note a pull without a commit."""
        self.pulled_at[worker] = self.clock
        if worker in self.pulling or self._num_blocks:
            self._fill(worker)

    def block_read(self, worker: int) -> None:
        """Note that the worker has read a block of its view."""
        self.filling[worker] += 1
        if self.filling[worker] == self._num_blocks:
            self._put(worker, self.waiting)

    def _fill(self, worker: int) -> None:
        """Let a worker that has pulled read further blocks of its view, if there are any, and then wait."""
        if self._num_blocks:
            self._put(worker, self.filling, 1)
        else:
            self._put(worker, self.waiting)

    def prepared(self, worker: int) -> None:
        """Note that the next batch of a worker is available."""
        self._prepared.add(worker)
        self.reading.pop(worker, None)

    def reads(self, worker: int) -> None:
        """Note that the next batch of a worker is still being read."""
        self.reading.setdefault(worker, self.watchdog.deadline())

    def fault(self, worker: int, error: BaseException) -> None:
        """Let a worker that raised pull and repeat its step, or retire it after its retries."""
        self._faults[worker] += 1
        self._record("fault", worker, error)
        if self._faults[worker] > self.policy.retries:
            self._retire(worker, f"worker {worker} at its step {self.steps[worker]}: {error!r}", error)
        else:
            self.pulled_at[worker] = NO_VIEW
            self._put(worker, self.pulling)

    def disappeared(self, worker: int, number: int, at: float, error: BaseException) -> None:
        """Discard a gradient whose worker is lost, which is no fault; it takes part again when it has :meth:`returned`."""
        self._arrived_at = max(self._arrived_at, at)
        if not self._is_active(worker):
            if self._in_progress(worker, number) is not None:
                self._place[worker][worker] = None
            return
        self._times_lost[worker] += 1
        if self._times_lost[worker] > self.TIMES_LOST:
            times, step = self._times_lost[worker], self.steps[worker]
            self._retire(worker, f"worker {worker}, lost {times} times at step {step}: {error!r}", error)
        else:
            self._put_outside(worker, self.lost)
            self._record("leave", worker, error)

    def returned(self, worker: int) -> None:
        """Let a worker that was lost take part again, unless it has left; one that was silent counts a fault."""
        if worker in self.lost:
            self._enter(worker)
        elif worker in self.silent and self._faults[worker] < self.policy.retries:
            self._enter(worker, self._faults[worker] + 1)
        elif worker in self.silent:
            self.reading.pop(worker, None)
            self.draws.give_back(worker, failed=True)

    def ended(self, worker: int, error: BaseException) -> None:
        """Retire a worker that cannot be dispatched because it has no more periods of local steps."""
        self._put_outside(worker, self.retired, error)
        self._record("end", worker)

    def fell_silent(self, worker: int) -> None:
        """Give up a worker that still computes, or waits for its batch, after its deadline."""
        self._silences[worker] += 1
        if worker in self.computing or worker in self.reading:
            self._record("hang", worker)
        silence = f"silent for more than {self.policy.deadline} s at its step {self.steps[worker]}"
        if worker in self.reading:
            silence += ", the batch of which is still being read"
            self.reading[worker] = INFINITY
        self._put_outside(worker, self.silent, self._in_progress(worker))
        self._note(worker, f"worker {worker}, {silence}")

    def join(self, worker: int) -> None:
        """Let a worker take part: at once, when it has finished computing, or if it is lost, when it has :meth:`returned`."""
        if self._is_active(worker) or worker in self.lost:
            return
        if (awaited := self._in_progress(worker)) is not None:
            self._put(worker, self.returning, awaited._replace(deadline=self.watchdog.deadline()))
        else:
            self._enter(worker)

    def leave(self, worker: int) -> None:
        """Let a worker leave; its gradient is discarded."""
        if worker not in self.absent:
            self._put_outside(worker, self.absent, self._in_progress(worker))
            self._record("leave", worker)

    def paused(self, seconds: float, now: float) -> None:
        """Do not count the last ``seconds``, in which the caller was not polling, as silence of workers."""
        self._arrived_at += seconds
        self._in_time_at += seconds
        self.watchdog.resume(now)

    def _next_to_commit(self, now: float) -> int | None:
        if not (self.ready and self.is_short):
            self._releasing, self._quorum_at = False, INFINITY
            return None
        if self._quorum == 1:
            return next((w for w in self.ready if self.policy.may_commit(self.clock, self._views_of_others(w))), None)
        if not self._releasing:
            if len(self.ready) < self._quorum:  # A worker may have left.
                self._quorum_at = INFINITY
            elif self._quorum_at == INFINITY:
                self._quorum_at = now + self.policy.grace
            coming = self.computing or self.pulling or self.filling or self.waiting
            self._releasing = now >= self._quorum_at or not coming
        return next(iter(self.ready)) if self._releasing else None

    def _too_old(self) -> tuple[list[int], list[int]]:
        """Return the workers whose gradient has become too old: those that are ready, and those that are to be called back."""
        computing = (worker for worker, gradient in self.computing.items() if not gradient.called_back)
        return list(filter(self._is_too_old, self.ready)), list(filter(self._is_too_old, computing))

    def _is_too_old(self, worker: int) -> bool:
        return self.policy.interrupts(self.clock - self.pulled_at[worker])

    def _drop(self, worker: int) -> None:
        self.interruptions[worker] += 1
        self._put(worker, self.pulling)
        self._record("interrupt", worker)

    def _is_outdated(self, worker: int) -> bool:
        """Return True if a gradient computed on the worker's view could never commit."""
        if self._is_too_old(worker):
            return True
        pulled_at = self.pulled_at[worker]
        if pulled_at == self.clock:
            return False
        return not self.policy.may_commit(self.clock - 1, (*self._views_of_others(worker), pulled_at))

    def _views_of_others(self, worker: int) -> Iterator[int]:
        """Return the clocks at which the other workers in flight, computing or ready, pulled."""
        return (self.pulled_at[other] for place in (self.computing, self.ready) for other in place if other != worker)

    def _first_deadline(self) -> float:
        computing = (*itertools.islice(self.computing.values(), 1), *self.returning.values())
        return min((*(gradient.deadline for gradient in computing), *self.reading.values()), default=INFINITY)

    def _is_active(self, worker: int) -> bool:
        return any(worker in place for place in self._active)

    def _in_progress(self, worker: int, number: int | None = None) -> Computing | None:
        """Return the gradient that a worker computes, also if it is outside; with ``number`` only that of this dispatch."""
        known = self._place[worker][worker]
        return known if isinstance(known, Computing) and number in (None, known.number) else None

    def _enter(self, worker: int, faults: int = 0) -> None:
        self._faults[worker], self.pulled_at[worker] = faults, NO_VIEW
        self.reading.pop(worker, None)
        self._put(worker, self.pulling)
        self._record("join", worker)

    def _retire(self, worker: int, last: str, error: BaseException) -> None:
        self._put_outside(worker, self.retired)
        self._note(worker, last, error)
        self._record("retire", worker, error)

    def _note(self, worker: int, why: str, error: BaseException | None = None) -> None:
        self._given_up.pop(worker, None)
        self._given_up[worker] = why, error

    def _put_outside(self, worker: int, place: dict[int, Any], value: Any = None) -> None:
        """Put a worker outside; its draw goes to the worker that draws next, unless its batch is why the worker is silent."""
        self._put(worker, place, value)
        if worker not in self.reading:
            self.draws.give_back(worker, failed=place is not self.absent)
            self._prepared.discard(worker)

    def _put(self, worker: int, place: dict[int, Any], value: Any = None) -> None:
        del self._place[worker][worker]
        self._place[worker], place[worker] = place, value
        if not any(place is one for one in (self.pulling, self.filling, self.waiting, self.silent)):
            self.reading.pop(worker, None)

    def _record(self, event: str, worker: int, error: BaseException | None = None) -> None:
        self._records.append(Record(event, worker, self.steps[worker], error))


def numbers(workers: Iterable[int], most: int = 8) -> str:
    """Format the numbers of workers, the first ``most`` of them.

    >>> numbers({3, 1, 2}), numbers(range(10), most=2)
    ('1, 2, 3', '0, 1 and 8 more')
    """
    named = sorted(workers)
    return ", ".join(map(str, named[:most])) + (f" and {len(named) - most} more" if len(named) > most else "")
