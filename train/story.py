"""The training story: make the task, run the engine, keep records, tell what came of it."""

import contextlib
import json
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, Self

import jax
import numpy as np
from rich.console import Console

import gemjax
from gemjax import arrivals
from gemjax.engines.memory import check_fits, readable
from train import pace, plots
from train.config import Config
from train.evaluations import evaluations
from train.files import write_whole
from train.methods import local_steps, make_method
from train.progress import ProgressLine, mean_loss
from train.runfolder import RunFolder
from train.scalars import Scalars
from train.task import PyTree, Task, make_task, parameter_shapes

CALLBACK_EVERY = 100  # Commits between two looks at the run, at most.
RECORDS = 64  # Bytes a commit, at least: what its trace and its history hold.


def train(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Runs `config` to its end, or to Ctrl-C, in `folder`, going on from its checkpoint if there is one.

    Returns what `summary.json` holds.
    """
    if config.engine == "devices":
        gemjax.cpu_devices(config.workers * config.worker_devices + config.central_devices)
    task = make_task(config)
    if folder.finished(task.num_commits):
        _say(console, f"{folder.path} has made all its {task.num_commits} commits; raise --epochs to go on")
        return json.loads(folder.summary.read_text())
    check_memory(config, task.params, task.num_commits)
    # Before the folder is made: what comes after it can be resumed.
    trace = cluster(config).trace(task.num_commits, config.seed) if config.engine == "simulate" else None
    _say(console, f"{_what(config, task.params, task.num_commits)}; run folder {folder.path}")
    if (rows := task.batches.batch_size) < config.batch_size:
        _say(console, f"--batch-size {config.batch_size} is more than all rows: a batch has {rows}")
    _say(console, "compiling (once a device) …")
    with folder.checkpoints() as checkpoints, _Interrupt() as interrupt:
        state, recorded = _restore(config, task, folder, checkpoints)
        folder.begin(config)  # After what it continues was found to fit.
        with gemjax.EventLog(folder.events) as log:
            watcher = _Watcher(
                config, task, folder, checkpoints, log, interrupt, console, trace, state, done=len(recorded)
            )
            with watcher.line, watcher.scalars, _warnings_on(console):
                began = time.perf_counter()
                try:
                    result = _run_engine(config, task, state, recorded, trace, log, watcher)
                except gemjax.RunFailedError as failure:
                    if failure.result is not None:  # What was reached can be gone on from, once the cause is mended.
                        watcher.save(failure.result.state, failure.result.trace)
                    raise
                seconds = time.perf_counter() - began
            watcher.save(result.state, result.trace)
    return _conclude(config, task, folder, result, watcher, seconds, console)


def dry_run(config: Config, console: Console) -> None:
    """Says what the run would be and what memory it would keep.

    Raises:
      MemoryError: if that does not fit, after it has been said.
    """
    params = parameter_shapes(config)
    try:
        task = make_task(config)
    except FileNotFoundError:  # The originals of the data: what is kept does not depend on them.
        task = None
    data = "not known before they are prepared"
    if task is not None:
        data = readable(sum(leaf.nbytes for leaf in jax.tree.leaves(task.batches.data)))
    commits = None if task is None else task.num_commits
    kept = _kept(config, params)
    _say(console, _what(config, params, commits))
    parts = ", ".join(f"{name} {readable(size)}" for name, size in kept.items() if size)
    _say(
        console,
        f"it keeps {readable(sum(kept.values()))}: {parts}; data: {data}; gradients and activations come on top",
    )
    check_memory(config, params, commits or 0)


def check_memory(config: Config, params: PyTree, num_commits: int) -> None:
    """Raises `MemoryError` if what a run keeps cannot fit; says nothing of devices that share it among them."""
    cpu = jax.devices("cpu")[0]  # Of it, all devices that are CPUs have their memory.
    if config.engine == "simulate" or jax.default_backend() == "cpu":
        check_fits(_kept(config, params), jax.devices()[0] if config.engine == "simulate" else cpu)
    check_fits({"trace and history": RECORDS * num_commits}, cpu, "fewer workers, fewer epochs or larger batches")


def _kept(config: Config, params: PyTree) -> dict[str, int]:
    return gemjax.memory_of(make_method(config), params, num_workers=config.workers, local=local_steps(config))


def _what(config: Config, params: PyTree, commits: int | None) -> str:
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return (
        f"{config.method} with {config.workers} workers on {config.dataset}, {count:,} parameters, "
        + ("" if commits is None else f"{commits:,} commits, ")
        + f"engine {config.engine} ({jax.default_backend()})"
    )


def _run_engine(
    config: Config, task: Task, state, recorded: gemjax.Trace, trace: gemjax.Trace | None, log, watcher: "_Watcher"
) -> gemjax.Result:
    """The one place where the two engines differ: a simulation has its `trace` beforehand."""
    tx, local = _optimizers(config, task)
    look_every = min(every for every in (CALLBACK_EVERY, config.eval_every, config.checkpoint_every) if every)
    if trace is not None:
        return gemjax.simulate(
            tx, task.loss_fn, task.params, task.batches, trace,
            model_state=task.model_state, local=local, seed=config.seed, diagnostics=("gap",), state=state, callback=watcher,
            chunk_size=look_every, stops=watcher.evaluations,
        )  # fmt: skip
    placement = gemjax.place(
        config.workers, None if config.central == "auto" else config.central,
        central_devices=config.central_devices, worker_devices=config.worker_devices,
    )  # fmt: skip
    policy = gemjax.Policy(max_staleness=config.max_staleness, quorum=config.quorum, deadline=config.deadline)
    return gemjax.run_on_devices(
        tx, task.loss_fn, task.params, task.batches, task.num_commits,
        placement=placement, policy=policy, model_state=task.model_state, local=local, seed=config.seed,
        diagnostics=("gap",), state=state,
        recorded=None if state is None else recorded, log=log, callback=watcher, callback_every=look_every,
    )  # fmt: skip


def _optimizers(config: Config, task: Task) -> tuple[Any, Any]:
    """The method and, where it has them, its local steps."""
    steps = task.batches.steps_per_epoch
    return make_method(config, steps), local_steps(config, steps)


def cluster(config: Config) -> arrivals.Arrivals:
    """How long the simulated workers of a run compute."""
    if config.cluster == "round_robin":
        return arrivals.RoundRobin(config.workers)
    # A commit of tau local steps takes tau times as long, and varies by 1/sqrt(tau).
    model: arrivals.Arrivals = arrivals.Gamma(
        config.workers, batch_variation=0.1 / config.period**0.5, mean=float(config.period),
        machine_variation=0.6 if config.cluster == "heterogeneous" else 0.0,
    )  # fmt: skip
    if config.cluster in ("tiered", "tiered_barrier"):
        periods = pace.periods(config)
        counts = [periods] * config.workers if isinstance(periods, int) else periods
        speeds = [speed * config.period / count for speed, count in zip(pace.speeds(config), counts, strict=True)]
        model = arrivals.Scaled(model, speeds)
    return arrivals.Barrier(model) if config.cluster == "tiered_barrier" else model


def _restore(config: Config, task: Task, folder: RunFolder, checkpoints: gemjax.Checkpoints):
    """The state and trace to go on from, or nothing of a new run; records beyond the checkpoint are cut off."""
    if checkpoints.latest is None:
        folder.rewind({"events": 0, "metrics": 0})
        return None, gemjax.Trace(worker=[], num_workers=config.workers)
    tx, local = _optimizers(config, task)
    like = gemjax.initial_state(tx, task.params, num_workers=config.workers, model_state=task.model_state, local=local)
    state, recorded, sizes = checkpoints.load(like)
    folder.rewind(sizes)
    return state, recorded


class _Watcher:
    """What happens between commits: progress, evaluation, checkpoints, and the answer to Ctrl-C."""

    def __init__(self, config, task, folder, checkpoints, log, interrupt, console, trace, state, done: int):
        self.config, self.task, self.folder, self.checkpoints = config, task, folder, checkpoints
        self.log, self.interrupt = log, interrupt
        self.line = ProgressLine(console, task.num_commits, done, config.workers)
        self.scalars = Scalars(folder.tensorboard if config.tensorboard else None, done)
        self.evaluations = evaluations(config, task.num_commits, trace)
        self._evaluated = self._due(done)
        self._saved = done
        self._written = None if state is None else int(state.arrivals)

    def __call__(self, progress: gemjax.Progress) -> bool:
        if self.config.engine == "simulate":
            _log_commits(self.log, progress.history)
        done = progress.commits
        if (due := self._due(done)) > self._evaluated:
            self._evaluated = due
            self.evaluate(progress)
        self.line.update(done, progress.rejected, progress.history)
        self.scalars.progress(done, progress.history, self.line.rate)
        if self.config.checkpoint_every and done - self._saved >= self.config.checkpoint_every:
            self._saved = done
            self.save(progress.state(), progress.trace())
        return self.interrupt.is_set()

    def save(self, state: gemjax.RunState, trace: gemjax.Trace) -> None:
        """Writes a checkpoint, but not the same twice: the one that is there would be deleted first."""
        if int(state.arrivals) != self._written:
            self.folder.save_checkpoint(self.checkpoints, state, trace, self.log)
            self._written = int(state.arrivals)

    def _due(self, done: int) -> int:
        """How many evaluations there should have been after so many commits."""
        return int(np.searchsorted(self.evaluations, done, side="right"))

    def evaluate(self, progress: gemjax.Progress) -> None:
        loss, accuracy = self.task.evaluate(progress.params, progress.model_state)
        self.line.accuracy = accuracy
        self.scalars.write(progress.commits, {"test/loss": loss, "test/accuracy": accuracy})
        recent = progress.history
        self.folder.add_metrics(
            commits=progress.commits,
            time=float(recent["time"][-1]),
            train_loss=_finite(mean_loss(recent)),
            gap=_finite(np.mean(recent["gap"])),
            test_loss=_finite(loss),
            test_accuracy=accuracy,
            rejected=progress.rejected,
            dropped=progress.dropped,
        )


@contextlib.contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    """What a run warns of, as a line above its progress."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", gemjax.RunWarning)
        elsewhere = warnings.showwarning

        def show(message, category, filename, lineno, file=None, line=None):
            if issubclass(category, gemjax.RunWarning):
                _say(console, f"warning: {message}")
            else:
                elsewhere(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class _Interrupt(threading.Event):
    """Set by the first Ctrl-C; the second one interrupts at once."""

    def __enter__(self) -> Self:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, *_: object) -> None:
        self.set()
        print("\nstopping after the commits at hand; Ctrl-C again stops at once, without a checkpoint", file=sys.stderr)
        signal.signal(signal.SIGINT, self._before)


