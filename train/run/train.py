"""One training run: make the task, run the engine, keep records, and report the result."""

import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

import jax
import numpy as np
from rich.console import Console

import gemjax
from gemjax.engines.devices.hardware.placement import MOST_CPU_DEVICES
from gemjax.engines.result import check_end, leave_result
from gemjax.telemetry import eventlog
from train.common import interrupts
from train.common.console import say, warnings_on
from train.common.errors import RecordError, UsageError
from train.common.files import in_shell, write_whole
from train.common.interrupts import Interrupt
from train.common.machine import cores, in_its_precision
from train.config.config import Config
from train.run import figures
from train.run.callback import RunCallback, commits_between, finite
from train.run.folder import RunFolder
from train.run.progress import commits_per_second
from train.run.records.log import RunLog
from train.task.cluster import policy, ray_cluster, traces
from train.task.memory import check_memory, in_words, may_be_large, say_batch_size
from train.task.methods import local_steps, make_method
from train.task.task import Task, make_task, parameter_shapes

# Longest intervals between two calls of the callback.
CALLBACK_EVERY = 100  # Commits.
CALLBACK_SECONDS = 1.0  # Not in a simulation.


@in_its_precision
def train(config: Config, folder: RunFolder, console: Console, interrupt: Interrupt | None = None) -> dict[str, Any]:
    """Run `config` in `folder` from the newest checkpoint, if any, to its end or until `interrupt` is set.

    Returns:
      The content of `summary.json`.

    Raises:
      OSError: if the records, or the last checkpoint, cannot be written, or another process writes this run; earlier
        checkpoints remain valid.
    """
    with contextlib.ExitStack() as until_summary:
        if folder.config.exists():
            until_summary.enter_context(folder.alone())
        return _train(config, folder, console, interrupt or Interrupt(), until_summary)


def _train(
    config: Config, folder: RunFolder, console: Console, interrupt: Interrupt, until_summary: contextlib.ExitStack
) -> dict[str, Any]:
    new = not folder.config.exists()
    if config.engine != "simulate":
        gemjax.cpu_devices(min(_cpu_devices(config) + 1, MOST_CPU_DEVICES))  # One for evaluations.
    with warnings_on(console):
        logged = folder.logged(config)
    if may_be_large(config):
        check_memory(config, parameter_shapes(config), 0)
    task = make_task(config)
    if folder.finished(task.num_commits):
        made = folder.summarised_commits()
        done = (
            f"all {made} commits"
            if made == task.num_commits
            else f"{made} commits, and {task.num_commits} are asked for"
        )
        say(console, f"the run in {folder.path} has made {done}; raise --epochs to continue it")
        # It may have been stopped on the way to more commits.
        return folder.read_summary() | {"finished": True}
    if config.engine == "devices":
        _placement(config)  # Refuses what this host cannot do, before there is a folder.
    if logged is None:
        folder.check_empty(config)
    else:
        _check_left(folder, len(logged), task)
    folder.check_writable()
    check_memory(config, task.params, task.num_commits)
    # Before the folder is created: from then on the run can be resumed.
    trace, longer = traces(config, task.num_commits) if config.engine == "simulate" else (None, None)
    say(console, f"{in_words(config, task.params, task.num_commits)}; run folder {folder.path}")
    say_batch_size(config, task, console)
    with (
        ray_cluster(config, console) as workers,
        contextlib.nullcontext(until_summary.enter_context(folder.alone())),
        folder.saved.open(config.keep_checkpoints) as checkpoints,
        contextlib.nullcontext(until_summary.enter_context(interrupt)),  # After Ray, which has a handler of its own.
        interrupt.while_unsaved(),
    ):
        if new:
            folder.check_new()
        say(console, f"compiling (once per {'worker' if workers else 'device'}) …")
        restored, recorded = _restore(config, task, folder, checkpoints, logged, console)
        folder.begin(config)  # After the checkpoint was found to fit.
        if restored is not None or not config.central_hosts:  # Those write their first checkpoint during the run.
            interrupt.go_on = folder.go_on
        with RunLog(folder.events, functools.partial(setattr, interrupt, "unsaved", True)) as log:
            callback = RunCallback(config, task, folder, checkpoints, log, interrupt, console, trace, len(recorded))
            if restored is None and not config.central_hosts:
                # Now, so that a run that is killed before the next checkpoint can be resumed.
                callback.save_first(_initial(config, task), recorded)
            elif restored is not None:
                callback.make_up(restored, recorded)
            initial = [restored]  # The engine pops it: a reference here would keep it in memory for the whole run.
            del restored
            if len(recorded) == task.num_commits:  # Only the summary is missing.
                longer = trace
            with callback.line, callback.scalars, warnings_on(console):
                began, result = time.perf_counter(), None
                try:
                    result = _run_engine(config, task, initial, recorded, longer, workers, log, callback)
                    seconds = time.perf_counter() - began
                    found = callback.conclude(result, _evaluator(config))
                except Exception as error:  # The run can be resumed from the saved state, once the cause is fixed.
                    callback.save_after_error(result_of(error) or result)
                    raise
            callback.finish(result.state, result.trace)
            interrupt.go_on = folder.go_on  # Of any run, as there is a checkpoint.
    return _conclude(config, folder, result, callback, found, seconds, console)


