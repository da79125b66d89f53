"""One training run: make the task, run the engine, keep records, and report the result."""

import contextlib
import dataclasses
import functools
import json
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

import gemjax
from gemjax.engines.devices.hardware.placement import MOST_CPU_DEVICES
from gemjax.engines.memory import readable
from gemjax.engines.result import check_end, leave_result
from gemjax.telemetry import eventlog
from train.common import interrupts
from train.common.console import say, warnings_on
from train.common.errors import RecordError, UsageError
from train.common.files import in_shell, write_whole
from train.common.interrupts import StopRequest
from train.common.machine import in_its_precision
from train.config.config import Config
from train.config.parsing import in_flags
from train.run import figures
from train.run.callback import RunCallback, commits_between, finite
from train.run.folder import RunFolder
from train.run.progress import commits_per_second
from train.run.records.log import RunLog
from train.task.cluster import cpu_devices, placement, policy, ray_cluster, traces
from train.task.memory import check_memory
from train.task.task import Arguments, Task, arguments, initial_state, make_task, parameter_shapes, state_shapes

# Longest intervals between two calls of the callback.
CALLBACK_EVERY = 100  # Commits.
CALLBACK_SECONDS = 1.0  # Not in a simulation.


class Prepared(NamedTuple):
    """Parts of a run that are made before its folder is created.

    Attributes:
      task: the learning problem.
      passed: the arguments of the engine; see :func:`train.task.task.arguments`.
      device: the device of a state that is saved or loaded.
      logged: the commits of its event log up to the newest checkpoint; `None` without a checkpoint.
      placement: the devices of a run on devices.
      policy: the scheduler's policy; `None` in a simulation.
      trace: of a simulation, all commits.
      longer: of a simulation, the trace that is simulated up to there; see :func:`train.task.cluster.traces`.
    """

    task: Task
    passed: Arguments
    device: jax.Device
    logged: gemjax.Trace | None
    placement: gemjax.Placement | None
    policy: gemjax.Policy | None
    trace: gemjax.Trace | None
    longer: gemjax.Trace | None

    @property
    def evaluator(self) -> jax.Device | None:
        """The device on which a run is evaluated; `None` for the first one."""
        return self.placement.evaluator if self.placement else None


@in_its_precision
def train(config: Config, folder: RunFolder, console: Console, interrupt: StopRequest | None = None) -> dict[str, Any]:
    """Run `config` in `folder` from the newest checkpoint, if any, to its end or until `interrupt` is set.

    Returns:
      The content of `summary.json`.

    Raises:
      OSError: if the records, or the last checkpoint, cannot be written, or another process writes this run; earlier
        checkpoints remain valid.
    """
    with contextlib.ExitStack() as until_summary:
        new = not folder.config.exists()
        if not (new or config.dry_run):
            until_summary.enter_context(folder.alone())
        prepared = _prepare(config, folder, console)
        if config.dry_run:
            return {"finished": True}
        if prepared is None:  # The summary may be of a run that was stopped on the way to more commits.
            return folder.read_summary() | {"finished": True}
        interrupt = interrupt or StopRequest()
        with contextlib.ExitStack() as during_run:
            workers = during_run.enter_context(ray_cluster(config, console))
            until_summary.enter_context(folder.alone())
            checkpoints = during_run.enter_context(folder.checkpoints(config.keep_checkpoints))
            until_summary.enter_context(interrupt)  # After Ray, which has a handler of its own.
            during_run.callback(setattr, interrupt, "unsaved", False)
            if new:
                folder.check_new()
            say(console, f"compiling (once per {'worker' if workers else 'device'}) …")
            restored, recorded = _restore(config, prepared, folder, checkpoints, console)
            config.save(folder.config)  # After the checkpoint was found to fit; from here the run can be resumed.
            log = during_run.enter_context(
                RunLog(folder.events, functools.partial(setattr, interrupt, "unsaved", True))
            )
            callback = RunCallback(
                config, prepared.task, folder, checkpoints, log, interrupt, console, prepared.trace, len(recorded)
            )
            if restored is not None:
                callback.make_up(restored, recorded)
            elif not callback.first_is_due:  # So that a run that is killed before the next checkpoint can be resumed.
                callback.save_first(initial_state(config, prepared.passed, prepared.device), recorded)
            initial = [restored]  # The engine pops it: a reference here would keep it in memory for the whole run.
            del restored
            with callback.line, callback.scalars, warnings_on(console):
                began, result = time.perf_counter(), None
                try:
                    result = _run_engine(config, prepared, initial, recorded, workers, callback)
                    seconds = time.perf_counter() - began
                    found = callback.conclude(result, prepared.evaluator)
                except Exception as error:  # The run can be resumed from the saved state, once the cause is fixed.
                    callback.save_after_error(result_of(error) or result)
                    raise
            callback.finish(result.state, result.trace)
        return _conclude(config, folder, result, callback, found, seconds, console)


