"""Stand-ins for arrays of a run's state that are in the actors of the central variable."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gemjax.engines.cluster.central.commit import Leaf
from gemjax.engines.memory import Elsewhere, Function


class Holder(NamedTuple):
    """An actor as the owner of arrays of a state: that after ``version`` commits and pulls."""

    central: Any  # The driver's side.
    place: int
    version: int

    def keep(self, arrays: Mapping[str, Elsewhere]) -> Callable[[Function], Callable[[], Any]]:
        """Do what an :class:`gemjax.engines.memory.Owner` does; the actor goes on with commits during the call."""
        actor, wait = self.central.actor_at(self.place), self.central.wait
        leaves = {name: array.leaf for name, array in arrays.items() if isinstance(array, AtActor)}
        (token,) = wait([actor.keep.remote(self.version, leaves)])

        def call(fn: Function) -> Callable[[], Any]:
            found = actor.apply.remote(token, fn)
            return lambda: wait([found])[0]

        return call


class AtActor(Elsewhere):
    """An array of the state that an actor has."""

    def __init__(self, central: Any, place: int, version: int, leaf: Leaf, like: Any):
        super().__init__(like.shape, like.dtype)
        self.owner = self._holder = Holder(central, place, version)
        self.leaf = leaf

    def sent(self) -> Any:
        central, place, version = self._holder
        return central.actor_at(place).leaf.remote(version, self.leaf)

    def read(self) -> np.ndarray:
        return self._holder.central.wait([self.sent()])[0]
