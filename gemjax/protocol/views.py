"""State nodes that take part in a pull (see ``NoticesPull`` and ``ShiftsView`` in :mod:`gemjax.protocol.staleness`)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.protocol import diagnostics, slots

PyTree = Any


class BeforeCommit(NamedTuple):
    """The point that a rule set aside at the worker's commit, until its next one.

    A pull without a commit (after a rejected gradient, or a retry) takes the central variable instead, if that has moved.
    """

    params: PyTree  # Like the parameters that the rule sees.
    committed: jax.Array  # bool []; whether the worker has committed since it pulled.

    def pulled(self, params: PyTree) -> "BeforeCommit":
        params = slots.like(params, self.params)
        params = jax.tree.map(lambda own, now: jnp.where(self.committed, own, now), self.params, params)
        return type(self)(params, jnp.zeros_like(self.committed))


class OwnPosition(BeforeCommit):
    """The worker also computes at that point, whatever the central variable is."""

    def shift_view(self, view: PyTree) -> PyTree:
        return where_present(lambda own, _: own, self.params, view)


class Position(NamedTuple):
    """The worker's own place, which nothing but its commits moves."""

    params: PyTree  # Like the parameters that the rule sees.

    def shift_view(self, view: PyTree) -> PyTree:
        return where_present(lambda own, _: own, self.params, view)


class LookAhead(NamedTuple):
    """The worker computes where a velocity will have carried the central variable: at the view less a piece of it."""

    velocity: PyTree  # Like the parameters that the rule sees.
    distance: jax.Array  # float []; the learning rate of the last commit times how many velocities ahead.

    def length(self) -> jax.Array:
        """What rules offer as the diagnostic ``look_ahead``."""
        return jnp.abs(self.distance) * diagnostics.rms(self.velocity)

    def shift_view(self, view: PyTree) -> PyTree:
        return where_present(lambda v, x: x - jnp.asarray(self.distance, x.dtype) * v, self.velocity, view)


def where_present(fn, own: PyTree, view: PyTree) -> PyTree:
    """``fn(own, view)`` leaf by leaf, and ``view`` where ``optax.masked`` took the leaf from ``own``."""

    def is_hole(node):
        return isinstance(node, optax.MaskedNode)

    return jax.tree.map(lambda o, v: v if is_hole(o) else fn(o, v), own, view, is_leaf=is_hole)
