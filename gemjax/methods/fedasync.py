"""FedAsync: the central variable is mixed with the point of each worker that returns (Xie et al., 2019)."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.gather import XIE2019ASYNCHRONOUS, Weight, weight_by_name
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.slots import match_mask
from gemjax.protocol.staleness import asynchronous, require_protocol

PAPERS = {"mix_with_worker": (XIE2019ASYNCHRONOUS,)}


def mix_with_worker(weight: Weight | None = None) -> "Method":
    """Turn a displacement into the distance from the worker's point to the central variable, times a weight.

    The atom of :func:`gemjax.fedasync`, whose docstring explains the mathematics. It goes before the learning rate in a chain
    inside :func:`gemjax.asynchronous`.

    Args:
      weight: maps the staleness (int32 scalar, commits since the pull) to a float scalar; ``None`` (default) is 1.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It keeps one
      copy of the parameters per worker (its view), offers the diagnostic ``compensation``, the share by which a commit is
      damped, and multiplies the diagnostic ``learning_rate`` of the chain.
    """

    def update_fn(
        updates, state, params=None, *, stale_params=None, staleness: Any = None, observe=None, **extra_args
    ) -> Any:
        del extra_args
        require_protocol("mix_with_worker", staleness=staleness, params=params)
        scale = jnp.float32(1.0) if weight is None else jnp.asarray(weight(staleness))
        if observe is not None:
            observe("compensation", lambda: jnp.abs(1.0 - scale))
            observe.scale("learning_rate", lambda: scale)
        stale = match_mask(stale_params, updates)
        mixed = jax.tree.map(lambda d, p, s: (d + (p - s)) * scale.astype(d.dtype), updates, params, stale)
        return mixed, state

    return optax.GradientTransformationExtraArgs(lambda params: ReadsStaleParams(), update_fn)


def fedasync(
    learning_rate: "optax.ScalarOrSchedule" = 0.6,
    num_workers: int = 1,
    *,
    weight: "str | Weight" = "polynomial",
    mean_staleness: float = 0.0,
) -> "Method":
    """FedAsync: each worker's point is mixed into the central variable, the staler, the less.

    A worker runs local steps from its view and sends the point that it reached. The central variable becomes a weighted mean of
    itself and this point. In contrast to a displacement that is added (:func:`gemjax.downpour`), a stale point also pulls the
    central variable back towards the worker's old view: a part of what the others did meanwhile is undone. For α_t ≤ 1 the
    central variable stays within the convex hull of its initial value and the workers' points.

        θ ← (1 - α_t) θ + α_t x_w
        α_t = η_t w(τ),   w(τ) = u(τ) / u(τ̄)
        u(τ) = 1,   (1 + τ)^(-1/2)   or   1 / (1 + 10 max(0, τ - 4))

    with w the worker that commits, x_w its point after its local steps and τ its staleness. It sends the displacement from its
    view s_w, so x_w = s_w - Δ_w.

    Reductions: at staleness 0, so with one worker, it is :func:`gemjax.downpour`; at ``learning_rate=1`` and a constant weight
    the central variable is the last worker's point. :func:`gemjax.easgd` also moves towards a worker's point, but the worker
    continues from its own.

    Args:
      learning_rate: η, the weight of a worker's point, a float in [0, 1] or a schedule over commits of the central
        variable; default 0.6, one of the published ones. The local optimizer has its own rate.
      num_workers: number of workers N, default 1.
      weight: u: ``"constant"``, ``"polynomial"`` (default) or ``"hinge"``, as above, or a function from the staleness
        (int32 scalar) to a float scalar, such as :func:`gemjax.rules.polynomial_weight` or :func:`gemjax.rules.hinge_weight`
        with other numbers. Under ``optax.inject_hyperparams`` a function must be named in ``static_args``.
      mean_staleness: τ̄ ≥ 0, the staleness that counts in full, default 0. α_t may then be above
        1 for fresh commits, so choose a smaller ``learning_rate``.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. It keeps one copy of the
      parameters per worker (s_w), and offers the diagnostic ``compensation``.

    Raises:
      ValueError: if ``learning_rate`` or ``mean_staleness`` is negative, ``num_workers`` not positive, ``weight`` unknown, or
        u(τ̄) not finite and positive; in an engine, without ``local=``.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.fedasync(learning_rate=0.5, num_workers=2, weight="constant")
    >>> params = jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # Both workers moved from 0 to 1.
    ...     updates, state = tx.update(-jnp.ones(1), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     print(params)
    [0.5]
    [0.75]

    References:
      Xie, Koyejo & Gupta, `Asynchronous Federated Optimization <https://arxiv.org/abs/1903.03934>`_, 2019

    Readings: the text of the paper was not available in full. The rule is that of `FLSim
    <https://github.com/facebookresearch/FLSim>`_; the hinge and the numbers are those of programs that follow the paper. There
    a fresh commit has a staleness of 0 and a weight of 1.

    Deviations from the paper:
      1. The proximal term of the local losses is left to the local optimizer.
      2. The worker sends Δ_w in place of x_w, so in narrow dtypes the result is rounded differently.
    """
    check_learning_rate(learning_rate)
    atom = mix_with_worker(weight_by_name(weight, mean_staleness))
    return asynchronous(optax.chain(displacements(), atom, scale_by_learning_rate(learning_rate)), num_workers)
