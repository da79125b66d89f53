"""The device engine: one host thread dispatches gradients to many devices and commits them as they finish."""

import contextlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.checks import whole
from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.checks import check_callback, check_given, check_log, check_option, check_tx
from gemjax.engines.devices.hardware.placement import Placement, place
from gemjax.engines.devices.hardware.programs import Programs
from gemjax.engines.devices.hardware.sharding import devices_of
from gemjax.engines.devices.hardware.waiters import Waiters
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.records import Records
from gemjax.engines.devices.reports import Reports
from gemjax.engines.devices.scheduler import Scheduler
from gemjax.engines.memory import bytes_of, that_fit
from gemjax.engines.result import Callback, Result, RunWarning, begin_from
from gemjax.engines.transition import RunState, Transition, check_state, workers_of
from gemjax.engines.two_rates import warn_of_two_rates
from gemjax.protocol.diagnostics import names
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.slots import Slots
from gemjax.protocol.trace import Trace
from gemjax.telemetry.eventlog import EventLog

PyTree = Any


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
    state: RunState | Result | None = None,
    recorded: Trace | None = None,
    policy: Policy | None = None,
    members: Members | None = None,
    log: EventLog | None = None,
    callback: Callback | None = None,
    callback_every: int = 1024,
    callback_seconds: float | None = None,
    gate: Callable[[int, int], Any] | None = None,
) -> Result:
    """Trains asynchronously on this host's devices, in the order in which they finish.

    The calling thread owns the central variable: it dispatches a gradient to every worker, takes finished workers from one
    queue, first finished first served, commits, and sends the worker its next view; it never waits for one particular
    worker, so a slow or hung one delays nobody (but eight that hang hold up others at a device that they share). A commit
    and the pull that follows are one compiled program on the device of the central variable. The first round starts when
    all programs are compiled. ``Ctrl-C`` during the run is raised to the caller as ``KeyboardInterrupt``; use ``callback``
    to stop between commits with a result. A worker that hangs costs its own commits only; with a ``deadline`` in the policy
    it is given up, and the run ends when all are.

    Args:
      tx: a gemjax method, a chain that holds one, or any optax transformation.
      loss_fn: as for :func:`gemjax.simulate`.
      params: initial central variable, a pytree of float arrays.
      batches: a traceable ``fn(worker, step) -> batch``, or an object such as :class:`gemjax.Epochs`. Data that do not fit
        the workers' devices stay on the host (:class:`gemjax.OnHost`).
      num_commits: applied commits to reach, those of ``recorded`` included.
      num_workers: number of workers N. Default: that of ``placement``, or else of ``tx``, or 1 for a plain optax
        transformation.
      placement: which device each worker computes on, and where the central variable lives; default
        ``gemjax.place(num_workers)``.
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`; the local optimizer's state stays on the worker's device.
      seed: decides, with (worker, step), the keys that ``loss_fn`` gets.
      diagnostics: what to report a commit besides the loss, as for :func:`gemjax.simulate`.
      state: an earlier :class:`gemjax.Result` to continue from, or a bare :class:`gemjax.RunState` together with
        ``recorded``; every worker goes on with the step and the view it had. With a ``Result`` ``history`` begins with the
        rows of the earlier run, with a bare state where this call began.
      recorded: the trace of the run so far, with a bare ``state`` only.
      policy: when gradients are begun and committed, and when a worker is given up; default ``gemjax.Policy()``: whoever
        finishes commits at once, and a worker that raises three times in a row is retired.
      members: has workers join and leave while the run goes on; default: all take part from beginning to end.
      log: where events are written.
      callback: called every ``callback_every`` commits, in the dispatching thread; may end the run by returning true.
      callback_every: commits between two calls, positive.
      callback_seconds: seconds from one call to the next, at most, positive, though fewer commits or none were made (there is
        nothing in ``progress.history`` then); default: however long they take. ``members.look()`` has it called at once.
      gate: called as ``gate(worker, step)`` in that worker's waiter thread when a gradient is finished and before it is
        queued; may block, raise, or return a function that changes what the worker sends (:class:`gemjax.testing.Faults`
        injects faults with it).

    Returns:
      A :class:`gemjax.Result`; ``history["time"]`` is in seconds since the start; ``dispatched``, ``began`` (the worker had its
      view) and ``ready`` stand beside it. ``result.trace`` replays the run in :func:`gemjax.simulate`.

    Warns:
      RunWarning: if the central variable shares a device with a worker, though it need not; if there are several devices, but
        ``tx`` is for one worker and neither ``num_workers`` nor ``placement`` is given; if more than ``num_commits`` are made
        already; of a learning rate and local steps as :func:`gemjax.simulate`; if nothing has happened for a minute,
        with what the run waits for (it waits on). Once each, in Python's default.

    Raises:
      TypeError: if an argument is not what it should be, such as a method that is not called.
      ValueError: if there are no workers, or the method or the batches are made for another number of them.
      RunFailedError: if commits are rejected for not being finite and none gets through, every worker keeps raising, is lost or
        is silent beyond its deadline, all have made the commits that ``local`` has periods for, or a device of the central
        variable fails. Whatever leaves the run once it has begun, an error of the callback's or a ``KeyboardInterrupt``,
        too, has an attribute ``result``: what was reached, to be saved or continued, unless it cannot be read any more.

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
    check_tx(tx)
    for name, value, kind, example in (
        ("placement", placement, Placement, "gemjax.place(num_workers)"),
        ("policy", policy, Policy, "gemjax.Policy(deadline=60.0)"),
        ("members", members, Members, "gemjax.Members(num_workers)"),
    ):
        check_option(name, value, kind, example)
    check_callback(callback)
    check_log(log)
    num_commits, seed = whole("num_commits", num_commits), whole("seed", seed)
    state, recorded, earlier = begin_from(state, recorded)
    if placement is None:
        num_workers = _default_workers(tx, params) if num_workers is None else num_workers
        placement = place(num_workers)
    elif num_workers not in (None, len(placement.workers)):
        raise ValueError(f"num_workers={num_workers}, but the placement has {len(placement.workers)} workers")
    _warn_if_colocated(placement)
    warn_of_two_rates(tx, params, local)
    if (state is None) != (recorded is None):
        raise ValueError(
            "to continue a run give state=result, or give both state= and recorded=, the trace of its commits"
        )
    if num_commits < 0:
        raise ValueError(f"num_commits must not be negative, got {num_commits}")
    if recorded is not None and 0 < num_commits < len(recorded):  # As many: a finished run is resumed.
        warnings.warn(
            f"the run has made {len(recorded)} commits already, so num_commits={num_commits}, which counts these, asks for no "
            f"more; give num_commits={len(recorded) + num_commits} for {num_commits} more",
            RunWarning, stacklevel=2,
        )  # fmt: skip
    if callback_every < 1:
        raise ValueError(f"callback_every must be positive, got {callback_every}")
    if callback_seconds is not None and not callback_seconds > 0:
        raise ValueError(f"callback_seconds must be positive or None, got {callback_seconds}")
    transition = Transition(tx, loss_fn, len(placement.workers), seed, names(diagnostics), average_model_state, local)
    policy = policy or Policy()
    policy.check(len(placement.workers))
    programs = _programs(transition, placement, batches, params, model_state, state, recorded, policy.retries)
    rejected, dropped = (0, 0) if state is None else (int(state.rejected), int(state.dropped))
    del state  # The run has its own, in parts; whoever called may let this one go.
    records = Records(len(placement.workers), recorded, log, rejected, dropped, earlier)
    members = members or Members(len(placement.workers))
    if members.num_workers != len(placement.workers):
        raise ValueError(f"members are of {members.num_workers} workers, but the run has {len(placement.workers)}")
    with Waiters(len(placement.workers), gate) as waiters, contextlib.closing(programs):
        scheduler = Scheduler(programs, waiters, records, num_commits, policy, members)
        try:
            stopped = scheduler.run(callback, callback_every, callback_seconds)
        except BaseException as error:
            _leave_result(error, scheduler.reports, programs, records)
            raise
    return Result(programs.gather(), records.history(), records.trace(), stopped)


def _default_workers(tx: optax.GradientTransformation, params: PyTree) -> int:
    """The number of workers that ``tx`` was made for. Warns if that is one where there are several devices."""
    num_workers, num_devices = workers_of(tx, params), len(jax.local_devices())
    if num_workers == 1 < num_devices:
        warnings.warn(
            f"tx is for one worker, so nothing is asynchronous although there are {num_devices} devices; give num_workers= to "
            "the method, or to this engine for a plain optax transformation or if one worker is meant",
            RunWarning, stacklevel=3,
        )  # fmt: skip
    return num_workers


def _leave_result(error: BaseException, reports: Reports, programs: Programs, records: Records) -> None:
    """Gives ``error`` a ``result``, what was reached, if the central variable can still be read and is that of the trace."""
    with contextlib.suppress(Exception):  # One is enough.
        reports.read_all()
    try:
        result = Result(jax.block_until_ready(programs.gather()), records.history(), records.trace(), stopped=True)
        if int(result.state.commits) == len(result.trace):
            vars(error)["result"] = result
            return
        lost = "it does not belong to the commits that are known"
    except Exception as unreadable:
        lost = repr(unreadable)
    error.add_note(f"What the run had reached is lost, but for checkpoints: {lost}")


def _programs(
    transition: Transition,
    placement: Placement,
    batches: Any,
    params: PyTree,
    model_state: PyTree,
    state: RunState | None,
    recorded: Trace | None,
    retries: int,
) -> Programs:
    """The run's programs, with the state to begin with in parts where it belongs.

    It is made in the host's memory: whole and stacked for all workers, it may be more than a device can hold.
    """
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        params, model_state = jax.tree.map(_on_host, (params, model_state))
        if state is None or recorded is None:
            transition, begin = transition.init(params, model_state)
        else:
            transition, begin = _continued(transition, params, model_state, state, recorded)
        batches = _on_workers(as_batches(batches, transition.num_workers), placement, begin)
        batches = batches if transition.local is None else LocalBatches(batches, transition.local)
        return Programs(transition, batches, placement, begin, retries=retries)


def _on_host(leaf: Any) -> Any:
    return jax.device_put(leaf, jax.local_devices(backend="cpu")[0]) if isinstance(leaf, jax.Array) else leaf


def _continued(
    transition: Transition, params: PyTree, model_state: PyTree, state: RunState, recorded: Trace
) -> tuple[Transition, RunState]:
    """The transition, and the state to go on from, once it is known to be of this run and of that trace."""
    ready: list[Transition] = []

    def shapes(params, model_state):
        made, begin = transition.init(params, model_state)
        ready.append(made)  # It cannot leave eval_shape otherwise.
        return begin

    check_state(state, jax.eval_shape(shapes, params, model_state))
    if recorded.num_workers != transition.num_workers:
        raise ValueError(
            f"the recorded trace has {recorded.num_workers} workers, but the run has {transition.num_workers}"
        )
    if int(state.commits) != len(recorded):
        raise ValueError(
            f"the state to continue from has made {int(state.commits)} commits, but recorded= has {len(recorded)}; give the "
            "trace that belongs to it (the result's, or the checkpoint's)"
        )
    return ready[0], _with_unused_draws(state, recorded)


def _warn_if_colocated(placement: Placement) -> None:
    """Warns of the hidden barrier where there is another place, and other workers to wait."""
    centre = set(devices_of(placement.central))
    alone = len(jax.local_devices()) == 1 and next(iter(centre)).platform == "cpu"
    if len(placement.workers) == 1 or alone or not placement.colocated:
        return
    sharing = [worker for worker, place in enumerate(placement.workers) if centre & set(devices_of(place))]
    warnings.warn(
        f"the central variable shares its device with worker {', '.join(map(str, sharing))}: a commit of any worker waits "
        "there for the gradient that is running, up to a gradient's time each, a hidden barrier (gemjax.verdict tells what "
        "it came to). Give it a place of its own: gemjax.place(n, 'dedicated') or 'host'",
        RunWarning, stacklevel=3,
    )  # fmt: skip


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
    device = devices_of(placement.workers[0])[0]
    cpu = device.platform == "cpu"
    needed = bytes_of(state) if cpu or placement.colocated else {}
    copies = len({one for place in placement.workers for one in devices_of(place)}) if cpu else 1
    return that_fit(batches, needed, device, copies=copies)
