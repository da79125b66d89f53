"""Evaluation on a whole set, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from train.task.losses import Batch, Rows

PyTree = Any
Evaluate = Callable[[PyTree, PyTree, Batch], tuple[jax.Array, jax.Array]]


def make_evaluate(rows: Rows, chunk: int = 1000) -> Evaluate:
    """Return a compiled `evaluate(params, model_state, data) -> (mean loss, accuracy)` over all rows of `data`.

    It takes `chunk` rows at a time, so that memory does not grow with the number of rows. The last chunk is padded, and the
    padding is not counted.
    """

    @jax.jit
    def evaluate(params, model_state, data):
        count = len(jax.tree.leaves(data)[0])
        size = min(chunk, count)
        pad = -count % size
        counted = jnp.arange(count + pad) < count

        def totals(part):
            batch, real = part
            losses, right, _ = rows(params, model_state, batch, None)
            return jnp.where(real, losses, 0).sum(), jnp.where(real, right, 0).sum()

        def chunked(column):
            column = jnp.pad(column, ((0, pad),) + ((0, 0),) * (column.ndim - 1))
            return column.reshape(-1, size, *column.shape[1:])

        losses, right = lax.map(totals, (jax.tree.map(chunked, dict(data)), counted.reshape(-1, size)))
        return losses.sum() / count, right.sum() / count

    return evaluate
