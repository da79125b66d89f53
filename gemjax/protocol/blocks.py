"""Blocks of the parameters: the units of a read that other workers' commits may interrupt."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


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
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    count = len(values)
    # The first number of each block, and one past the last.
    starts = -(-np.arange(count + 1, dtype=np.int64) * int(ends[-1]) // count) if leaves else np.zeros(1, np.int64)

    def spread(leaf, end):
        edges = np.clip(starts, end - np.size(leaf), end)
        sizes = np.diff(edges)
        (inside,) = np.nonzero(sizes)
        if len(inside) == 1:
            return jnp.broadcast_to(values[int(inside[0])], np.shape(leaf))
        long = jnp.repeat(values[inside], sizes[inside], total_repeat_length=np.size(leaf))
        return long.reshape(np.shape(leaf))

    return jax.tree.unflatten(structure, map(spread, leaves, ends))
