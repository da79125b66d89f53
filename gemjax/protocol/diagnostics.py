"""Quantities that a run can report a commit, computed only when somebody asks.

An engine passes an :class:`Observer` to the update as the extra argument ``observe``; a rule offers its quantities to it
by name. Nothing is stored in any state. What every rule means by the same name:

- ``compensation``: :func:`relative_change` of the step by what the rule does against staleness. The step is what comes in
  to the rule, a gradient or an update, so that learning rates play no part; 0 is a commit left as it is, and 1 one that
  was damped to nothing or changed by its own length.
- ``learning_rate``: the rate that the commit was scaled with: schedules at their count, times the factors that depend on its
  staleness (:func:`gemjax.scale_by_staleness`, :class:`gemjax.StalenessSchedule`) and the rate that YellowFin found. What a
  rule does to each parameter apart (GEM, Gap-Aware, Adam) is no part of it, nor is the rate of local steps. All of gemjax's
  methods offer it, and any optax optimizer under ``optax.inject_hyperparams``. Where two members offer it (``optax.partition``
  of two methods), no single rate describes the commit: to ask for it is a ``ValueError``.
- ``look_ahead``: root mean square distance between the central variable and the point that the worker is sent after the
  commit, in the units of ``gap``.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


class Observer:
    """Collects the quantities in ``wanted`` during one (traced) update.

    It lives inside one trace: a rule that calls it under ``lax.cond`` or ``lax.scan`` (as ``optax.MultiSteps`` would
    make it) cannot be observed. Where two members of a chain offer the same name, the last one is heard; two learning
    rates are an error.
    """

    def __init__(self, wanted: Iterable[str] = ()):
        self.wanted = frozenset(wanted)
        self.offered: set[str] = set()
        self.seen: dict[str, jax.Array] = {}
        self.factors: dict[str, jax.Array] = {}
        self.several = False  # Whether two members have reported a learning rate.

    def __call__(self, name: str, compute: Callable[[], jax.Array]) -> None:
        """Records ``compute()`` under ``name`` if that is wanted."""
        self.offered.add(name)
        if name in self.wanted:
            self.several |= name == "learning_rate" and name in self.seen
            self.seen[name] = compute()

    def scale(self, name: str, compute: Callable[[], jax.Array]) -> None:
        """Multiplies the quantity ``name``, which another member of the chain offers, by ``compute()`` if it is wanted."""
        if name in self.wanted:
            self.factors[name] = self.factors.get(name, 1.0) * compute()

    def collected(self, besides: Iterable[str] = ()) -> dict[str, jax.Array]:
        """The quantities seen, by name.

        Args:
          besides: names that can be asked for without any member's help.

        Raises:
          ValueError: if a wanted quantity was never offered, with what can be asked of this method; or if two members
            reported a learning rate.
        """
        if self.several:
            raise ValueError(
                "several members of this method report learning_rate, as in an optax.partition of two methods, so no single "
                "rate describes a commit; leave learning_rate out of diagnostics="
            )
        missing = sorted(self.wanted - self.seen.keys())
        if missing:
            known = [*besides, *sorted(self.offered)]
            meant = [repr(close) for name in missing for close in difflib.get_close_matches(name, known, n=1)]
            raise ValueError(
                f"no member of this method reports {', '.join(missing)}; "
                + (f"did you mean {' and '.join(meant)}? It" if meant else "it")
                + f" offers {', '.join(known) or 'nothing'}"
            )
        return {
            name: value * self.factors[name] if name in self.factors else value for name, value in self.seen.items()
        }


def offer_injected_rate(observe: Observer, state: PyTree) -> None:
    """Offers the learning rate that ``optax.inject_hyperparams`` keeps in ``state``, if it keeps exactly one.

    Args:
      observe: the observer of the update.
      state: the optimizer state after the update, which holds the values that the update used.
    """
    nodes = [node for node in jax.tree.leaves(state, is_leaf=_is_injected) if _is_injected(node)]
    rates = [node.hyperparams["learning_rate"] for node in nodes if "learning_rate" in node.hyperparams]
    if len(rates) == 1 and "learning_rate" not in observe.offered:
        observe("learning_rate", lambda: jnp.asarray(rates[0], jnp.result_type(float)))


def _is_injected(node: Any) -> bool:
    return isinstance(getattr(node, "hyperparams", None), dict)


def names(diagnostics: str | Iterable[str]) -> tuple[str, ...]:
    """The names asked for; one may stand alone."""
    return (diagnostics,) if isinstance(diagnostics, str) else tuple(diagnostics)


def gap(params: PyTree, stale_params: PyTree) -> jax.Array:
    r"""Root mean square distance :math:`\|\theta - s\|_2 / \sqrt{k}` between two trees of k numbers, a scalar.

    >>> gap({"w": jnp.array([4.0, 0.0])}, {"w": jnp.array([0.0, 4.0])})
    Array(4., dtype=float32)
    """
    return rms(jax.tree.map(jnp.subtract, params, stale_params))


def relative_change(changed: PyTree, plain: PyTree) -> jax.Array:
    r"""How far a step was changed, in its own length: :math:`\|\tilde u - u\|_2 / \|u\|_2`, a scalar; 0 for a step of 0.

    >>> relative_change(jnp.array([0.0, 2.0]), jnp.array([0.0, 4.0]))
    Array(0.5, dtype=float32)
    """
    added, size = rms(jax.tree.map(jnp.subtract, changed, plain)), rms(plain)
    return jnp.where(size > 0, added / jnp.where(size > 0, size, jnp.ones_like(size)), jnp.zeros_like(size))


def normalised_gap(params: PyTree, stale_params: PyTree, gradient: PyTree) -> jax.Array:
    r"""The gap in lengths of the gradient: :math:`\|\theta - s\|_2 / \|g\|_2` for the gradient :math:`g` at :math:`s`.

    A gap of the same size does less harm where gradients are larger, which is where better methods are. What a worker
    with local steps commits for its gradient is its displacement. 0 where nothing is stale; infinite where only the gradient
    is 0.

    >>> normalised_gap(jnp.array([4.0, 0.0]), jnp.array([0.0, 3.0]), jnp.array([0.0, 2.0]))
    Array(2.5, dtype=float32)
    """
    distance = gap(params, stale_params)
    return jnp.where(distance > 0, distance / rms(gradient), jnp.zeros_like(distance))


def rms(tree: PyTree) -> jax.Array:
    """Root mean square of all numbers in ``tree``, a float scalar (accumulated in at least float32)."""
    leaves = jax.tree.leaves(tree)
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)))) for leaf in leaves]
    return jnp.sqrt(sum(squares) / max(1, sum(leaf.size for leaf in leaves)))


def quantile(tree: PyTree, q: float) -> jax.Array:
    """The ``q`` quantile, in [0, 1], of all numbers in ``tree``, a float scalar (interpolated in at least float32)."""
    numbers = flatten(tree)
    return jnp.quantile(numbers.astype(jnp.promote_types(numbers.dtype, jnp.float32)), q)


def flatten(tree: PyTree) -> jax.Array:
    """All numbers of ``tree`` in one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


# What can be reported of any method's commit, from (params, view, gradient, updates).
OF_ANY_COMMIT: dict[str, Callable[..., jax.Array]] = {
    "gap": lambda params, view, gradient, updates: gap(params, view),
    "normalised_gap": lambda params, view, gradient, updates: normalised_gap(params, view, gradient),
    "update_norm": lambda params, view, gradient, updates: rms(updates),
}
