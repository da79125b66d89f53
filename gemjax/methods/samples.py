"""Staleness per sample: weights for a batch whose samples come from different versions of the parameters."""

from typing import Any

import jax
import jax.numpy as jnp

from gemjax.methods.gather import Weight, weight_by_name
from gemjax.protocol.checks import check_at_least


def weigh_samples(
    versions: jax.typing.ArrayLike,
    clock: jax.typing.ArrayLike,
    weight: str | Weight = "polynomial",
    *,
    max_staleness: float | None = None,
) -> jax.Array:
    """Return a weight per sample of a batch, by its staleness.

    In asynchronous reinforcement learning a batch holds samples that were generated with several versions of the parameters.
    Multiply the loss of each sample by its weight before the mean over the batch. The weights have a mean of 1, so the length
    of a step does not depend on how stale the batch is as a whole; methods such as :func:`gemjax.dynsgd` damp that.

        τ_i = max(0, t - v_i)
        ρ_i = B w(τ_i) [τ_i ≤ K] / Σ_j w(τ_j) [τ_j ≤ K]

    with v_i the version of sample i of B, and t the present one; all weights are 0 if every sample is too stale.

    Reductions: with a constant weight and no limit, or samples of one version, all weights are 1. For samples of several
    versions that were merged before, as by :func:`gemjax.fedbuff`, it is one commit in place of B.

    Args:
      versions: v_i, the clock at which each sample was generated, an int array; the weights have its shape.
      clock: t, the present clock, an int scalar.
      weight: w: ``"constant"``, ``"polynomial"`` (default), ``"hinge"`` or a function, as in :func:`gemjax.fedbuff`.
      max_staleness: K ≥ 0; samples that are staler count 0. ``None`` (default): no limit. To admit no such sample at
        all, pace their generation with :class:`gemjax.Policy`; the page of methods has an example.

    Returns:
      A float array like ``versions``.

    Raises:
      ValueError: if ``weight`` is unknown or ``max_staleness`` negative.

    >>> import gemjax
    >>> print(gemjax.rules.weigh_samples([7, 7, 4, 0], clock=7, max_staleness=3))
    [1.6 1.6 0.8 0. ]

    References:
      Fu et al., `AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning
      <https://arxiv.org/abs/2505.24298>`_, 2025 (samples of several versions in a batch, limit of their staleness); Xie, Koyejo
      & Gupta, `Asynchronous Federated Optimization <https://arxiv.org/abs/1903.03934>`_, 2019 (the weights)
    """
    found = weight_by_name(weight, 0.0)
    clock, versions = map(_wide, (clock, versions))
    staleness = jnp.where(versions < clock, clock - versions, 0)  # Unsigned differences are never negative.
    weights = jnp.ones(staleness.shape) if found is None else jnp.asarray(jax.vmap(found)(staleness.ravel()))
    weights = weights.reshape(staleness.shape)
    if max_staleness is not None:
        check_at_least("max_staleness", max_staleness, 0.0)
        weights = jnp.where(staleness <= max_staleness, weights, jnp.zeros_like(weights))
    total = jnp.sum(weights)
    return weights * jnp.where(total > 0, weights.size / jnp.where(total > 0, total, 1), 0)


def _wide(numbers: Any) -> jax.Array:
    """Return an array whose type holds any version: narrow integers would take over a clock that is a number of Python."""
    array = jnp.asarray(numbers)
    return array.astype(jnp.int32) if jnp.issubdtype(array.dtype, jnp.integer) and array.dtype.itemsize < 4 else array
