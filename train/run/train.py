"""The training story: make the task, run the engine, keep records, tell what came of it."""

import functools
import json
import time
from typing import Any

import jax
import numpy as np
from rich.console import Console

import gemjax
from train.common import interrupts
from train.common.console import say, warnings_on
from train.common.files import write_whole
from train.common.interrupts import Interrupt
from train.common.machine import cores
from train.config.config import Config
from train.run import plots
from train.run.callback import Watcher, finite
from train.run.folder import RunFolder, RunLog
from train.task.cluster import cluster
from train.task.memory import check_memory, in_words
from train.task.methods import local_steps, make_method
from train.task.task import Task, make_task

# Between two looks at the run, at most.
CALLBACK_EVERY = 100  # Commits.
LOOK_SECONDS = 1.0  # Though fewer commits were made, on devices.


def train(config: Config, folder: RunFolder, console: Console, interrupt: Interrupt | None = None) -> dict[str, Any]:
    """Runs `config` in `folder` to its end, or until `interrupt` is set, from the newest checkpoint if there is one.

    Returns:
      What `summary.json` holds.

    Raises:
      OSError: if the records, or the last checkpoint, cannot be written; the checkpoints before it are as good as they were.
    """
    if config.engine == "devices":
        # Each compiles its own programs, and more than there are cores would only take turns.
        places = min(config.workers, cores() + 1) * config.worker_devices
        apart = config.central in ("auto", "dedicated")
        gemjax.cpu_devices(places + config.central_devices if apart else max(places, config.central_devices))
    task = make_task(config)
    if folder.finished(task.num_commits):
        say(console, f"{folder.path} has made all its {task.num_commits} commits; raise --epochs to go on")
        return json.loads(folder.summary.read_text())
    check_memory(config, task.params, task.num_commits)
    # Before the folder is made: what comes after it can be resumed.
    trace = cluster(config).trace(task.num_commits, config.seed) if config.engine == "simulate" else None
    say(console, f"{in_words(config, task.params, task.num_commits)}; run folder {folder.path}")
    if (rows := task.batches.batch_size) < config.batch_size:
        say(console, f"--batch-size {config.batch_size} is more than all rows: a batch has {rows}")
    say(console, "compiling (once a device) …")
    with folder.checkpoints() as checkpoints, interrupt or Interrupt() as interrupt:
        restored, recorded = _restore(config, task, folder, checkpoints, console)
        folder.begin(config)  # After what it continues was found to fit.
        with RunLog(folder.events, functools.partial(setattr, interrupt, "unsaved", True)) as log:
            watcher = Watcher(config, task, folder, checkpoints, log, interrupt, console, trace, len(recorded))
            begin = [restored]  # Taken out by who begins with it: kept here, it would be in memory for the whole run.
            del restored
            with watcher.line, watcher.scalars, warnings_on(console):
                began = time.perf_counter()
                try:
                    result = _run_engine(config, task, begin, recorded, trace, log, watcher)
                except Exception as error:  # What was reached can be gone on from, once the cause is mended.
                    watcher.keep(reached(error))
                    raise
                seconds = time.perf_counter() - began
            watcher.finish(result.state, result.trace)
    return _conclude(config, task, folder, result, watcher, seconds, console)


def _run_engine(
    config: Config,
    task: Task,
    begin: list[gemjax.RunState | None],
    recorded: gemjax.Trace,
    trace: gemjax.Trace | None,
    log: gemjax.EventLog,
    watcher: Watcher,
) -> gemjax.Result:
    """The one place where the two engines differ: a simulation has its `trace` beforehand."""
    tx, local = _optimizers(config, task)
    look_every = min(every for every in (CALLBACK_EVERY, config.eval_every, config.checkpoint_every) if every)
    if trace is not None:
        return gemjax.simulate(
            tx, task.loss_fn, task.params, task.batches, trace,
            model_state=task.model_state, local=local, seed=config.seed, diagnostics=("gap",), state=begin.pop(),
            callback=watcher, chunk_size=look_every, stops=watcher.evaluations,
        )  # fmt: skip
    placement = gemjax.place(
        config.workers, None if config.central == "auto" else config.central,
        central_devices=config.central_devices, worker_devices=config.worker_devices,
    )  # fmt: skip
    policy = gemjax.Policy(
        max_staleness=config.max_staleness, quorum=config.quorum, grace=config.grace, deadline=config.deadline,
        retries=config.retries,
    )  # fmt: skip
    task.evaluate(
        task.params, task.model_state
    )  # Compiled before the clock starts: the first one would hold up all workers.
    members = gemjax.Members(config.workers)
    watcher.interrupt.wake = members.look  # Ctrl-C is answered though nothing arrives.
    return gemjax.run_on_devices(
        tx, task.loss_fn, task.params, task.batches, task.num_commits,
        placement=placement, policy=policy, members=members, model_state=task.model_state, local=local, seed=config.seed,
        diagnostics=("gap",), recorded=None if begin[0] is None else recorded, state=begin.pop(), log=log,
        callback=watcher, callback_every=look_every, callback_seconds=LOOK_SECONDS,
    )  # fmt: skip


