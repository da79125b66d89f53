"""The device engine: one host thread dispatches gradients to many devices and commits them as they finish."""

import collections
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches import as_batches
from gemjax.diagnostics import names
from gemjax.engines.memory import bytes_of, that_fit
from gemjax.engines.programs import Programs
from gemjax.engines.records import Pending, Records
from gemjax.engines.result import Callback, Progress, Result, RunFailedError
from gemjax.engines.transition import RunState, Transition, check_state
from gemjax.engines.waiters import Arrival, Waiters
from gemjax.eventlog import EventLog
from gemjax.local_steps import LocalBatches, LocalSteps, PeriodsEndError
from gemjax.placement import Placement, place
from gemjax.slots import Slots
from gemjax.trace import Trace

PyTree = Any
RETRIES = 2  # Times that a worker which raises is given its step again before it is retired.


def run_on_devices(
    tx: optax.GradientTransformation,
    loss_fn: Callable,
    params: PyTree,
    batches: Any,
    num_commits: int,
    *,
    num_workers: int | None = None,
    placement: Placement | None = None,
    model_state: PyTree = (),
    average_model_state: bool = False,
    local: LocalSteps | None = None,
    seed: int = 0,
    diagnostics: Iterable[str] = (),
    state: RunState | None = None,
    recorded: Trace | None = None,
    log: EventLog | None = None,
    callback: Callback | None = None,
    callback_every: int = 1024,
    gate: Callable[[int, int], None] | None = None,
) -> Result:
    """Trains asynchronously on this host's devices, in the order in which they finish.

    The calling thread owns the central variable: it dispatches a gradient to every worker, takes finished workers from one
    queue, first finished first served, commits, and sends the worker its next view; it never waits for one particular
    worker, so a slow or hung one delays nobody. A commit and the pull that follows are one compiled program on the
    device of the central variable. The first round starts when all programs are compiled. ``Ctrl-C`` during the run is
    raised to the caller as ``KeyboardInterrupt``; use ``callback`` to stop between commits with a result. A worker that
    hangs costs its own commits only; if every worker hangs, so does the run.

    Args:
      tx: a gemjax method, a chain that holds one, or any optax transformation.
      loss_fn: as for :func:`gemjax.simulate`.
      params: initial central variable, a pytree of float arrays.
      batches: a traceable ``fn(worker, step) -> batch``, or an object such as :class:`gemjax.Epochs`. Data that do not fit
        the workers' devices stay on the host (:class:`gemjax.OnHost`).
      num_commits: applied commits to reach, those of ``recorded`` included.
      num_workers: number of workers N, when ``placement`` is not given: they are then placed by :func:`gemjax.place`.
      placement: which device each worker computes on, and where the central variable lives.
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`; the local optimizer's state stays on the worker's device.
      seed: decides, with (worker, step), the keys that ``loss_fn`` gets.
      diagnostics: what to report a commit besides the loss, as for :func:`gemjax.simulate`.
      state: state to continue from; every worker goes on with the step and the view it had. Needs ``recorded``.
      recorded: the trace of the run so far.
      log: where events are written.
      callback: called every ``callback_every`` commits, in the dispatching thread; may end the run by returning true.
      callback_every: commits between two calls, positive.
      gate: called as ``gate(worker, step)`` in that worker's waiter thread when a gradient is finished and before it is
        queued; may block or raise (:mod:`gemjax.testing` injects faults with it).

    Returns:
      A :class:`gemjax.Result`; ``history["time"]`` is in seconds since the start, ``dispatched`` and ``ready`` beside it, and
      ``result.trace`` replays the run in :func:`gemjax.simulate`.

    Raises:
      ValueError: if there are no workers, or the method is made for another number of them.
      RunFailedError: if commits are rejected for not being finite and none gets through, every worker keeps raising, or all
        have made the commits that ``local`` has periods for.

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.run_on_devices(gemjax.gem(0.05, num_workers=4), loss_fn, jnp.zeros(2), batches,
    ...                                num_commits=300, num_workers=4)
    >>> replay = gemjax.simulate(gemjax.gem(0.05, num_workers=4), loss_fn, jnp.zeros(2), batches, result.trace)
    >>> bool(jnp.allclose(result.params, replay.params, atol=1e-3))
    True
    """
    if placement is None:
        placement = place(1 if num_workers is None else num_workers)
    elif num_workers not in (None, len(placement.workers)):
        raise ValueError(f"num_workers={num_workers}, but the placement has {len(placement.workers)} workers")
    if (state is None) != (recorded is None):
        raise ValueError("to continue a run give both state= and recorded=, the trace of its commits so far")
    if num_commits < 0:
        raise ValueError(f"num_commits must not be negative, got {num_commits}")
    if callback_every < 1:
        raise ValueError(f"callback_every must be positive, got {callback_every}")
    transition = Transition(tx, loss_fn, len(placement.workers), seed, names(diagnostics), average_model_state, local)
    transition, initial = transition.init(params, model_state)
    if state is not None and recorded is not None:
        check_state(state, initial)
        if recorded.num_workers != transition.num_workers:
            raise ValueError(
                f"the recorded trace has {recorded.num_workers} workers, but the run has {transition.num_workers}"
            )
        state = _with_unused_draws(state, recorded)
    begin = initial if state is None else state
    batches = _on_workers(as_batches(batches), placement, begin)
    batches = batches if local is None else LocalBatches(batches, local)
    programs = Programs(transition, batches, placement, begin)
    records = Records(len(placement.workers), recorded, log, int(begin.rejected), int(begin.dropped))
    with Waiters(len(placement.workers), gate) as waiters:
        scheduler = Scheduler(programs, waiters, records, num_commits)
        stopped = scheduler.run(callback, callback_every)
    return Result(programs.gather(), records.history(), records.trace(), stopped)