def _cpu_devices(config: Config) -> int:
    """Return the number of devices of this host's CPU on which workers and central variable are."""
    if config.engine != "devices":
        return config.central_devices
    # Each device compiles its own programs, and more devices than cores would only take turns.
    places = min(config.workers, cores() + 1) * config.worker_devices
    dedicated = config.central in ("auto", "dedicated")
    return places + config.central_devices if dedicated else max(places, config.central_devices)


def _placement(config: Config) -> gemjax.Placement:
    """Return the devices of a run.

    Raises:
      UsageError: if there are too few, or they would overlap in part.
    """
    devices = jax.local_devices()
    evaluator = devices[-1] if devices[0].platform == "cpu" and len(devices) > _cpu_devices(config) else None
    try:
        placement = gemjax.place(
            config.workers, None if config.central == "auto" else config.central,
            devices[:-1] if evaluator else devices,
            central_devices=config.central_devices, worker_devices=config.worker_devices,
        )  # fmt: skip
        return dataclasses.replace(placement, evaluator=evaluator) if evaluator else placement
    except ValueError as error:
        raise UsageError(
            f"--central {config.central} does not fit this host: {str(error).partition('; ')[0]}; lower --central-devices and "
            "--worker-devices, or change --central"
        ) from error


def _evaluator(config: Config) -> jax.Device | None:
    """Return the device on which a run is evaluated; `None` for the first one."""
    return _placement(config).evaluator if config.engine == "devices" else None


def _run_engine(
    config: Config,
    task: Task,
    initial: list[gemjax.RunState | None],
    recorded: gemjax.Trace,
    trace: gemjax.Trace | None,
    workers: gemjax.Cluster | None,
    log: gemjax.EventLog,
    callback: RunCallback,
) -> gemjax.Result:
    """Run the engine of the configuration; only a simulation has its `trace` beforehand, which may go on after the run."""
    tx, local = optimizers(config, task)
    if trace is not None:
        callback_every = min(every for every in (CALLBACK_EVERY, config.eval_every, config.checkpoint_every) if every)
        try:
            result = gemjax.simulate(
                tx, task.loss_fn, task.params, task.batches, trace,
                model_state=task.model_state, local=local, seed=config.seed, diagnostics=("gap",), state=initial.pop(),
                callback=lambda progress: callback(progress) or progress.commits >= task.num_commits,
                callback_every=callback_every, stops=callback.stops,
            )  # fmt: skip
        except ValueError as error:
            if not str(error).startswith("state= "):
                raise
            raise RecordError(
                f"{callback.folder.path} cannot be continued: an earlier version saved its newest checkpoint inside of a round "
                f"of its workers, without their next pulls; {callback.folder.begin_again(config)}"
            ) from error
        if len(result.trace) == task.num_commits:
            _check_applied(config, result)
        return dataclasses.replace(result, stopped=len(result.trace) < task.num_commits)
    if workers is not None:
        compression = None if config.compression == "none" else config.compression
        run = functools.partial(gemjax.run_on_cluster, cluster=workers, compression=compression)
    else:
        run = functools.partial(gemjax.run_on_devices, placement=_placement(config))
    # Compiled before the clock starts: the first evaluation would take cores from all workers.
    task.evaluate(task.params, task.model_state, device=_evaluator(config))
    members = gemjax.Members(config.workers)
    callback.interrupt.wake = members.look  # Ctrl-C has an effect even if no gradient arrives.
    if callback.first_is_due:
        members.look()
    return run(
        tx, task.loss_fn, task.params, task.batches, task.num_commits,
        policy=policy(config), members=members, model_state=task.model_state, local=local, seed=config.seed,
        diagnostics=("gap",), recorded=None if initial[0] is None else recorded, state=initial.pop(), log=log,
        callback=callback, callback_every=CALLBACK_EVERY, callback_seconds=CALLBACK_SECONDS, stops=callback.stops,
        evaluate=callback.evaluate_beside, evaluate_every=commits_between(config, task.num_commits),
    )  # fmt: skip


