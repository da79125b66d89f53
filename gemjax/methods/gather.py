"""A buffer of commits whose weighted mean makes a step, and weights that fall with the staleness."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.methods.papers import Paper
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import (
    check_at_least,
    check_choice,
    check_method,
    check_positive,
    check_positive_int,
    with_extra_args,
)
from gemjax.protocol.staleness import require_protocol

NGUYEN2022FEDERATED = Paper("inproceedings", "nguyen2022federated", {
    "author": "Nguyen, John and Malik, Kshitiz and Zhan, Hongyuan and Yousefpour, Ashkan and Rabbat, Michael and "
    "Malek, Mani and Huba, Dzmitry",
    "title": "Federated Learning with Buffered Asynchronous Aggregation",
    "booktitle": "International Conference on Artificial Intelligence and Statistics", "year": "2022",
    "eprint": "2106.06639"})  # fmt: skip
XIE2019ASYNCHRONOUS = Paper("article", "xie2019asynchronous", {
    "author": "Xie, Cong and Koyejo, Sanmi and Gupta, Indranil", "title": "Asynchronous Federated Optimization",
    "year": "2019", "eprint": "1903.03934"})  # fmt: skip
PAPERS = {
    "gather": (NGUYEN2022FEDERATED,),
    "polynomial_weight": (XIE2019ASYNCHRONOUS,),
    "hinge_weight": (XIE2019ASYNCHRONOUS,),
}

Weight = Callable[[jax.Array], jax.Array]


class GatherState(NamedTuple):
    """State of :func:`gather`, shared by all workers."""

    gathered: jax.Array  # int32 []; commits in this round so far.
    mean: PyTree  # Like params but at least float32; their share of the mean.


def gather(count: int, weight: Weight | None = None) -> "Method":
    """Gather commits until a round is full, and refuse none; the mean of the round then makes a step.

    The common atom of methods with a buffer: :func:`gemjax.fedbuff`, and :func:`gemjax.rennala`, which refuses stale gradients
    as well. Its output is zero until the round is full, and then

        (1/K) Σ_k w(τ_k) g_k,   τ_k = max(0, ⌈(t_k - p_k - m_k) / K⌉)

    with g_k the commits of the round and τ_k the steps that were made since the pull of g_k. The central variable changes only
    at a step, so the staleness t_k - p_k in commits is converted: m_k commits of this round came before g_k, and K more make
    one step. The rule works inside :func:`gemjax.asynchronous`, before a plain learning rate, and must see every commit of the
    chain from the first one on.

    Reductions: with ``count=1`` and no weight it changes nothing; with ``count=1`` it is
      :func:`gemjax.rules.scale_by_staleness`;
    without a weight it is ``optax.MultiSteps``, whose inner rule is skipped between two steps.

    Args:
      count: K, commits per round, a positive int.
      weight: w, maps the staleness (int32 scalar, steps since the pull) to a float scalar; ``None`` (default) is 1.

    Returns:
      A transformation that keeps one copy of the parameters centrally, and with a weight needs the extra argument
      ``staleness``.

    Raises:
      ValueError: if ``count`` is not a positive int.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> part = gemjax.rules.gather(2, gemjax.rules.polynomial_weight(1.0))
    >>> tx = gemjax.asynchronous(optax.chain(part, optax.scale(-1.0)), num_workers=3)
    >>> params = jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for worker in (0, 1, 2, 0):  # A step was made since the pulls of the last two: they count half.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     _, state = gemjax.pull(state, params, worker)
    ...     print(updates + 0.0)
    [0.]
    [-1.]
    [0.]
    [-0.5]
    """
    check_positive_int("count", count)

    def init_fn(params) -> Any:
        mean = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params)
        return GatherState(jnp.zeros([], jnp.int32), mean)

    def update_fn(updates, state, params=None, *, staleness: Any = None, observe: Any = None, **extra_args) -> Any:
        del params, extra_args
        share = _share(state.gathered, staleness, observe)
        mean = jax.tree.map(lambda m, g: m + share(g.astype(m.dtype)) / count, state.mean, updates)
        gathered = state.gathered + 1
        full = gathered >= count
        updates = jax.tree.map(lambda g, m: jnp.where(full, m, jnp.zeros_like(m)).astype(g.dtype), updates, mean)
        mean = jax.tree.map(lambda m: jnp.where(full, jnp.zeros_like(m), m), mean)
        return updates, GatherState(jnp.where(full, 0, gathered), mean)

    def _share(gathered, staleness, observe) -> Callable[[jax.Array], jax.Array]:
        if weight is None:
            if observe is not None and "compensation" not in observe.offered:
                observe("compensation", lambda: jnp.zeros([]))
            return lambda g: g
        require_protocol("gather", staleness=staleness)
        scale = weight(steps_since_pull(staleness, gathered, count))
        if observe is not None:
            observe("compensation", lambda: jnp.abs(1.0 - jnp.asarray(scale)))
        return lambda g: g * jnp.asarray(scale, g.dtype)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def once_per_round(inner: optax.GradientTransformation, count: int) -> optax.GradientTransformation:
    """Apply ``inner`` to the mean of each full round of ``count`` commits behind :func:`gather`, and not in between."""
    check_method("inner", inner)
    return optax.conditionally_transform(
        with_extra_args(inner), lambda step, **_: jnp.asarray(step) % count == count - 1
    )


def steps_since_pull(staleness: jax.Array, gathered: jax.Array, count: Any) -> jax.Array:
    """Return the steps made since the pull of a commit, where each step takes ``count`` commits.

    Args:
      staleness: commits since the pull, int32 [].
      gathered: commits since the last step, int32 [].
      count: commits per step, a positive int.

    >>> [int(steps_since_pull(jnp.int32(staleness), jnp.int32(1), 3)) for staleness in (0, 1, 2, 4, 5)]
    [0, 0, 1, 1, 2]
    """
    return jnp.maximum(0, -((gathered - staleness) // count)).astype(jnp.int32)


def polynomial_weight(exponent: float = 0.5) -> Weight:
    """Return the weight w(τ) = (1 + τ)^(-a).

    Args:
      exponent: a ≥ 0, default 0.5, the published one. 0 is a constant weight of 1; 1 is the factor of
        :func:`gemjax.dynsgd`.

    Returns:
      A function from the staleness (int32 scalar) to a float scalar, for :func:`gemjax.rules.gather`, :func:`gemjax.fedbuff`,
      :func:`gemjax.fedasync` and :func:`gemjax.rules.scale_by_staleness`.

    Raises:
      ValueError: if ``exponent`` is negative.

    >>> import gemjax
    >>> print(gemjax.rules.polynomial_weight(0.5)(3))
    0.5
    """
    check_at_least("exponent", exponent, 0.0)
    # 0.0 - exponent, because small integers of NumPy wrap around in -exponent.
    return lambda staleness: (1.0 + jnp.asarray(staleness)) ** (0.0 - exponent)


def hinge_weight(slope: float = 10.0, start: float = 4.0) -> Weight:
    """Return the weight that is 1 up to a staleness of b, and 1 / (1 + a (τ - b)) above.

    Args:
      slope: a ≥ 0, default 10, the published one.
      start: b ≥ 0, the largest staleness that counts in full, default 4, the published one.

    Returns:
      A function from the staleness (int32 scalar) to a float scalar, as :func:`gemjax.rules.polynomial_weight`.

    Raises:
      ValueError: if ``slope`` or ``start`` is negative.

    >>> import gemjax
    >>> weight = gemjax.rules.hinge_weight(slope=1.0, start=2.0)
    >>> print(weight(2), weight(3))
    1.0 0.5
    """
    check_at_least("slope", slope, 0.0)
    check_at_least("start", start, 0.0)
    return lambda staleness: 1.0 / (1.0 + slope * jnp.maximum(jnp.asarray(staleness) - start, 0.0))


WEIGHTS = {"constant": None, "polynomial": polynomial_weight(), "hinge": hinge_weight()}


def weight_by_name(weight: str | Weight, mean_staleness: float) -> Weight | None:
    """Return a weight, divided by its value at ``mean_staleness``; ``None`` for a constant one.

    Args:
      weight: one of the names of ``WEIGHTS``, which have the published numbers, or a function. It is called with
        ``mean_staleness``, too, as an int32 if that is whole.
      mean_staleness: staleness that counts in full, a number >= 0.

    Raises:
      ValueError: if the name is unknown, ``mean_staleness`` negative, or the weight there not finite and positive.
    """
    check_at_least("mean_staleness", mean_staleness, 0.0)
    if not callable(weight):
        check_choice("weight", weight, tuple(WEIGHTS))
    found = weight if callable(weight) else WEIGHTS[weight]
    if found is None:
        return None
    full: Any = mean_staleness
    if not isinstance(full, jax.core.Tracer) and (value := float(full)).is_integer() and value < 2**31:
        full = np.int32(value)  # As at a commit; a weight may look it up in a table.
    unit = found(jnp.asarray(full))
    check_positive(f"weight at mean_staleness={mean_staleness}, where it counts in full,", unit)
    return lambda staleness: found(staleness) / found(jnp.asarray(full))
