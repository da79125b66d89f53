"""Delay compensation (Zheng et al., 2017)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, diagnostics
from gemjax.protocol.checks import check_at_least, check_choice, check_learning_rate, check_momentum
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.slots import Slots, match_mask
from gemjax.protocol.staleness import asynchronous, require_protocol

ZHENG2017ASYNCHRONOUS = Paper("inproceedings", "zheng2017asynchronous", {
    "author": "Zheng, Shuxin and Meng, Qi and Wang, Taifeng and Chen, Wei and Yu, Nenghai and Ma, Zhi-Ming and "
    "Liu, Tie-Yan",
    "title": "Asynchronous Stochastic Gradient Descent with Delay Compensation",
    "booktitle": "International Conference on Machine Learning", "year": "2017", "eprint": "1609.08326"})  # fmt: skip
PAPERS = {"compensate_delay": (ZHENG2017ASYNCHRONOUS,)}

VARIANTS = {"constant": 0.04, "adaptive": 2.0}  # Each with the authors' strength.


class CompensateDelayState(NamedTuple):
    """State of :func:`compensate_delay`."""

    mean_square: Slots | None  # MS, like params but at least float32; per worker. None in the constant variant.
    stale_params: ReadsStaleParams


def compensate_delay(
    strength: float | None = None, variant: str = "constant", decay: float = 0.95, eps: float = 1e-7
) -> "Method":
    """Correct a stale gradient to the present central variable, to first order.

    The atom of :func:`gemjax.dc_asgd`, whose docstring explains the mathematics and the arguments. It acts on gradients, so it
    goes first in a chain: ``gemjax.asynchronous(optax.chain(gemjax.rules.compensate_delay(), optax.adam(1e-3)),
    num_workers=8)``.

    Args:
      strength: as in :func:`gemjax.dc_asgd`.
      variant: as in :func:`gemjax.dc_asgd`.
      decay: as in :func:`gemjax.dc_asgd`.
      eps: as in :func:`gemjax.dc_asgd`.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It offers
      the diagnostic ``compensation``.

    Raises:
      ValueError: if ``strength`` or ``eps`` is negative, ``decay`` outside [0, 1) or ``variant`` unknown.
    """
    check_choice("variant", variant, tuple(VARIANTS))
    if strength is None:
        strength = VARIANTS[variant]
    check_at_least("strength", strength, 0.0)
    check_momentum("decay", decay)
    check_at_least("eps", eps, 0.0)

    def accumulate(mean, g):
        rest = jnp.asarray(decay, mean.dtype)
        return rest * mean + (1 - rest) * jnp.square(g.astype(mean.dtype))

    def compensate(g, theta, s):
        # This order avoids g * g, which overflows in half precision.
        return g + g * (jnp.asarray(strength, g.dtype) * g * (theta - s))

    def compensate_relative(g, theta, s, mean):
        root = jnp.sqrt(mean + jnp.asarray(eps, mean.dtype))
        wide = g.astype(mean.dtype)
        # A gradient that has always been 0 would otherwise give 0/0 at eps = 0.
        relative = jnp.where(root > 0, wide / jnp.where(root > 0, root, jnp.ones_like(root)), jnp.zeros_like(root))
        factor = jnp.asarray(strength, mean.dtype) * relative * (theta - s).astype(mean.dtype)
        return (wide + wide * factor).astype(g.dtype)

    def init_fn(params) -> Any:
        if variant == "constant":
            return CompensateDelayState(None, ReadsStaleParams())
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params)
        return CompensateDelayState(Slots(zeros), ReadsStaleParams())

    def update_fn(updates, state, params=None, *, stale_params=None, staleness=None, observe=None, **extra_args) -> Any:
        del extra_args
        require_protocol("compensate_delay", staleness=staleness, params=params)
        stale = match_mask(stale_params, updates)
        if variant == "constant":
            compensated = jax.tree.map(compensate, updates, params, stale)
        else:
            mean = jax.tree.map(accumulate, state.mean_square.value, updates)
            compensated = jax.tree.map(compensate_relative, updates, params, stale, mean)
            state = state._replace(mean_square=Slots(mean))
        if observe is not None:
            observe("compensation", lambda: diagnostics.relative_change(compensated, updates))
        return compensated, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def dc_asgd(
    learning_rate: "optax.ScalarOrSchedule",
    num_workers: int = 1,
    *,
    variant: str = "constant",
    strength: float | None = None,
    decay: float = 0.95,
    eps: float = 1e-7,
) -> "Method":
    """Delay-compensated asynchronous SGD: a stale gradient is corrected to the present by its Taylor expansion.

    The gradient of worker w was computed at its view s_w; the present gradient differs from it by the Hessian times θ - s_w.
    The Hessian is replaced by λ times the diagonal of g gᵀ, which costs nothing to compute.

        MS_w ← m MS_w + (1 - m) g ⊙ g
        λ_t = λ                  (constant)
        λ_t = λ / √(MS_w + ε)    (adaptive)
        θ ← θ - η_t (g + λ_t ⊙ g ⊙ g ⊙ (θ - s_w))

    all elementwise, with w the worker that commits, MS_w = 0 at the start and g = g(s_w).

    Reductions: at ``strength=0`` it is :func:`gemjax.asgd`; with one worker, nothing stale, it is ``optax.sgd``.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers N, default 1.
      variant: ``"constant"`` (default, the paper's DC-ASGD-c) or ``"adaptive"`` (DC-ASGD-a).
      strength: λ ≥ 0; ``None`` (default) is 0.04 in the constant and 2 in the adaptive variant, the authors'
        values for CIFAR-10. The constant variant depends on the scale of the loss: in a coordinate where
        λ |g| |θ - s| is above 1, the compensation outweighs the gradient.
      decay: m in [0, 1), default 0.95 (adaptive only; the authors take 0 for ImageNet).
      eps: ε ≥ 0, default 1e-7 (adaptive only).

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (s_w), in the adaptive variant two (MS_w), and none centrally.

    Raises:
      ValueError: if ``learning_rate``, ``strength`` or ``eps`` is negative, ``decay`` outside [0, 1), ``variant`` unknown or
        ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.dc_asgd(learning_rate=0.5, num_workers=2, strength=0.25)
    >>> params = jnp.array([1.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # At the second commit the gradient is 1 + 0.25 * 1 * 1 * (0.5 - 1.0).
    ...     updates, state = tx.update(jnp.array([1.0]), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     print(updates)
    [-0.5]
    [-0.4375]

    References:
      Zheng et al., `Asynchronous Stochastic Gradient Descent with Delay Compensation
      <https://arxiv.org/abs/1609.08326>`_, 2017

    Readings: MS is kept per worker, as in the authors' code; the paper's pseudo-code can be read as one for all workers. The
    square root in λ_t is also that of the code; some write-ups omit it.

    Deviations from the paper:
      1. The first gradient of a worker is compared with the initial parameters. The authors' code compares it with zeros and so
        compensates for a distance that the central variable has not moved.
      2. MS is kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    atom = compensate_delay(strength, variant, decay, eps)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
