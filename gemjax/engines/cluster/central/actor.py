"""The process of one part of the central variable."""

import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.cluster.central.commit import Arrays, Commit, Part
from gemjax.engines.cluster.central.first import First


class CentralActor:
    """One part of the central variable. Views and gradients are lists of arrays, in the order of their leaves.

    Args:
      paths: as for :class:`gemjax.engines.cluster.actor.Actor`.
    """

    def __init__(self, paths: list[str]):
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))

    def begin(self, place: int, config: Mapping[str, Any], pickled: bytes) -> tuple[str, str]:
        """Prepare for a run as the part ``place``; return "divided" and a digest, or "missing" and a module's name."""
        for name, value in config.items():
            jax.config.update(name, value)
        try:
            recipe = pickle.loads(pickled)
        except ModuleNotFoundError as error:
            return "missing", error.name or str(error)
        self._place, self._commit = place, Commit(recipe)
        self._shared: Arrays = {}
        self._slots: list[Arrays] = []
        self._gradient_here, self._view_here = (self._commit.gradient_at(place), self._commit.view_at(place))
        return "divided", self._commit.digest

    def make_first(self, given: list, num_workers: int) -> None:
        """Begin with the first state, from the leaves of parameters and model state that this part needs for it."""
        shared, self._slots = First(self._commit).make(self._place, jax.tree.map(jnp.array, given), num_workers)
        self._part, self._version = Part(self._commit, self._place, shared, self._slots), 0

    def load(self, shared: Arrays) -> None:
        """Begin with leaves of what all workers share."""
        self._shared, self._slots, self._version = jax.tree.map(jnp.array, shared), [], 0

    def load_slot(self, slot: Arrays) -> int:
        """Add the leaves of the next worker's slot; return the number of slots."""
        self._slots.append(jax.tree.map(jnp.array, slot))
        self._part = Part(self._commit, self._place, self._shared, self._slots)
        return len(self._slots)

    def receive(self, leaves: list | None) -> None:
        """Take the gradient of the next commit; ``None`` stands for zeros."""
        if leaves is None:
            avals = self._commit.division.program.avals
            leaves = [jnp.zeros(avals[number].shape, avals[number].dtype) for number in self._gradient_here]
        self._gradient = dict(zip(self._gradient_here, leaves, strict=True))

    def round(self, version: int, worker: int, level: int, received: Arrays) -> dict[int, Any]:
        """Compute one round of a commit of ``worker``; the first one begins it. The version counts commits and pulls."""
        self._check(version)
        if level == 0:
            self._part.begin(worker, self._gradient)
        return jax.tree.map(np.asarray, self._part.run(level, received))

    def finish(self) -> list:
        """Replace the state by that after the commit, and return the leaves of the worker's next view."""
        found = self._part.finish()
        self._version += 1
        return [np.asarray(found[out]) for out in self._view_here]

    def read(self, version: int, numbers: list[int], worker: int | None = None) -> list:
        """Return values of the state: those that all workers share, and those of the slot of ``worker``."""
        self._check(version)
        kept = self._part.shared | ({} if worker is None else self._part.slots[worker])
        return [np.asarray(kept[number]) for number in numbers]

    def _check(self, version: int) -> None:
        if version != self._version:
            raise RuntimeError(f"this part of the central variable is at version {self._version}, not at {version}")
