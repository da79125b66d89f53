"""Batches of rows that are divided among the workers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemjax.batches.checks import count_rows
from gemjax.batches.rows import OwnEpochs, described
from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_positive, check_positive_int, integer


class Shards(OwnEpochs):
    """Epochs of each worker's own rows, each in another order.

    The rows are divided once. Without ``labels`` each worker gets an equal random share of them. With ``labels`` workers get
    unequal shares of the classes: each class is divided in proportions drawn from a Dirichlet distribution, the usual model
    of data that differ between workers. With ``rows`` you give the division.

    Args:
      data: pytree of arrays with a common leading axis of n rows.
      batch_size: rows per batch, from 1 to the number of rows of the worker that has the fewest.
      num_workers: number of workers N.
      seed: decides the division of the rows and all orders; a non-negative int, default 0.
      labels: int [n]; the class of each row. ``None`` (default): every share has the distribution of the whole.
      concentration: of the Dirichlet distribution, positive, default 1. At 100 the shares of all workers are nearly alike, at
        0.1 few workers have most of a class. With ``labels`` only.
      rows: a division of your own, in place of ``labels``: the row numbers of each worker, int vectors in 0 … n - 1. Rows may
        be left out, or belong to several workers. A repeated row is used as often in each epoch.

    Raises:
      TypeError: if a leaf of the data is not an array.
      ValueError: if the leading axes differ, a worker would have fewer rows than a batch, a label is missing (NaN),
        ``concentration`` is given without ``labels``, or ``rows`` has no vector for each worker or a number that is no row.

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
        data: "PyTree",
        batch_size: int,
        num_workers: int,
        seed: int = 0,
        *,
        labels: "npt.ArrayLike | None" = None,
        concentration: float | None = None,
        rows: "Sequence[npt.ArrayLike] | None" = None,
    ):
        check_positive_int("num_workers", num_workers)
        num_rows, batch_size = count_rows(data), integer("batch_size", batch_size, 1)
        if labels is None and concentration is not None:
            raise ValueError(
                "concentration is that of the classes in labels=, which is missing; give labels=, or leave it out"
            )
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, num_workers))))
        if rows is not None:
            self.rows = _partition(rows, num_rows, num_workers)
        elif labels is None:
            self.rows = [np.sort(part) for part in np.array_split(rng.permutation(num_rows), num_workers)]
        else:
            self.rows = _deal_by_class(labels, num_rows, num_workers, concentration, rng)
        _check_batch_size(batch_size, self.rows)
        self.num_workers = num_workers
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self._orders = {}

    def __repr__(self) -> str:
        return described(self, "num_workers")

    def steps_per_epoch(self, worker: int) -> int:
        """Return the batches per epoch of ``worker``; rows beyond the last full batch are left out of that epoch."""
        return len(self.rows[worker]) // self.batch_size

    def _share(self, worker):
        return self.rows[worker], self.steps_per_epoch(worker)


def _check_batch_size(batch_size: int, rows: list[np.ndarray]) -> None:
    fewest = min(range(len(rows)), key=lambda worker: len(rows[worker]))
    if batch_size > (count := len(rows[fewest])):
        raise ValueError(
            f"batch_size must be in 1 … {count}, the rows of worker {fewest}, which has the fewest; got {batch_size}. Take "
            "smaller batches, fewer workers, another seed or a larger concentration, or give rows= of your own"
        )


def _partition(rows: Sequence[npt.ArrayLike], num_rows: int, num_workers: int) -> list[np.ndarray]:
    if len(rows) != num_workers:
        raise ValueError(f"rows must be one array per worker, {num_workers}, got {len(rows)}")
    found = [np.asarray(mine) for mine in rows]
    for worker, mine in enumerate(found):
        if mine.size and not (mine.dtype.kind in "iu" and mine.min() >= 0 and mine.max() < num_rows):
            raise ValueError(
                f"the rows of worker {worker} must be ints in 0 … {num_rows - 1}, got {mine.dtype} in {mine.min()} … "
                f"{mine.max()}; of a mask take np.flatnonzero"
            )
    return [np.sort(mine).astype(np.int64) for mine in found]


def _deal_by_class(given: Any, num_rows: int, num_workers: int, concentration: float | None, rng) -> list[np.ndarray]:
    labels = np.asarray(given)
    if labels.shape != (num_rows,) or (labels != labels).any():
        raise ValueError(
            f"labels must be one per row, {num_rows}, got the shape {list(labels.shape)} with {np.sum(labels != labels)} NaN; "
            "give each row a class, or divide the rows with rows="
        )
    concentration = 1.0 if concentration is None else concentration
    check_positive("concentration", concentration)
    shares: list[list[np.ndarray]] = [[] for _ in range(num_workers)]
    for one in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == one))
        cuts = np.cumsum(rng.dirichlet([concentration] * num_workers))[:-1] * len(rows)
        for share, part in zip(shares, np.split(rows, cuts.round().astype(int)), strict=True):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]
