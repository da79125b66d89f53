"""The simulator: a whole trace in one compiled program."""

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.checks import whole
from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.checks import check_callback, ends_run
from gemjax.engines.memory import bytes_of, default_device, memory_of, that_fit
from gemjax.engines.result import Callback, History, Progress, Result, begin_from, check_rejections, concatenate
from gemjax.engines.simulator.chunks import chunks
from gemjax.engines.simulator.loops import check_positive, chunk_size_for, compiled, in_chunks, prepare, width_of
from gemjax.engines.transition import RunState, Transition, check_state
from gemjax.engines.two_rates import warn_of_two_rates
from gemjax.protocol.diagnostics import names
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.trace import Events, Trace, check_trace

PyTree = Any


def simulate(
    tx: optax.GradientTransformation,
    loss_fn: Callable,
    params: PyTree,
    batches: Any,
    trace: Trace,
    *,
    model_state: PyTree = (),
    average_model_state: bool = False,
    local: LocalSteps | None = None,
    seed: int = 0,
    diagnostics: Iterable[str] = (),
    state: RunState | Result | None = None,
    callback: Callback | None = None,
    chunk_size: int | None = None,
    stops: Iterable[int] = (),
    window: int | None = None,
) -> Result:
    r"""Runs an asynchronous training as its trace says, compiled, on one device.

    Row t of the trace is the commit of a worker on the view that it pulled ``staleness[t]`` rows before; what the
    worker computes and what the commit does are the functions that the other engines call too, so the same trace gives
    the same parameters. Views and per-worker state of all workers are stacked in memory, and a commit touches one
    worker's: its cost does not depend on their number.

    Args:
      tx: a gemjax method, a chain that holds one, or any optax transformation.
      loss_fn: ``loss_fn(params, batch) -> loss``, or ``loss_fn(params, model_state, batch, key) -> (loss, (model_state,
        metrics))`` with ``metrics`` a dict of scalars.
      params: initial central variable, a pytree of float arrays.
      batches: a traceable ``fn(worker, step) -> batch``, or an object such as :class:`gemjax.Epochs`. Data that do not fit
        the device beside the run's state stay on the host (:class:`gemjax.OnHost`).
      trace: who commits when; from :mod:`gemjax.arrivals`, from a run on devices, or made by hand.
      model_state: initial model state, a pytree of arrays (BatchNorm statistics, counters, PRNG keys), default none.
      average_model_state: how a commit changes the central model state: replaces it (default), or its floats are averaged in
        with 1/N (integers and PRNG keys are replaced).
      local: local steps of the workers between their commits; ``None`` (default): a commit is one gradient. With them
        ``batches`` and keys count a worker's local steps.
      seed: decides, with (worker, step), the keys that ``loss_fn`` gets.
      diagnostics: what to report a commit besides the loss: ``gap``, ``normalised_gap``, ``update_norm``, and what the method
        offers (``learning_rate``, ``compensation``, ``pi_median`` of GEM, …; gemjax/README.md has a table). Each costs time.
      state: an earlier :class:`gemjax.Result` of the same trace to continue from, or its ``state``; ``params`` and
        ``model_state`` are then not used. The run goes on bit for bit as if it had not stopped. With a ``Result``
        ``history`` begins with the rows of the earlier run, with a bare :class:`gemjax.RunState` where this call began. The
        state given is copied, not used up.
      callback: called after each compiled call, so at ``stops`` and at least every ``chunk_size`` arrivals; ends the run by
        returning true.
      chunk_size: arrivals a compiled call at most, default 1,024, or as many as 256 MiB of rows are for where data stay on
        the host (with ``window=1`` all results are the same, bit for bit, whatever it is).
      stops: numbers of commits after which a compiled call ends, such as those at which ``callback`` evaluates (by virtual
        time: the example below); they change no result either. All calls are of one compiled program.
      window: how many gradients are computed at once, at most. The views of workers that arrive one after the other, each
        once, are fixed before the first of them commits; so their gradients can be one batched computation, and the commits
        follow in order: the same result but for rounding, in pieces that fill an accelerator. 1 is one by one; ``None``
        (default) is that on a CPU, and up to 32 elsewhere.

    Returns:
      A :class:`gemjax.Result`. Its ``history["time"]`` is the trace's time.

    Warns:
      RunWarning: if ``tx`` is a method for gradients with a learning rate other than 1 and there are local steps, which have
        a rate of their own.

    Raises:
      TypeError: if an argument is not what it should be, such as a method that is not called.
      ValueError: if the method or the batches are made for another number of workers than the trace has, or ``state`` is of
        another run.
      MemoryError: if the run would keep more than the device holds.
      RunFailedError: if commits are rejected for not being finite and none gets through.

    >>> import gemjax, jax.numpy as jnp
    >>> from gemjax import arrivals
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.simulate(gemjax.gem(0.05, num_workers=8), loss_fn, jnp.zeros(2), batches,
    ...                          arrivals.Gamma(8).trace(400))
    >>> result.params.round(2)
    Array([ 3., -1.], dtype=float32)
    >>> int(result.history["staleness"].max()) > 6
    True

    Evaluated every 10 units of virtual time; a callback also comes between stops, where a chunk ends:

    >>> import numpy as np
    >>> trace, ticks, losses = arrivals.Gamma(8, mean=1.0).trace(400), np.arange(10.0, 41.0, 10.0), {}
    >>> stops = np.searchsorted(trace.time, ticks, side="right")       # Commits by each of these times.
    >>> def callback(progress):
    ...     if progress.commits in stops:
    ...         losses[progress.commits] = loss_fn(progress.params, batches(0, 0))
    >>> result = gemjax.simulate(gemjax.asgd(0.01, num_workers=8), loss_fn, jnp.zeros(2), batches, trace, stops=stops,
    ...                          callback=callback)
    >>> len(losses), losses[stops[0]] > losses[stops[-1]]
    (4, Array(True, dtype=bool))
    """
    check_positive(chunk_size=chunk_size, window=window)
    check_trace(trace)
    check_callback(callback)
    seed = whole("seed", seed)
    state, earlier, history = begin_from(state)
    with contextlib.suppress(
        TypeError, ValueError
    ):  # What is wrong with the arguments is said below, and more plainly.
        needed = memory_of(tx, params, num_workers=trace.num_workers, model_state=model_state, local=local)
        needed |= {} if state is None else {"the state to continue from": sum(bytes_of(state).values())}
        batches = that_fit(as_batches(batches, trace.num_workers), needed, default_device())
    transition = Transition(tx, loss_fn, trace.num_workers, seed, names(diagnostics), average_model_state, local)
    transition, state = _begin(transition, params, model_state, state)
    warn_of_two_rates(tx, params, local)
    batches = as_batches(batches, trace.num_workers)
    batches = batches if local is None else LocalBatches(batches, local)
    events, done = trace.events(), int(state.arrivals)
    chunk_size = min(chunk_size or chunk_size_for(events, batches), max(1, len(events.worker)))
    window = min(window or _default_window(), trace.num_workers)
    run_chunk = compiled(transition, batches, width_of(chunk_size), window, with_pulls=not events.commits.all())

    parts: list[History] = [history]
    stopped, commits = False, int(events.commits[:done].sum())
    if earlier is not None and trace.first(commits) != earlier:
        raise ValueError(
            f"state= is a Result of another trace: its {len(earlier)} commits are not the first rows of trace=, which has "
            f"{len(trace)}; give the trace that it ran on, or one that begins with its trace"
        )
    cuts = chunks(events, chunk_size, stops, done)
    prepared = functools.partial(prepare, batches, events, width_of(chunk_size), window)
    running = in_chunks(run_chunk, state, batches.data, prepared, cuts)
    for cut, state, reports in running:
        chunk = Events(*(column[slice(*cut)] for column in events))
        parts.append(_history(chunk, reports, trace))
        commits += int(chunk.commits.sum())
        check_rejections(int(state.rejected_in_a_row), trace.num_workers, functools.partial(concatenate, parts))
        if callback is not None:
            progress = Progress(
                commits=commits,
                total=len(trace),
                rejected=int(state.rejected),
                dropped=int(state.dropped),
                params=state.params,
                model_state=state.model_state,
                state=functools.partial(_same, state),
                trace=functools.partial(trace.first, commits),
                history=parts[-1],
            )
            stopped = ends_run(callback(progress)) and commits < len(trace)
        if stopped:
            break
    return Result(state, concatenate(parts), trace.first(commits), stopped)


