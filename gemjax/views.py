"""State nodes by which a method decides where a worker computes its gradient (see :class:`gemjax.staleness.ShiftsView`)."""

from typing import Any, NamedTuple

import jax
import optax

PyTree = Any


class OwnPosition(NamedTuple):
    """The worker computes at a point of its own, whatever the central variable is."""

    params: PyTree  # Like the parameters that the rule sees.

    def shift_view(self, view: PyTree) -> PyTree:
        return where_present(lambda own, _: own, self.params, view)


def where_present(fn, own: PyTree, view: PyTree) -> PyTree:
    """``fn(own, view)`` leaf by leaf, and ``view`` where ``optax.masked`` took the leaf from ``own``."""

    def is_hole(node):
        return isinstance(node, optax.MaskedNode)

    return jax.tree.map(lambda o, v: v if is_hole(o) else fn(o, v), own, view, is_leaf=is_hole)
