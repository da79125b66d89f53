"""A run with real workers, on any transport: checks of its arguments, its state, its scheduler and its result."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import optax

from gemjax.engines.checks import (
    RunWarning,
    check_callback,
    check_log,
    checked_seed,
    shapes_of,
)
from gemjax.engines.devices.hardware.placement import host_devices
from gemjax.engines.devices.hardware.programs.commits import CentralPrograms
from gemjax.engines.devices.hardware.waiters import Waiters
from gemjax.engines.devices.history import RunHistory
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.roster import INFINITY
from gemjax.engines.devices.scheduler import Options, Scheduler
from gemjax.engines.result import (
    Callback,
    History,
    Result,
    begin_from,
    checked_state,
    continued,
    leave_result,
    leaving,
    of_applied,
    warn_at_the_end,
)
from gemjax.engines.running.checkpoints.saving import Saving
from gemjax.engines.running.evaluation import Evaluate, Evaluation, Evaluator, every_of
from gemjax.engines.running.interrupts import Held
from gemjax.engines.transition import RunState, Transition, first_shapes, first_state
from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_positive, integer
from gemjax.protocol.diagnostics import names
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.staleness import needs_rounds
from gemjax.protocol.trace import Trace
from gemjax.telemetry.eventlog import EventLog


@dataclasses.dataclass
class Run(Options):
    """A run whose arguments have been checked."""

    transition: Transition
    params: PyTree
    model_state: PyTree
    state: RunState | None  # To continue from.
    recorded: Trace | None
    earlier: History
    log: EventLog | None
    in_files: bool  # True if arrays of the state may be in files or other processes.

    @property
    def num_workers(self) -> int:
        """Number of workers N."""
        return self.transition.num_workers

    def execute(
        self,
        make_programs: Callable[[Transition, RunState], CentralPrograms],
        make_waiters: Callable[[Any], Waiters],
        first: Callable[[Transition, PyTree, PyTree], RunState] = first_state,
    ) -> Result:
        """Run; the transport makes its programs for the state that the run begins with, and its waiters for these programs.

        The state is made in the host's memory, because stacked for all workers it may be too large for a device. A transport
        whose central variable is on several hosts has a function ``first`` of its own, with shapes in place of some arrays.
        """
        host = host_devices()[0]
        on_host = lambda leaf: jax.device_put(leaf, host) if isinstance(leaf, jax.Array) else leaf
        with jax.default_device(host):
            params, model_state = jax.tree.map(on_host, (self.params, self.model_state))
            transition = self.transition.bind(params)
            if self.state is None or self.recorded is None:
                begin = first(transition, params, model_state)
            else:
                shapes = first_shapes(transition, params, model_state)
                begin = continued(checked_state(self.state, shapes, elsewhere=self.in_files), self.recorded)
                if transition.num_blocks and len(self.recorded) and self.recorded.read_at is None:
                    raise ValueError(
                        "the trace of the run so far has no read_at, so the result would not replay; give recorded= with it"
                    )
            rejected, dropped = int(begin.rejected), int(begin.dropped)
            self.state = self.params = self.model_state = None  # So that the caller can free them.
            programs = make_programs(transition, begin)
            del begin, params, model_state
        history = RunHistory(programs.read, self.num_workers, self.recorded, self.log, rejected, dropped, self.earlier)
        alone = self.log.alone(history.trace()) if isinstance(self.log, EventLog) else contextlib.nullcontext()
        evaluation, made = self.evaluation, list[Result]()
        evaluates = evaluation.evaluate is not None
        with (
            leaving(made), make_waiters(programs) as waiters, contextlib.closing(programs), alone, Held() as held,
            Evaluator(evaluation, programs.evaluator, waiters.wake) if evaluates else contextlib.nullcontext() as evaluator,
        ):  # fmt: skip
            try:
                stopped = Scheduler(self, programs, waiters, history, held, evaluator).run()
                evaluations = evaluation.columns()
                made.append(Result(programs.reached(), history.history(), history.trace(), stopped, evaluations))
                held.check()
            except BaseException as error:
                leave_result(error, lambda: _reached(programs, history, evaluation))
                self.saving.after(error)
                raise
            self.saving.end(made[0])
        warn_at_the_end(made[0], stacklevel=3, barrier=self.policy.quorum == self.num_workers)
        return made[0]


def prepare(
    tx: optax.GradientTransformation,
    loss_fn: Callable,
    params: PyTree,
    num_commits: int,
    num_workers: int,
    *,
    model_state: PyTree,
    average_model_state: bool,
    local: LocalSteps | None,
    seed: int,
    diagnostics: Iterable[str],
    state: RunState | Result | None,
    recorded: Trace | None,
    policy: Policy | None,
    members: Members | None,
    log: EventLog | None,
    callback: Callback | None,
    callback_every: int | None,
    callback_seconds: float | None,
    stops: Iterable[int],
    evaluate: Evaluate | None,
    evaluate_every: int | None,
    progress: bool,
    saving: Saving,
    in_files: bool = False,
    num_blocks: int = 0,
) -> Run:
    """Check the arguments of an engine and return the run. Warnings name the line that called the engine."""
    check_callback(callback)
    check_log(log)
    num_commits, seed = integer("num_commits", num_commits, 0), checked_seed(seed)
    callback_every = every_of("callback_every", callback_every, num_commits)
    if callback_seconds is not None:
        check_positive("callback_seconds", callback_seconds)
    seconds = INFINITY if callback is None or callback_seconds is None else callback_seconds
    transition = Transition(
        tx=tx, loss_fn=loss_fn, num_workers=num_workers, seed=seed, diagnostics=names(diagnostics),
        average_model_state=average_model_state, local=local, num_blocks=num_blocks,
    )  # fmt: skip
    shapes = lambda: first_shapes(transition.bind(params), params, model_state)
    begun = saving.begin(state, shapes, host_devices()[0], in_files=in_files)
    evaluations = begun.evaluations if isinstance(begun, Result) else {}
    state, recorded, earlier = begin_from(begun, recorded if begun is state else None)
    if state is not None and recorded is not None and earlier:
        recorded = of_applied(state, recorded, earlier)
    if (state is None) != (recorded is None):
        raise ValueError("to continue give state=result, or give both state= and recorded=, the trace of its commits")
    if recorded is not None and 0 < num_commits < len(recorded):  # No warning if equal: a finished run is resumed.
        warnings.warn(
            f"the run has made {len(recorded)} commits already, so num_commits={num_commits}, which counts these, asks for no "
            f"more; give num_commits={len(recorded) + num_commits} for {num_commits} more",
            RunWarning, stacklevel=3,
        )  # fmt: skip
    # Only a run with local steps can have rounds.
    in_rounds = local is not None and needs_rounds(shapes_of(tx.init, params))
    policy, members = (policy or Policy()).resolved(num_workers, in_rounds), members or Members(num_workers)
    if members.num_workers != num_workers:
        raise ValueError(f"members are for {members.num_workers} workers, but the run has {num_workers}")
    return Run(
        num_commits=num_commits, policy=policy, members=members, callback=callback, callback_every=callback_every,
        callback_seconds=seconds, stops=sorted(integer("stops", stop, 0) for stop in stops), progress=progress,
        saving=saving, evaluation=Evaluation(evaluate, evaluate_every, num_commits, evaluations), transition=transition,
        params=params, model_state=model_state, state=state, recorded=recorded, earlier=earlier, log=log, in_files=in_files,
    )  # fmt: skip


def _reached(programs: CentralPrograms, history: RunHistory, evaluation: Evaluation) -> Result:
    """Return the result of a run that failed.

    Raises:
      ValueError: if the central variable does not belong to the trace.
    """
    with contextlib.suppress(Exception):  # Only the first exception matters.
        history.read_all()
    reached = jax.block_until_ready(programs.reached())
    result = Result(reached, history.history(), history.trace(), stopped=True, evaluations=evaluation.columns())
    if int(result.state.commits) != len(result.trace):
        raise ValueError("it does not belong to the known commits")
    return result
