"""Quantities that a run can report a commit, computed only when somebody asks.

An engine passes an :class:`Observer` to the update as the extra argument ``observe``; a rule offers its quantities to it
by name. Nothing is stored in any state.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


class Observer:
    """Collects the quantities in ``wanted`` during one (traced) update.

    It lives inside one trace: a rule that calls it under ``lax.cond`` or ``lax.scan`` (as ``optax.MultiSteps`` would
    make it) cannot be observed.
    """

    def __init__(self, wanted: Iterable[str] = ()):
        self.wanted = frozenset(wanted)
        self.seen: dict[str, jax.Array] = {}

    def __call__(self, name: str, compute: Callable[[], jax.Array]) -> None:
        """Records ``compute()`` under ``name`` if that is wanted."""
        if name in self.wanted:
            self.seen[name] = compute()

    def collected(self) -> dict[str, jax.Array]:
        """The quantities seen, by name.

        Raises:
          ValueError: if a wanted quantity was never offered; the message names those that no member of this method has.
        """
        missing = sorted(self.wanted - self.seen.keys())
        if missing:
            raise ValueError(
                f"no member of this method reports {', '.join(missing)}; every method has 'gap' and 'update_norm', GEM adds "
                "'pi_median' and 'energy_ratio', delay compensation 'compensation', LSGD 'leader' and 'group_leader', "
                "and YellowFin 'momentum', 'target_momentum' and 'total_momentum'"
            )
        return self.seen


def names(diagnostics: str | Iterable[str]) -> tuple[str, ...]:
    """The names asked for; one may stand alone."""
    return (diagnostics,) if isinstance(diagnostics, str) else tuple(diagnostics)


def gap(params: PyTree, stale_params: PyTree) -> jax.Array:
    r"""Root mean square distance :math:`\|\theta - s\|_2 / \sqrt{k}` between two trees of k numbers, a scalar.

    >>> gap({"w": jnp.array([4.0, 0.0])}, {"w": jnp.array([0.0, 4.0])})
    Array(4., dtype=float32)
    """
    return rms(jax.tree.map(jnp.subtract, params, stale_params))


def rms(tree: PyTree) -> jax.Array:
    """Root mean square of all numbers in ``tree``, a float scalar (accumulated in at least float32)."""
    leaves = jax.tree.leaves(tree)
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)))) for leaf in leaves]
    return jnp.sqrt(sum(squares) / max(1, sum(leaf.size for leaf in leaves)))


def flatten(tree: PyTree) -> jax.Array:
    """All numbers of ``tree`` in one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
