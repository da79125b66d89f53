"""The event loop of a run on devices, in the only thread that dispatches and uses the central variable."""

import bisect
import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator

import jax

from gemjax.batches.base import RowsError
from gemjax.engines.checks import RunWarning
from gemjax.engines.devices.hardware.packing import has_arrived
from gemjax.engines.devices.hardware.programs.commits import CentralPrograms
from gemjax.engines.devices.hardware.waiters import Arrival, Waiters, WorkerLostError
from gemjax.engines.devices.history import Pending, RunHistory
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.roster import INFINITY, Commit, Confirm, Dispatch, Interrupt, Pull, Read, Record, Roster
from gemjax.engines.result import Callback, Evaluated, Progress, Result, RunFailedError
from gemjax.engines.running.checkpoints.saving import Saving
from gemjax.engines.running.evaluation import Evaluation, Evaluator
from gemjax.engines.running.interrupts import Held
from gemjax.engines.running.progress import ProgressLine
from gemjax.protocol.local_steps import PeriodsEndError


@dataclasses.dataclass
class Options:
    """The part of a :class:`gemjax.engines.devices.session.Run`, its subclass, on which the scheduler depends."""

    num_commits: int
    policy: Policy
    members: Members
    callback: Callback | None
    callback_every: int
    callback_seconds: float  # INFINITY if there is no limit or no callback.
    stops: list[int]  # In increasing order.
    progress: bool
    saving: Saving
    evaluation: Evaluation


