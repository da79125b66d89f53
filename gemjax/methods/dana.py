"""DANA: momentum that looks ahead over all workers (Hakimi et al., 2019)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.dc_asgd import compensate_delay
from gemjax.methods.momentum_asgd import HAKIMI2019TAMING
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate, check_momentum
from gemjax.protocol.hooks import LookAhead
from gemjax.protocol.per_worker import per_worker
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous

PAPERS = {"dana_momentum": (HAKIMI2019TAMING,)}


class DanaMomentumState(NamedTuple):
    """State of :func:`dana_momentum`."""

    count: jax.Array  # int32 []; commits so far, of all workers.
    velocity: Slots  # v_w, like params; written at that worker's commits.
    ahead: LookAhead  # Shared: the sum of all v_w, like params, and the distance of the look-ahead along it.


def dana_momentum(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9) -> "Method":
    """Give each worker a momentum and shift views by the step that all momenta will take next.

    The atom of :func:`gemjax.dana_zero`, :func:`gemjax.dana_dc` and :func:`gemjax.dana_ga`. It turns the gradients of worker w
    into its velocity v_w, so it goes before the learning rate in a chain. :func:`gemjax.pull` then returns θ - η_t γ Σ_j v_j,
    with the rate of the last commit.

    Args:
      learning_rate: η, the rate that the chain applies; here it only sets the length of a step.
      momentum: γ in [0, 1), default 0.9.

    Returns:
      A transformation that keeps one copy of the parameters per worker (v_w) and one centrally (their sum). It works
      inside :func:`gemjax.asynchronous` and offers the diagnostic ``look_ahead``.

    Raises:
      ValueError: if ``learning_rate`` is negative or ``momentum`` outside [0, 1).
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)

    def init_fn(params) -> Any:
        zeros = optax.tree.zeros_like(params)
        return DanaMomentumState(jnp.zeros([], jnp.int32), Slots(zeros), LookAhead(zeros, jnp.zeros([])))

    def update_fn(updates, state, params=None, *, observe=None, **extra_args) -> Any:
        del params, extra_args
        old = state.velocity.value
        new = jax.tree.map(lambda v, g: jnp.asarray(momentum, v.dtype) * v + g, old, updates)
        # A running sum, whose cost does not depend on the number of workers.
        total = jax.tree.map(lambda v_0, v, v_old: v_0 + (v - v_old), state.ahead.velocity, new, old)
        step = rate_at(learning_rate, state.count)
        ahead = LookAhead(total, step * jnp.asarray(momentum, step.dtype))
        if observe is not None:
            observe("look_ahead", ahead.length)
        return new, DanaMomentumState(jnp.asarray(optax.safe_increment(state.count)), Slots(new), ahead)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def dana_zero(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1) -> "Method":
    """DANA-Zero: Nesterov's look-ahead over the momenta of all workers.

    Until worker w returns, each other worker ordinarily commits once and moves θ by its momentum. That part is known when w
    pulls, so the worker gets the point to which the momenta will have carried θ by then. Its staleness is then due to the
    others' gradients alone: the distance between the central variable and the point of a gradient is that of ASGD without
    momentum.

        v_w ← γ v_w + g(s_w)
        θ ← θ - η_t v_w
        s_w ← θ - η_t γ Σ_j v_j

    with all v_j = 0 at the start, w the worker that commits and s_w its view.

    Reductions: with one worker and a constant rate the views are the parameters of
    ``optax.sgd(learning_rate, momentum, nesterov=True)``; at a constant rate the views are those of
    :func:`gemjax.dana_slim`, commit by commit; without the look-ahead it is :func:`gemjax.multi_asgd`; at ``momentum=0`` it
    is :func:`gemjax.asgd`.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. The look-ahead uses
        the rate of the last commit.
      momentum: γ in [0, 1), default 0.9. The velocities do not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the
      look-ahead. It keeps one copy of the parameters per worker (v_w) and one centrally (Σ_j v_j).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.dana_zero(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> params = jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for worker in (0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     view, state = gemjax.pull(state, params, worker=worker)
    ...     print(params, view)
    [-1.] [-1.5]
    [-2.] [-3.]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019

    Readings: the text of the paper was not available in full. The order of the steps is that of a simulator that is taken to be
    the authors'. The momentum steps from θ, and only the view looks ahead.

    Deviations from the paper:
      1. The sum is a running one, as in that code, and its rounding errors stay. Those of ordinary gradients matter in half
         precision only. One gradient of 10^9 leaves about 100 in a sum of float32 for good, so clip gradients, or use
         :func:`gemjax.dana_slim`, which has no sum.
      2. Weight decay is left to the chain.
    """
    atom = dana_momentum(learning_rate, momentum)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)


