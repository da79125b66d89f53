"""Quantities that a run can report per commit, computed only on request.

An engine passes an :class:`Observer` to the update as the extra argument ``observe``; a rule offers its quantities to it
by name. Nothing is stored in any state. These names have the same meaning in every rule:

- ``compensation``: :func:`relative_change` of the step by the rule's measure against staleness. The step is the rule's input,
  a gradient or an update, so that learning rates have no influence. It is 0 for an unchanged commit, and 1 for one that was
  damped to nothing or changed by its own length.
- ``learning_rate``: the rate that scaled the commit. It contains schedules at their count, the factors that depend on
  staleness (:func:`gemjax.rules.scale_by_staleness`, :class:`gemjax.rules.StalenessSchedule`) and the rate that YellowFin
  found. It contains neither factors per parameter (GEM, Gap-Aware, Adam) nor the rate of local steps. All methods of gemjax
  offer it, and any optax optimizer under ``optax.inject_hyperparams``. Where two members offer it (``optax.partition`` of two
  methods), no single rate describes the commit, and a request for it is a ``ValueError``.
- ``look_ahead``: root mean square distance between the central variable and the view that the worker pulls after the commit,
  over the numbers that the rule sees.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gemjax.protocol import PyTree


class Observer:
    """Collector of the quantities in ``wanted`` during one (traced) update.

    It belongs to one JAX trace. A rule inside ``lax.cond`` or ``lax.scan``, such as one in ``optax.MultiSteps``, cannot be
    observed: its values do not exist outside, and JAX raises an error. Where two members of a chain offer the same name, the
    last one counts; two learning rates are an error.
    """

    def __init__(self, wanted: Iterable[str] = ()):
        self.wanted = frozenset(wanted)
        self.offered: set[str] = set()
        self.seen: dict[str, jax.Array] = {}
        self.factors: dict[str, jax.Array] = {}
        self.several = False  # True if two members have reported a learning rate.

    def __call__(self, name: str, compute: Callable[[], jax.Array]) -> None:
        """Record ``compute()`` under ``name`` if that is wanted."""
        self.offered.add(name)
        if name in self.wanted:
            self.several |= name == "learning_rate" and name in self.seen
            self.seen[name] = jnp.asarray(compute())

    def scale(self, name: str, compute: Callable[[], jax.Array]) -> None:
        """Multiply the quantity ``name`` of another member by ``compute()`` if it is wanted."""
        if name in self.wanted:
            self.factors[name] = self.factors.get(name, 1.0) * jnp.asarray(compute())

    def collected(self, besides: Iterable[str] = ()) -> dict[str, jax.Array]:
        """Return the recorded quantities by name.

        Args:
          besides: names that engines offer for every method.

        Raises:
          ValueError: if no member offered a wanted quantity (the message lists what this method offers), or if two members
            reported a learning rate.
        """
        if self.several:
            raise ValueError(
                "several members of this method report learning_rate, as in an optax.partition of two methods, so no single "
                f"rate describes a commit; leave learning_rate and {', '.join(NEED_RATE)} out of diagnostics="
            )
        missing = sorted(self.wanted - self.seen.keys())
        if missing:
            lacking = NEED_RATE if "learning_rate" in missing else set()
            known = [name for name in (*besides, *sorted(self.offered)) if name not in lacking]
            meant = [repr(close) for name in missing for close in difflib.get_close_matches(name, known, n=1)]
            raise ValueError(
                f"no member of this method reports {', '.join(missing)}; "
                + (f"did you mean {' and '.join(meant)}? It" if meant else "it")
                + f" offers {', '.join(known) or 'nothing'}"
                + (f"; {', '.join(lacking)} needs that rate; optax.inject_hyperparams offers one" if lacking else "")
            )
        return {
            name: value * self.factors[name] if name in self.factors else value for name, value in self.seen.items()
        }


def offer_injected_rate(observe: Observer, state: PyTree) -> None:
    """Offer the learning rate that ``optax.inject_hyperparams`` keeps in ``state``, if it keeps exactly one.

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
    """Return the requested names; a single one may be a plain string."""
    return (diagnostics,) if isinstance(diagnostics, str) else tuple(diagnostics)


def gap(params: PyTree, stale_params: PyTree) -> jax.Array:
    """Return the root mean square distance ‖θ - s‖ / √k between two trees of k numbers, a scalar.

    >>> gap({"w": jnp.array([4.0, 0.0])}, {"w": jnp.array([0.0, 4.0])})
    Array(4., dtype=float32)
    """
    return rms(jax.tree.map(jnp.subtract, params, stale_params))