class Scheduler:
    """Event loop around a :class:`Roster`: it reads the clock, waits, reports events and executes instructions.

    The programs and the waiters are the transport; the rest suits any transport.
    """

    def __init__(
        self, options: Options, programs: CentralPrograms, waiters: Waiters, history: RunHistory, held: Held,
        evaluator: Evaluator | None,
    ):  # fmt: skip
        self.options, self.programs, self.waiters, self.history = options, programs, waiters, history
        self.held, self.evaluator = held, evaluator
        self.line = ProgressLine(options.progress, options.num_commits)
        self.evaluated: list[Evaluated] = []  # Those that the callback has not been given.
        self.call_at = INFINITY  # time.perf_counter() at which the callback is called, even without a commit.

    def run(self) -> bool:
        """Commit until the run is complete; return True if the callback ended it early."""
        policy, options = self.options.policy, self.options
        self.line.begin()
        with self.held.interruptible():
            self.programs.warm_up()
            if self.evaluator is not None:
                jax.block_until_ready(self.programs.copy())
        if self.programs.prefetcher is not None:
            self.programs.prefetcher.on_read(self.waiters.wake)
        with options.members.waking(self.waiters.wake):
            measured = (*self.programs.measured, *["interrupted"] * (policy.interrupt is not None))
            self.history.begin(self.programs.reported, measured, **self.programs.placement.names())
            self.roster = Roster(
                policy, options.num_commits, commits=self.history.commits, behind=self.programs.behind,
                steps=self.programs.steps, devices=self.programs.placement.workers, absent=options.members.absent,
                lost=self.programs.late, now=time.perf_counter(), draws=self.programs.draws,
                num_blocks=self.programs.num_blocks,
            )  # fmt: skip
            self.history.on_refusal = self.roster.refused
            self.line.start(self.history.commits)
            options.saving.start(self.history.commits)
            options.evaluation.begin(self.history.commits)
            try:
                stopped = self._loop()
            except BaseException:
                with contextlib.suppress(Exception), self.held.interruptible():
                    self.record_evaluations(wait=True)
                raise
            self.line.end(self.history.commits, self.history.recent_loss)
            return stopped

    def _loop(self) -> bool:
        options, history = self.options, self.history
        passed = lambda commits: (commits // options.callback_every, bisect.bisect_right(options.stops, commits))
        called_at = history.commits
        self.call_at, stopped = time.perf_counter() + options.callback_seconds, False
        while history.commits < options.num_commits and not stopped:
            if self.roster.is_short:
                self.step()
            else:
                assert history.pending, "commits are missing, but none is due and none is pending"
            self.drain(wait=not self.roster.is_short)
            self.record_evaluations()
            self.line.update(history.commits, history.recent_loss)
            if options.saving.is_due(history.commits):
                self.save()
            if passed(history.commits) != passed(called_at) or time.perf_counter() >= self.call_at:
                stopped = options.callback is not None and self.call(options.callback)
                self.call_at = time.perf_counter() + options.callback_seconds
                called_at = history.commits
        self.evaluate_the_end()
        if options.callback is not None and (history.commits > called_at or self.evaluated):
            self.call(options.callback)
        return stopped and history.commits < options.num_commits

    def step(self) -> None:
        """Wait for an event and execute the instructions before and after it."""
        for kind, worker in self.options.members.requests():
            if kind == "look":
                self.call_at = 0.0
            elif kind == "join":
                self.roster.join(worker)
            else:
                self.roster.leave(worker)
        self.roster.closed = self.options.members.closed
        for worker in self.programs.returned():
            self.roster.returned(worker)
        for worker in self.roster.silent.keys() & self.roster.reading.keys():
            if self.programs.is_ready(worker):  # Its batch has been read after all.
                self.roster.returned(worker)
        self.execute()
        if not self.roster.is_short:
            return
        if (failure := self.roster.failure()) is not None:
            raise RunFailedError(failure[0]) from failure[1]
        now = time.perf_counter()
        wait = min(self.roster.timeout(now), max(0.0, self.call_at - now))
        with self.held.interruptible():
            arrival = self.waiters.next(wait)
        now = time.perf_counter()
        if arrival is not None and isinstance(arrival.error, WorkerLostError):
            self.roster.disappeared(arrival.worker, arrival.number, now, arrival.error)
            self.programs.recover(arrival.worker)
        elif arrival is not None and isinstance(arrival.error, RowsError):
            raise arrival.error
        elif arrival is not None:
            self.roster.arrived(arrival.worker, arrival.number, now, arrival, arrival.error)
        # First, because begin_round subtracts the time in which the run was not polling.
        for worker in self.roster.begin_round(now):
            reads = worker in self.roster.reading and not self.programs.is_ready(worker)
            if reads or self.waiters.watches(worker):
                self.roster.fell_silent(worker)
                self.programs.abandon(worker)
        if arrival is None and self.waiters.is_empty and (message := self.roster.lateness(now)) is not None:
            raise RunFailedError(message)
        if (message := self.roster.describe_stall(now)) is not None:
            self.warn(message)
        self.execute()

    def execute(self) -> None:
        """Execute instructions until there are none."""
        while True:
            self.held.check()
            for worker in self.roster.unprepared:
                if self.programs.is_ready(worker):
                    self.roster.prepared(worker)
                else:
                    self.roster.reads(worker)
            match self.roster.instruct(time.perf_counter()):
                case Dispatch() as dispatch:
                    self.dispatch(dispatch)
                case Commit(worker, arrival):
                    self.commit(worker, arrival)
                case Pull(worker):
                    self.renew_view(self.programs.pull_again, self.roster.pulled, worker)
                case Read(worker, block):
                    self.renew_view(self.programs.read_block, self.roster.block_read, worker, block)
                case Interrupt(worker):
                    self.programs.interrupt(worker)
                case Confirm():
                    self.history.read_all()
                    self.roster.confirmed()
                case Record(event, worker, step, error):
                    fields = {} if error is None else {"error": repr(error)[:500]}
                    self.history.event(event, self.history.now(), worker=worker, step=step, **fields)
                    if event in ("retire", "hang"):
                        why = "has been silent" if error is None else f"raised {error!r}"
                        warnings.warn(
                            f"worker {worker} was given up at its step {step}, because it {why}; the run goes on without it",
                            RunWarning, stacklevel=2,
                        )  # fmt: skip
                case None:
                    return

    def dispatch(self, dispatch: Dispatch) -> None:
        """Start a gradient. A failing source is a fault of the worker; a ``RowsError``, which a retry repeats, is raised."""
        worker, step, number = dispatch
        now = self.history.now()
        try:
            with self.held.interruptible():
                selection = self.programs.select(worker)
        except PeriodsEndError as end:
            return self.roster.ended(worker, end)
        except Exception as error:
            self.held.raise_again()
            if self.programs.prefetcher is None or isinstance(error, RowsError):
                raise
            return self.roster.fault(worker, error)
        self.history.event("dispatch", now, worker=worker, step=step)
        try:
            gradient = self.programs.compute(worker, selection)
            self.waiters.watch(worker, number, step, now, self.programs.view(worker), gradient)
        except Exception as error:  # On CPU devices small computations run at once and raise here.
            self.waiters.failed(worker, number, step, now, error)

    def commit(self, worker: int, arrival: Arrival) -> None:
        """Commit a gradient and send the worker its next view.

        A gradient that cannot be sent to the central variable is lost. After the transfer the commit is made, even if the view
        cannot be delivered.
        """
        draw = self.programs.draws.of(worker)
        try:
            gradient = self.programs.bring(arrival.gradient)
        except RunFailedError:  # A failure of the central variable is not one of the worker.
            raise
        except Exception as error:
            self.roster.fault(worker, error)
            return
        if self.may_be_due(1):  # The commits before it may have been refused.
            self.history.read_all()
        report = self.programs.commit(worker, gradient)
        now = self.history.now()
        # Without the gradient, so that its memory is freed.
        measured = {**arrival.measured, "interrupted": self.roster.interruptions[worker]}
        arrival = arrival._replace(gradient=None, measured=measured)
        self.history.pending.append(Pending(arrival, now, draw, report))
        self.roster.committed(worker)
        try:
            if not self.programs.num_blocks:  # Otherwise the last block is not read yet.
                self.programs.deliver(worker)
        except Exception as error:
            self.roster.fault(worker, error)
        if self.may_be_due():
            self.history.read_all()
            if self.may_be_due():
                self.evaluate()

    def may_be_due(self, more: int = 0) -> bool:
        """Return True if an evaluation is due after the commits known so far, if all pending ones and ``more`` are applied."""
        return self.evaluator is not None and self.roster.clock + more >= self.options.evaluation.due

    def evaluate(self) -> None:
        """Hand a copy of the central variable to the evaluator."""
        assert self.evaluator is not None
        commits = self.history.commits
        self.evaluator.submit(Evaluated(commits, *self.programs.copy()), self.history.applied_at)

    def record_evaluations(self, *, wait: bool = False) -> None:
        """Record finished evaluations; with ``wait``, all that are under way. Raise the error of the first that failed."""
        if self.evaluator is None:
            return
        for made in self.evaluator.made(wait=wait):
            if made.error is not None:
                self.evaluator = None  # A row of a later one would hide that this one is missing.
                made.error.add_note(f"evaluate raised it, after commit {made.evaluated.commit}")
                raise made.error
            if made.values is None:
                continue
            self.options.evaluation.add(made.evaluated.commit, made.at, made.values)
            self.history.event(
                "evaluation", self.history.at(made.began), commits=made.evaluated.commit, seconds=round(made.seconds, 6)
            )
            if self.options.callback is not None:
                self.evaluated.append(made.evaluated._replace(values=made.values))
                self.call_at = 0.0

    def evaluate_the_end(self) -> None:
        """Evaluate the state that the run has reached, and wait for all evaluations."""
        if self.evaluator is None:
            return
        self.history.read_all()
        if self.options.evaluation.is_missing(self.history.commits):
            self.evaluate()
        with self.held.interruptible():
            self.record_evaluations(wait=True)

    def renew_view(self, act: Callable[..., None], note: Callable[[int], None], worker: int, *block: int) -> None:
        """Let the worker pull, or read a block of its view; an error of the central variable raises."""
        try:
            act(worker, *block)
        except RunFailedError:
            raise
        except Exception as error:
            self.roster.fault(worker, error)
        else:
            note(worker)

    def warn(self, message: str) -> None:
        """Warn of a stall, and log it."""
        self.history.read_all()
        self.history.event("idle", self.history.now(), seconds=self.roster.PATIENCE)
        self.history.flush()
        warnings.warn(message, RunWarning, stacklevel=2)

    def drain(self, *, wait: bool) -> None:
        """Read the reports of finished commits; with ``wait``, wait until one was refused or all have been read."""
        pending = self.history.pending
        while pending and (wait or has_arrived(pending[0].report)):
            self.held.check()
            self.history.read_next()
            wait = wait and not self.roster.is_short

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Read all reports before a callback or a checkpoint, and log the seconds of both, in which no worker is heard."""
        began = time.perf_counter()
        self.history.read_all()
        self.history.flush()
        yield
        ended = time.perf_counter()
        self.roster.paused(ended - began, ended)
        self.history.event("pause", self.history.at(began), seconds=round(ended - began, 6))

    def save(self) -> None:
        """Save a checkpoint; the rows of evaluations before it are a part of it, so it waits for those under way."""
        with self.pausing():
            with self.held.interruptible():
                self.record_evaluations(wait=True)
            history, trace = self.history.history(), self.history.trace()
            evaluations = self.options.evaluation.columns()
            result = Result(self.programs.gather(), history, trace, stopped=True, evaluations=evaluations)
            self.options.saving.save(result)

    def call(self, callback: Callback) -> bool:
        """Call the callback; return True if it ends the run."""
        with self.pausing():
            params, model_state = self.programs.central.params()
            progress = Progress(
                commits=self.history.commits,
                total=self.options.num_commits,
                rejected=self.history.rejected,
                dropped=self.history.dropped,
                params=params,
                model_state=model_state,
                state=self.programs.gather,
                trace=self.history.trace,
                history=self.history.history(new=True),
                evaluations=self.options.evaluation.columns(),
                evaluated=tuple(self.evaluated),
                evaluates=self.evaluator is not None,
            )
            self.evaluated.clear()
            with self.held.interruptible():
                return bool(callback(progress))
