"""Delays: rows of traces from recorded ones, and the staleness of blocks of the parameters."""

import bisect

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.protocol import PyTree


def rows_of_commits(delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns ``worker`` and ``pulled_at`` for the staleness of each commit, with few workers.

    A worker takes over as late as possible: of those that are free at a pull, the one that committed last.

    >>> rows_of_commits(np.array([0, 1, 1, 0, 2]))
    (array([0, 1, 0, 0, 1]), array([0, 0, 1, 3, 2]))
    """
    pulled_at = np.arange(len(delays)) - delays
    last: list[int] = []  # The last commit of each worker in order of time, and beside it that worker.
    names: list[int] = []
    worker = []
    for clock, pulled in enumerate(pulled_at):
        free = bisect.bisect_left(last, pulled) - 1
        name = len(names) if free < 0 else names.pop(free)
        if free >= 0:
            last.pop(free)
        worker.append(name)
        last.append(clock)
        names.append(name)
    return np.array(worker, int), pulled_at


def rows_of_table(delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns ``worker`` and ``pulled_at`` for the table of a server, the age of each worker's gradient at each step.

    >>> rows_of_table(np.array([[0, 0], [0, 1], [1, 1]]))   # Worker 0 at step 1, and worker 1, which had pulled before, at 2.
    (array([0, 1, 0, 1]), array([0, 0, 2, 2]))
    """
    version = np.arange(len(delays))[:, None] - delays
    step, worker = np.nonzero(np.vstack([np.ones_like(version[:1], bool), version[1:] != version[:-1]]))
    commits_before = np.searchsorted(step, np.arange(len(delays) + 1))
    pulled = version[step, worker]
    # A pull before step 0 stays negative, and one after its own step is later than the commit: the trace refuses both.
    return worker, commits_before[np.clip(pulled, 0, len(delays))] + np.minimum(pulled, 0)


def spread_blocks(values: jax.Array, params: PyTree) -> PyTree:
    """Return a tree like ``params`` in which each number is the value of its block.

    The parameters as one vector of d numbers, leaf after leaf, are cut into B ranges: number j is in block ``j * B // d``. With
    B = d each number is a block, and blocks are empty if there are more of them.

    Args:
      values: [B]; a value per block, such as the extra argument ``block_staleness`` of a rule.
      params: any tree of arrays.

    Returns:
      Arrays with the shapes of ``params`` and the dtype of ``values``.

    >>> spread_blocks(jnp.array([5, 7]), {"b": jnp.zeros(1), "w": jnp.zeros((1, 3))})
    {'b': Array([5], dtype=int32), 'w': Array([[5, 7, 7]], dtype=int32)}
    """
    leaves, structure = jax.tree.flatten(params)
    ends, starts = _cuts(leaves, len(values))

    def spread(leaf, end):
        edges = np.clip(starts, end - np.size(leaf), end)
        sizes = np.diff(edges)
        (inside,) = np.nonzero(sizes)
        if len(inside) == 1:
            return jnp.broadcast_to(values[int(inside[0])], np.shape(leaf))
        long = jnp.repeat(values[inside], sizes[inside], total_repeat_length=np.size(leaf))
        return long.reshape(np.shape(leaf))

    return jax.tree.unflatten(structure, map(spread, leaves, ends))


def with_block(view: PyTree, fresh: PyTree, block: int, count: int) -> PyTree:
    """Return ``view`` with the numbers of ``fresh`` in one of ``count`` blocks, those of :func:`spread_blocks`.

    The block is known when a program is traced, so that only its numbers are copied.

    >>> with_block({"b": jnp.zeros(1), "w": jnp.zeros((1, 3))}, {"b": jnp.ones(1), "w": jnp.ones((1, 3))}, 0, 2)
    {'b': Array([1.], dtype=float32), 'w': Array([[1., 0., 0.]], dtype=float32)}
    """
    leaves, structure = jax.tree.flatten(view)
    ends, starts = _cuts(leaves, count)

    def replace(old, new, end):
        begin, stop = np.clip(starts[block : block + 2] - (end - np.size(old)), 0, np.size(old))
        if begin == stop:
            return old
        return old.reshape(-1).at[begin:stop].set(new.reshape(-1)[begin:stop]).reshape(np.shape(old))

    return jax.tree.unflatten(structure, map(replace, leaves, jax.tree.leaves(fresh), ends))


def _cuts(leaves: list, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one past the last number of each leaf; and the first of each block, and one past the last."""
    ends = np.cumsum([np.size(leaf) for leaf in leaves], dtype=np.int64)
    return ends, -(-np.arange(count + 1, dtype=np.int64) * int(ends[-1]) // count) if leaves else np.zeros(1, np.int64)
