"""The engine of a run: the simulator, the devices of this host, or a Ray cluster."""

import dataclasses
import functools
from typing import NamedTuple

import jax

import gemjax
from gemjax.engines.devices.hardware.placement import spare
from gemjax.engines.result import check_end, leave_result
from train.config.config import Config
from train.run.callback import RunCallback
from train.task.methods import Arguments
from train.task.task import Task

# Longest intervals between two calls of the callback.
CALLBACK_EVERY = 100  # Commits.
CALLBACK_SECONDS = 1.0  # Not in a simulation.


class Prepared(NamedTuple):
    """Parts of a run that are made before its `config.json` is written.

    Attributes:
      task: the learning problem.
      logged: the commits of its event log up to the newest checkpoint; `None` without a checkpoint.
      placement: the devices of a run on devices.
      policy: the scheduler's policy; `None` in a simulation.
      trace: of a simulation, all commits.
      longer: of a simulation, the trace that is simulated up to there; see :func:`train.task.cluster.traces`.
    """

    task: Task
    logged: gemjax.Trace | None
    placement: gemjax.Placement | None
    policy: gemjax.Policy | None
    trace: gemjax.Trace | None
    longer: gemjax.Trace | None

    def evaluator(self, cluster: gemjax.Cluster | None) -> jax.Device | None:
        """Return the device on which the engine evaluates a run; `None` for the first one."""
        if cluster is not None:
            return spare((cluster.central,), cluster.central)
        return self.placement.evaluator if self.placement else None


def run_engine(
    config: Config,
    prepared: Prepared,
    passed: Arguments,
    initial: list[gemjax.RunState | None],
    recorded: gemjax.Trace,
    cluster: gemjax.Cluster | None,
    callback: RunCallback,
) -> gemjax.Result:
    """Run the engine of the configuration; only a simulation has its trace beforehand."""
    task, (given, shared) = prepared.task, passed
    if prepared.trace is not None and prepared.longer is not None:
        # A run that has made all commits lacks its summary only, and the longer trace has more commits.
        trace = prepared.longer if len(recorded) < task.num_commits else prepared.trace
        result = gemjax.simulate(
            *given, trace, **shared, diagnostics=("gap",), state=initial.pop(),
            callback=lambda progress: callback(progress) or progress.commits >= task.num_commits,
            callback_every=CALLBACK_EVERY, stops=callback.stops,
        )  # fmt: skip
        if len(result.trace) == task.num_commits:
            try:  # The simulator checks the end of its own trace only, and only if it makes a commit.
                check_end(result.state, config.workers, lambda: result.history)
            except gemjax.RunFailedError as error:
                leave_result(error, lambda: result)
                raise
        return dataclasses.replace(result, stopped=len(result.trace) < task.num_commits)
    if cluster is not None:
        run = functools.partial(gemjax.run_on_cluster, cluster=cluster)
    else:
        run = functools.partial(gemjax.run_on_devices, placement=prepared.placement)
    # Compiled before the clock starts: the first evaluation would take cores from all workers.
    task.evaluate(task.params, task.model_state, device=prepared.evaluator(cluster))
    members = gemjax.Members(config.workers)
    callback.interrupt.wake = members.look  # Ctrl-C has an effect even if no gradient arrives.
    if callback.first_is_due:
        members.look()
    return run(
        *given, task.num_commits, **shared, policy=prepared.policy, members=members, diagnostics=("gap",),
        recorded=None if initial[0] is None else recorded, state=initial.pop(), log=callback.log,
        callback=callback, callback_every=CALLBACK_EVERY, callback_seconds=CALLBACK_SECONDS, stops=callback.stops,
        evaluate=callback.evaluate_beside, evaluate_every=config.eval_every or None,
    )  # fmt: skip


def result_of(error: BaseException | None) -> gemjax.Result | None:
    """Return the result that the engine attached to `error` or to one of its causes, if any."""
    while error is not None:
        if isinstance(result := getattr(error, "result", None), gemjax.Result):
            return result
        error = error.__cause__ or error.__context__
    return None
