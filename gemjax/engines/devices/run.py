"""The device engine: one host thread dispatches gradients to many devices and commits them as they finish."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import optax

from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.checks import RunWarning, check_callback, check_given, warn_of_two_rates
from gemjax.engines.devices.hardware.placement import Placement, place, warn_if_colocated
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.devices.hardware.sharding import devices_of
from gemjax.engines.devices.hardware.waiters import Waiters
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.session import prepare
from gemjax.engines.memory import bytes_of, offload_if_needed
from gemjax.engines.result import Callback, Result, continue_numbers
from gemjax.engines.running.checkpoints.checkpoints import Checkpoints
from gemjax.engines.running.checkpoints.saving import Saving
from gemjax.engines.running.evaluation import Evaluate
from gemjax.engines.transition import RunState, Transition, workers_of
from gemjax.protocol import Loss, PyTree
from gemjax.protocol.checks import check_bool, integer
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.trace import Trace
from gemjax.telemetry.eventlog import EventLog


def run_on_devices(
    tx: "optax.GradientTransformation",
    loss_fn: "Loss",
    params: "PyTree",
    batches: Any,
    num_commits: int,
    *,
    num_workers: int | None = None,
    placement: "Placement | None" = None,
    model_state: "PyTree" = (),
    average_model_state: bool = False,
    local: "LocalSteps | None" = None,
    seed: int = 0,
    diagnostics: "Iterable[str]" = (),
    state: "RunState | Result | None" = None,
    recorded: "Trace | None" = None,
    policy: "Policy | None" = None,
    members: "Members | None" = None,
    log: "EventLog | None" = None,
    callback: "Callback | None" = None,
    callback_every: int | None = None,
    callback_seconds: float | None = None,
    stops: "Iterable[int]" = (),
    evaluate: "Evaluate | None" = None,
    evaluate_every: int | None = None,
    progress: bool = False,
    checkpoints: "str | os.PathLike | Checkpoints | None" = None,
    resume: bool = False,
    checkpoint_seconds: float = 600.0,
    gate: "Callable[[int, int], Any] | None" = None,
    atomic: bool = True,
    num_blocks: int | None = None,
) -> "Result":
    """Train asynchronously on this host's devices, in the order in which they finish.

    The calling thread owns the central variable: it dispatches a gradient to every worker, takes finished workers from one
    queue, first finished first served, commits, and sends the worker its next view. By default it waits for no particular
    worker, so a slow or hung one delays no other (but eight hung workers block their device); with a ``deadline`` in the policy
    a hung worker is given up, and the run fails when all are. A commit and the pull that follows it are one compiled program on
    the device of the central variable. Gradients are dispatched when all programs are compiled. What a handler of a signal
    raises, as Ctrl-C does, is raised between two commits, with the result so far; a second exception is raised at once.

    Args:
      tx: a gemjax method, a chain that contains one, or any optax transformation.
      loss_fn: as for :func:`gemjax.simulate`.
      params: initial central variable, a pytree of float arrays.
      batches: a traceable ``fn(worker, step) -> batch``, or an object such as :class:`gemjax.Epochs`. Data that do not fit
        the workers' devices stay on the host (:class:`gemjax.OnHost`).
      num_commits: applied commits to reach, those of ``recorded`` included.
      num_workers: number of workers N. Default: that of ``placement``, else of ``tx``, else 1 (a plain optax transformation).
      placement: the devices of the workers and of the central variable; default ``gemjax.place(num_workers)``.
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`; the local optimizer's state stays on the worker's device.
      seed: decides, with (worker, step), the keys that ``loss_fn`` receives.
      diagnostics: quantities to report per commit besides the loss, as for :func:`gemjax.simulate`.
      state: an earlier :class:`gemjax.Result` to continue from, or a bare :class:`gemjax.RunState` with ``recorded``; every
        worker keeps its step and its view. ``history`` begins with the rows of the earlier ``Result``, or with this call.
      recorded: the trace of the run so far, with a bare ``state`` only.
      policy: decides when gradients are dispatched and committed, and when a worker is given up; default ``gemjax.Policy()``: a
        finished worker commits at once, or with a method that is defined in rounds (:func:`gemjax.diloco`) when all have
        finished; and one that raises three times in a row is retired.
      members: lets workers join and leave during the run; default: all take part throughout.
      log: the log to which events are written.
      callback: called every ``callback_every`` commits, in the dispatching thread; ends the run if it returns True. Gradients
        that are ready together are committed before the next call, so that it may come some commits later.
      callback_every: commits between two calls, positive: the callback is called when their number passes a multiple of it.
        Default: a twentieth of ``num_commits``. It is also called at the end, and when an evaluation has been made.
      callback_seconds: the most seconds between two calls, positive, even after fewer commits or none (with an empty
        ``progress.history``); default: no limit. ``members.look()`` requests a call at once.
      stops: numbers of commits after which the callback is called, too, such as those at which it evaluates.
      evaluate: ``evaluate(params, model_state) -> dict of numbers``, such as the loss on held-out data, or ``None`` for no row.
        It is called with a copy of the parameters after each ``evaluate_every`` commits and at the end of the run, in a thread
        of its own on ``placement.evaluator``, one call at a time. Commits go on meanwhile. What is due meanwhile waits as a
        copy in memory. A checkpoint and the end of the run wait for all of it. Its exception ends the run.
      evaluate_every: commits between two evaluations, positive; default: a twentieth of ``num_commits``.
      progress: True to print a line to standard error, updated if that is a terminal: commits, their rate, the time left, the
        loss.
      checkpoints: folder of the run's checkpoints, or a :class:`gemjax.Checkpoints`. A checkpoint is written in the background
        at most every ``checkpoint_seconds``, when the evaluations under way are known, and at the end, also of a run that
        fails or that Ctrl-C ends. Default: none.
      resume: True to continue from the newest checkpoint in ``checkpoints``, if there is one, with the whole ``history``; the
        order of arrivals after it is a new one. False (default): the folder must have none.
      checkpoint_seconds: least seconds between two checkpoints, positive; default 600. A killed run loses what came
        after the last complete one.
      gate: called as ``gate(worker, step)`` in that worker's waiter thread before a finished gradient is queued; may block,
        raise, or return a function that changes the gradient (as :class:`gemjax.testing.Faults` does), which gets a tree of the
        engine's packed arrays.
      atomic: True (default): a worker reads all parameters at once, right after its commit. False: it reads them in blocks, and
        gradients that finish meanwhile are committed between two of its reads, so that a view may mix versions. A block has
        all of a commit or nothing. ``result.trace`` has the clock of each block in ``read_at``; the staleness is that of the
        oldest one. It gains no speed: on CPU devices, with gradients about as short as commits, 4 blocks cost a fifth of the
        commits per second. It is for studying what inconsistent reads do in real orders of arrival.
      num_blocks: number of blocks B, a positive int, for ``atomic=False`` only; default 4. :func:`gemjax.rules.spread_blocks`
        says which numbers a block has.

    Returns:
      A :class:`gemjax.Result`; ``history["time"]`` is in seconds since the start, as are the further columns ``dispatched``,
      ``began`` (the worker had its view) and ``ready``. ``result.trace`` replays the run in :func:`gemjax.simulate`.

    Warns:
      RunWarning: if the central variable shares a device with a worker without need; if there are several devices, but ``tx``
        is for one worker and neither ``num_workers`` nor ``placement`` is given; if more than ``num_commits`` have been
        made; if two learning rates multiply, as in :func:`gemjax.simulate`; if a worker is given up, except one that has joined
        again and still computes an earlier gradient; if nothing has happened for a minute, with the workers that the run waits
        for (it goes on waiting); at the end, if the run has diverged, as in :func:`gemjax.simulate`, or a method that is
        defined in rounds had rounds without every worker. Once each, by Python's default.

    Raises:
      TypeError: if an argument is of the wrong type, such as a method that is not called.
      ValueError: if there are no workers, or the method or the batches are made for another number of them.
      CheckpointError: as :func:`gemjax.simulate`, and ``CheckpointWriteError``.
      RunFailedError: if commits are rejected, as in :func:`gemjax.simulate`, and none is applied; if every worker keeps
        raising, is lost or is silent beyond its deadline; if no worker has a period of ``local`` left; or if a device of the
        central variable fails. Every exception during the run, also of the callback or a ``KeyboardInterrupt``, has an
        attribute ``result``, to be saved or continued, unless the state can no longer be read.

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.run_on_devices(gemjax.gem(0.05, num_workers=4), loss_fn, jnp.zeros(2), batches,
    ...                                num_commits=300)
    >>> replay = gemjax.simulate(gemjax.gem(0.05, num_workers=4), loss_fn, jnp.zeros(2), batches, result.trace)
    >>> bool(jnp.allclose(result.params, replay.params, atol=1e-3))
    True
    """
    check_given(loss_fn, params, model_state)
    if placement is None:
        num_workers = _default_workers(tx, params) if num_workers is None else num_workers
        placement = place(num_workers)
    elif num_workers not in (None, len(placement.workers)):
        raise ValueError(f"num_workers={num_workers}, but the placement has {len(placement.workers)} workers")
    check_callback(gate, "gate", "(worker, step)")
    run = prepare(
        tx, loss_fn, params, num_commits, len(placement.workers), model_state=model_state, local=local, seed=seed,
        average_model_state=average_model_state, diagnostics=diagnostics, state=state, recorded=recorded, policy=policy,
        members=members, log=log, callback=callback, callback_every=callback_every, callback_seconds=callback_seconds,
        stops=stops, evaluate=evaluate, evaluate_every=evaluate_every, progress=progress,
        saving=Saving(checkpoints, resume, checkpoint_seconds), num_blocks=_blocks(atomic, num_blocks),
    )  # fmt: skip
    warn_if_colocated(placement)
    warn_of_two_rates(tx, params, local)
    del state, params, model_state  # The run has them, and frees them when it has copied them.

    def programs(transition: Transition, begin: RunState) -> Programs:
        kept = as_batches(batches, run.num_workers)
        begin, periods = continue_numbers(begin, kept, local)
        transition = dataclasses.replace(transition, local=periods)
        kept = _on_workers(kept, placement, begin)
        kept = kept if periods is None else LocalBatches(kept, periods)
        interruptible = run.policy.interrupt is not None
        return Programs(transition, kept, placement, begin, retries=run.policy.retries, interruptible=interruptible)

    return run.execute(programs, lambda programs: Waiters(run.num_workers, gate))


def _blocks(atomic: bool, num_blocks: int | None) -> int:
    """Return the number of blocks in which views are read; 0 if they are read at once, as with a single block."""
    check_bool("atomic", atomic)
    if atomic and num_blocks is not None:
        raise ValueError(f"num_blocks is for atomic=False, got {num_blocks}")
    blocks = 4 if num_blocks is None else integer("num_blocks", num_blocks, 1)
    return 0 if atomic or blocks == 1 else blocks


def _default_workers(tx: optax.GradientTransformation, params: PyTree) -> int:
    """Return the number of workers of ``tx``. Warn if it is 1 and there are several devices."""
    num_workers, num_devices = workers_of(tx, params), len(jax.local_devices())
    if num_workers == 1 < num_devices:
        warnings.warn(
            f"tx is for one worker, so nothing is asynchronous although there are {num_devices} devices; give num_workers= to "
            "the method, or to this engine for a plain optax transformation or if one worker is meant",
            RunWarning, stacklevel=3,
        )  # fmt: skip
    return num_workers


def _on_workers(batches: Any, placement: Placement, state: RunState) -> Any:
    """Return ``batches`` whose data fit every worker's device; CPU devices share one memory."""
    device = devices_of(placement.workers[0])[0]
    cpu = device.platform == "cpu"
    needed = bytes_of(state) if cpu or placement.colocated else {}
    copies = len({one for place in placement.workers for one in devices_of(place)}) if cpu else 1
    return offload_if_needed(batches, needed, device, copies=copies)