def _prepare(config: Config, folder: RunFolder, console: Console) -> Prepared | None:
    """Prepare a run before its folder is created: from then on it can be resumed.

    Returns:
      The parts of the run; `None` if there is nothing to run: it has made all commits, or `--dry-run` is given.
    """
    scheduled = None
    if config.engine != "simulate":
        gemjax.cpu_devices(min(cpu_devices(config) + 1, MOST_CPU_DEVICES))  # One for evaluations.
        scheduled = policy(config)  # Refuses numbers that do not go together.
    with warnings_on(console):
        logged = folder.logged(config)
    params = parameter_shapes(config)
    kept = check_memory(config, params)
    place = "" if config.dry_run else f"; run folder {folder.path}"
    say(
        console,
        f"{config.method} with {config.workers} workers on {config.dataset}, "
        f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters, engine {config.engine} "
        f"({jax.default_backend()}){place}",
    )
    if config.dry_run:
        parts = ", ".join(f"{name} {readable(size)}" for name, size in kept.items() if size)
        more = "data, gradients and activations" if config.engine == "simulate" else "data and activations"
        say(console, f"it keeps {readable(sum(kept.values()))}: {parts}; {more} come on top")
    try:
        task = make_task(config)
    except FileNotFoundError as error:  # Original files are missing; the kept memory does not depend on them.
        if not config.dry_run:
            raise
        say(console, f"but {in_flags(str(error))}")
        return None
    total, size = task.num_commits, sum(leaf.nbytes for leaf in jax.tree.leaves(task.batches.data))
    say(console, f"{total:,} commits on {config.dataset}: {task.data}, {readable(size)} for training")
    if (rows := task.batches.batch_size) < config.batch_size:
        say(console, f"--batch-size {config.batch_size} is larger than the data: a batch has {rows} rows")
    if config.dry_run:
        return None
    if folder.finished(total):
        made = folder.summarised_commits()
        done = f"all {made} commits" if made == total else f"{made} commits, and {total} are asked for"
        say(console, f"the run in {folder.path} has made {done}; raise --epochs to continue it")
        return None
    folder.check_writable()
    placed = placement(config) if config.engine == "devices" else None
    passed = arguments(config, task)
    trace, longer = traces(config, total) if config.engine == "simulate" else (None, None)
    # The state of a real run is in host memory: it may be larger than the memory of one device.
    device = jax.local_devices(backend=None if config.engine == "simulate" else "cpu")[0]
    return Prepared(task, passed, device, logged, placed, scheduled, trace, longer)


def _run_engine(
    config: Config,
    prepared: Prepared,
    initial: list[gemjax.RunState | None],
    recorded: gemjax.Trace,
    workers: gemjax.Cluster | None,
    callback: RunCallback,
) -> gemjax.Result:
    """Run the engine of the configuration; only a simulation has its trace beforehand."""
    task, (given, shared) = prepared.task, prepared.passed
    if prepared.trace is not None and prepared.longer is not None:
        # If all commits are made, only the summary is missing.
        trace = prepared.longer if len(recorded) < task.num_commits else prepared.trace
        callback_every = min(every for every in (CALLBACK_EVERY, config.eval_every, config.checkpoint_every) if every)
        result = gemjax.simulate(
            *given, trace, **shared, diagnostics=("gap",), state=initial.pop(),
            callback=lambda progress: callback(progress) or progress.commits >= task.num_commits,
            callback_every=callback_every, stops=callback.stops,
        )  # fmt: skip
        if len(result.trace) == task.num_commits:
            try:  # The simulator does not look where its trace goes on, or where all commits were made in an earlier call.
                check_end(result.state, config.workers, lambda: result.history)
            except gemjax.RunFailedError as error:
                leave_result(error, lambda: result)
                raise
        return dataclasses.replace(result, stopped=len(result.trace) < task.num_commits)
    if workers is not None:
        run = functools.partial(gemjax.run_on_cluster, cluster=workers)
    else:
        run = functools.partial(gemjax.run_on_devices, placement=prepared.placement)
    # Compiled before the clock starts: the first evaluation would take cores from all workers.
    task.evaluate(task.params, task.model_state, device=prepared.evaluator)
    members = gemjax.Members(config.workers)
    callback.interrupt.wake = members.look  # Ctrl-C has an effect even if no gradient arrives.
    if callback.first_is_due:
        members.look()
    return run(
        *given, task.num_commits, **shared, policy=prepared.policy, members=members, diagnostics=("gap",),
        recorded=None if initial[0] is None else recorded, state=initial.pop(), log=callback.log,
        callback=callback, callback_every=CALLBACK_EVERY, callback_seconds=CALLBACK_SECONDS, stops=callback.stops,
        evaluate=callback.evaluate_beside, evaluate_every=commits_between(config, task.num_commits),
    )  # fmt: skip


