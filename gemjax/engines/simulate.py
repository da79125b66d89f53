"""The simulator: a whole trace in one compiled program."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from gemjax import slots
from gemjax.batches import as_batches
from gemjax.engines.result import Callback, History, Progress, Result, check_rejections, concatenate
from gemjax.engines.transition import RunState, Transition, check_state, view_of
from gemjax.local_steps import LocalBatches, LocalSteps
from gemjax.trace import Events, Trace

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
    state: RunState | None = None,
    callback: Callback | None = None,
    chunk_size: int | None = None,
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
      batches: a traceable ``fn(worker, step) -> batch``, or an object such as :class:`gemjax.Epochs`.
      trace: who commits when; from :mod:`gemjax.arrivals`, from a run on devices, or made by hand.
      model_state: initial model state (BatchNorm statistics and the like), default none.
      average_model_state: how a commit changes the central model state: replaces it (default) or is averaged in with 1/N.
      local: local steps of the workers between their commits; ``None`` (default): a commit is one gradient. With them
        ``batches`` and keys count a worker's local steps.
      seed: decides, with (worker, step), the keys that ``loss_fn`` gets.
      diagnostics: what to report a commit besides the loss: ``gap``, ``update_norm``, and what the method offers
        (``pi_median`` and ``energy_ratio`` of GEM, ``leader`` of LSGD, …). Each costs time.
      state: state to continue from, as an earlier result on the same trace holds it; ``params`` and ``model_state`` are
        then not used. The run goes on bit for bit as if it had not stopped.
      callback: called every ``chunk_size`` commits; may end the run by returning true.
      chunk_size: arrivals a compiled call, default 1,024 (all results are the same, bit for bit, whatever it is).

    Returns:
      A :class:`gemjax.Result`. Its ``history["time"]`` is the trace's time.

    Raises:
      ValueError: if the method is made for another number of workers than the trace has, or ``state`` is of another run.
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
    """
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be positive, got {chunk_size}")
    transition = Transition(tx, loss_fn, trace.num_workers, seed, tuple(diagnostics), average_model_state, local)
    transition, initial = transition.init(params, model_state)
    if state is not None:
        check_state(state, initial)
    state = initial if state is None else state
    state = _owned(state)
    batches = as_batches(batches) if local is None else LocalBatches(as_batches(batches), local)
    data = jax.device_put(batches.data)
    events, done = trace.events(), int(state.arrivals)
    chunk_size = chunk_size or min(1024, max(1, len(events.worker)))
    run_chunk = _compiled(transition, batches, chunk_size, with_pulls=not events.commits.all())

    parts: list[History] = []
    stopped, commits = False, int(events.commits[:done].sum())
    for begin in range(done, len(events.worker), chunk_size):
        chunk = Events(*(column[begin : begin + chunk_size] for column in events))
        state, reports = run_chunk(state, data, *_inputs(chunk, batches, chunk_size))
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
                state=functools.partial(_same, state),
                trace=functools.partial(trace.first, commits),
                history=parts[-1],
            )
            stopped = bool(callback(progress)) and commits < len(trace)
        if stopped:
            break
    return Result(state, concatenate(parts), trace.first(commits), stopped)


def _same(state: RunState) -> RunState:
    return state


def _owned(tree: RunState) -> RunState:
    """A copy that may be donated; no array stands in it twice."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def _inputs(chunk: Events, batches: Any, chunk_size: int) -> tuple:
    """The chunk's columns and batch selections, padded to the compiled size."""

    def pad(column):
        column = np.asarray(column)
        return np.concatenate([column, np.repeat(column[-1:], chunk_size - len(column), axis=0)])

    columns = (chunk.worker, chunk.step, chunk.commits, batches.select(chunk.worker, chunk.step))
    return np.int32(len(chunk.worker)), *jax.tree.map(pad, columns)


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
        "applied": reports.applied,
        "dropped": reports.dropped,
    } | reports.metrics
    return {name: column[chunk.commits] for name, column in columns.items()}


@functools.lru_cache(maxsize=8)
def _compiled(transition: Transition, batches: Any, chunk_size: int, with_pulls: bool) -> Callable:
    """``run_chunk(state, data, length, worker, step, commits, selection) -> (state, reports)``, jitted, state donated."""

    def arrive(state: RunState, data: PyTree, worker, step, commits, selection):
        view = view_of(state)
        gradient = transition.gradient(view, batches.batch(data, selection), worker, step)
        state, _, report = transition.commit_and_pull(
            state, view.params, gradient, worker, step, commits if with_pulls else True
        )
        return state, report

    @functools.partial(jax.jit, donate_argnums=0)
    def run_chunk(state, data, length, worker, step, commits, selection):
        # The slot of the worker at hand is carried beside the stacks and the next one read right after the write: a loop
        # that reads and writes a stack in one iteration the other way round copies all of it (XLA:CPU).
        store, join, shared = slots.split(state)

        def body(i, carry):
            store, shared, mine, reports = carry
            xs = jax.tree.map(lambda column: column[i], (worker, step, commits, selection))
            arrived, report = arrive(join(mine, shared), data, *xs)
            mine, _, shared = slots.split(arrived)
            store = slots.put(store, mine, worker[i])
            mine = slots.take(store, worker[jnp.minimum(i + 1, length - 1)])
            reports = jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, i, 0), reports, report)
            return store, shared, mine, reports

        mine = slots.take(store, worker[0])
        first = jax.tree.map(lambda column: column[0], (worker, step, commits, selection))
        shapes = jax.eval_shape(arrive, join(mine, shared), data, *first)[1]
        reports = jax.tree.map(lambda s: jnp.zeros((chunk_size, *s.shape), s.dtype), shapes)
        store, shared, _, reports = lax.fori_loop(0, length, body, (store, shared, mine, reports))
        return join(store, shared), reports

    return run_chunk