def relative_change(changed: PyTree, plain: PyTree) -> jax.Array:
    """Return ‖ũ - u‖ / ‖u‖ for ``changed`` and ``plain``, a scalar; 0 where ``plain`` is 0.

    >>> relative_change(jnp.array([0.0, 2.0]), jnp.array([0.0, 4.0]))
    Array(0.5, dtype=float32)
    """
    added, size = rms(jax.tree.map(jnp.subtract, changed, plain)), rms(plain)
    return jnp.where(size == 0, jnp.zeros_like(size), added / jnp.where(size == 0, jnp.ones_like(size), size))


def normalised_gap(params: PyTree, stale_params: PyTree, gradient: PyTree) -> jax.Array:
    """Return the gap divided by the root mean square of the gradient, ‖θ - s‖ / ‖g‖ with g computed at s.

    A gap of the same size does less harm where gradients are larger. For a worker with local steps the gradient is its
    displacement. The value is 0 where nothing is stale, and infinite where only the gradient is 0.

    >>> normalised_gap(jnp.array([4.0, 0.0]), jnp.array([0.0, 3.0]), jnp.array([0.0, 2.0]))
    Array(2.5, dtype=float32)
    """
    distance = gap(params, stale_params)
    return jnp.where(distance == 0, jnp.zeros_like(distance), distance / rms(gradient))


def rms(tree: PyTree) -> jax.Array:
    """Return the root mean square of all numbers in ``tree``, a float scalar (accumulated in at least float32)."""
    leaves = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in jax.tree.leaves(tree)]
    count = max(1.0, float(sum(leaf.size for leaf in leaves)))  # An int may exceed int32.

    def of(leaves):
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves) / count)

    def scaled():
        """Return it where squares are too large or too small for floats."""
        largest = jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]).max()
        limits = jnp.finfo(largest.dtype)
        scale = jnp.clip(largest, float(limits.tiny) ** 0.8, float(limits.max) ** 0.8)  # Its inverse is a float, too.
        return scale * of([leaf / scale for leaf in leaves])

    if not leaves:
        return jnp.zeros([])
    plain = of(leaves)
    fits = (plain > 1e-15) & (plain < 1e18)
    return lax.cond(fits, lambda: plain, lambda: scaled().astype(plain.dtype))


def quantile(tree: PyTree, q: float) -> jax.Array:
    """Return the ``q`` quantile, in [0, 1], of all numbers in ``tree``, a float scalar (interpolated in at least float32).

    It is NaN if there are no numbers.
    """
    numbers = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)] or [jnp.zeros(0)])
    numbers = numbers.astype(jnp.promote_types(numbers.dtype, jnp.float32))
    return jnp.quantile(numbers, q) if numbers.size else jnp.array(jnp.nan, numbers.dtype)


def elastic_constant(params: PyTree, stale_params: PyTree, learning_rate: jax.Array) -> jax.Array:
    """Return ‖θ - s‖ / η; elastic consistency is a constant bound on the root mean square of it over a run.

    With the bound a distributed method converges as SGD does: the constant appears only in lower-order terms (Nadiradze et al.,
    `Elastic Consistency <https://arxiv.org/abs/2001.05918>`_, 2021). At a rate of 0 the value is infinite, or NaN at gap 0.

    >>> elastic_constant(jnp.array([3.0, 0.0]), jnp.array([0.0, 4.0]), jnp.float32(0.5))
    Array(10., dtype=float32)
    """
    count = max(1.0, float(sum(leaf.size for leaf in jax.tree.leaves(params))))
    return gap(params, stale_params) * count**0.5 / learning_rate


# Quantities of any method's commit, from (params, view, gradient, updates, learning rate). The rate may be None except for
# those in NEED_RATE.
OF_ANY_COMMIT: dict[str, Callable[..., jax.Array]] = {
    "gap": lambda params, view, *_: gap(params, view),
    "normalised_gap": lambda params, view, gradient, *_: normalised_gap(params, view, gradient),
    "update_norm": lambda params, view, gradient, updates, rate: rms(updates),
    "elastic_constant": lambda params, view, gradient, updates, rate: elastic_constant(params, view, rate),
}
NEED_RATE = {"elastic_constant"}
