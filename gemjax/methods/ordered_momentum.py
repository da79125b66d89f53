"""Ordered momentum: a gradient enters the momentum where it belongs by the time of its pull (Shi et al., 2024)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_learning_rate, check_momentum
from gemjax.protocol.staleness import asynchronous, require_protocol

SHI2024ORDERED = Paper("inproceedings", "shi2024ordered", {
    "author": "Shi, Chang-Wei and Yang, Yi-Rui and Li, Wu-Jun", "title": "Ordered Momentum for Asynchronous {SGD}",
    "booktitle": "Advances in Neural Information Processing Systems", "year": "2024", "eprint": "2407.19234"})  # fmt: skip
PAPERS = {"order_momentum": (SHI2024ORDERED,)}


class OrderMomentumState(NamedTuple):
    """State of :func:`order_momentum`, shared by all workers."""

    count: jax.Array  # int32 []; commits so far.
    velocity: PyTree  # u, like params.


def order_momentum(momentum: float = 0.9) -> "Method":
    """Replace gradients by the steps of a momentum that decays once per N commits, with stale gradients in their places.

    The atom of :func:`gemjax.ordered_momentum`, whose docstring explains the mathematics. It goes before the learning rate in a
    chain inside :func:`gemjax.asynchronous`.

    Args:
      momentum: β in [0, 1), default 0.9.

    Returns:
      A transformation that needs the extra arguments ``staleness`` and ``num_workers``. It keeps one copy of the parameters
      centrally.

    Raises:
      ValueError: if ``momentum`` is outside [0, 1).
    """
    check_momentum("momentum", momentum)

    def init_fn(params) -> Any:
        return OrderMomentumState(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None, *, staleness: Any = None, num_workers: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("order_momentum", staleness=staleness, num_workers=num_workers)
        late = state.count // num_workers - (state.count - staleness) // num_workers
        begins = state.count % num_workers == 0  # A round begins.
        carried = jax.tree.map(lambda u: jnp.where(begins, momentum * u, u), state.velocity)
        weight = jnp.power(momentum, late)
        reached = (1 - momentum * weight) / (1 - momentum)
        step = jax.tree.map(lambda u, g: jnp.where(begins, u, 0) + reached.astype(g.dtype) * g, carried, updates)
        velocity = jax.tree.map(lambda u, g: u + weight.astype(u.dtype) * g, carried, updates)
        return step, OrderMomentumState(jnp.asarray(optax.safe_increment(state.count)), velocity)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ordered_momentum(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1) -> "Method":
    """Ordered momentum (OrMo): momentum that decays once per N commits, with each gradient in the place of its pull.

    Heavy ball at every commit decays N times as fast as that of synchronous SGD, and counts a late gradient as new. Here
    commits are in rounds of N. The momentum decays once per round, and a gradient that was pulled j rounds ago enters it
    decayed j times, while its step makes up for the steps that it would have made since. After each commit the central variable
    is where synchronous SGD with momentum would be with the same gradients.

        if t mod N = 0:
            θ ← θ - η_t β u,   u ← β u
        j = ⌊t / N⌋ - ⌊(t - τ) / N⌋
        u ← u + β^j g
        θ ← θ - η_t ((1 - β^(j+1)) / (1 - β)) g

    with t the commits so far, τ the staleness and u = 0 at the start, one for all workers.

    Reductions: at ``momentum=0`` it is :func:`gemjax.asgd`; with one worker it is ``optax.sgd(learning_rate, momentum)``. If
    all workers commit before one pulls, N commits make one step of synchronous SGD with momentum along the sum of their
    gradients.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: β in [0, 1), default 0.9, per N commits. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters per
      worker and one centrally (u).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.ordered_momentum(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1, 0):  # The last one begins a round, and its gradient belongs to the round before.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-1.]
    [-2.5]

    References:
      Shi, Yang & Li, `Ordered Momentum for Asynchronous SGD <https://arxiv.org/abs/2407.19234>`_, 2024

    Readings: the text of the paper was not read in full; the rule is from a summary of its algorithm. Iterations of the paper
    are taken to be counted from 1, so that a round is N commits and the reductions hold.

    Deviations from the paper:
      1. u does not carry the learning rate, which is the same at a constant rate.
      2. The delay-adaptive form (OrMo-DA) is a chain with :func:`gemjax.rules.scale_by_staleness` in front of
         :func:`gemjax.rules.order_momentum`.
    """
    check_learning_rate(learning_rate)
    return asynchronous(
        optax.chain(order_momentum(momentum), scale_by_learning_rate(learning_rate)), num_workers=num_workers
    )
