"""Batches of local steps: per commit, one batch for each step that the worker takes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.base import Wrapper, select
from gemjax.protocol import PyTree
from gemjax.protocol.local_steps import LocalSteps


@dataclasses.dataclass(frozen=True)
class LocalBatches(Wrapper):
    """The batches of all local steps of a commit, in place of the batch of one gradient."""

    batches: Any
    local: LocalSteps

    def __post_init__(self):
        self._adopt("data", "shared", "threads", "num_workers")
        period = self.local.period
        if self.shared and not isinstance(period, int) and not (isinstance(period[0], int) and len({*period}) == 1):
            raise ValueError(
                "a shared stream hands out as many batches at a time as the period of LocalSteps, but here periods differ; "
                "give one int for all workers, or data that they do not share (gemjax.Epochs, gemjax.Shards)"
            )

    def select(self, worker: np.ndarray, step: np.ndarray, draw: Any = None) -> PyTree:
        """Return, per commit, its first local step, the number of its steps, and the selections of ``longest`` batches."""
        longest = self.local.longest
        first, count = self.local.span(worker, step)
        ahead = np.minimum(np.arange(longest)[None], count[:, None] - 1)  # Unused entries repeat the last one.
        steps = (first[:, None] + ahead).ravel()
        draws = (np.asarray(draw, np.int64)[:, None] * longest + ahead).ravel() if self.shared else None
        chosen = select(self.batches, np.repeat(np.asarray(worker), longest), steps, draws)
        chosen = jax.tree.map(lambda column: np.asarray(column).reshape(-1, longest, *np.shape(column)[1:]), chosen)
        return np.asarray(first, np.int32), np.asarray(count, np.int32), chosen

    def _check_selection(self, selection, worker, step, draw):
        """Do nothing: the selections of all steps have been checked."""

    def gather(self, selection: PyTree) -> tuple[PyTree, PyTree]:
        data, chosen = self.batches.gather(selection[-1])
        return data, (*selection[:-1], chosen)

    def _traced(self):
        return dataclasses.replace(self, batches=self.batches._traced())

    @staticmethod
    def count_of(selection: PyTree) -> int:
        """Return the number of local steps in the selection of one commit."""
        return int(selection[1])

    @staticmethod
    def only(selection: PyTree, commits: np.ndarray) -> PyTree:
        """Return ``selection`` with no local steps for arrivals that do not commit."""
        first, count, chosen = selection
        return first, np.where(commits, count, 0).astype(np.int32), chosen

    def batch(self, data: PyTree, selection: PyTree) -> "Minibatches":
        first, count, chosen = selection
        return Minibatches(
            first, count, lambda j: self.batches.batch(data, jax.tree.map(lambda c: jnp.asarray(c)[j], chosen))
        )


@dataclasses.dataclass(frozen=True)
class Minibatches:
    """The batches of one commit's local steps, read when they are needed."""

    first: jax.Array  # int32 []; the worker's first local step of this commit.
    count: jax.Array  # int32 []
    at: Callable[[Any], PyTree]
