"""Steps by the effective sample size of a batch of stale samples (VCPO; Huang et al., 2026)."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.protocol import Method
from gemjax.protocol.checks import check_positive

HUANG2026STABLE = Paper("article", "huang2026stable", {
    "author": "Huang, Luke J. and Zhang, Zhuoyang and Hu, Qinghao and Yang, Shang and Han, Song",
    "title": "Stable Asynchrony: Variance-Controlled Off-Policy {RL} for {LLMs}", "year": "2026",
    "eprint": "2602.17616"})  # fmt: skip
PAPERS = {"scale_by_effective_sample_size": (HUANG2026STABLE,)}


def effective_sample_size(weights: jax.typing.ArrayLike) -> jax.Array:
    """Return the share of a batch that its importance weights leave.

        ρ = (Σ_i w_i)² / (B Σ_i w_i²)

    It is 1 if all weights are equal, 1/B if one sample has all the weight, and 0 if none has any. Return it from ``loss_fn`` as
    the metric ``"effective_sample_size"``: it is then in ``history``, and :func:`scale_by_effective_sample_size` reads it.

    Args:
      weights: w_i, the ratio of each sequence, float [B], not negative: one column of the weights of
        :func:`gemjax.rules.importance_weights` at level ``"sequence"``.

    Returns:
      A float scalar in [0, 1].

    >>> round(float(effective_sample_size(jnp.array([1.0, 1.0, 2.0]))), 3)
    0.889
    """
    weights = jax.lax.stop_gradient(jnp.asarray(weights))
    largest = jnp.max(weights)
    scaled = weights / jnp.where(largest > 0, largest, 1)  # Their squares neither overflow nor vanish.
    return jnp.sum(scaled) ** 2 / (weights.size * jnp.maximum(jnp.sum(scaled**2), 1))


def scale_by_effective_sample_size(base: float = 1.0) -> "Method":
    """Scale a commit by the root of the effective sample size of its batch (VCPO).

    The variance of a policy gradient over stale samples grows as few of them take all the weight; then the learning rate is

        η_eff = η √(ρ / ρ_base)

    with ρ of :func:`effective_sample_size`, which the loss returns as the metric ``"effective_sample_size"``. It works behind
    Adam, and in front of a momentum it scales the gradient in that momentum.

    Reductions: with equal weights and ``base=1`` it is no change.

    Args:
      base: ρ_base, the effective sample size for which the learning rate was chosen, positive, default 1.

    Returns:
      A stateless transformation. In a loop of your own give ``metrics={"effective_sample_size": …}`` to ``update``; engines
      pass the metrics of the loss. It offers the diagnostic ``compensation``, the share by which it changes a commit, and
      multiplies the diagnostic ``learning_rate`` of the chain.

    Raises:
      ValueError: if ``base`` is not positive.
      KeyError: at a commit without that metric.

    >>> import gemjax
    >>> tx = optax.chain(gemjax.rules.scale_by_effective_sample_size(), optax.sgd(1.0))
    >>> size = gemjax.rules.effective_sample_size(jnp.array([1.0, 0.0, 0.0, 0.0]))
    >>> tx.update(jnp.ones(1), tx.init(jnp.ones(1)), metrics={"effective_sample_size": size})[0]
    Array([-0.5], dtype=float32)

    References:
      Huang et al., `Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs <https://arxiv.org/abs/2602.17616>`_, 2026

    Deviations from the paper: its optimal baseline, which needs the norm of each sample's gradient, is left out.
    """
    check_positive("base", base)

    def update_fn(updates, state, params=None, *, metrics: Any = None, observe: Any = None, **extra_args) -> Any:
        del params, extra_args
        scale = jnp.sqrt((metrics or {})["effective_sample_size"] / base)
        if observe is not None:
            observe("compensation", lambda: jnp.abs(1.0 - scale))
            observe.scale("learning_rate", lambda: scale)
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
