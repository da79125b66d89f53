"""Gap-Aware: staleness measured as a distance between parameters, in steps (Barkai, Hakimi & Schuster, 2020)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.dana import dana_momentum
from gemjax.methods.papers import Paper
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import Method, PyTree, diagnostics
from gemjax.protocol.checks import (
    check_at_least,
    check_choice,
    check_learning_rate,
    check_method,
    check_momentum,
    with_extra_args,
)
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.slots import match_mask
from gemjax.protocol.staleness import asynchronous, require_protocol

BARKAI2020GAP = Paper("inproceedings", "barkai2020gap", {
    "author": "Barkai, Saar and Hakimi, Ido and Schuster, Assaf",
    "title": "Gap-Aware Mitigation of Gradient Staleness",
    "booktitle": "International Conference on Learning Representations", "year": "2020", "eprint": "1909.10802"})  # fmt: skip
PAPERS = {"scale_by_gap": (BARKAI2020GAP,)}

ORDERS = ("after", "before")


class ScaleByGapState(NamedTuple):
    """State of :func:`scale_by_gap`, shared by all workers except for the slots in ``inner_state``."""

    count: jax.Array  # int32 []; commits so far.
    largest_rate: jax.Array  # float []; eta_max, the largest learning rate so far.
    mean_square: PyTree  # a, like params but at least float32; running mean of squared velocities.
    inner_state: optax.OptState
    stale_params: ReadsStaleParams


def scale_by_gap(
    learning_rate: "optax.ScalarOrSchedule",
    inner: optax.GradientTransformation | None = None,
    decay: float = 0.999,
    eps: float = 1e-8,
    accumulate: str = "after",
) -> "Method":
    """Divide each coordinate of a gradient by one plus its gap, measured in typical steps.

    The atom of :func:`gemjax.gap_aware`, whose docstring explains the mathematics and the arguments. It goes before the
    learning rate. It divides the gradient, passes it to ``inner`` and measures the length of a step from the output.

    Args:
      learning_rate: the rate that the chain applies; here it only sets the length of a step.
      inner: the transformation that turns the gradient into a velocity, without a learning rate, such as a momentum or
        ``per_worker`` of one. ``None`` (default): the gradient is the velocity.
      decay: as in :func:`gemjax.gap_aware`.
      eps: as in :func:`gemjax.gap_aware`.
      accumulate: as in :func:`gemjax.gap_aware`; ``inner=None`` is the case without momentum.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It keeps one
      copy of the parameters per worker (their view) and one centrally (the mean square), and offers the diagnostic
      ``compensation``.

    Raises:
      ValueError: if ``learning_rate`` or ``eps`` is negative, ``decay`` outside [0, 1) or ``accumulate`` unknown.
      TypeError: at a commit, outside :func:`gemjax.asynchronous` or without ``params``.
    """
    check_learning_rate(learning_rate)
    check_momentum("decay", decay)
    check_at_least("eps", eps, 0.0)
    check_choice("accumulate", accumulate, ORDERS)
    ahead = accumulate == "before"  # The mean counts this commit already,
    takes_gradient = ahead and inner is None  # and its gradient is known.
    if inner is not None:
        check_method("inner", inner)
    inner = with_extra_args(optax.identity() if inner is None else inner)

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
        unbias = 1 - jnp.asarray(decay, largest_rate.dtype) ** (state.count + ahead)

        def divide(g, theta, s, mean):
            variance = mean / jnp.where(state.count + ahead > 0, unbias, 1).astype(mean.dtype)
            step = largest_rate.astype(mean.dtype) * (jnp.sqrt(variance) + jnp.asarray(eps, mean.dtype))
            # No step has been measured before the first commit or at a rate of 0: no damping.
            known = (takes_gradient | (state.count > 0)) & (step > 0)
            steps_away = jnp.abs(theta - s).astype(mean.dtype) / jnp.where(known, step, jnp.ones_like(step))
            damping = 1 + jnp.where(known, steps_away, jnp.zeros_like(step))
            return (g.astype(mean.dtype) / damping).astype(g.dtype)

        def take_in(mean, v):
            rest = jnp.asarray(decay, mean.dtype)
            return rest * mean + (1 - rest) * jnp.square(v.astype(mean.dtype))

        mean_square = state.mean_square
        if takes_gradient:
            mean_square = jax.tree.map(take_in, mean_square, updates)
        divided = jax.tree.map(divide, updates, params, match_mask(stale_params, updates), mean_square)
        if observe is not None:
            observe("compensation", lambda: diagnostics.relative_change(divided, updates))
        extra_args |= {"stale_params": stale_params, "staleness": staleness, "observe": observe}
        velocity, inner_state = inner.update(divided, state.inner_state, params, **extra_args)
        if not takes_gradient:
            mean_square = jax.tree.map(take_in, mean_square, velocity)
        return velocity, state._replace(
            count=jnp.asarray(optax.safe_increment(state.count)),
            largest_rate=largest_rate,
            mean_square=mean_square,
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def gap_aware(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    decay: float = 0.999,
    eps: float = 1e-8,
    accumulate: str = "after",
) -> "Method":
    """Gap-Aware: a gradient is damped where the parameters have moved away from the point at which it was computed.

    The number of commits since a pull says little about the harm: late in training, or in a coordinate that hardly moves, many
    commits change nothing. What matters is the gap |θ - s_w| to the worker's view. It is measured in typical steps, coordinate
    by coordinate, and the gradient is divided by one plus it: a fresh gradient stays whole.

        C = η_max (√(a / (1 - β^n)) + ε)
        v ← γ v + g / (1 + |θ - s_w| / C)
        a ← β a + (1 - β) v ⊙ v,   n ← n + 1
        θ ← θ - η_t v

    all elementwise, with w the worker that commits, s_w its view, and v = a = 0 and n = 0 at the start, one of each for all
    workers. η_max is the largest rate so far, this commit's included. After the rate has fallen the gaps shrink and C does not,
    so the damping fades.

    With ``accumulate="before"`` the third line comes first: ``a`` takes in the velocity that the previous commit left, or
    g if γ = 0. With momentum ``a`` is then the same number, because the last velocity is taken in
    either way. Only n is larger by one, so C is smaller by a factor of at most √2, which tends to
    1. Without momentum ``a`` is the mean square of the gradients as sent, this one included, instead of the damped ones.

    Reductions:
      - where the gap is zero, so with one worker: ``optax.sgd(learning_rate, momentum)``;
      - where ``eps`` outweighs every gap: :func:`gemjax.momentum_asgd`;
      - with momentum and ``decay=0``: both orders are the same.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      decay: β in [0, 1) of the running mean of squares, per commit; default 0.999.
      eps: ε ≥ 0, in units of the velocity; default 1e-8.
      accumulate: when the running mean takes in a velocity; the sources differ.

        - ``"after"`` (default): after the commit that applied it. Gradients are damped from the second commit on.
        - ``"before"``: before the next gradient is damped, as in a public port.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (s_w) and two centrally (v, ``a``), but only ``a`` with ``accumulate="before"`` and no
      momentum.

    Raises:
      ValueError: if ``learning_rate`` or ``eps`` is negative, ``momentum`` or ``decay`` outside [0, 1), ``accumulate`` unknown
        or ``num_workers`` not positive.
      TypeError: if ``momentum`` is traced and ``accumulate`` is ``"before"``.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.gap_aware(learning_rate=0.5, momentum=0.0, num_workers=2)
    >>> params = jnp.array([1.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # For worker 1 the central variable has moved by one step: its gradient counts half.
    ...     updates, state = tx.update(jnp.array([1.0]), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     print(updates)
    [-0.5]
    [-0.25]

    References:
      Barkai, Hakimi & Schuster, `Gap-Aware Mitigation of Gradient Staleness <https://arxiv.org/abs/1909.10802>`_, 2020

    Readings: the text of the paper was not available in full. The constants and the form of C are those of a port by the
    authors' institute (FTPipe), and the damping is per coordinate, not per layer or one for all.

    Deviations from the port:
      1. By default the running mean takes in a velocity after the commit, and its bias correction counts those commits; see
        ``accumulate``.
      2. The first commit is never damped with momentum. The port must be switched off for its first batch.
      3. ``a`` is kept in float32 where the parameters are narrower (β = 0.999 is 1 in bfloat16).
      4. Weight decay is left to the chain. In front of this rule it is divided as in the port.
    """
    check_momentum("momentum", momentum)
    check_choice("accumulate", accumulate, ORDERS)
    inner = None if accumulate == "before" and momentum == 0 else optax.trace(momentum)
    damped = scale_by_gap(learning_rate, inner, decay, eps, accumulate)
    return asynchronous(optax.chain(damped, scale_by_learning_rate(learning_rate)), num_workers)


def dana_ga(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    decay: float = 0.999,
    eps: float = 1e-8,
) -> "Method":
    """DANA-GA: DANA-Zero on gradients divided by one plus their gap.

    The look-ahead of :func:`gemjax.dana_zero` makes the gap small, and :func:`gemjax.gap_aware` damps the rest.

        C = η_max (√(a / (1 - β^n)) + ε)
        v_w ← γ v_w + g(s_w) / (1 + |θ - s_w| / C)
        a ← β a + (1 - β) v_w ⊙ v_w,   n ← n + 1
        θ ← θ - η_t v_w
        s_w ← θ - η_t γ Σ_j v_j

    all elementwise, with v_j = a = 0 and n = 0 at the start, w the worker that commits, s_w its view and η_max the largest rate
    so far; ``a`` is one for all workers.

    Reductions:
      - at ``momentum=0``: :func:`gemjax.gap_aware` at ``momentum=0``;
      - where ``eps`` outweighs every gap: :func:`gemjax.dana_zero`.

    With one worker it is not Nesterov's momentum, because the look-ahead is a gap, too.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. The look-ahead
        uses the rate of the last commit.
      momentum: γ in [0, 1), default 0.9. The velocities do not carry the learning rate.
      num_workers: number of workers N, default 1.
      decay: β in [0, 1) of the running mean of squares, per commit; default 0.999.
      eps: ε ≥ 0, in units of the velocity; default 1e-8.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the
      look-ahead. It keeps two copies of the parameters per worker (v_w, s_w) and two centrally
      (Σ_j v_j, ``a``).

    Raises:
      ValueError: if ``learning_rate`` or ``eps`` is negative, ``momentum`` or ``decay`` outside [0, 1) or ``num_workers`` not
        positive.

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

    Readings: it is certain that the two were combined, but not in which order. Here the gap is measured from the central
    variable to the look-ahead that the worker pulled, and the running mean takes in the velocity that a commit applied, after
    it. No public implementation was found. The remaining choices and the deviations are those of :func:`gemjax.gap_aware`.
    """
    damped = scale_by_gap(learning_rate, dana_momentum(learning_rate, momentum), decay, eps)
    return asynchronous(optax.chain(damped, scale_by_learning_rate(learning_rate)), num_workers)
