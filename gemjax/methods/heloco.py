"""HeLoCo: displacements are turned towards the outer momentum (Al Asif et al., 2026)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.momentum_lookahead import discounted_step
from gemjax.methods.papers import Paper
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import Method, diagnostics
from gemjax.protocol.checks import (
    check_at_least,
    check_between,
    check_learning_rate,
    check_momentum,
    check_positive_int,
)
from gemjax.protocol.hooks import LookAhead
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous

ALASIF2026HELOCO = Paper("article", "alasif2026heloco", {
    "author": "{Al Asif}, Abdullah and Diem, Patrick and Mu{\\~n}oz, Juan Pablo and Wolf, Felix and "
    "Jannesari, Ali and Mazaheri, Arya",
    "title": "{HeLoCo}: Efficient asynchronous low-communication training under data and device heterogeneity",
    "year": "2026", "eprint": "2606.00271"})  # fmt: skip
PAPERS = {"align_with_momentum": (ALASIF2026HELOCO,)}


class AlignWithMomentumState(NamedTuple):
    """State of :func:`align_with_momentum`, shared by all workers."""

    count: jax.Array  # int32 []; commits so far.
    ahead: LookAhead  # m, like params, and the distance of the look-ahead along it.


def align_with_momentum(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    *,
    keep_above: float = 0.2,
    shrink: float = 0.5,
    max_shrink: float = 0.5,
    turn: float = 1.0,
    caution: float = 3.0,
    weight: float = 1.0,
    eps: float = 1e-8,
) -> "Method":
    """Turn each tensor of a displacement towards a running mean, which takes in the result.

    The atom of :func:`gemjax.heloco`, whose docstring explains the mathematics and the arguments. It goes before the learning
    rate in a chain; :func:`gemjax.pull` then returns a look-ahead along the mean.

    Args:
      learning_rate: the rate that the chain applies; here it only sets the length of the look-ahead.
      momentum: as in :func:`gemjax.heloco`.
      keep_above: as in :func:`gemjax.heloco`.
      shrink: as in :func:`gemjax.heloco`.
      max_shrink: as in :func:`gemjax.heloco`.
      turn: as in :func:`gemjax.heloco`.
      caution: as in :func:`gemjax.heloco`.
      weight: as in :func:`gemjax.heloco`, but 1 by default.
      eps: as in :func:`gemjax.heloco`.

    Returns:
      A transformation that keeps one copy of the parameters centrally (m). It offers the diagnostics ``compensation``
      (before ``weight``) and ``look_ahead``.

    Raises:
      ValueError: as :func:`gemjax.heloco`.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    check_between("keep_above", keep_above, -1.0, 1.0)
    check_between("max_shrink", max_shrink, 0.0, 1.0)
    for name, value in {"shrink": shrink, "turn": turn, "caution": caution, "weight": weight, "eps": eps}.items():
        check_at_least(name, value, 0.0)

    def align(delta, mean):
        wide = jnp.promote_types(delta.dtype, jnp.float32)
        d, m = delta.astype(wide), mean.astype(wide)
        d_norm, m_norm = jnp.sqrt(jnp.sum(d * d)), jnp.sqrt(jnp.sum(m * m))
        comparable = (d_norm > eps) & (m_norm > eps)
        d_hat, m_hat = (x / jnp.where(comparable, norm, 1) for x, norm in ((d, d_norm), (m, m_norm)))
        cosine = jnp.clip(jnp.sum(d_hat * m_hat), -1, 1)
        confidence = d_norm / jnp.where(comparable, d_norm + _as(caution, d) * m_norm + _as(eps, d), 1)

        part = jnp.minimum(_as(shrink, d) * -cosine * confidence, _as(max_shrink, d))
        shrunk = d - part * cosine * d_norm * m_hat

        way = jnp.minimum(_as(turn, d) * (1 - cosine) * confidence, 1)
        mixed = (1 - way) * d_hat + way * m_hat
        mixed_norm = jnp.sqrt(jnp.sum(mixed * mixed))
        turned = d_norm * mixed / jnp.where(mixed_norm > 0, mixed_norm, 1)

        found = jnp.where(cosine < 0, shrunk, turned)
        return jnp.where(comparable & (cosine < _as(keep_above, d)), found, d).astype(delta.dtype)

    def init_fn(params) -> Any:
        return AlignWithMomentumState(
            count=jnp.zeros([], jnp.int32), ahead=LookAhead(optax.tree.zeros_like(params), jnp.zeros([]))
        )

    def update_fn(updates, state, params=None, *, observe=None, **extra_args) -> Any:
        del params, extra_args
        mean = state.ahead.velocity
        aligned = jax.tree.map(align, updates, mean)
        weighted = jax.tree.map(lambda a: _as(weight, a) * a, aligned)
        if observe is not None:
            observe("compensation", lambda plain=updates: diagnostics.relative_change(aligned, plain))
        updates, mean = discounted_step(momentum, weighted, mean)
        step = rate_at(learning_rate, state.count)
        ahead = LookAhead(mean, step * _as(momentum, step))
        if observe is not None:
            observe("look_ahead", ahead.length)
        return updates, AlignWithMomentumState(jnp.asarray(optax.safe_increment(state.count)), ahead)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def heloco(
    learning_rate: "optax.ScalarOrSchedule" = 0.7,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    keep_above: float = 0.2,
    shrink: float = 0.5,
    max_shrink: float = 0.5,
    turn: float = 1.0,
    caution: float = 3.0,
    weight: float | None = None,
    eps: float = 1e-8,
) -> "Method":
    """HeLoCo: stale displacements are aligned with the outer momentum, tensor by tensor.

    Slow workers, and workers with their own data, commit displacements that suited another point. A displacement along the
    momentum is kept. One nearly at right angles to it is turned towards it and keeps its length. Of one against it, part of the
    opposing component is removed. A displacement that is long compared with the momentum changes most.

        c = Δ̂ · m̂,   f = ‖Δ‖ / (‖Δ‖ + κ ‖m‖ + ε)
        c ≥ c_0:       Δ̃ = Δ
        0 ≤ c < c_0:   Δ̃ = ‖Δ‖ y / ‖y‖,   y = (1 - λ) Δ̂ + λ m̂,   λ = min(k_t (1 - c) f, 1)
        c < 0:         Δ̃ = Δ - β c ‖Δ‖ m̂,   β = min(-k_s c f, β_max)
        m ← γ m + (1 - γ) ρ Δ̃
        θ ← θ - η_t (ρ Δ̃ + γ m)
        s_w ← θ - η_t γ m

    with m = 0 at the start, shared by all workers, w the worker that commits, Δ its displacement from its view s_w to the point
    after its local steps, and x̂ = x / ‖x‖. The first three lines hold for each tensor by itself.

    Reductions: if every displacement is kept (``keep_above=-1, weight=1``), the updates are those of
    :func:`gemjax.momentum_lookahead` for the same displacements, but the views are further ahead; with ``momentum=0`` as well
    it is :func:`gemjax.asgd`.

    Args:
      learning_rate: η of the outer step, a non-negative float or a schedule over commits of the central variable;
        default 0.7. The look-ahead uses the rate of the last commit. The local optimizer has its own rate.
      momentum: γ in [0, 1), default 0.9. The mean does not carry the learning rate.
      num_workers: number of workers N, default 1.
      keep_above: c_0 in [-1, 1], the lowest cosine at which a displacement is kept; default 0.2.
      shrink: k_s ≥ 0, strength with which an opposing component is removed; default 0.5.
      max_shrink: β_max in [0, 1], the largest share of it that is removed; default 0.5.
      turn: k_t ≥ 0, strength with which a displacement is turned; default 1.
      caution: κ ≥ 0, weakens changes in proportion to the length of the momentum; default 3.
      weight: ρ ≥ 0, factor on each displacement; ``None`` (default) is 1/√N.
      eps: ε ≥ 0, default 1e-8. Nothing is changed unless Δ and m are both longer.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``; :func:`gemjax.pull` returns the
      look-ahead. It keeps no copy of the parameters per worker and one centrally (m).

    Raises:
      ValueError: if ``learning_rate``, ``shrink``, ``turn``, ``caution``, ``weight`` or ``eps`` is negative, ``momentum``
        outside [0, 1), ``keep_above`` outside [-1, 1], ``max_shrink`` outside [0, 1] or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.heloco(learning_rate=1.0, momentum=0.5, num_workers=2, caution=0.0, weight=1.0)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(params), params, worker=0)  # There is no momentum yet.
    >>> view, state = gemjax.pull(state, params + updates, worker=0)
    >>> print(params + updates, view)
    [-1.25] [-1.5]
    >>> updates, state = tx.update(-jnp.ones(1), state, params, worker=1)  # Half of the opposing component remains.
    >>> print(updates)
    [0.5]

    References:
      Al Asif et al., `HeLoCo: Efficient asynchronous low-communication training under data and device heterogeneity
      <https://arxiv.org/abs/2606.00271>`_, 2026

    Readings: the text of the paper was not available in full. The equations are those of a summary card; the defaults, the
    look-ahead and the case of a zero norm are those of an implementation that numbers its equations. A tensor is a leaf of the
    parameters.

    Deviations from the paper:
      1. Cosines and norms are computed in float32 at least; m has the dtypes of the parameters.
      2. Commits that arrive close together are not merged into one; an engine can do that.
    """
    check_positive_int("num_workers", num_workers)
    atom = align_with_momentum(
        learning_rate,
        momentum,
        keep_above=keep_above,
        shrink=shrink,
        max_shrink=max_shrink,
        turn=turn,
        caution=caution,
        weight=1 / num_workers**0.5 if weight is None else weight,
        eps=eps,
    )
    return asynchronous(optax.chain(displacements(), atom, scale_by_learning_rate(learning_rate)), num_workers)


def _as(value: Any, like: jax.Array) -> jax.Array:
    return jnp.asarray(value, like.dtype)