def _optimizers(config: Config, task: Task) -> tuple[Any, Any]:
    """The method and, where it has them, its local steps."""
    steps = task.batches.steps_per_epoch
    return make_method(config, steps), local_steps(config, steps)


def _restore(config: Config, task: Task, folder: RunFolder, checkpoints: gemjax.Checkpoints, console: Console):
    """The state and trace to go on from, or nothing of a new run; records beyond the checkpoint are cut off."""
    if checkpoints.latest is None:
        if folder.events.exists():
            say(console, "there is no checkpoint yet: beginning again")
        folder.rewind({"events": 0, "metrics": 0})
        return None, gemjax.Trace(worker=[], num_workers=config.workers)
    tx, local = _optimizers(config, task)
    like = jax.eval_shape(
        lambda: gemjax.initial_state(
            tx, task.params, num_workers=config.workers, model_state=task.model_state, local=local
        )
    )
    # Of a run on devices into the host's memory: whole, it may be more than one of them holds.
    (place, *_) = jax.local_devices(backend="cpu" if config.engine == "devices" else None)
    there = jax.sharding.SingleDeviceSharding(place)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there), like)
    state, recorded, sizes = checkpoints.load(like)
    folder.rewind(sizes)
    say(console, f"going on from the checkpoint at {len(recorded)} commits")
    return state, recorded


def reached(error: BaseException | None) -> gemjax.Result | None:
    """What a run had reached when `error` ended it, if the engine could still tell; also if it was raised from another."""
    while error is not None:
        if isinstance(result := getattr(error, "result", None), gemjax.Result):
            return result
        error = error.__cause__ or error.__context__
    return None


def _conclude(config, task, folder, result, watcher, seconds, console) -> dict[str, Any]:
    loss, accuracy = task.evaluate(result.params, result.model_state)
    # Of the whole run, however often it was taken up again.
    p50, p95 = np.percentile(result.trace.staleness if len(result.trace) else np.zeros(1), [50, 95])
    summary = {
        "commits": watcher.line.done,
        "total": task.num_commits,
        "finished": not result.stopped,
        "rejected": int(result.state.rejected),
        "dropped": int(result.state.dropped),
        "test_loss": finite(loss),
        "test_accuracy": accuracy,
        "commits_per_second": finite(watcher.line.rate),
        "seconds": round(seconds, 1),
        "staleness_p50": float(p50),
        "staleness_p95": float(p95),
    }
    plots.draw_run(folder, config)
    # Last: a run that has summed up is not taken up again, whatever else it lacks.
    write_whole(folder.summary, json.dumps(summary, indent=2) + "\n")
    if result.stopped:
        go_on = f"python -m train --resume {folder.path}"
        name = interrupts.name_of(watcher.interrupt.number)
        say(console, f"stopped by {name} at {summary['commits']} of {task.num_commits} commits; go on with: {go_on}")
    say(
        console,
        f"test accuracy {100 * accuracy:.2f} %, test loss {loss:.4f}, {watcher.line.rate_text} commits, "
        f"staleness p50 {p50:.0f} p95 {p95:.0f}, rejected {summary['rejected']}, dropped {summary['dropped']}",
    )
    say(console, f"picture: {folder.picture}; was it asynchronous? python -m train report {folder.path}")
    return summary