def _same(state: RunState) -> RunState:
    return state


def _begin(
    transition: Transition, params: PyTree, model_state: PyTree, state: RunState | None
) -> tuple[Transition, RunState]:
    """The transition made ready, and a copy of the state to begin with that may be donated; no array stands in it twice.

    Whose an array is cannot be seen, as a rule may begin with one of its own, so all are copied; but one by one, or there
    would be two of the state.
    """
    if state is None:
        transition, begin = transition.init(params, model_state)
        leaves, structure = jax.tree.flatten(begin)
        del begin
    else:
        ready = []
        check_state(state, jax.eval_shape(lambda *own: _noted(ready, transition.init(*own)), params, model_state))
        transition, (leaves, structure) = ready[0], jax.tree.flatten(state)
    for index in range(len(leaves)):
        leaves[index] = _copy(leaves[index])
    return transition, jax.tree.unflatten(structure, leaves)


def _noted(ready: list[Transition], made: tuple[Transition, RunState]) -> RunState:
    """The state of a pair, the transition of which goes into ``ready``: it cannot leave ``eval_shape`` otherwise."""
    ready.append(made[0])
    return made[1]


def _copy(leaf: jax.Array) -> jax.Array:
    return jnp.array(leaf, copy=True)


def _default_window() -> int:
    return 1 if jax.default_backend() == "cpu" else 32


def _history(chunk: Events, reports: Any, trace: Trace) -> History:
    """The chunk's commits as columns; arrivals that only pulled are left out."""
    reports = jax.tree.map(lambda column: np.asarray(column)[: len(chunk.worker)], reports)
    columns = {
        "worker": chunk.worker,
        "step": chunk.step,
        "time": trace.time[chunk.row],
        "loss": reports.loss,
        "staleness": reports.staleness,
        "pulled_at": reports.pulled_at,
        "draw": chunk.draw,
        "applied": reports.applied,
        "dropped": reports.dropped,
    } | reports.metrics
    return {name: column[chunk.commits] for name, column in columns.items()}
