"""Which batch a worker computes on: a pure function of (worker, that worker's step), or of the order of commits."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.checks import check_kind, count_rows, whole
from gemjax.batches.functions import check_traceable, warn_if_frozen

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

    Engines make one of a function that is given as ``batches=``. They warn (:class:`gemjax.BatchesWarning`) if the
    function draws data on the host, which would happen only once, when the run is compiled, or if it returns the same batch,
    of more than 16 numbers, for all workers and steps. A function that is given as ``Computed(fn)`` gives no warning: this
    says that one batch for the whole run is meant.

    Args:
      fn: ``fn(worker, step) -> batch`` for int32 scalars, in JAX; typically folds both into a key.

    >>> import gemjax
    >>> key = jax.random.key(0)
    >>> def fn(worker, step):                     # Another batch for each worker and step, the same whenever it is asked for.
    ...     return 1.0 + jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, worker), step), (2,))
    >>> loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    >>> trace = gemjax.arrivals.Gamma(4).trace(200)
    >>> gemjax.simulate(gemjax.asgd(0.05, 4), loss_fn, jnp.zeros(2), fn, trace).params.round()
    Array([1., 1.], dtype=float32)
    """

    fn: Callable[[jax.Array, jax.Array], PyTree]
    data: ClassVar[PyTree] = ()

    def select(self, worker, step):
        return np.asarray(worker, np.int32), np.asarray(step, np.int32)

    def batch(self, data, selection):
        del data
        return self.fn(*selection)


