"""State nodes by which a method decides where a worker computes its gradient (see :class:`gemjax.staleness.ShiftsView`)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

PyTree = Any


class OwnPosition(NamedTuple):
    """The worker computes at a point of its own, whatever the central variable is."""

    params: PyTree  # Like the parameters that the rule sees.

    def shift_view(self, view: PyTree) -> PyTree:
        return where_present(lambda own, _: own, self.params, view)


class LookAhead(NamedTuple):
    """The worker computes where a velocity will have carried the central variable: at the view less a piece of it."""

    velocity: PyTree  # Like the parameters that the rule sees.
    distance: jax.Array  # float []; the learning rate of the last commit times how many velocities ahead.

    def shift_view(self, view: PyTree) -> PyTree:
        return where_present(lambda v, x: x - jnp.asarray(self.distance, x.dtype) * v, self.velocity, view)


def where_present(fn, own: PyTree, view: PyTree) -> PyTree:
    """``fn(own, view)`` leaf by leaf, and ``view`` where ``optax.masked`` took the leaf from ``own``."""

    def is_hole(node):
        return isinstance(node, optax.MaskedNode)

    return jax.tree.map(lambda o, v: v if is_hole(o) else fn(o, v), own, view, is_leaf=is_hole)
