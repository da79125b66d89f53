"""The batches of local steps: as many a commit as the worker takes steps."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gemjax.batches.rows import is_shared, part, select, threads_that_read
from gemjax.protocol.local_steps import LocalSteps

PyTree = Any


@dataclasses.dataclass(frozen=True)
class LocalBatches:
    """The batches of all local steps of a commit, in place of the batch of one gradient."""

    batches: Any
    local: LocalSteps

    def __post_init__(self):
        if self.shared and not isinstance(self.local.period, int):
            raise ValueError(
                "a shared stream hands out as many batches at a time as the period of LocalSteps, but here periods differ; "
                "give one int for all workers, or data that they do not share (gemjax.Epochs, gemjax.Shards)"
            )

    @property
    def data(self) -> PyTree:
        return self.batches.data

    @property
    def shared(self) -> bool:
        return is_shared(self.batches)

    @property
    def threads(self) -> int:
        return threads_that_read(self.batches)

    def select(self, worker: np.ndarray, step: np.ndarray, draw: Any = None) -> PyTree:
        """Of each commit: its first local step, their number, and the selections of ``longest`` batches."""
        longest = self.local.longest
        first, count = self.local.span(worker, step)
        ahead = np.minimum(np.arange(longest)[None], count[:, None] - 1)  # Beyond the last: that one again, unused.
        steps = (first[:, None] + ahead).ravel()
        draws = (np.asarray(draw)[:, None] * longest + ahead).ravel() if self.shared else steps
        chosen = select(self.batches, np.repeat(np.asarray(worker), longest), steps, draws)
        chosen = jax.tree.map(lambda column: np.asarray(column).reshape(-1, longest, *np.shape(column)[1:]), chosen)
        return np.asarray(first, np.int32), np.asarray(count, np.int32), chosen

    def part(self, selection: PyTree) -> tuple[PyTree, PyTree]:
        first, count, chosen = selection
        data, chosen = part(self.batches, chosen)
        return data, (first, count, chosen)

    @staticmethod
    def only(selection: PyTree, commits: np.ndarray) -> PyTree:
        """``selection`` with no local steps where nothing is going to be committed."""
        first, count, chosen = selection
        return first, np.where(commits, count, 0).astype(np.int32), chosen

    def batch(self, data: PyTree, selection: PyTree) -> "Minibatches":
        first, count, chosen = selection
        return Minibatches(first, count, lambda j: self.batches.batch(data, jax.tree.map(lambda c: c[j], chosen)))


@dataclasses.dataclass(frozen=True)
class Minibatches:
    """The batches of one commit's local steps, read when they are needed."""

    first: jax.Array  # int32 []; the worker's local step that they begin with.
    count: jax.Array  # int32 []
    at: Callable[[Any], PyTree]