def dana_slim(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1) -> "Method":
    """DANA-Slim: DANA's look-ahead at the central cost of ASGD.

    The central variable is the look-ahead point Θ = θ - ηγ Σ_j v_j of :func:`gemjax.dana_zero` instead of θ. A commit then only
    adds a vector that the worker can compute from its own momentum.

        v_w ← γ v_w + g(Θ[t-τ])
        Θ ← Θ - η_t (γ v_w + g(Θ[t-τ]))

    with v_w = 0 at the start and w the worker that commits.

    Reductions: with one worker it is ``optax.sgd(learning_rate, momentum, nesterov=True)``; at a constant rate Θ is the view of
    :func:`gemjax.dana_zero`, commit by commit; at ``momentum=0`` it is :func:`gemjax.asgd`. It consists of
    ``per_worker(optax.trace(momentum, nesterov=True))`` in front of the learning rate.

    When the rate changes from η to η' the two methods diverge, because Θ still contains the old rate; adding (η - η')γ Σ_j v_j
    to the central variable at that moment makes them equal again.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: γ in [0, 1), default 0.9. The velocities do not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (v_w) and none centrally.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.dana_slim(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.5]
    [-1.75]
    [-1.5]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019

    Deviations from the paper:
      1. The momentum is computed centrally, from the gradient that the worker sends; the numbers are the same.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    momenta = per_worker(optax.trace(momentum, nesterov=True))
    return asynchronous(optax.chain(momenta, scale_by_learning_rate(learning_rate)), num_workers)


def dana_dc(
    learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1, *, strength: float = 2.0
) -> "Method":
    """DANA-DC: DANA-Zero on gradients that are first corrected to the present.

    The look-ahead predicts the others' momenta, but not their gradients. The first-order compensation of :func:`gemjax.dc_asgd`
    corrects for the remaining distance, from the worker's view to θ.

        g̃ = g + λ g ⊙ g ⊙ (θ - s_w)   with g = g(s_w)
        v_w ← γ v_w + g̃
        θ ← θ - η_t v_w
        s_w ← θ - η_t γ Σ_j v_j

    with all v_j = 0 at the start, w the worker that commits and s_w its view.

    Reductions: at ``strength=0`` it is :func:`gemjax.dana_zero`; at ``momentum=0`` it is :func:`gemjax.dc_asgd` with the
    same ``strength``.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. The look-ahead uses
        the rate of the last commit.
      momentum: γ in [0, 1), default 0.9. The velocities do not carry the learning rate.
      num_workers: number of workers N, default 1.
      strength: λ ≥ 0, default 2 as in the code that is taken to be the authors'.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the
      look-ahead. It keeps two copies of the parameters per worker (v_w, s_w) and one centrally
      (Σ_j v_j).

    Raises:
      ValueError: if ``learning_rate`` or ``strength`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not
        positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.dana_dc(learning_rate=1.0, momentum=0.5, num_workers=2, strength=0.25)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(jnp.zeros(1)), jnp.zeros(1), worker=0)
    >>> updates, state = tx.update(jnp.ones(1), state, jnp.zeros(1) - 1.0, worker=1)  # 1 + 0.25 * 1 * 1 * (-1 - 0)
    >>> updates
    Array([-0.75], dtype=float32)

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019

    Readings: those of :func:`gemjax.dana_zero`. In the compensation θ is the central variable and not its look-ahead, and λ is
    constant. With one worker the look-ahead itself is therefore compensated.

    Deviations from the paper:
      1. The sum is a running one; see :func:`gemjax.dana_zero`.
      2. Weight decay is left to the chain.
    """
    atom = dana_momentum(learning_rate, momentum)
    chain = optax.chain(compensate_delay(strength), atom, scale_by_learning_rate(learning_rate))
    return asynchronous(chain, num_workers)