def _check_applied(config: Config, result: gemjax.Result) -> None:
    """Raise `RunFailedError` if a simulation ends in rejections.

    The simulator does not say so where its trace goes on after the end, or where all commits were made in an earlier call.
    """
    try:
        check_end(result.state, config.workers, lambda: result.history)
    except gemjax.RunFailedError as error:
        leave_result(error, lambda: result)
        raise


def optimizers(config: Config, task: Task) -> tuple[Any, Any]:
    """Make the method and its local steps, if it has any."""
    steps = task.batches.steps_per_epoch
    return make_method(config, steps), local_steps(config, steps)


def _restore(
    config: Config,
    task: Task,
    folder: RunFolder,
    checkpoints: gemjax.Checkpoints,
    logged: gemjax.Trace | None,
    console: Console,
) -> tuple[gemjax.RunState | None, gemjax.Trace]:
    """Return state and trace of the newest checkpoint, if any, and truncate records that go beyond it.

    `logged` is the trace of the event log up to that checkpoint; without one the records are empty.
    """
    if logged is None:
        if folder.events.exists():
            say(console, "there is no checkpoint yet: starting again")
        folder.kept.note(config, 0, task.data_checksum())
        return None, gemjax.Trace(worker=[], num_workers=config.workers)
    like = state_shapes(config, task, _place(config))
    state, recorded, sizes = checkpoints.load(like, in_files=config.central_hosts > 0)
    _check_left(folder, len(recorded), task)  # Of a simulation also the commits that it did not apply.
    folder.kept.note(config, int(state.commits), task.data_checksum(), sizes)
    if len(logged) != int(state.commits):
        raise RecordError(
            f"{folder.events} has {len(logged)} commits up to the checkpoint, but the checkpoint has {int(state.commits)}; "
            "restore the file, or start a new run in another folder"
        )
    folder.rewind(sizes, len(recorded), int(state.commits))
    say(console, f"continuing from the checkpoint at {len(recorded)} commits")
    return state, recorded


def _check_left(folder: RunFolder, made: int, task: Task) -> None:
    if made > task.num_commits:
        raise UsageError(
            f"the run in {folder.path} has made {made} commits, and {task.num_commits} are asked for; raise --epochs to "
            "continue it"
        )


def state_shapes(config: Config, task: Task, device: jax.Device) -> gemjax.RunState:
    """Return the shapes of the state of a run, on a device, to load a checkpoint into."""
    like = jax.eval_shape(lambda: _initial(config, task))
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), like)


def _place(config: Config) -> jax.Device:
    """Return the device of a state that is saved or loaded.

    That of a real run is in host memory: it may be larger than the memory of one device.
    """
    return jax.local_devices(backend=None if config.engine == "simulate" else "cpu")[0]


def _initial(config: Config, task: Task) -> gemjax.RunState:
    """Return the state of a run before its first commit."""
    tx, local = optimizers(config, task)

    def begin(params, model_state):
        return gemjax.initial_state(tx, params, num_workers=config.workers, model_state=model_state, local=local)

    with jax.default_device(_place(config)):
        return jax.jit(begin)(task.params, task.model_state)  # Eagerly each operation would be compiled by itself.


def result_of(error: BaseException | None) -> gemjax.Result | None:
    """Return the result that the engine attached to `error` or to one of its causes, if any."""
    while error is not None:
        if isinstance(result := getattr(error, "result", None), gemjax.Result):
            return result
        error = error.__cause__ or error.__context__
    return None


def _conclude(config, folder, result, callback, found, seconds, console) -> dict[str, Any]:
    folder.check_in_place()
    if result.stopped:  # Said before the picture, which takes seconds, is drawn.
        name = interrupts.name_of(callback.interrupt.number)
        say(
            console,
            f"stopped by {name} at {callback.line.done} of {callback.task.num_commits} commits; go on with: {folder.go_on}",
        )
    loss, accuracy = found
    try:  # Over the whole run, including the parts before it was resumed.
        run, line = gemjax.timeline(eventlog.read(folder.events), config.workers), callback.line
        applied = run.only("commit")["staleness"]
        rate = gemjax.summarise(run).rate if line.done and run.measured else line.rate
    except ValueError as error:  # Another process has changed the log meanwhile.
        raise RecordError(f"the run is at its end, but its log was changed: {error}") from error
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
