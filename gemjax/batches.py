"""Which batch a worker computes on: a pure function of (worker, that worker's step), or of the order of commits."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from gemjax.staleness import check_num_workers

PyTree = Any


class Batches(Protocol):
    """What an engine needs to know about data.

    One whose batches depend on the order of commits has an attribute ``shared = True`` besides; its ``select`` is given
    ``draw`` too, the column of :class:`gemjax.Trace`. Data of one that derives from :class:`Rows` can be left in host memory
    (:class:`gemjax.OnHost`).

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


class Rows:
    """Batches that are rows of ``data``, arrays [n, …]: a subclass selects their numbers, int32 [batches, rows a batch]."""

    data: PyTree

    def batch(self, data, selection):
        return jax.tree.map(lambda leaf: jnp.take(leaf, selection, axis=0, mode="clip"), data)


class Epochs(Rows):
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
        self.num_rows = _num_rows(data, batch_size)
        self.data = data
        self.batch_size = int(batch_size)
        self.seed = int(seed)
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders: dict[int, tuple[int, np.ndarray]] = {}  # Of each worker, the epoch it is in.

    def _order(self, worker: int, epoch: int) -> np.ndarray:
        known = self._orders.get(worker)
        if known is None or known[0] != epoch:
            order = _shuffled(self.num_rows, self.batch_size, self.seed, worker, epoch)
            known = self._orders[worker] = (epoch, order)
        return known[1]

    def select(self, worker, step):
        epochs, rows = np.divmod(np.asarray(step), self.steps_per_epoch)
        chosen = zip(np.asarray(worker).tolist(), epochs.tolist(), rows.tolist(), strict=True)
        return np.array([self._order(w, epoch)[row] for w, epoch, row in chosen], np.int32).reshape(-1, self.batch_size)


class Shards(Rows):
    """Every worker goes through rows of its own, in epochs of its own, each in another order.

    The rows are dealt out once. Without ``labels`` each worker gets an equal share of all of them at random. With ``labels`` it
    gets classes of its own: each class is dealt out in proportions drawn from a Dirichlet distribution, the customary model
    of data that differ from worker to worker.

    Args:
      data: pytree of arrays with a common leading axis of n rows.
      batch_size: rows a batch, positive; at most as many as any worker has.
      num_workers: number of workers N.
      seed: decides who has which rows and all orders; a non-negative int, default 0.
      labels: int [n]; the class of each row. ``None`` (default): every worker's share is like the whole.
      concentration: of the Dirichlet distribution, positive, default 1; at 100 all workers' shares are nearly alike, at 0.1
        most of a class is with few of them. With ``labels`` only.

    Raises:
      ValueError: if the leading axes differ, or a worker would have fewer rows than a batch.

    >>> shards = Shards({"x": np.arange(12)}, batch_size=2, num_workers=3)
    >>> sorted(np.concatenate(shards.rows).tolist()) == list(range(12)), [len(rows) for rows in shards.rows]
    (True, [4, 4, 4])
    >>> shards.select(np.array([1]), np.array([5])).shape
    (1, 2)
    """

    def __init__(
        self,
        data: PyTree,
        batch_size: int,
        num_workers: int,
        seed: int = 0,
        *,
        labels: npt.ArrayLike | None = None,
        concentration: float = 1.0,
    ):
        check_num_workers(num_workers)
        num_rows = _num_rows(data)
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((int(seed), num_workers))))
        if labels is None:
            self.rows = [np.sort(rows) for rows in np.array_split(rng.permutation(num_rows), num_workers)]
        else:
            self.rows = _deal_by_class(np.asarray(labels), num_rows, num_workers, concentration, rng)
        fewest = min(range(num_workers), key=lambda worker: len(self.rows[worker]))
        if not 1 <= batch_size <= len(self.rows[fewest]):
            raise ValueError(
                f"batch_size must be in 1 … {len(self.rows[fewest])}, the rows of worker {fewest}, which has the fewest; got "
                f"{batch_size}. Take smaller batches, fewer workers, another seed or a larger concentration"
            )
        self.data, self.batch_size, self.seed = data, int(batch_size), int(seed)
        self._orders: dict[int, tuple[int, np.ndarray]] = {}  # Of each worker, the epoch it is in.

    def steps_per_epoch(self, worker: int) -> int:
        """Batches that ``worker`` makes of its rows; those beyond the last full one are left out of that epoch."""
        return len(self.rows[worker]) // self.batch_size

    def _batch(self, worker: int, step: int) -> np.ndarray:
        steps = self.steps_per_epoch(worker)
        epoch, row = divmod(step, steps)
        known = self._orders.get(worker)
        if known is None or known[0] != epoch:
            order = _shuffled(self.rows[worker], self.batch_size, self.seed, worker, epoch)
            known = self._orders[worker] = (epoch, order)
        return known[1][row]

    def select(self, worker, step):
        pairs = zip(np.asarray(worker).tolist(), np.asarray(step).tolist(), strict=True)
        return np.array([self._batch(w, s) for w, s in pairs], np.int32).reshape(-1, self.batch_size)


