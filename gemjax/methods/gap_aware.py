"""Gap-Aware: staleness measured in the parameters, in steps (Barkai, Hakimi & Schuster, 2020)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.dana import dana_momentum
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import diagnostics
from gemjax.protocol.checks import check_at_least, check_learning_rate, check_momentum
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.slots import like
from gemjax.protocol.staleness import asynchronous, require_protocol

PyTree = Any


class ScaleByGapState(NamedTuple):
    """State of :func:`scale_by_gap`; shared but for what ``inner_state`` has in slots."""

    count: jax.Array  # int32 []; commits so far.
    largest_rate: jax.Array  # float []; eta_max, the largest learning rate so far.
    mean_square: PyTree  # a, like params but at least float32; running mean of squared velocities.
    inner_state: optax.OptState
    stale_params: ReadsStaleParams


def scale_by_gap(
    learning_rate: optax.ScalarOrSchedule,
    inner: optax.GradientTransformation | None = None,
    decay: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """Divides a gradient, coordinate by coordinate, by the number of steps that the central variable is away from it.

    The atom of :func:`gemjax.gap_aware`, where mathematics and arguments are explained. It stands before the learning
    rate: it divides the gradient, hands it to ``inner`` and learns from what comes out how long a step is.

    Args:
      learning_rate: the rate that the chain applies; here it only sets how far a step goes.
      inner: the transformation that makes the gradient a velocity, without a learning rate; a momentum, say, or
        ``per_worker`` of one. ``None`` (default): the gradient is the velocity.
      decay: as in :func:`gemjax.gap_aware`.
      eps: as in :func:`gemjax.gap_aware`.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It offers
      the diagnostic ``compensation``.

    Raises:
      ValueError: for a negative ``learning_rate`` or ``eps``, or a ``decay`` outside [0, 1).
    """
    check_learning_rate(learning_rate)
    check_momentum(decay, "decay")
    check_at_least("eps", eps, 0.0)
    inner = optax.with_extra_args_support(optax.identity() if inner is None else inner)

    def init_fn(params) -> Any:
        return ScaleByGapState(
            count=jnp.zeros([], jnp.int32),
            largest_rate=jnp.zeros([]),
            mean_square=jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params),
            inner_state=inner.init(params),
            stale_params=ReadsStaleParams(),
        )

    def update_fn(updates, state, params=None, *, stale_params=None, staleness=None, observe=None, **extra_args) -> Any:
        require_protocol("scale_by_gap", staleness=staleness, params=params)
        largest_rate = jnp.maximum(state.largest_rate, rate_at(learning_rate, state.count))
        unbias = 1 - jnp.asarray(decay, largest_rate.dtype) ** state.count

        def divide(g, theta, s, mean):
            variance = mean / jnp.where(state.count > 0, unbias, 1).astype(mean.dtype)
            step = largest_rate.astype(mean.dtype) * (jnp.sqrt(variance) + jnp.asarray(eps, mean.dtype))
            # Before the first commit, and at a rate of 0, nothing is known about steps: no penalty.
            known = (state.count > 0) & (step > 0)
            steps_away = jnp.abs(theta - s).astype(mean.dtype) / jnp.where(known, step, jnp.ones_like(step))
            penalty = 1 + jnp.where(known, steps_away, jnp.zeros_like(step))
            return (g.astype(mean.dtype) / penalty).astype(g.dtype)

        def accumulate(mean, v):
            rest = jnp.asarray(decay, mean.dtype)
            return rest * mean + (1 - rest) * jnp.square(v.astype(mean.dtype))

        divided = jax.tree.map(divide, updates, params, like(stale_params, updates), state.mean_square)
        if observe is not None:
            observe("compensation", lambda: diagnostics.relative_change(divided, updates))
        extra_args |= {"stale_params": stale_params, "staleness": staleness, "observe": observe}
        velocity, inner_state = inner.update(divided, state.inner_state, params, **extra_args)
        return velocity, state._replace(
            count=jnp.asarray(optax.safe_increment(state.count)),
            largest_rate=largest_rate,
            mean_square=jax.tree.map(accumulate, state.mean_square, velocity),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def gap_aware(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    decay: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    r"""Gap-Aware: a gradient counts for less where the parameters have moved away from it.

    The number of commits since a pull says little about harm: late in training, or in a coordinate that hardly moves,
    many commits change nothing. What counts is the gap :math:`|\theta - s_w|` to what the worker pulled. It is measured
    in typical steps, coordinate by coordinate, and the gradient divided by one plus it: a fresh gradient stays whole.

    .. math::

      C &= \eta_{\max} \left(\sqrt{a / (1 - \beta^n)} + \varepsilon\right) \\
      v &\leftarrow \gamma v + g \,/\, \left(1 + |\theta - s_w| / C\right) \\
      a &\leftarrow \beta a + (1 - \beta) \, v \odot v, \quad n \leftarrow n + 1 \\
      \theta &\leftarrow \theta - \eta_t v

    all elementwise, with :math:`v = a = 0` and :math:`n = 0` at the start, one of each for all workers, and
    :math:`\eta_{\max}` the largest rate so far, this commit's included. After the rate has fallen the gaps shrink and
    :math:`C` does not, so that the penalty fades.

    Reductions: where the gap is zero, so with one worker, it is ``optax.sgd(learning_rate, momentum)``.

    Args:
      learning_rate: :math:`\eta`, a non-negative float or a schedule over commits of the central variable.
      momentum: :math:`\gamma` in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      decay: :math:`\beta` in [0, 1) of the running mean of squares, a commit; default 0.999.
      eps: :math:`\varepsilon \ge 0`, in units of the velocity; default 1e-8.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. Keeps one copy of the parameters a
      worker (:math:`s_w`) and two at the centre (:math:`v`, :math:`a`).

    Raises:
      ValueError: for a negative ``learning_rate`` or ``eps``, a ``momentum`` or ``decay`` outside [0, 1) or a
        ``num_workers`` that is not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.gap_aware(learning_rate=0.5, momentum=0.0, num_workers=2)
    >>> params = jnp.array([1.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # Worker 1 finds the centre one step away: its gradient counts half.
    ...     updates, state = tx.update(jnp.array([1.0]), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     print(updates)
    [-0.5]
    [-0.25]

    References:
      Barkai, Hakimi & Schuster, `Gap-Aware Mitigation of Gradient Staleness <https://arxiv.org/abs/1909.10802>`_, 2020

    Readings: the paper's text could not be consulted in full; the constants and the form of :math:`C` are those of a port
    by the authors' institute, and the penalty is a parameter's own (not a layer's or one for all). The order is chosen:
    the running mean takes in the velocity that a commit applied, *after* it, and penalises from the second commit on.
    The port takes the mean from the velocity before the step, which is zero at first and needs an exception.

    Deviations from the paper:
      1. :math:`a` is kept in float32 where the parameters are narrower (:math:`\beta = 0.999` is 1 in bfloat16).
      2. Weight decay is left to the chain; in front of this rule it is divided as in the port.
    """
    penalised = scale_by_gap(learning_rate, _momentum(momentum), decay, eps)
    return asynchronous(optax.chain(penalised, scale_by_learning_rate(learning_rate)), num_workers)


def dana_ga(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    decay: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    r"""DANA-GA: DANA-Zero on gradients divided by their gap.

    The look-ahead of :func:`gemjax.dana_zero` makes the gap small, and :func:`gemjax.gap_aware` takes off what is left.

    .. math::

      C &= \eta_{\max} \left(\sqrt{a / (1 - \beta^n)} + \varepsilon\right) \\
      v_w &\leftarrow \gamma v_w + g(s_w) \,/\, \left(1 + |\theta - s_w| / C\right) \\
      a &\leftarrow \beta a + (1 - \beta) \, v_w \odot v_w, \quad n \leftarrow n + 1 \\
      \theta &\leftarrow \theta - \eta_t v_w \\
      s_w &\leftarrow \theta - \eta_t \gamma \sum_j v_j

    all elementwise, with :math:`v_j = a = 0` and :math:`n = 0` at the start, :math:`w` the worker that commits,
    :math:`s_w` what it pulls and :math:`\eta_{\max}` the largest rate so far; :math:`a` is one for all workers.

    Reductions: at ``momentum=0`` it is :func:`gemjax.gap_aware` at ``momentum=0``; where ``eps`` outweighs every gap it is
    :func:`gemjax.dana_zero`. With one worker it is not Nesterov's momentum: the look-ahead is a gap, too.

    Args:
      learning_rate: :math:`\eta`, a non-negative float or a schedule over commits of the central variable. The look-ahead
        is made with the rate of the last commit.
      momentum: :math:`\gamma` in [0, 1), default 0.9. The velocities do not carry the learning rate.
      num_workers: number of workers N, default 1.
      decay: :math:`\beta` in [0, 1) of the running mean of squares, a commit; default 0.999.
      eps: :math:`\varepsilon \ge 0`, in units of the velocity; default 1e-8.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the
      look-ahead. Keeps two copies of the parameters a worker (:math:`v_w`, :math:`s_w`) and two at the centre
      (:math:`\sum_j v_j`, :math:`a`).

    Raises:
      ValueError: for a negative ``learning_rate`` or ``eps``, a ``momentum`` or ``decay`` outside [0, 1) or a
        ``num_workers`` that is not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.dana_ga(learning_rate=0.5, momentum=0.5, num_workers=2)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(params), params, worker=0)
    >>> params = optax.apply_updates(params, updates)
    >>> view, state = gemjax.pull(state, params, worker=0)
    >>> print(params, view)
    [-0.5] [-0.75]

    References:
      Barkai, Hakimi & Schuster, `Gap-Aware Mitigation of Gradient Staleness <https://arxiv.org/abs/1909.10802>`_, 2020

    Readings: that the two were combined is certain, the order of the steps is not; here the gap is measured from the
    centre's own variable to the look-ahead that the worker was sent, and the running mean is fed by the velocity applied.
    See :func:`gemjax.gap_aware` for what else is chosen, and its deviations.
    """
    penalised = scale_by_gap(learning_rate, dana_momentum(learning_rate, momentum), decay, eps)
    return asynchronous(optax.chain(penalised, scale_by_learning_rate(learning_rate)), num_workers)


def _momentum(momentum: float) -> optax.GradientTransformation:
    check_momentum(momentum)
    return optax.trace(momentum)
