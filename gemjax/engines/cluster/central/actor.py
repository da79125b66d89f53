"""The process of one part of the central variable."""

import itertools
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.cluster.central.commit import Arrays, Commit, Leaf, Part
from gemjax.engines.cluster.central.first import First
from gemjax.engines.memory import Elsewhere


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
        self._kept: dict[int, dict[str, Any]] = {}
        self._tokens = itertools.count()
        self._shared: dict[int, Any] = {}
        self._slots: list[dict[int, Any]] = []
        self._gradient_here, self._view_here = (self._commit.gradient_at(place), self._commit.view_at(place))
        return "divided", self._commit.digest

    def make_first(self, given: list, num_workers: int) -> None:
        """Begin with the first state, from the leaves of parameters and model state that this part needs for it."""
        shared, each = First(self._commit).make(self._place, jax.tree.map(jnp.array, given), num_workers)
        self._part, self._version = Part(self._commit, self._place, shared, each), 0

    def load(self, number: int, array: Any, stacked: bool) -> None:
        """Take a leaf of the state to continue from, or read it itself; a stacked one has a row per worker."""
        array = array.read() if isinstance(array, Elsewhere) else array
        if not stacked:
            self._shared[number] = jnp.array(array)
            return
        self._slots = self._slots or [{} for _ in array]
        for slot, row in zip(self._slots, array, strict=True):
            slot[number] = jnp.array(row)

    def continue_run(self, num_workers: int) -> None:
        """Continue from the leaves that were loaded."""
        each = self._slots or [{} for _ in range(num_workers)]
        self._part, self._version = Part(self._commit, self._place, self._shared, each), 0
        self._shared, self._slots = {}, []

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

    def keep(self, version: int, leaves: Mapping[str, Leaf]) -> int:
        """Keep leaves of the state as they are now, which copies nothing; return a number for :meth:`apply`."""
        self._check(version)
        part = self._part
        self._kept[token := next(self._tokens)] = {
            name: [slot[leaf.number] for slot in part.slots] if leaf.stacked else part.shared[leaf.number]
            for name, leaf in leaves.items()
        }
        return token

    def apply(self, token: int, fn: Callable[[dict[str, np.ndarray]], Any]) -> Any:
        """Call ``fn`` with leaves that were kept, those of all workers stacked, and forget them."""
        leaves = self._kept.pop(token)
        arrays = {}
        for name in list(leaves):  # Each is forgotten as soon as it is stacked.
            kept = leaves.pop(name)
            arrays[name] = np.stack(kept) if isinstance(kept, list) else np.asarray(kept)
        return fn(arrays)

    def leaf(self, version: int, leaf: Leaf) -> np.ndarray:
        """Return a leaf of the state."""
        return self.apply(self.keep(version, {"": leaf}), lambda arrays: arrays[""])

    def _check(self, version: int) -> None:
        if version != self._version:
            raise RuntimeError(
                f"this part of the central variable is at version {self._version}, not at {version}; the state of a callback "
                "is valid during the callback: read or save it there"
            )