class Stream(Rows):
    """One sequence of batches for all workers: the next one goes to whoever is next (as in DANA's simulations).

    All workers together go through the data in epochs, each in another order, which depends on (seed, epoch) alone. At the
    begin of a run each worker draws a batch, in their order; from then on a worker draws the next one as soon as it has
    committed, whatever became of the commit. A worker that pulls again without a commit keeps the batch it has. With
    :class:`gemjax.LocalSteps` a draw is as many consecutive batches as the period, which must be the same for all workers.
    So the stream follows from the trace, whose column ``draw`` counts it: by an arrival model, or as it was on devices.

    Args:
      data: pytree of arrays with a common leading axis of n rows.
      batch_size: rows a batch, in 1 … n. Rows beyond the last full batch of an epoch are left out of that epoch.
      seed: decides all orders; a non-negative int, default 0.

    Raises:
      ValueError: if the leading axes differ, or the batch is larger than the data.

    >>> import gemjax
    >>> stream, trace = Stream({"x": np.arange(6)}, batch_size=1), gemjax.Trace(worker=[0, 1, 1, 1, 0, 1])
    >>> trace.draw                     # Worker 0 began with batch 0 and went on with batch 2, when it had committed.
    array([0, 1, 3, 4, 2, 5], dtype=int32)
    >>> rows = stream.select(trace.worker, trace.step, trace.draw)
    >>> sorted(rows.ravel().tolist())  # One epoch.
    [0, 1, 2, 3, 4, 5]
    """

    shared = True

    def __init__(self, data: PyTree, batch_size: int, seed: int = 0):
        self.num_rows = _num_rows(data, batch_size)
        self.data, self.batch_size, self.seed = data, int(batch_size), int(seed)
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders: dict[int, np.ndarray] = {}  # Of the epochs asked for last.

    def select(self, worker, step, draw):
        del worker, step
        epochs, rows = np.divmod(np.asarray(draw), self.steps_per_epoch)
        known = self._orders  # Read once: devices are warmed up by threads.
        orders = self._orders = {
            epoch: known[epoch] if epoch in known else _shuffled(self.num_rows, self.batch_size, self.seed, epoch)
            for epoch in np.unique(epochs).tolist()
        }
        chosen = [orders[epoch][row] for epoch, row in zip(epochs.tolist(), rows.tolist(), strict=True)]
        return np.array(chosen, np.int32).reshape(-1, self.batch_size)


def _shuffled(rows: int | np.ndarray, batch_size: int, *entropy: int) -> np.ndarray:
    """int32 [batches, batch_size]; ``rows`` in an order that ``entropy`` decides, less those beyond the last full batch."""
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).permutation(rows)
    return order[: len(order) // batch_size * batch_size].reshape(-1, batch_size).astype(np.int32)


def _num_rows(data: PyTree, batch_size: int = 1) -> int:
    """The common leading axis.

    Raises:
      ValueError: if there is none, or fewer rows than a batch.
    """
    rows = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(data)}
    if len(rows) != 1 or None in rows:
        raise ValueError(f"all arrays of the data must have the same number of rows, got {sorted(map(str, rows))}")
    num_rows = int(next(iter(rows)) or 0)
    if not 1 <= batch_size <= num_rows:
        raise ValueError(f"batch_size must be in 1 … {num_rows} (the rows of the data), got {batch_size}")
    return num_rows


def _deal_by_class(labels: np.ndarray, num_rows: int, num_workers: int, concentration: float, rng) -> list[np.ndarray]:
    if labels.shape != (num_rows,):
        raise ValueError(f"labels must be one a row, {num_rows}, got the shape {list(labels.shape)}")
    if not (np.isfinite(concentration) and concentration > 0):
        raise ValueError(f"concentration must be positive and finite, got {concentration}")
    shares: list[list[np.ndarray]] = [[] for _ in range(num_workers)]
    for one in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == one))
        cuts = np.cumsum(rng.dirichlet([concentration] * num_workers))[:-1] * len(rows)
        for share, part in zip(shares, np.split(rows, cuts.round().astype(int)), strict=True):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def select(batches: Any, worker: np.ndarray, step: np.ndarray, draw: np.ndarray) -> PyTree:
    """What ``batches`` select for vectors of (worker, that worker's step, draw of the trace)."""
    return batches.select(worker, step, draw) if is_shared(batches) else batches.select(worker, step)


def part(batches: Any, selection: PyTree) -> tuple[PyTree, PyTree]:
    """Data that stay on the host: what a selection needs of them, and the selection in that; otherwise ``None`` and itself."""
    return batches.part(selection) if hasattr(batches, "part") else (None, selection)


def is_shared(batches: Any) -> bool:
    """Whether the workers draw from one sequence of ``batches``, so that the order of commits matters."""
    return getattr(batches, "shared", False)


def as_batches(batches: Any) -> Any:
    """``batches`` itself if it implements :class:`Batches`, or :class:`Computed` of a function.

    Raises:
      TypeError: if it is neither, or a function that JAX cannot trace.
    """
    implemented = all(hasattr(batches, name) for name in ("data", "select", "batch"))
    if not implemented and not callable(batches):
        raise TypeError(
            f"batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got {type(batches).__name__}"
        )
    batches = batches if implemented else Computed(batches)
    if isinstance(batches, Computed):
        _check_traceable(batches.fn)
    return batches


def _check_traceable(fn: Callable) -> None:
    number = jax.ShapeDtypeStruct((), np.int32)
    try:
        jax.eval_shape(fn, number, number)
    except (TypeError, jax.errors.JAXIndexError) as error:
        raise TypeError(
            "batches(worker, step) must be traceable by JAX, because it runs on the device: with jax.numpy and jax.random, "
            "for int32 scalars; for rows of NumPy data use gemjax.Epochs, gemjax.Shards, gemjax.Stream, or a class derived "
            f"from gemjax.batches.Rows. It raised {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
