"""HeLoCo: displacements turned towards the outer momentum (Al Asif et al., 2026)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.momentum_lookahead import discounted_step
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import diagnostics
from gemjax.protocol.checks import check_at_least, check_between, check_learning_rate, check_momentum
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous, check_num_workers
from gemjax.protocol.views import LookAhead


class AlignWithMomentumState(NamedTuple):
    """State of :func:`align_with_momentum`; all of it is shared."""

    count: jax.Array  # int32 []; commits so far.
    ahead: LookAhead  # m, like params, and how far ahead of the central variable workers start.


def align_with_momentum(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.9,
    *,
    keep_above: float = 0.2,
    shrink: float = 0.5,
    max_shrink: float = 0.5,
    turn: float = 1.0,
    caution: float = 3.0,
    weight: float = 1.0,
    eps: float = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """The running mean of what is committed, with which each tensor is first brought in line.

    The atom of :func:`gemjax.heloco`, where mathematics and arguments are explained. It stands before the learning rate in
    a chain and has :func:`gemjax.pull` look ahead along the mean.

    Args:
      learning_rate: the rate that the chain applies; here it only sets how far the look-ahead goes.
      momentum: as in :func:`gemjax.heloco`.
      keep_above: as in :func:`gemjax.heloco`.
      shrink: as in :func:`gemjax.heloco`.
      max_shrink: as in :func:`gemjax.heloco`.
      turn: as in :func:`gemjax.heloco`.
      caution: as in :func:`gemjax.heloco`.
      weight: as in :func:`gemjax.heloco`, but 1 by default.
      eps: as in :func:`gemjax.heloco`.

    Returns:
      A transformation that keeps one copy of the parameters at the centre (:math:`m`). It offers the diagnostics
      ``compensation`` (before ``weight``) and ``look_ahead``.

    Raises:
      ValueError: as :func:`gemjax.heloco`.
    """
    check_learning_rate(learning_rate)
    check_momentum(momentum)
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
    learning_rate: optax.ScalarOrSchedule = 0.7,
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
) -> optax.GradientTransformationExtraArgs:
    r"""HeLoCo: stale displacements are brought in line with the outer momentum, tensor by tensor.

    Slow workers, and workers with data of their own, commit displacements that were right somewhere else. Where one points
    along the momentum it is kept; where it is nearly at right angles to it, it is turned towards it and keeps its length;
    where it points against it, part of what opposes is taken off. A long displacement beside a short momentum is changed
    most, a short one beside a long momentum hardly.

    .. math::

      c &= \hat\Delta \cdot \hat m, \quad f = \|\Delta\| \,/\, (\|\Delta\| + \kappa \|m\| + \varepsilon) \\
      \tilde\Delta &= \begin{cases}
        \Delta & c \ge c_0 \\
        \|\Delta\| \, \frac{(1 - \lambda) \hat\Delta + \lambda \hat m}{\|(1 - \lambda) \hat\Delta + \lambda \hat m\|},
        \quad \lambda = \min(k_t (1 - c) f, 1) & 0 \le c < c_0 \\
        \Delta - \beta c \|\Delta\| \hat m, \quad \beta = \min(-k_s c f, \beta_{\max}) & c < 0
      \end{cases} \\
      m &\leftarrow \gamma m + (1 - \gamma) \rho \tilde\Delta \\
      \theta &\leftarrow \theta - \eta_t (\rho \tilde\Delta + \gamma m) \\
      s_w &\leftarrow \theta - \eta_t \gamma m

    with :math:`m = 0` at the start, shared by all workers, :math:`\Delta` what the worker that commits pulled (:math:`s_w`)
    less where its local steps took it, :math:`\hat x = x / \|x\|`, and the first three lines for each tensor by itself.

    Reductions: where every displacement is kept (``keep_above=-1, weight=1``) updates are those of
    :func:`gemjax.momentum_lookahead` for the same displacements, but workers start further ahead; with ``momentum=0``, too,
    it is :func:`gemjax.asgd`.

    Args:
      learning_rate: :math:`\eta` of the outer step, a non-negative float or a schedule over commits of the central variable;
        default 0.7. The look-ahead is made with the rate of the last commit. Local steps have their own.
      momentum: :math:`\gamma` in [0, 1), default 0.9. The mean does not carry the learning rate.
      num_workers: number of workers N, default 1.
      keep_above: :math:`c_0` in [-1, 1], the cosine from which on a displacement is kept; default 0.2.
      shrink: :math:`k_s \ge 0`, how readily what opposes is taken off; default 0.5.
      max_shrink: :math:`\beta_{\max}` in [0, 1], how much of it at most; default 0.5.
      turn: :math:`k_t \ge 0`, how far a displacement is turned; default 1.
      caution: :math:`\kappa \ge 0`, how much a long momentum holds changes back; default 3.
      weight: :math:`\rho \ge 0`, what a displacement counts; ``None`` (default) is :math:`1/\sqrt N`.
      eps: :math:`\varepsilon \ge 0`; where :math:`\Delta` or :math:`m` is not longer, nothing is changed. Default 1e-8.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``; :func:`gemjax.pull` returns
      the look-ahead. Keeps no copy of the parameters a worker and one at the centre (:math:`m`).

    Raises:
      ValueError: for a negative ``learning_rate``, ``shrink``, ``turn``, ``caution``, ``weight`` or ``eps``, a ``momentum``
        outside [0, 1), ``keep_above`` outside [-1, 1], ``max_shrink`` outside [0, 1] or a ``num_workers`` that is not
        positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.heloco(learning_rate=1.0, momentum=0.5, num_workers=2, caution=0.0, weight=1.0)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(params), params, worker=0)  # Nothing to align with.
    >>> view, state = gemjax.pull(state, params + updates, worker=0)
    >>> print(params + updates, view)
    [-1.25] [-1.5]
    >>> updates, state = tx.update(-jnp.ones(1), state, params, worker=1)  # Half of what opposes is left.
    >>> print(updates)
    [0.5]

    References:
      Al Asif et al., `HeLoCo: Efficient asynchronous low-communication training under data and device heterogeneity
      <https://arxiv.org/abs/2606.00271>`_, 2026

    Readings: the paper's text could not be consulted in full; the equations are those of a card about it, and the defaults,
    the look-ahead and what is done with a norm of zero those of an implementation that numbers its equations. A tensor is a
    leaf of the parameters.

    Deviations from the paper:
      1. Cosines and norms are computed in float32 at least, :math:`m` is kept like the parameters.
      2. Commits that arrive close together are not gathered into one; that is an engine's business.
    """
    check_num_workers(num_workers)
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
