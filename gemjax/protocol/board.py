"""What workers show each other: one row a worker, which every worker may read."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

PyTree = Any


class Board(NamedTuple):
    """Shared state with a row for each worker; a worker writes its own and reads anyone's.

    :class:`gemjax.Slots` belong to one worker each; what a rule must see of other workers (a leader's parameters, say)
    stands here. A commit writes one row and nothing else, and rows are read after the write: that keeps the stack in place
    in compiled loops. A commit that will not be applied must write nothing, because engines do not take a board back: pass
    on the extra argument ``applied`` that they give.
    """

    rows: PyTree  # [N, …] on every leaf.

    @classmethod
    def of(cls, params: PyTree, num_workers: int) -> "Board":
        """A board on which every row is ``params``."""
        return cls(jax.tree.map(lambda p: jnp.tile(p[None], (num_workers,) + (1,) * jnp.ndim(p)), params))

    def write(self, worker: jax.typing.ArrayLike, row: PyTree, applied: Any = True) -> "Board":
        """The board with the row of ``worker`` replaced, or as it is where ``applied`` is false."""

        def put(rows, new):
            index = jnp.where(applied, worker, rows.shape[0])  # Beyond the end: nothing is written.
            return rows.at[index].set(new, mode="drop")

        return Board(jax.tree.map(put, self.rows, row))

    def read(self, worker: jax.typing.ArrayLike) -> PyTree:
        """What ``worker`` shows."""
        return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, worker, keepdims=False), self.rows)
