"""Compiled loops of the simulator: arrivals one by one, or their gradients in windows."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gemjax.batches.base import select
from gemjax.batches.local import LocalBatches
from gemjax.engines.programs import Kept, Program
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import PyTree, slots
from gemjax.protocol.trace import Events, previous_commits

CHUNK, CHUNK_BYTES, SMALL_BYTES = 1024, 2**28, 2**22
PROGRAMS = Kept()


def renamed_chunk_size(callback_every: int | None, chunk_size: int | None) -> int | None:
    """Return ``callback_every``, given by that name or by its old one."""
    if chunk_size is not None:
        warnings.warn(
            "chunk_size= is callback_every= now, as in the other engines; the old name will be removed in the next release",
            DeprecationWarning, stacklevel=3,
        )  # fmt: skip
        callback_every = chunk_size
    return callback_every


def width_for(events: Events, batches: Any, copies: int = 1) -> int:
    """Return the largest number of arrivals per compiled call, to which the columns of fewer are padded.

    It is at most 1,024, and as many as have rows of 256 MiB together, ``copies`` of each. For a shorter trace it is at most the
    next power of two, or as many as have rows of 4 MiB if these are more, so that traces of small rows share a program. It is
    at least two, because over a single row a CPU compiles and rounds a loop differently.
    """
    if not len(events.worker):
        return 2
    one = select(batches, *(column[:1] for column in (events.worker, events.step, events.draw)))
    size = copies * sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(batches.gather(one)))
    enough = max(1 << (len(events.worker) - 1).bit_length(), SMALL_BYTES // max(1, size))
    return max(2, min(CHUNK, enough, CHUNK_BYTES // max(1, size)))


def in_chunks(
    run_chunk: Callable, state: RunState, data: PyTree, prepare_cut: Callable, cuts: list[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], RunState, PyTree]]:
    """Run the chunks ``(begin, end)`` of arrivals; yield each with the state after it and its reports.

    ``prepare_cut(cut)`` selects the input of the next chunk, and its transfer begins, while the device computes the current
    one. It calls :func:`prepare`, in a sweep once per trace.
    """
    data = _beside(state, data)
    prepared = [_attempt(prepare_cut, cut) for cut in cuts[:1]]  # At most one; taken out, so that its memory is freed.
    for number, cut in enumerate(cuts):
        own, *columns = prepared.pop().result()
        state, reports = run_chunk(state, data if own is None else own, *columns)
        del own, columns
        prepared += [_attempt(prepare_cut, following) for following in cuts[number + 1 : number + 2]]
        yield cut, state, reports


def prepare(batches: Any, events: Events, chunk_size: int, window: int, cut: tuple[int, int]) -> tuple:
    """Return the arguments of a compiled loop for the arrivals of a cut; the first is ``None``, or rows kept on the host."""
    *columns, selection = inputs(Events(*(column[slice(*cut)] for column in events)), batches, chunk_size, window)
    own, selection = batches.gather(selection)
    return own, *columns, selection


def _beside(state: RunState, data: PyTree) -> PyTree:
    """Move leaves of the data that are bound to devices to those of the state, if it is bound, too."""
    places = {leaf.sharding for leaf in jax.tree.leaves(state) if getattr(leaf, "committed", False)}
    place = places.pop() if len({frozenset(one.device_set) for one in places}) == 1 else None
    if isinstance(place, jax.sharding.NamedSharding):
        place = jax.sharding.NamedSharding(place.mesh, jax.sharding.PartitionSpec())
    elif not isinstance(place, jax.sharding.SingleDeviceSharding):
        place = None
    return jax.tree.map(lambda leaf: jax.device_put(leaf, place if getattr(leaf, "committed", False) else None), data)


def _attempt(fn: Callable, *args: Any) -> Future:
    """Call ``fn(*args)`` now; any exception, also Ctrl-C, surfaces when the result is used, so that earlier chunks are kept."""
    future = Future()
    try:
        future.set_result(jax.device_put(fn(*args)))
    except BaseException as error:
        future.set_exception(error)
    return future


def inputs(chunk: Events, batches: Any, chunk_size: int, window: int) -> tuple:
    """Return the arguments of a compiled loop for a chunk: the number of arrivals, then their columns and selections, padded.

    With ``window > 1`` the number of windows and their first arrivals are in place of the number of arrivals.
    """

    def pad(column):
        column = np.asarray(column)
        missing = chunk_size - len(column)
        return np.concatenate([column, np.repeat(column[-1:], missing, axis=0)]) if missing else column

    selection = select(batches, chunk.worker, chunk.step, chunk.draw)
    if isinstance(batches, LocalBatches):
        selection = batches.only(selection, chunk.commits)
    columns = (chunk.worker, chunk.step, chunk.commits, chunk.blocks, selection)
    columns = jax.tree.map(pad, columns)
    if window == 1:
        return np.int32(len(chunk.worker)), *columns
    begins = windows(chunk.worker, window)
    padded = np.full(chunk_size + 1, len(chunk.worker), np.int32)
    padded[: len(begins)] = begins
    return np.int32(len(begins)), padded, *columns


def windows(worker: np.ndarray, window: int) -> np.ndarray:
    """Return the first arrival of each window: the longest one of at most ``window`` arrivals of distinct workers.

    >>> windows(np.array([0, 1, 2, 1, 0, 2, 2]), window=3)
    array([0, 3, 6], dtype=int32)
    """
    previous, _ = previous_commits(worker)
    begins, begin = [], 0
    while begin < len(worker):
        begins.append(begin)
        again = previous[begin : begin + window] >= begin
        begin += int(np.argmax(again)) if again.any() else len(again)
    return np.array(begins, np.int32)


def compiled(
    transition: Transition, batches: Any, chunk_size: int, window: int, with_pulls: bool, with_reads: bool = False
) -> Callable:
    """Return ``run_chunk(seed, state, data, *inputs(…)) -> (state, reports)``, with the state donated.

    Calls with the same objects return the same function, which is compiled once; the seed of ``transition`` may differ.
    """
    traced = batches._traced()

    def run_chunk(seed, state, data, *columns):
        own = dataclasses.replace(transition, seed=seed)
        run = loop(own, traced, chunk_size, window, with_pulls=with_pulls, with_reads=with_reads)
        return run(state, data, *columns)

    same = dataclasses.replace(transition, seed=0), traced, chunk_size, window, with_pulls, with_reads
    return PROGRAMS.get(same, lambda: Program(run_chunk, donate_argnums=1))


def loop(
    transition: Transition, batches: Any, chunk_size: int, window: int, *, with_pulls: bool, with_reads: bool = False
) -> Callable:
    """Return ``run_chunk(state, data, *inputs(…)) -> (state, reports)``, to be compiled.

    With ``with_pulls`` some arrivals do not commit, and with ``with_reads`` some only read blocks of a view.
    """
    make = _one_by_one if window == 1 else functools.partial(_in_windows, window=window)
    return make(transition, batches, chunk_size, with_pulls=with_pulls, with_reads=with_reads)


def _or_read(transition: Transition, arrive: Callable, state: RunState, worker: jax.Array, blocks: jax.Array) -> tuple:
    """Return ``arrive(state)``; if only some ``blocks`` are read, the state after that and a report of zeros."""

    def read(state):
        report = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(arrive, state)[1])
        return transition.read(state, worker, blocks), report

    return lax.cond(jnp.all(blocks), arrive, read, state)


def _one_by_one(
    transition: Transition, batches: Any, chunk_size: int, *, with_pulls: bool, with_reads: bool
) -> Callable:
    def arrive(state: RunState, own_rows: list, data: PyTree, worker, step, commits, blocks, selection):
        def whole(state):
            gradient = transition.gradient(transition.view_of(state), batches.batch(data, selection), worker, step)
            state, _, report = transition.commit_and_pull(
                state, gradient, worker, step, commits if with_pulls else True, own_rows
            )
            return state, report

        return _or_read(transition, whole, state, worker, blocks) if with_reads else whole(state)

    def run_chunk(state, data, length, worker, step, commits, blocks, selection):
        # The current worker's slot is carried beside the stacks, and the next one is read right after the write: a loop that
        # reads a stack before it writes it in the same iteration copies all of it (XLA:CPU).
        store, join, shared = slots.split(state)

        def body(i, carry):
            store, shared, mine, own_rows, reports = carry
            xs = jax.tree.map(lambda column: column[i], (worker, step, commits, blocks, selection))
            arrived, report = arrive(join(mine, shared), own_rows, data, *xs)
            mine, _, shared = slots.split(arrived)
            store = slots.put(store, mine, worker[i])
            following = worker[jnp.minimum(i + 1, length - 1)]
            own_rows = transition.own_rows(arrived, following)
            return store, shared, slots.take(store, following), own_rows, _recorded(reports, report, i)

        mine, own_rows = slots.take(store, worker[0]), transition.own_rows(state, worker[0])
        first = jax.tree.map(lambda column: column[0], (worker, step, commits, blocks, selection))
        shapes = jax.eval_shape(arrive, join(mine, shared), own_rows, data, *first)[1]
        carry = (store, shared, mine, own_rows, _no_reports(shapes, chunk_size))
        store, shared, *_, reports = lax.fori_loop(0, length, body, carry)
        return join(store, shared), reports

    return run_chunk


def _in_windows(
    transition: Transition, batches: Any, chunk_size: int, *, window: int, with_pulls: bool, with_reads: bool
) -> Callable:
    def run_chunk(state, data, count, begins, *columns):
        store, join, shared = slots.split(state)

        def compute(mine, shared, worker, step, selection):
            return transition.gradient(
                transition.view_of(join(mine, shared)), batches.batch(data, selection), worker, step
            )

        def arrive(mine, shared, own_rows, gradient, worker, step, commits, blocks):
            def whole(state):
                state, _, report = transition.commit_and_pull(
                    state, gradient, worker, step, commits if with_pulls else True, own_rows
                )
                return state, report

            state = join(mine, shared)
            return _or_read(transition, whole, state, worker, blocks) if with_reads else whole(state)

        def body(j, carry):
            store, shared, reports = carry
            begin, size = begins[j], begins[j + 1] - begins[j]
            # A window that is not full repeats its last gradient.
            rows = begin + jnp.minimum(jnp.arange(window), size - 1)
            workers, steps, commits, blocks, selections = jax.tree.map(lambda column: column[rows], columns)
            mine = jax.vmap(slots.take, (None, 0))(store, workers)
            gradients = jax.vmap(compute, (0, None, 0, 0, 0))(mine, shared, workers, steps, selections)

            def commit(i, carry):
                store, shared, own_rows, reports = carry
                one, gradient = jax.tree.map(lambda all_: all_[i], (mine, gradients))
                state, report = arrive(one, shared, own_rows, gradient, workers[i], steps[i], commits[i], blocks[i])
                one, _, shared = slots.split(state)
                own_rows = transition.own_rows(state, workers[jnp.minimum(i + 1, window - 1)])
                return slots.put(store, one, workers[i]), shared, own_rows, _recorded(reports, report, begin + i)

            own_rows = transition.own_rows(join(jax.tree.map(lambda all_: all_[0], mine), shared), workers[0])
            store, shared, _, reports = lax.fori_loop(0, size, commit, (store, shared, own_rows, reports))
            return store, shared, reports

        worker, step, commits, blocks, selection = jax.tree.map(lambda column: column[0], columns)
        mine = slots.take(store, worker)
        gradient = jax.eval_shape(compute, mine, shared, worker, step, selection)
        own_rows = transition.own_rows(join(mine, shared), worker)
        shapes = jax.eval_shape(arrive, mine, shared, own_rows, gradient, worker, step, commits, blocks)[1]
        reports = _no_reports(shapes, chunk_size)
        store, shared, reports = lax.fori_loop(0, count, body, (store, shared, reports))
        return join(store, shared), reports

    return run_chunk


def _no_reports(shapes: PyTree, chunk_size: int) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros((chunk_size, *s.shape), s.dtype), shapes)


def _recorded(reports: PyTree, report: PyTree, row: jax.Array) -> PyTree:
    return jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, row, 0), reports, report)
