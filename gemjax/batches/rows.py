"""Batches of rows: a pure function of (worker, that worker's step), or of the order of commits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.base import Batches, RowsError, Wrapper, adapt
from gemjax.batches.checks import count_rows, is_source
from gemjax.batches.functions import Computed, warn_if_frozen
from gemjax.protocol import PyTree


class Rows(Batches):
    """Batches that are rows of ``data``, a pytree of arrays [n, …]: derive from it for an order of your own.

    A subclass sets ``data`` and defines ``select``, as for :class:`gemjax.batches.Batches`; it returns row numbers, int32
    [batches, rows per batch]. A row number outside of 0 … n - 1 ends the run with ``ValueError``. The rows are then
    gathered on the device, or on the host (:class:`gemjax.OnHost`). An array [1, …] is the same for all rows.

    >>> class InTurn(Rows):
    ...     def __init__(self, data, num_workers):
    ...         self.data, self.num_workers = data, num_workers
    ...     def select(self, worker, step):
    ...         row = (step * self.num_workers + worker) % len(self.data["x"])
    ...         return row[:, None].astype(np.int32)              # Batches of one row.
    >>> import gemjax
    >>> loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(100)
    >>> result = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, 0.0, InTurn({"x": np.ones(12)}, 4), trace)
    >>> result.params.round(2)
    Array(1., dtype=float32)
    """

    def batch(self, data, selection):
        return jax.tree.map(lambda leaf: jnp.take(leaf, selection, axis=0, mode="clip"), data)

    def _traced(self):
        return PLAIN if are_plain(self) else self

    def _check_data(self):
        if are_plain(self):
            own = jax.tree.map(lambda leaf: None if np.shape(leaf)[:1] == (1,) else leaf, self.data)
            count_rows(own if jax.tree.leaves(own) else self.data)

    def _check_selection(self, selection, worker, step, draw):
        if type(self).select in (OwnEpochs.select, Stream.select):
            return  # Valid by construction; for one batch the check takes longer than its selection.
        if not are_plain(self):
            return  # Its numbers need not be rows of its data.
        rows, num_rows = np.asarray(selection), max(map(len, jax.tree.leaves(self.data)))
        if rows.min() >= 0 and rows.max() < num_rows:  # JAX would clip the others, and NumPy count from the end.
            return
        place = tuple(np.argwhere((rows < 0) | (rows >= num_rows))[0])
        row, at = rows[place], place[0]
        whose = f"draw {draw[at]}" if self.shared else f"worker {worker[at]} at its step {step[at]}"
        raise RowsError(
            f"the rows of {whose} must be in 0 … {num_rows - 1}, got {row}; correct {type(self).__name__}.select; if its "
            f"numbers run past the end, take them % {num_rows}"
        )


PLAIN = Rows()  # Takes the selected rows of the data that it is given.


def check_plain(wrapper: str, batches: Any) -> None:
    """Raise ``TypeError`` unless ``batches`` are the selected rows of their data, which ``wrapper`` numbers anew."""
    if not are_plain(batches):
        raise TypeError(
            f"{wrapper} gathers rows and numbers them anew, so it needs batches that are rows of data: gemjax.Epochs, "
            "gemjax.Shards, gemjax.Stream, or a class that derives from gemjax.batches.Rows without a batch or gather of its "
            f"own; got {type(batches).__name__}; change the batch in the loss function instead"
        )


def are_plain(batches: Any) -> bool:
    """Return True if ``batches`` are the selected rows of their data."""
    if not isinstance(batches, Rows):
        return False
    own = vars(batches).keys() & {"batch", "gather"}  # An object may have functions that its class lacks.
    return not own and type(batches).batch is Rows.batch and type(batches).gather is Batches.gather


class OwnEpochs(Rows):
    """Base of rows that each worker shuffles anew in every epoch of its own."""

    batch_size: int
    seed: int
    _orders: dict[int, tuple[int, np.ndarray]]  # Per worker, its current epoch and the order of that.

    def _share(self, worker: int) -> tuple[int | np.ndarray, int]:
        """Return the rows of a worker (an int n: all in 0 … n - 1), and the number of its batches per epoch."""
        raise NotImplementedError

    def _batch(self, worker: int, step: int) -> np.ndarray:
        rows, steps = self._share(worker)
        epoch, place = divmod(step, steps)
        known = self._orders.get(worker)
        if known is None or known[0] != epoch:
            known = self._orders[worker] = (epoch, shuffled(rows, self.batch_size, self.seed, worker, epoch))
        return known[1][place]

    def select(self, worker, step):
        pairs = zip(np.asarray(worker).tolist(), np.asarray(step).tolist(), strict=True)
        return np.array([self._batch(*pair) for pair in pairs], np.int32).reshape(-1, self.batch_size)


class Epochs(OwnEpochs):
    """Epochs of all the data for every worker, each in its own shuffled order (as GEM's workers do).

    The order of an epoch depends on (seed, worker, epoch) alone, so any batch can be recomputed. Rows beyond the last full
    batch of an epoch are left out of that epoch. The host keeps one order per worker, of 4 bytes per row. With many workers
    and millions of rows take :class:`gemjax.Shards`, with one order per share, or :class:`gemjax.Stream`, with one order.

    Args:
      data: pytree of arrays with a common leading axis of n rows. Data are not copied: if the arrays change, a replay uses the
        changed ones.
      batch_size: rows per batch, in 1 … n.
      seed: decides all orders; a non-negative int, default 0.

    Raises:
      TypeError: if a leaf of the data is not an array.
      ValueError: if the leading axes differ, or ``batch_size`` is not an int in 1 … n.

    >>> epochs = Epochs({"x": np.arange(10)}, batch_size=4, seed=0)
    >>> epochs.steps_per_epoch
    2
    >>> first = epochs.select(np.array([0, 0]), np.array([0, 1]))
    >>> first.shape, len(set(first.ravel().tolist()))
    ((2, 4), 8)
    """

    def __init__(self, data: PyTree, batch_size: int, seed: int = 0):
        self.num_rows = count_rows(data, batch_size)
        self.data, self.batch_size, self.seed = data, int(batch_size), seed
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders = {}

    def __repr__(self) -> str:
        return described(self)

    def _share(self, worker):
        return self.num_rows, self.steps_per_epoch


class Stream(Rows):
    """One sequence of batches for all workers: each worker that is ready takes the next batch (as in DANA's simulations).

    All workers together go through the data in epochs, each in another order, which depends on (seed, epoch) alone. At the
    beginning of a run each worker that takes part draws a batch, in the order of their numbers. From then on a worker draws the
    next batch as soon as it has committed, even if its commit was rejected or dropped. A worker that pulls again without a
    commit keeps its batch. The batch of a worker that leaves, is lost or is retired goes to the worker that draws next, unless
    two workers in turn have failed with it. With :class:`gemjax.LocalSteps` a draw is as many consecutive batches as the
    period, which must be the same for all workers. So the trace, modelled or recorded, fixes the stream: its column ``draw``
    is the position of each commit in it.

    Args:
      data: pytree of arrays with a common leading axis of n rows.
      batch_size: rows per batch, in 1 … n. Rows beyond the last full batch of an epoch are left out of that epoch.
      seed: decides all orders; a non-negative int, default 0.

    Raises:
      TypeError: if a leaf of the data is not an array.
      ValueError: if the leading axes differ, or ``batch_size`` is not an int in 1 … n.

    >>> import gemjax
    >>> stream, trace = Stream({"x": np.arange(6)}, batch_size=1), gemjax.Trace(worker=[0, 1, 1, 1, 0, 1])
    >>> trace.draw                     # Worker 0 began with batch 0 and drew batch 2 after its first commit.
    array([0, 1, 3, 4, 2, 5], dtype=int32)
    >>> rows = stream.select(trace.worker, trace.step, trace.draw)
    >>> sorted(rows.ravel().tolist())  # One epoch.
    [0, 1, 2, 3, 4, 5]
    """

    shared = True

    def __init__(self, data: PyTree, batch_size: int, seed: int = 0):
        self.num_rows = count_rows(data, batch_size)
        self.data, self.batch_size, self.seed = data, int(batch_size), seed
        self.steps_per_epoch = self.num_rows // self.batch_size
        self._orders: dict[int, np.ndarray] = {}  # Per epoch of the last call.

    def __repr__(self) -> str:
        return described(self)

    def select(self, worker, step, draw):
        del worker, step
        epochs, places = np.divmod(np.asarray(draw), self.steps_per_epoch)
        known = self._orders  # Other threads may replace it while the devices warm up.
        orders = self._orders = {
            epoch: known[epoch] if epoch in known else shuffled(self.num_rows, self.batch_size, self.seed, epoch)
            for epoch in np.unique(epochs).tolist()
        }
        chosen = [orders[epoch][place] for epoch, place in zip(epochs.tolist(), places.tolist(), strict=True)]
        return np.array(chosen, np.int32).reshape(-1, self.batch_size)


def any_worker_takes(batches: Any) -> bool:
    """Return True if the draw alone decides a batch, as in a :class:`Stream`: it can be read ahead for any worker."""
    while getattr(type(batches), "select", None) is Wrapper.select:
        batches = batches.batches
    return getattr(type(batches), "select", None) is Stream.select


def rows_per_batch(batches: Any) -> int:
    """Return the rows per batch of :class:`Epochs`, :class:`gemjax.Shards` and :class:`Stream`; 0 for any other source."""
    while isinstance(batches, Wrapper):
        batches = batches.batches  # pyrefly: ignore[missing-attribute] (of every subclass)
    return batches.batch_size if isinstance(batches, (OwnEpochs, Stream)) else 0


def described(batches: Any, *names: str) -> str:
    """Return the ``repr`` of rows of data: their number and the settings, with the values of further attributes ``names``.

    >>> Epochs({"x": np.zeros(100)}, batch_size=20)
    Epochs(100 rows, batch_size=20, seed=0)
    """
    settings = [f"{name}={getattr(batches, name)!r}" for name in ("batch_size", *names, "seed")]
    return f"{type(batches).__name__}({', '.join([f'{count_rows(batches.data):,} rows', *settings])})"


def shuffled(rows: int | np.ndarray, batch_size: int, *entropy: int) -> np.ndarray:
    """Return full batches of ``rows`` in an order that ``entropy`` decides, int32 [batches, batch_size]."""
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).permutation(rows)
    return order[: len(order) // batch_size * batch_size].reshape(-1, batch_size).astype(np.int32)


def as_batches(batches: Any, num_workers: int) -> Batches:
    """Return ``batches`` as a source: itself, an adapter of its class, or :class:`Computed` of a function.

    Raises:
      TypeError: if it is none of these, or has data that are not arrays; the message says what to give instead.
      ValueError: if it was made for another number of workers than the run has, or its arrays differ in their number of rows.
    """
    if is_source(batches):
        batches = adapt(batches)
    else:
        warn_if_frozen(batches)
        batches = Computed(batches)
    batches._check_data()
    batches._check_range()
    if batches.num_workers not in (None, num_workers):
        raise ValueError(
            f"the batches were made with num_workers={batches.num_workers}, but the run has {num_workers} workers; make them "
            "for as many"
        )
    return batches
