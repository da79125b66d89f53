"""Asynchronous SGD with one momentum per worker."""

import optax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate, check_momentum
from gemjax.protocol.per_worker import per_worker
from gemjax.protocol.staleness import asynchronous


def multi_asgd(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1) -> "Method":
    """Multi-ASGD: the gradients of each worker feed that worker's own momentum.

    With one momentum shared by N workers, each gradient is amplified by steps that other, stale gradients caused. Separate
    momenta remove that coupling, though each commit still moves θ by a whole velocity. It is DANA-Zero without the look-ahead,
    and the baseline that shows the effect of the look-ahead.

        v_w ← γ v_w + g
        θ ← θ - η_t v_w

    with v_w = 0 at the start and w the worker that commits.

    Reductions: with one worker it is ``optax.sgd(learning_rate, momentum)``; at ``momentum=0`` it is :func:`gemjax.asgd`. It
    consists of ``per_worker(optax.trace(momentum))`` in front of the learning rate.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (v_w).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.multi_asgd(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-1.5]
    [-1.]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019

    Readings: the available parts of the paper do not settle if the view of worker w in Multi-ASGD is its own Nesterov point
    θ - ηγ v_w. Here, as in the plain description, the view is θ itself.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    return asynchronous(
        optax.chain(per_worker(optax.trace(momentum)), scale_by_learning_rate(learning_rate)), num_workers
    )
