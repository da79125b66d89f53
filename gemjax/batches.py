"""Which batch a worker computes on: a pure function of (worker, that worker's step)."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


class Batches(Protocol):
    """What an engine needs to know about data.

    Attributes:
      data: arrays put once on every device that computes gradients.
    """

    data: PyTree

    def select(self, worker: np.ndarray, step: np.ndarray) -> PyTree:
        """On the host: for vectors of (worker, step), whatever small arrays single out their batches (leading axis)."""

    def batch(self, data: PyTree, selection: PyTree) -> PyTree:
        """On the device, traced: the batch of one selection."""


@dataclasses.dataclass(frozen=True)
class Computed:
    """Batches that a traceable function computes on the device; equal if their functions are.

    Args:
      fn: ``fn(worker, step) -> batch`` for int32 scalars, in JAX; typically folds both into a key.
    """

    fn: Callable[[jax.Array, jax.Array], PyTree]
    data: ClassVar[PyTree] = ()

    def select(self, worker, step):
        return np.asarray(worker, np.int32), np.asarray(step, np.int32)

    def batch(self, data, selection):
        del data
        return self.fn(*selection)


class Epochs:
    """Every worker goes through all the data in epochs of its own, each in its own shuffled order (as GEM's workers do).

    The order of an epoch depends on (seed, worker, epoch) alone, so any batch can be recomputed. Rows beyond the last full
    batch of an epoch are left out of that epoch.

    Args:
      data: pytree of arrays with a common leading axis of n rows.
      batch_size: rows a batch, in 1 … n.
      seed: decides all orders; a non-negative int, default 0.

    Raises:
      ValueError: if the leading axes differ, or the batch is larger than the data.

    >>> epochs = Epochs({"x": np.arange(10)}, batch_size=4, seed=0)
    >>> epochs.steps_per_epoch
    2
    >>> first = epochs.select(np.array([0, 0]), np.array([0, 1]))
    >>> first.shape, len(set(first.ravel().tolist()))
    ((2, 4), 8)
    """

    def __init__(self, data: PyTree, batch_size: int, seed: int = 0):
        rows = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(data)}
        if len(rows) != 1 or None in rows:
            raise ValueError(f"all arrays of the data must have the same number of rows, got {sorted(map(str, rows))}")
        self.num_rows = int(next(iter(rows)) or 0)
        if not 1 <= batch_size <= self.num_rows:
            raise ValueError(f"batch_size must be in 1 … {self.num_rows} (the rows of the data), got {batch_size}")
        self.data = data
        self.batch_size = int(batch_size)
        self.seed = int(seed)
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders: dict[int, tuple[int, np.ndarray]] = {}  # Of each worker, the epoch it is in.

    def _shuffle(self, worker: int, epoch: int) -> np.ndarray:
        sequence = np.random.SeedSequence((self.seed, worker, epoch))
        order = np.random.Generator(np.random.Philox(sequence)).permutation(self.num_rows).astype(np.int32)
        return order[: self.steps_per_epoch * self.batch_size].reshape(self.steps_per_epoch, self.batch_size)

    def _order(self, worker: int, epoch: int) -> np.ndarray:
        known = self._orders.get(worker)
        if known is None or known[0] != epoch:
            known = self._orders[worker] = (epoch, self._shuffle(worker, epoch))
        return known[1]

    def select(self, worker, step):
        epochs, rows = np.divmod(np.asarray(step), self.steps_per_epoch)
        chosen = zip(np.asarray(worker).tolist(), epochs.tolist(), rows.tolist(), strict=True)
        return np.array([self._order(w, epoch)[row] for w, epoch, row in chosen], np.int32).reshape(-1, self.batch_size)

    def batch(self, data, selection):
        return jax.tree.map(lambda leaf: jnp.take(leaf, selection, axis=0, mode="clip"), data)


def as_batches(batches: Any) -> Any:
    """``batches`` itself if it implements :class:`Batches`, or :class:`Computed` of a function.

    Raises:
      TypeError: if it is neither.
    """
    if all(hasattr(batches, name) for name in ("data", "select", "batch")):
        return batches
    if callable(batches):
        return Computed(batches)
    raise TypeError(
        f"batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got {type(batches).__name__}"
    )
