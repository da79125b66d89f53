"""The cluster engine: the scheduler of the device engine, with actors of Ray as workers."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import optax

from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.checks import check_callback, check_given, warn_of_two_rates
from gemjax.engines.cluster.central.driver import unmade_state
from gemjax.engines.cluster.central.programs import SharedPrograms
from gemjax.engines.cluster.cluster import Cluster
from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.cluster.programs import ClusterPrograms, receive
from gemjax.engines.devices.hardware.waiters import Waiters
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.session import prepare
from gemjax.engines.result import Callback, Result, continue_numbers, leaving
from gemjax.engines.running.checkpoints.checkpoints import Checkpoints
from gemjax.engines.running.checkpoints.saving import Saving
from gemjax.engines.running.evaluation import Evaluate
from gemjax.engines.transition import RunState, Transition, workers_of
from gemjax.methods.error_feedback import round_to
from gemjax.protocol import Loss, PyTree
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.staleness import asynchronous
from gemjax.protocol.trace import Trace
from gemjax.telemetry.eventlog import EventLog


def run_on_cluster(
    tx: "optax.GradientTransformation",
    loss_fn: "Loss",
    params: "PyTree",
    batches: Any,
    num_commits: int,
    *,
    num_workers: int | None = None,
    cluster: "Cluster | None" = None,
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
    compression: str | None = None,
) -> "Result":
    """Train asynchronously on the hosts of a Ray cluster, in the order in which their workers finish.

    The same as :func:`gemjax.run_on_devices`, with a process per worker: policies, members, records, checkpoints and replays
    are shared. The calling process keeps the central variable and the method's state. It sends each worker a view, and receives
    a gradient, in one call of an actor. Everything else that a worker needs is sent once per run: the loss function, the
    batches and their data, the programs' description. A worker selects its own batch and prefetches the next one; a
    :class:`gemjax.FromSource` is read on the worker's host. Functions of the main script travel by value, as do modules that
    the workers cannot import.

    **Several hosts for the central variable.** With ``Cluster(..., central_hosts=n)`` central variable and method state are
    sharded over ``n`` further actors. Views and gradients travel between workers and these actors. The actors form one world
    of ``jax.distributed`` on the hosts' CPUs, and a commit is one program of all of them, which XLA divides; so every method
    works. Each array is cut along its longest axis that ``n`` divides; one without such an axis is whole on each host. The
    driver decides the order of commits. If one of these actors ends or fails, the run ends with an error; continue from the
    last checkpoint, with any ``n``. In ``progress.state()`` and ``result.state`` large arrays stay in the actors, and
    ``np.asarray`` copies one to the driver: one of ``progress`` during the callback, one of ``result`` until the cluster ends
    or begins its next run. The actors write what ``Checkpoints.save`` is given, beside the next commits, and read what
    ``Checkpoints.load(..., in_files=True)`` returns; the folder must be in a file system that all hosts share.
    ``result.params`` and ``result.model_state`` are arrays. The driver keeps the states of local optimizers.

    **Late workers.** A run begins with the workers that Ray has placed (``Cluster(..., min_workers=n)``). The others join when
    they are placed, and pull then.

    **Failures.** If the process or the host of a worker ends, or Ray declares its host dead because it cannot be reached, its
    gradient is lost and the worker leaves. It joins again when Ray has restarted its actor, on any host, and pulls. No commit
    is made twice. An exception in a worker is a fault, as on devices, with its traceback in the log of the caller. A worker
    that is silent beyond the ``deadline`` is killed, and counts a fault when it returns. If a worker is lost more than 20 times
    without a commit in between, it is retired.

    Args:
      tx: as for :func:`gemjax.run_on_devices`.
      loss_fn: as for :func:`gemjax.simulate`. It and what it refers to must be picklable.
      params: initial central variable, a pytree of float arrays.
      batches: as for :func:`gemjax.run_on_devices`, and picklable. A shared :class:`gemjax.Stream` of a source is read without
        prefetching: the next batch depends on the other workers' commits.
      num_commits: applied commits to reach, those of ``recorded`` included.
      num_workers: number of workers N. Default: that of ``cluster``, else of ``tx``, else 1 (a plain optax transformation).
      cluster: the workers, from ``with gemjax.Cluster(...) as cluster``; default a Ray on this host, for this run alone.
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`; the local optimizer's state travels with view and gradient.
      seed: decides, with (worker, step), the keys that ``loss_fn`` receives.
      diagnostics: quantities to report per commit besides the loss, as for :func:`gemjax.simulate`.
      state: as for :func:`gemjax.run_on_devices`; the earlier run may be one of any engine.
      recorded: the trace of the run so far, with a bare ``state`` only.
      policy: as for :func:`gemjax.run_on_devices`; a ``deadline`` must be longer than a gradient and its transfers.
      members: as for :func:`gemjax.run_on_devices`. A lost worker that has left does not return by itself.
      log: the log to which events are written; its ``start`` names the hosts.
      callback: as for :func:`gemjax.run_on_devices`.
      callback_every: as for :func:`gemjax.run_on_devices`.
      callback_seconds: the most seconds between two calls, positive; default: no limit.
      stops: as for :func:`gemjax.run_on_devices`.
      evaluate: as for :func:`gemjax.run_on_devices`, on the driver's host: on a device of the central variable's kind that
        the latter does not use, if there is one.
      evaluate_every: as for :func:`gemjax.run_on_devices`.
      progress: as for :func:`gemjax.run_on_devices`.
      checkpoints: as for :func:`gemjax.run_on_devices`; with ``central_hosts`` in a folder that all hosts share.
      resume: as for :func:`gemjax.run_on_devices`; ``central_hosts`` may be another number.
      checkpoint_seconds: as for :func:`gemjax.run_on_devices`.
      gate: as for :func:`gemjax.run_on_devices`; called in the driver when a gradient has arrived there.
      compression: old form of :func:`gemjax.rules.round_to` in front of ``tx``; will be removed in the next release.

    Returns:
      A :class:`gemjax.Result` as of :func:`gemjax.run_on_devices`. ``history["network"]`` has the seconds in which a view and
      its gradient travelled, the sum of ``to_host``, ``wire`` and ``to_device``; ``began``, when the computation began, assumes
      that all of these precede it.

    Warns:
      RunWarning: as :func:`gemjax.run_on_devices`; and if fewer than N workers begin without ``min_workers``.

    Raises:
      ImportError: if Ray is not installed.
      TypeError: if an argument is of the wrong type, or cannot be pickled; the message names the object.
      ValueError: if the workers cannot import a module, which the message names; or as :func:`gemjax.run_on_devices`.
      RuntimeError: if ``cluster`` is busy with another run.
      CheckpointError: as :func:`gemjax.simulate`, and ``CheckpointWriteError``.
      RunFailedError: as :func:`gemjax.run_on_devices`. Every exception during the run has an attribute ``result``,
        unless an actor of ``central_hosts`` is lost with its part of the state.

    The example is not run as a test, because Ray takes seconds to start:

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.run_on_cluster(gemjax.gem(0.05, num_workers=4), loss_fn, jnp.zeros(2), batches,
    ...                                num_commits=300)            # doctest: +SKIP
    """
    check_given(loss_fn, params, model_state)
    imported_ray()
    if cluster is None:
        num_workers = workers_of(tx, params) if num_workers is None else num_workers
    elif not cluster.actors:
        raise ValueError("the cluster is not running; use it inside of `with gemjax.Cluster(...) as cluster:`")
    elif num_workers not in (None, cluster.num_workers):
        raise ValueError(f"num_workers={num_workers}, but the cluster has {cluster.num_workers} workers")
    else:
        num_workers = cluster.num_workers
    if compression is not None:
        warnings.warn(
            'compression= is gemjax.rules.round_to("int8") in front of the method now, and will be removed in the next release',
            DeprecationWarning, stacklevel=2,
        )  # fmt: skip
        tx = asynchronous(optax.chain(round_to(compression), tx), num_workers)
    workers = cluster or Cluster(num_workers)
    shared = workers.central_hosts is not None
    check_callback(gate, "gate", "(worker, step)")
    run = prepare(
        tx, loss_fn, params, num_commits, num_workers, model_state=model_state, local=local, seed=seed,
        average_model_state=average_model_state, diagnostics=diagnostics, state=state, recorded=recorded, policy=policy,
        members=members, log=log, callback=callback, callback_every=callback_every, callback_seconds=callback_seconds,
        stops=stops, evaluate=evaluate, evaluate_every=evaluate_every, progress=progress,
        saving=Saving(checkpoints, resume, checkpoint_seconds), in_files=shared,
    )  # fmt: skip
    warn_of_two_rates(tx, params, local)
    del state, params, model_state  # The run has them, and frees them when it has copied them.

    def programs(transition: Transition, begin: RunState) -> ClusterPrograms:
        plain = as_batches(batches, num_workers)
        begin, periods = continue_numbers(begin, plain, local)
        transition = dataclasses.replace(transition, local=periods)
        grouped = plain if periods is None else LocalBatches(plain, periods)
        kind = SharedPrograms if shared else ClusterPrograms
        return kind(
            transition, plain, grouped, workers.central, begin, retries=run.policy.retries,
            parts=workers.central_hosts or 0, interruptible=run.policy.interrupt is not None,
        )  # fmt: skip

    def waiters(programs: ClusterPrograms) -> Waiters:
        if cluster is None:  # Nothing is started before all arguments have been checked.
            stack.enter_context(workers)
        made = Waiters(num_workers, gate, receive)
        programs.connect(workers, made.wake)
        return made

    made: list[Result] = []
    with leaving(made), contextlib.ExitStack() as stack:
        stack.enter_context(workers.alone())
        made.append(run.execute(programs, waiters, *((unmade_state,) if shared else ())))
    return made[0]
