"""Batches of rows that each worker has of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemjax.batches.checks import count_rows, whole
from gemjax.batches.rows import Rows, described, shuffled
from gemjax.protocol.staleness import check_num_workers

PyTree = Any


class Shards(Rows):
    """Every worker goes through rows of its own, in epochs of its own, each in another order.

    The rows are dealt out once. Without ``labels`` each worker gets an equal share of all of them at random. With ``labels`` it
    gets classes of its own: each class is dealt out in proportions drawn from a Dirichlet distribution, the customary model
    of data that differ from worker to worker. With ``rows`` the partition is yours.

    Args:
      data: pytree of arrays with a common leading axis of n rows.
      batch_size: rows a batch, positive; at most as many as any worker has.
      num_workers: number of workers N.
      seed: decides who has which rows and all orders; a non-negative int, default 0.
      labels: int [n]; the class of each row. ``None`` (default): every worker's share is like the whole.
      concentration: of the Dirichlet distribution, positive, default 1; at 100 all workers' shares are nearly alike, at 0.1
        most of a class is with few of them. With ``labels`` only.
      rows: a partition of your own, in place of ``labels``: for each worker the numbers of its rows, int vectors in 0 … n - 1,
        none twice. Workers may have rows in common, and rows may be left out.

    Raises:
      TypeError: if a leaf of the data is no array of numbers, or ``batch_size`` is no int.
      ValueError: if the leading axes differ, a worker would have fewer rows than a batch, or ``rows`` is no such partition.

    >>> shards = Shards({"x": np.arange(12)}, batch_size=2, num_workers=3)
    >>> sorted(np.concatenate(shards.rows).tolist()) == list(range(12)), [len(rows) for rows in shards.rows]
    (True, [4, 4, 4])
    >>> shards.select(np.array([1]), np.array([5])).shape
    (1, 2)
    >>> mine = Shards({"x": np.arange(12)}, batch_size=2, num_workers=2, rows=[[0, 1, 2], range(3, 12)])
    >>> mine.steps_per_epoch(1)
    4
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
        rows: Sequence[npt.ArrayLike] | None = None,
    ):
        check_num_workers(num_workers)
        num_rows, batch_size, seed = count_rows(data), whole("batch_size", batch_size), whole("seed", seed)
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, num_workers))))
        if rows is not None:
            if labels is not None:
                raise ValueError("give either labels=, by which rows are dealt out, or rows=, the partition itself")
            self.rows = _partition(rows, num_rows, num_workers)
        elif labels is None:
            self.rows = [np.sort(part) for part in np.array_split(rng.permutation(num_rows), num_workers)]
        else:
            self.rows = _deal_by_class(np.asarray(labels), num_rows, num_workers, concentration, rng)
        _check_batch_size(batch_size, self.rows)
        self.num_workers = num_workers
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self._orders: dict[int, tuple[int, np.ndarray]] = {}  # Of each worker, the epoch it is in.

    def __repr__(self) -> str:
        return described(self, "num_workers")

    def steps_per_epoch(self, worker: int) -> int:
        """Batches that ``worker`` makes of its rows; those beyond the last full one are left out of that epoch."""
        return len(self.rows[worker]) // self.batch_size

    def _batch(self, worker: int, step: int) -> np.ndarray:
        steps = self.steps_per_epoch(worker)
        epoch, row = divmod(step, steps)
        known = self._orders.get(worker)
        if known is None or known[0] != epoch:
            order = shuffled(self.rows[worker], self.batch_size, self.seed, worker, epoch)
            known = self._orders[worker] = (epoch, order)
        return known[1][row]

    def select(self, worker, step):
        pairs = zip(np.asarray(worker).tolist(), np.asarray(step).tolist(), strict=True)
        return np.array([self._batch(w, s) for w, s in pairs], np.int32).reshape(-1, self.batch_size)


def _check_batch_size(batch_size: int, rows: list[np.ndarray]) -> None:
    fewest = min(range(len(rows)), key=lambda worker: len(rows[worker]))
    count = len(rows[fewest])
    if count and 1 <= batch_size <= count:
        return
    found = (
        f"batch_size must be in 1 … {count}, the rows of worker {fewest}, which has the fewest; got {batch_size}"
        if count
        else f"worker {fewest} got no rows"
    )
    raise ValueError(
        f"{found}. Take {'smaller batches, ' if count else ''}fewer workers, another seed or a larger concentration, or give "
        "rows= of your own"
    )


def _partition(rows: Sequence[npt.ArrayLike], num_rows: int, num_workers: int) -> list[np.ndarray]:
    if len(rows) != num_workers:
        raise ValueError(f"rows must be one array a worker, {num_workers}, got {len(rows)}")
    found = [np.asarray(mine) for mine in rows]
    for worker, mine in enumerate(found):
        if mine.ndim != 1 or (mine.size and not np.issubdtype(mine.dtype, np.integer)):
            raise ValueError(
                f"the rows of worker {worker} must be a vector of ints, got {mine.dtype}{list(mine.shape)}; of a mask take "
                "np.flatnonzero"
            )
        if mine.size and not (mine.min() >= 0 and mine.max() < num_rows):
            raise ValueError(
                f"the rows of worker {worker} must be in 0 … {num_rows - 1}, got {mine.min()} … {mine.max()}"
            )
        if len(np.unique(mine)) != len(mine):
            raise ValueError(f"the rows of worker {worker} must differ from each other; some stand there twice")
    return [np.sort(mine).astype(np.int64) for mine in found]


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
