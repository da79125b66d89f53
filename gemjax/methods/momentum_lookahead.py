"""Momentum look-ahead for asynchronous low-communication training (Ajanthan et al., 2025)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_learning_rate, check_momentum
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous

AJANTHAN2025MOMENTUM = Paper("inproceedings", "ajanthan2025momentum", {
    "author": "Ajanthan, Thalaiyasingam and Ramasinghe, Sameera and Avraham, Gil and Zuo, Yan and Long, Alexander",
    "title": "Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training",
    "booktitle": "ICLR Workshop on Modular, Collaborative and Decentralized Deep Learning", "year": "2025",
    "url": "https://openreview.net/forum?id=4O8nzTkHPI"})  # fmt: skip
PAPERS = {"discount_momentum": (AJANTHAN2025MOMENTUM,)}


class DiscountMomentumState(NamedTuple):
    """State of :func:`discount_momentum`, shared by all workers."""

    mean: PyTree  # m, like params.


def discount_momentum(momentum: float = 0.9) -> "Method":
    """Nesterov momentum with a running mean of the displacements in place of their sum.

    The atom of :func:`gemjax.momentum_lookahead`: m ← γ m + (1 - γ) g, with the output g + γ m. It goes before the learning
    rate in a chain.

    Args:
      momentum: γ in [0, 1), default 0.9.

    Returns:
      A transformation that keeps one copy of the parameters centrally (m).

    Raises:
      ValueError: if ``momentum`` is outside [0, 1).
    """
    check_momentum("momentum", momentum)

    def init_fn(params) -> Any:
        return DiscountMomentumState(optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None, **extra_args) -> Any:
        del params, extra_args
        updates, mean = discounted_step(momentum, updates, state.mean)
        return updates, DiscountMomentumState(mean)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def discounted_step(momentum: Any, updates: PyTree, mean: PyTree) -> tuple[PyTree, PyTree]:
    """Return ``(updates + momentum * mean, mean)`` with the mean after it took in the updates."""

    def renew(m, g):
        kept = jnp.asarray(momentum, m.dtype)
        return kept * m + (1 - kept) * g

    mean = jax.tree.map(renew, mean, updates)
    return jax.tree.map(lambda m, g: g + jnp.asarray(momentum, m.dtype) * m, mean, updates), mean


def momentum_lookahead(
    learning_rate: "optax.ScalarOrSchedule" = 0.7, momentum: float = 0.9, num_workers: int = 1
) -> "Method":
    """MLA: Nesterov's look-ahead over displacements, with a momentum that is a mean instead of a sum.

    Workers run local steps and commit their displacements. A view is the point to which the momentum alone would carry the
    central variable next. The momentum is a running mean: many stale displacements weigh no more in it than one, so γ can be
    close to 1 without the central variable moving far from the views of workers that still compute.

        m ← γ m + (1 - γ) Δ
        Θ ← Θ - η_t (Δ + γ m)

    with m = 0 at the start, shared by all workers, and Δ the displacement of the worker that commits, from its view to the
    point after its local steps. Θ = θ - ηγ m is the look-ahead point itself. At a constant rate the views are the same as those
    of a central variable θ that sends this point,

        θ ← θ - η (Δ + γ m)
        m ← γ m + (1 - γ) Δ
        s_w ← θ - η γ m

    with the old m in the first step and the new one in the last.

    Reductions: with one worker it is ``optax.sgd(learning_rate, momentum, nesterov=True)`` except that the velocity counts only
    1 - γ of itself; at ``momentum=0`` it is :func:`gemjax.asgd`. :func:`gemjax.heloco` that keeps every displacement
    (``keep_above=-1, weight=1``) makes the same updates for the same displacements.

    Args:
      learning_rate: η of the outer step, a non-negative float or a schedule over commits of the central variable;
        default 0.7. The local optimizer has its own rate.
      momentum: γ in [0, 1), default 0.9. The mean does not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. It keeps no copy of the
      parameters per worker and one centrally (m).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.momentum_lookahead(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1, 0):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.25]
    [-1.375]
    [-1.4375]

    References:
      Ajanthan et al., `Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training
      <https://openreview.net/forum?id=4O8nzTkHPI>`_, 2025

    Readings: the text of the paper was not available. The two steps are those of three implementations and texts that name it,
    one of which also gives the other form. That form shows that the central variable looks ahead already, so a pull adds
    nothing; :func:`gemjax.heloco` looks ahead once more. The rate is that of its users as a baseline.
    """
    check_learning_rate(learning_rate)
    chain = optax.chain(displacements(), discount_momentum(momentum), scale_by_learning_rate(learning_rate))
    return asynchronous(chain, num_workers)
