"""Ratios between the present policy and the older ones that generated samples (decoupled PPO, truncated and masked weights)."""

import jax
import jax.numpy as jnp

from gemjax.protocol.checks import check_at_least, check_choice


def proximal_log_probs(
    behaviour: jax.typing.ArrayLike,
    current: jax.typing.ArrayLike,
    versions: jax.typing.ArrayLike,
    clock: jax.typing.ArrayLike,
    interpolation: str = "loglinear",
) -> jax.Array:
    """Estimate the log-probabilities of the previous version of a policy, without a forward pass of it (AReaL).

    The decoupled loss of PPO clips the ratio to a *proximal* policy and weighs with the ratio of that one to the policy of
    behaviour, so that stale samples are not clipped away. The proximal policy is the one before the present update. Its
    log-probabilities lie between two that are known:

        α = (t - 1 - v) / (t - v)
        log π_prox = log π_behav + α (log π_θ - log π_behav)

    with v the version of a token and t the present one; α is cut to [0, 1]. With ``interpolation="linear"`` the probabilities
    are interpolated, not their logarithms.

    Reductions: tokens of the version t - 1 or newer, and those of a prompt (a negative version), keep log π_behav; then the
    loss is that of PPO.

    Args:
      behaviour: log π_behav, as recorded with the samples, a float array, usually [B, T].
      current: log π_θ, like ``behaviour``.
      versions: v, the clock at which each token was generated, ints that broadcast to ``behaviour``.
      clock: t, an int scalar.
      interpolation: ``"loglinear"`` (default) or ``"linear"``.

    Returns:
      An array like ``behaviour``, through which no gradient passes.

    Raises:
      ValueError: if ``interpolation`` is unknown.

    >>> print(proximal_log_probs(jnp.array([-1.0, -2.0]), jnp.array([-1.5, -2.2]), jnp.array([0, 2]), clock=4))
    [-1.375 -2.1  ]

    References:
      Fu et al., `AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning
      <https://arxiv.org/abs/2505.24298>`_, 2025. The interpolation is that of its program.
    """
    check_choice("interpolation", interpolation, ("loglinear", "linear"))
    old, new = (jax.lax.stop_gradient(jnp.asarray(one)) for one in (behaviour, current))
    versions = jnp.asarray(versions)
    age = jnp.asarray(clock, versions.dtype) - versions
    alpha = jnp.where((versions >= 0) & (age > 0), (age - 1) / jnp.maximum(age, 1), 0.0).astype(old.dtype)
    if interpolation == "loglinear":
        return old + alpha * (new - old)
    return jnp.logaddexp(jnp.log1p(-alpha) + old, jnp.log(alpha) + new)


def importance_weights(
    log_ratio: jax.typing.ArrayLike,
    mask: jax.typing.ArrayLike | None = None,
    *,
    level: str = "token",
    low: float = 0.0,
    high: float = 2.0,
    outside: str = "truncate",
) -> jax.Array:
    """Return weights of stale samples, the ratios of the present policy to that of behaviour, truncated or masked.

    Multiply the loss of each token by its weight. With ℓ_t = log π_θ - log π_behav of token t the ratio is

        ρ_t = exp(ℓ_t)               (token)
        ρ = exp(Σ_s ℓ_s)             (sequence)
        ρ = exp((1/T) Σ_s ℓ_s)       (geometric)

    with sums over the tokens of the sequence in ``mask``. That of the sequence is unbiased, and its variance grows with the
    length; that of tokens ignores how the tokens before came about; the geometric one is a measure of how far the policies are
    apart, for masks.

    Args:
      log_ratio: ℓ, float [..., T]; 0 where the policies agree. No gradient passes through it.
      mask: bool [..., T], True for the tokens that the policy generated; ``None`` (default) is all.
      level: ``"token"`` (default), ``"sequence"`` or ``"geometric"``.
      low: smallest ratio, not negative, default 0.
      high: largest ratio, default 2; at least ``low``.
      outside: what a ratio outside of [low, high] becomes: ``"truncate"`` (default), the nearest bound; ``"mask"``, 0, so that
        the token or sequence does not count. The mean is over as many tokens as before.

    Returns:
      A float array like ``log_ratio``, 0 where ``mask`` is False.

    Raises:
      ValueError: if ``level`` or ``outside`` is unknown, ``low`` negative or ``high`` smaller than it.

    >>> print(importance_weights(jnp.log(jnp.array([0.5, 3.0, 1.5]))))
    [0.5 2.  1.5]
    >>> log_ratio = jnp.log(jnp.array([[0.5, 3.0], [1.0, 1.0]]))
    >>> print(importance_weights(log_ratio, level="sequence", high=1.2, outside="mask"))
    [[0. 0.]
     [1. 1.]]

    References:
      Espeholt et al., `IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures
      <https://arxiv.org/abs/1802.01561>`_, 2018 (truncation)
    """
    check_choice("level", level, ("token", "sequence", "geometric"))
    check_choice("outside", outside, ("truncate", "mask"))
    check_at_least("low", low, 0.0)
    check_at_least("high", high, low)
    log_ratio = jax.lax.stop_gradient(jnp.asarray(log_ratio))
    mask = jnp.ones(log_ratio.shape, bool) if mask is None else jnp.asarray(mask, bool)
    if level != "token":
        total = jnp.sum(jnp.where(mask, log_ratio, 0), axis=-1, keepdims=True)
        count = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1) if level == "geometric" else 1
        log_ratio = jnp.broadcast_to(total / count, log_ratio.shape)
    # Bounds of logarithms: a ratio itself may be infinite.
    bounds = jnp.log(jnp.array([low, high], log_ratio.dtype))
    kept = mask if outside == "truncate" else mask & (log_ratio >= bounds[0]) & (log_ratio <= bounds[1])
    return jnp.where(kept, jnp.exp(jnp.clip(log_ratio, *bounds)), 0)