def _with_unused_draws(state: RunState, recorded: Trace) -> RunState:
    """``state``, with new draws if it has some of ``recorded``: a replay does not know what rejected commits drew."""
    held, last = np.asarray(state.draw.value), np.full(recorded.num_workers, -1)
    np.maximum.at(last, recorded.worker, recorded.draw)
    if (held > last).all() and held.max() > last.max() and not np.isin(held, recorded.draw).any():
        return state
    unused = 1 + max(held.max(), last.max()) + np.arange(len(held), dtype=held.dtype)
    return state._replace(draw=Slots(jnp.asarray(unused), recorded.num_workers))


def _on_workers(batches: Any, placement: Placement, state: RunState) -> Any:
    """``batches`` whose data fit every worker's device; CPU devices are one memory."""
    device, cpu = placement.workers[0], placement.workers[0].platform == "cpu"
    needed = bytes_of(state) if cpu or placement.colocated else {}
    return that_fit(batches, needed, device, copies=len(set(placement.workers)) if cpu else 1)


class Scheduler:
    """The event loop: the only thread that dispatches, and the only one that touches the central variable."""

    def __init__(self, programs: Programs, waiters: Waiters, records: Records, num_commits: int):
        self.programs, self.waiters, self.records = programs, waiters, records
        self.num_commits = num_commits
        self.pending: collections.deque[Pending] = collections.deque()
        self.faults = [0] * programs.num_workers
        self.alive = set(range(programs.num_workers))
        self.ended: PeriodsEndError | None = None

    def run(self, callback: Callback | None, callback_every: int) -> bool:
        """Commits until there are enough; returns whether the callback ended it before."""
        self.programs.warm_up()
        self.records.begin()
        for worker in sorted(self.alive):
            self.dispatch(worker)
        called_at = self.records.commits
        while self.records.commits < self.num_commits:
            if self.records.commits + len(self.pending) < self.num_commits:
                if not self.alive:
                    raise RunFailedError(
                        f"every worker has made its commits, but only {self.records.commits + len(self.pending)} of "
                        f"{self.num_commits} came of it: {self.ended}"
                    )
                self.arrive(self.waiters.next())
            self.drain(wait=self.records.commits + len(self.pending) >= self.num_commits)
            if callback is not None and self.records.commits >= called_at + callback_every:
                if self.call(callback):
                    return self.records.commits < self.num_commits
                called_at = self.records.commits
        self.drain(wait=True)
        if callback is not None and self.records.commits > called_at:
            self.call(callback)
        return False

    def dispatch(self, worker: int) -> None:
        step = self.programs.steps[worker]
        now = self.records.now()
        try:
            selection = self.programs.select(
                worker
            )  # Data that cannot be read is no fault of one worker: it raises here.
        except PeriodsEndError as end:
            self.alive.discard(worker)
            self.ended = end
            self.records.event("end", now, worker=worker, step=step)
            return
        self.records.event("dispatch", now, worker=worker, step=step)
        try:
            gradient = self.programs.compute(worker, selection)
        except Exception as error:  # Small computations run at once on CPU devices, and raise here.
            self.waiters.failed(worker, step, now, error)
        else:
            self.waiters.watch(worker, step, now, gradient)

    def arrive(self, arrival: Arrival) -> None:
        """Commits what arrived (or deals with the fault) and sends its worker on."""
        worker = arrival.worker
        if arrival.error is not None:
            self.fault(arrival)
            return
        self.faults[worker] = 0
        now = self.records.now()
        draw = self.programs.draws[worker]
        self.pending.append(Pending(arrival, now, draw, self.programs.commit(worker, arrival.gradient)))
        self.dispatch(worker)

    def fault(self, arrival: Arrival) -> None:
        """A worker raised: it pulls afresh and tries its step again, and is retired if that does not help."""
        worker = arrival.worker
        self.faults[worker] += 1
        now = self.records.now()
        self.records.event("fault", now, worker=worker, step=arrival.step, error=repr(arrival.error)[:500])
        if self.faults[worker] <= RETRIES:
            self.programs.pull_again(worker)
            self.dispatch(worker)
            return
        self.alive.discard(worker)
        self.records.event("retire", now, worker=worker, step=arrival.step)
        if not self.alive:
            raise RunFailedError(
                f"all {self.programs.num_workers} workers kept raising; the last was worker {worker} at its step "
                f"{arrival.step}: {arrival.error!r}"
            ) from arrival.error

    def drain(self, *, wait: bool) -> None:
        """Reads the reports of finished commits; of the oldest even if it has to wait for it."""
        while self.pending and (wait or self.pending[0].report.is_ready()):
            pending = self.pending.popleft()
            self.records.commit(pending, self.programs.read(pending.report))
            wait = wait and self.records.commits + len(self.pending) >= self.num_commits

    def call(self, callback: Callback) -> bool:
        self.drain_all()
        records = self.records
        if records.log is not None:
            records.log.flush()
        progress = Progress(
            commits=records.commits,
            total=self.num_commits,
            rejected=records.rejected,
            dropped=records.dropped,
            params=self.programs.params,
            state=self.programs.gather,
            trace=records.trace,
            history=records.history(new=True),
        )
        return bool(callback(progress))

    def drain_all(self) -> None:
        while self.pending:
            pending = self.pending.popleft()
            self.records.commit(pending, self.programs.read(pending.report))