def _restore(
    config: Config,
    prepared: Prepared,
    folder: RunFolder,
    checkpoints: gemjax.Checkpoints,
    console: Console,
) -> tuple[gemjax.RunState | None, gemjax.Trace]:
    """Return state and trace of the newest checkpoint, if any, and truncate records that go beyond it."""
    task, logged = prepared.task, prepared.logged
    if logged is None:
        if folder.events.exists():
            say(console, "there is no checkpoint yet: starting again")
        folder.provenance.note(config, 0, task.data_checksum())
        return None, gemjax.Trace(worker=[], num_workers=config.workers)
    state, recorded, sizes = checkpoints.load(
        state_shapes(config, prepared.passed, prepared.device), in_files=config.central_hosts > 0
    )
    if (made := len(recorded)) > task.num_commits:  # In a simulation, commits that were not applied count, too.
        raise UsageError(
            f"the run in {folder.path} has made {made} commits, and {task.num_commits} are asked for; raise --epochs to "
            "continue it"
        )
    folder.provenance.note(config, int(state.commits), task.data_checksum(), sizes)
    if len(logged) != int(state.commits):
        raise RecordError(
            f"{folder.events} has {len(logged)} commits up to the checkpoint, but the checkpoint has {int(state.commits)}; "
            "restore the file, or start a new run in another folder"
        )
    folder.rewind(sizes, made, int(state.commits))
    say(console, f"continuing from the checkpoint at {made} commits")
    return state, recorded


def result_of(error: BaseException | None) -> gemjax.Result | None:
    """Return the result that the engine attached to `error` or to one of its causes, if any."""
    while error is not None:
        if isinstance(result := getattr(error, "result", None), gemjax.Result):
            return result
        error = error.__cause__ or error.__context__
    return None


def _conclude(config, folder, result, callback, found, seconds, console) -> dict[str, Any]:
    if result.stopped:  # Said before the picture, which takes seconds, is drawn.
        name = interrupts.name_of(callback.interrupt.number)
        say(
            console,
            f"stopped by {name} at {callback.line.done} of {callback.task.num_commits} commits; go on with: {folder.go_on}",
        )
    loss, accuracy = found
    # Over the whole run, including the parts before it was resumed.
    run, line = gemjax.timeline(eventlog.read(folder.events), config.workers), callback.line
    applied = run.only("commit")["staleness"]
    rate = gemjax.summarise(run).rate if line.done and run.measured else line.rate
    p50, p95 = np.percentile(applied if len(applied) else np.zeros(1), [50, 95])
    summary = {
        "commits": line.done,
        "total": callback.task.num_commits,
        "finished": not result.stopped,
        "rejected": int(result.state.rejected),
        "dropped": int(result.state.dropped),
        "test_loss": finite(loss),
        "test_accuracy": accuracy,
        "commits_per_second": finite(rate),
        "seconds": round(seconds, 1),
        "staleness_p50": float(p50),
        "staleness_p95": float(p95),
    }
    figures.draw_run(folder, config, run)
    # Last, because a run with a summary is not resumed, even if other files are missing.
    write_whole(folder.summary, json.dumps(summary, indent=2) + "\n")
    say(
        console,
        f"test accuracy {100 * accuracy:.2f} %, test loss {loss:.4f}, "
        + (f"{commits_per_second(rate)}, " if (rate := summary["commits_per_second"]) else "")
        + f"staleness p50 {p50:.0f} p95 {p95:.0f}, rejected {summary['rejected']}, dropped {summary['dropped']}",
    )
    say(console, f"picture: {folder.picture}; was it asynchronous? python -m train report {in_shell(folder.path)}")
    return summary