class Rows:
    """Batches that are rows of ``data``, a pytree of arrays [n, …]: derive from it for an order of your own.

    A subclass sets ``data`` and has ``select(worker, step)``, which engines call on the host with int vectors [batches] of one
    length: who computes each batch, and on which of its steps (its gradients, counted from 0; local steps, where it has
    some). It returns the numbers of the rows, int32 [batches, rows a batch], each in 0 … n - 1. It must be a pure function, or
    a run could neither be continued nor replayed; threads may call it side by side. The rest follows: rows are gathered on
    the device, or on the host (:class:`gemjax.OnHost`).

    With an attribute ``shared = True`` it is ``select(worker, step, draw)``, where ``draw`` numbers the batches in the order
    in which workers take them (:class:`gemjax.Stream`). With an attribute ``num_workers`` engines check that the run has as
    many.

    >>> class InTurn(Rows):
    ...     def __init__(self, data, num_workers):
    ...         self.data, self.num_workers = data, num_workers
    ...     def select(self, worker, step):
    ...         row = (step * self.num_workers + worker) % len(self.data["x"])
    ...         return row[:, None].astype(np.int32)              # Batches of one row.
    >>> import gemjax
    >>> loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(100)
    >>> result = gemjax.simulate(gemjax.asgd(0.1, 4), loss_fn, 0.0, InTurn({"x": np.ones(12)}, 4), trace)
    >>> result.params.round(2)
    Array(1., dtype=float32)
    """

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
      TypeError: if a leaf of the data is no array of numbers, or ``batch_size`` is no int.
      ValueError: if the leading axes differ, or the batch is larger than the data.

    >>> epochs = Epochs({"x": np.arange(10)}, batch_size=4, seed=0)
    >>> epochs.steps_per_epoch
    2
    >>> first = epochs.select(np.array([0, 0]), np.array([0, 1]))
    >>> first.shape, len(set(first.ravel().tolist()))
    ((2, 4), 8)
    """

    def __init__(self, data: PyTree, batch_size: int, seed: int = 0):
        self.num_rows = count_rows(data, batch_size)
        self.data, self.batch_size, self.seed = data, whole("batch_size", batch_size), whole("seed", seed)
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders: dict[int, tuple[int, np.ndarray]] = {}  # Of each worker, the epoch it is in.

    def __repr__(self) -> str:
        return described(self)

    def _order(self, worker: int, epoch: int) -> np.ndarray:
        known = self._orders.get(worker)
        if known is None or known[0] != epoch:
            order = shuffled(self.num_rows, self.batch_size, self.seed, worker, epoch)
            known = self._orders[worker] = (epoch, order)
        return known[1]

    def select(self, worker, step):
        epochs, rows = np.divmod(np.asarray(step), self.steps_per_epoch)
        chosen = zip(np.asarray(worker).tolist(), epochs.tolist(), rows.tolist(), strict=True)
        return np.array([self._order(w, epoch)[row] for w, epoch, row in chosen], np.int32).reshape(-1, self.batch_size)


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
      TypeError: if a leaf of the data is no array of numbers, or ``batch_size`` is no int.
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
        self.num_rows = count_rows(data, batch_size)
        self.data, self.batch_size, self.seed = data, whole("batch_size", batch_size), whole("seed", seed)
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders: dict[int, np.ndarray] = {}  # Of the epochs asked for last.

    def __repr__(self) -> str:
        return described(self)

    def select(self, worker, step, draw):
        del worker, step
        epochs, rows = np.divmod(np.asarray(draw), self.steps_per_epoch)
        known = self._orders  # Read once: devices are warmed up by threads.
        orders = self._orders = {
            epoch: known[epoch] if epoch in known else shuffled(self.num_rows, self.batch_size, self.seed, epoch)
            for epoch in np.unique(epochs).tolist()
        }
        chosen = [orders[epoch][row] for epoch, row in zip(epochs.tolist(), rows.tolist(), strict=True)]
        return np.array(chosen, np.int32).reshape(-1, self.batch_size)


def described(batches: Any, *names: str) -> str:
    """The ``repr`` of rows of data: their number and the settings, with the values of further attributes ``names``.

    >>> Epochs({"x": np.zeros(100)}, batch_size=20)
    Epochs(100 rows, batch_size=20, seed=0)
    """
    settings = [f"{name}={getattr(batches, name)!r}" for name in ("batch_size", *names, "seed")]
    return f"{type(batches).__name__}({', '.join([f'{count_rows(batches.data):,} rows', *settings])})"


def shuffled(rows: int | np.ndarray, batch_size: int, *entropy: int) -> np.ndarray:
    """int32 [batches, batch_size]; ``rows`` in an order that ``entropy`` decides, less those beyond the last full batch."""
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).permutation(rows)
    return order[: len(order) // batch_size * batch_size].reshape(-1, batch_size).astype(np.int32)


def select(batches: Any, worker: np.ndarray, step: np.ndarray, draw: np.ndarray) -> PyTree:
    """What ``batches`` select for vectors of (worker, that worker's step, draw of the trace)."""
    return batches.select(worker, step, draw) if is_shared(batches) else batches.select(worker, step)


def part(batches: Any, selection: PyTree) -> tuple[PyTree, PyTree]:
    """Data that stay on the host: what a selection needs of them, and the selection in that; otherwise ``None`` and itself."""
    return batches.part(selection) if hasattr(batches, "part") else (None, selection)


def threads_that_read(batches: Any) -> int:
    """How many threads may read batches ahead of their workers; 0 where nothing is read."""
    return getattr(batches, "threads", 0)


def is_shared(batches: Any) -> bool:
    """Whether the workers draw from one sequence of ``batches``, so that the order of commits matters."""
    return getattr(batches, "shared", False)


def as_batches(batches: Any, num_workers: int) -> Any:
    """``batches`` itself if it implements :class:`Batches`, or :class:`Computed` of a function.

    Raises:
      TypeError: if it is neither, or a function that JAX cannot trace; the message says what to give instead.
      ValueError: if it was made for another number of workers than the run has.
    """
    check_kind(batches)
    if all(hasattr(batches, name) for name in ("data", "select", "batch")):
        if isinstance(batches, Computed):
            check_traceable(batches.fn)
    else:
        check_traceable(batches)
        warn_if_frozen(batches)
        batches = Computed(batches)
    made_for = getattr(batches, "num_workers", None)
    if made_for not in (None, num_workers):
        raise ValueError(
            f"the batches were made with num_workers={made_for}, but the run has {num_workers} workers; make them for as many"
        )
    return batches