def _log_commits(log: gemjax.EventLog, history: dict[str, np.ndarray]) -> None:
    """Writes simulated commits to the event log, as a run on devices does."""
    names = [name for name in history if name not in ("time", "applied", "dropped")]
    for row in range(len(history["worker"])):
        event = "commit" if history["applied"][row] else "drop" if history["dropped"][row] else "reject"
        log.write(event, history["time"][row], **{name: history[name][row] for name in names})


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
        "test_loss": _finite(loss),
        "test_accuracy": accuracy,
        "commits_per_second": _finite(watcher.line.rate),
        "seconds": round(seconds, 1),
        "staleness_p50": float(p50),
        "staleness_p95": float(p95),
    }
    plots.draw_run(folder, config)
    # Last: a run that has summed up is not taken up again, whatever else it lacks.
    write_whole(folder.summary, json.dumps(summary, indent=2) + "\n")
    if result.stopped:
        go_on = f"python -m train --resume {folder.path}"
        _say(console, f"stopped at {summary['commits']} of {task.num_commits} commits; go on with: {go_on}")
    _say(
        console,
        f"test accuracy {100 * accuracy:.2f} %, test loss {loss:.4f}, {watcher.line.rate_text} commits, "
        f"staleness p50 {p50:.0f} p95 {p95:.0f}, rejected {summary['rejected']}, dropped {summary['dropped']}",
    )
    _say(console, f"picture: {folder.picture}; was it asynchronous? python -m train report {folder.path}")
    return summary


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
