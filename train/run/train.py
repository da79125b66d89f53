"""One training run, from its configuration to its summary."""

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console

import gemjax
from gemjax.engines.devices.hardware.placement import MOST_CPU_DEVICES
from gemjax.engines.memory import readable
from train.common.console import say, warnings_on
from train.common.errors import RecordError, UsageError
from train.common.interrupts import StopRequest
from train.common.machine import cores, in_its_precision
from train.config.config import Config
from train.config.methods import METHODS
from train.config.parsing import in_flags
from train.config.validation import flag
from train.run.callback import RunCallback
from train.run.engine import Prepared, result_of, run_engine
from train.run.folder import RunFolder
from train.run.progress import RunProgress
from train.run.records import RunLog
from train.task.cluster import placement, ray_cluster, traces
from train.task.memory import check_memory
from train.task.methods import arguments, initial_state, state_shapes
from train.task.task import make_task, parameter_shapes


@in_its_precision
def train(config: Config, folder: RunFolder, console: Console, interrupt: StopRequest | None = None) -> dict[str, Any]:
    """Run `config` in `folder` from the newest checkpoint, if any, to its end or until `interrupt` is set.

    Returns:
      The content of `summary.json`; with `--dry-run` only that the call has finished.

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
            cluster = during_run.enter_context(ray_cluster(config, console))
            until_summary.enter_context(folder.alone())
            checkpoints = during_run.enter_context(folder.checkpoints(config.keep_checkpoints))
            until_summary.enter_context(interrupt)  # After Ray, which has a handler of its own.
            during_run.callback(setattr, interrupt, "unsaved", False)
            if new:
                folder.check_new()
            say(console, f"compiling (once per {'worker' if cluster else 'device'}) …")
            task, trace = prepared.task, prepared.trace
            passed = arguments(config, task)
            # The state of a real run is in host memory: it may be larger than the memory of one device.
            device = jax.local_devices(backend=None if config.engine == "simulate" else "cpu")[0]
            shapes = functools.partial(state_shapes, config, passed, device)
            restored, recorded = _restore(config, prepared, shapes, folder, checkpoints, console)
            config.save(folder.config)  # After the checkpoint was found to fit; from here the run can be resumed.
            log = during_run.enter_context(
                RunLog(folder.events, functools.partial(setattr, interrupt, "unsaved", True))
            )
            line = RunProgress(console, task.num_commits, len(recorded), config.workers)
            callback = RunCallback(config, task, trace, folder, checkpoints, log, interrupt, line)
            if restored is not None:
                callback.make_up(restored, recorded)
            elif not callback.first_is_due:  # So that a run that is killed before the next checkpoint can be resumed.
                callback.save_first(initial_state(config, passed, device), recorded)
            initial = [restored]  # The engine pops it: a reference here would keep it in memory for the whole run.
            del restored
            with line, callback.scalars, warnings_on(console):
                began, result = time.perf_counter(), None
                try:
                    result = run_engine(config, prepared, passed, initial, recorded, cluster, callback)
                    seconds = time.perf_counter() - began
                    callback.conclude(result, prepared.evaluator(cluster))
                except Exception as error:  # The run can be resumed from the saved state, once the cause is fixed.
                    callback.save_after_error(result_of(error) or result)
                    raise
            callback.finish(result.state, result.trace)
        return callback.summarise(result, seconds)


def _prepare(config: Config, folder: RunFolder, console: Console) -> Prepared | None:
    """Prepare a run before its `config.json` is written: from then on it can be resumed.

    Returns:
      The parts of the run; `None` if there is nothing to run: it has made all commits, or `--dry-run` is given.
    """
    needed, scheduled = cpu_devices(config), None
    if config.engine != "simulate":
        gemjax.cpu_devices(min(needed + 1, MOST_CPU_DEVICES))  # One for evaluations.
        scheduled = policy(config)  # Refuses numbers that do not go together.
    with warnings_on(console):
        logged = folder.logged(config)
    params = parameter_shapes(config)
    kept = check_memory(config, params, scheduled)
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
    placed = placement(config, needed) if config.engine == "devices" else None
    trace, longer = traces(config, total) if config.engine == "simulate" else (None, None)
    return Prepared(task, logged, placed, scheduled, trace, longer)


def _restore(
    config: Config,
    prepared: Prepared,
    shapes: Callable[[], gemjax.RunState],
    folder: RunFolder,
    checkpoints: gemjax.Checkpoints,
    console: Console,
) -> tuple[gemjax.RunState | None, gemjax.Trace]:
    """Return state and trace of the newest checkpoint, if any, and truncate records that go beyond it.

    `shapes` returns the shapes of the state.
    """
    task, logged = prepared.task, prepared.logged
    if logged is None:
        if folder.events.exists():
            say(console, "there is no checkpoint yet: starting again")
        folder.provenance.note(config, 0, task.data_checksum())
        return None, gemjax.Trace(worker=[], num_workers=config.workers)
    state, recorded, saved = checkpoints.load(shapes(), in_files=config.central_hosts > 0)
    if (made := len(recorded)) > task.num_commits:  # In a simulation, commits that were not applied count, too.
        raise UsageError(
            f"the run in {folder.path} has made {made} commits, and {task.num_commits} are asked for; raise --epochs to "
            "continue it"
        )
    folder.provenance.note(config, int(state.commits), task.data_checksum(), saved)
    if len(logged) != int(state.commits):
        raise RecordError(
            f"{folder.events} has {len(logged)} commits up to the checkpoint, but the checkpoint has {int(state.commits)}; "
            "restore the file, or start a new run in another folder"
        )
    folder.rewind(saved, made, int(state.commits))
    say(console, f"continuing from the checkpoint at {made} commits")
    return state, recorded


def policy(config: Config) -> gemjax.Policy:
    """Return the scheduler's policy of a run with real workers, a barrier for a method that is defined in rounds.

    >>> [policy(Config(method="diloco", workers=4, quorum=quorum)).quorum for quorum in (None, 1, 2)]
    [4, 1, 2]
    """
    try:
        given = gemjax.Policy(
            **{field.name: getattr(config, field.name) for field in dataclasses.fields(gemjax.Policy)}
        )
        return given.resolved(config.workers, METHODS[config.method].rounds)
    except ValueError as error:
        # The first word is a field, and so is each name before an equals sign, which stays only before a number.
        words = re.sub(r"(^\w+|\w+(?==))(=(?!\d))?", lambda found: flag(found[1]), str(error))
        raise UsageError(words) from error


def cpu_devices(config: Config) -> int:
    """Return the number of devices of this host's CPU on which workers and central variable are."""
    if config.engine != "devices":
        return config.central_devices
    # Each device compiles its own programs, and more devices than cores would only take turns.
    places = min(config.workers, cores() + 1) * config.worker_devices
    dedicated = config.central in ("auto", "dedicated")
    return places + config.central_devices if dedicated else max(places, config.central_devices)
