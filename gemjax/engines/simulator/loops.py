"""The compiled loops of the simulator: arrivals one by one, or their gradients in windows."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import part, select
from gemjax.engines.transition import RunState, Transition, view_of
from gemjax.protocol import slots
from gemjax.protocol.trace import Events

PyTree = Any
CHUNK, CHUNK_BYTES = 1024, 2**28


def check_positive(**numbers: int | None) -> None:
    """Raises ``ValueError`` for one that is given and not positive."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be positive, got {value}")


def chunk_size_for(events: Events, batches: Any, copies: int = 1) -> int:
    """How many arrivals a compiled call takes by default: fewer than usual where what ``copies`` of them need is large."""
    if not len(events.worker):
        return 1
    one = select(batches, *(column[:1] for column in (events.worker, events.step, events.draw)))
    size = copies * sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(part(batches, one)))
    return max(1, min(CHUNK, len(events.worker), CHUNK_BYTES // max(1, size)))


def width_of(chunk_size: int) -> int:
    """What chunks are padded to: a loop over columns of one row is compiled in another way on a CPU, and rounds so."""
    return max(2, chunk_size)


def in_chunks(
    run_chunk: Callable, state: RunState, data: PyTree, prepare: Callable, cuts: list[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], RunState, PyTree]]:
    """Runs arrivals ``(begin, end)`` by ``(begin, end)``; yields each cut, the state behind it and its reports at once.

    What the next chunk needs is selected by ``prepare(cut)``, and its transfer begins, while the device computes the present
    one. It is :func:`prepare` of this module, or several of them stacked.
    """
    data = jax.device_put(data)
    prepared = [_attempt(prepare, cut) for cut in cuts[:1]]
    for number, cut in enumerate(cuts):
        own, *columns = prepared.pop().result()
        state, reports = run_chunk(state, data if own is None else own, *columns)
        del own, columns
        prepared += [_attempt(prepare, following) for following in cuts[number + 1 : number + 2]]
        yield cut, state, reports


def prepare(batches: Any, events: Events, chunk_size: int, window: int, cut: tuple[int, int]) -> tuple:
    """What a compiled loop is given of some arrivals, ``None`` or rows of data that stay on the host before the rest."""
    *columns, selection = inputs(Events(*(column[slice(*cut)] for column in events)), batches, chunk_size, window)
    own, selection = part(batches, selection)
    return own, *columns, selection


def _attempt(fn: Callable, *args: Any) -> Future:
    """``fn(*args)`` on the device, called now; what it raises is raised when asked for: no chunk before it is lost."""
    future = Future()
    try:
        future.set_result(jax.device_put(fn(*args)))
    except Exception as error:
        future.set_exception(error)
    return future


def inputs(chunk: Events, batches: Any, chunk_size: int, window: int) -> tuple:
    """What a compiled loop is given of a chunk: its columns and batch selections, padded, and how many there are."""

    def pad(column):
        column = np.asarray(column)
        missing = chunk_size - len(column)
        return np.concatenate([column, np.repeat(column[-1:], missing, axis=0)]) if missing else column

    selection = select(batches, chunk.worker, chunk.step, chunk.draw)
    if isinstance(batches, LocalBatches):
        selection = batches.only(selection, chunk.commits)
    columns = (chunk.worker, chunk.step, chunk.commits, selection)
    columns = jax.tree.map(pad, columns)
    if window == 1:
        return np.int32(len(chunk.worker)), *columns
    begins = windows(chunk.worker, window)
    padded = np.full(chunk_size + 1, len(chunk.worker), np.int32)
    padded[: len(begins)] = begins
    return np.int32(len(begins)), padded, *columns


def windows(worker: np.ndarray, width: int) -> np.ndarray:
    """Where the windows of at most ``width`` arrivals of distinct workers begin, as long as they can be.

    >>> windows(np.array([0, 1, 2, 1, 0, 2, 2]), width=3)
    array([0, 3, 6], dtype=int32)
    """
    order = np.argsort(worker, kind="stable")
    previous = np.full(len(worker), -1)
    same = worker[order][1:] == worker[order][:-1]
    previous[order[1:]] = np.where(same, order[:-1], -1)
    begins, begin = [], 0
    while begin < len(worker):
        begins.append(begin)
        again = previous[begin : begin + width] >= begin
        begin += int(np.argmax(again)) if again.any() else len(again)
    return np.array(begins, np.int32)


@functools.lru_cache(maxsize=8)
def compiled(transition: Transition, batches: Any, chunk_size: int, window: int, with_pulls: bool) -> Callable:
    """``run_chunk(state, data, *inputs(…)) -> (state, reports)``, jitted, with the state donated."""
    return jax.jit(loop(transition, batches, chunk_size, window, with_pulls=with_pulls), donate_argnums=0)


def loop(transition: Transition, batches: Any, chunk_size: int, window: int, *, with_pulls: bool) -> Callable:
    """``run_chunk(state, data, *inputs(…)) -> (state, reports)``, to be compiled."""
    make = _one_by_one if window == 1 else functools.partial(_in_windows, window=window)
    return make(transition, batches, chunk_size, with_pulls=with_pulls)


def _one_by_one(transition: Transition, batches: Any, chunk_size: int, *, with_pulls: bool) -> Callable:
    def arrive(state: RunState, data: PyTree, worker, step, commits, selection):
        view = view_of(state)
        gradient = transition.gradient(view, batches.batch(data, selection), worker, step)
        state, _, report = transition.commit_and_pull(
            state, view.params, gradient, worker, step, commits if with_pulls else True
        )
        return state, report

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
            return store, shared, mine, _noted(reports, report, i)

        mine = slots.take(store, worker[0])
        first = jax.tree.map(lambda column: column[0], (worker, step, commits, selection))
        reports = _no_reports(jax.eval_shape(arrive, join(mine, shared), data, *first)[1], chunk_size)
        store, shared, _, reports = lax.fori_loop(0, length, body, (store, shared, mine, reports))
        return join(store, shared), reports

    return run_chunk


def _in_windows(transition: Transition, batches: Any, chunk_size: int, *, window: int, with_pulls: bool) -> Callable:
    def run_chunk(state, data, count, begins, worker, step, commits, selection):
        store, join, shared = slots.split(state)
        columns = (worker, step, commits, selection)

        def compute(mine, shared, worker, step, selection):
            return transition.gradient(view_of(join(mine, shared)), batches.batch(data, selection), worker, step)

        def arrive(mine, shared, gradient, worker, step, commits):
            state = join(mine, shared)
            state, _, report = transition.commit_and_pull(
                state, view_of(state).params, gradient, worker, step, commits if with_pulls else True
            )
            mine, _, shared = slots.split(state)
            return mine, shared, report

        def body(j, carry):
            store, shared, reports = carry
            begin, size = begins[j], begins[j + 1] - begins[j]
            # A window that is not full computes its last gradient again.
            rows = begin + jnp.minimum(jnp.arange(window), size - 1)
            workers, steps, commits, selections = jax.tree.map(lambda column: column[rows], columns)
            mine = jax.vmap(slots.take, (None, 0))(store, workers)
            gradients = jax.vmap(compute, (0, None, 0, 0, 0))(mine, shared, workers, steps, selections)

            def commit(i, carry):
                store, shared, reports = carry
                one, gradient = jax.tree.map(lambda all_: all_[i], (mine, gradients))
                one, shared, report = arrive(one, shared, gradient, workers[i], steps[i], commits[i])
                return slots.put(store, one, workers[i]), shared, _noted(reports, report, begin + i)

            return lax.fori_loop(0, size, commit, (store, shared, reports))

        first = jax.tree.map(lambda column: column[0], columns)
        mine = slots.take(store, first[0])
        gradient = jax.eval_shape(compute, mine, shared, first[0], first[1], first[3])
        reports = _no_reports(jax.eval_shape(arrive, mine, shared, gradient, *first[:3])[2], chunk_size)
        store, shared, reports = lax.fori_loop(0, count, body, (store, shared, reports))
        return join(store, shared), reports

    return run_chunk


def _no_reports(shapes: PyTree, chunk_size: int) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros((chunk_size, *s.shape), s.dtype), shapes)


def _noted(reports: PyTree, report: PyTree, row: jax.Array) -> PyTree:
    return jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, row, 0), reports, report)
