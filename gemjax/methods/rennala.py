"""Rennala: the first gradients at the current parameters make a step, the others are not used (Tyurin & Richtárik, 2023)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.checks import check_learning_rate, check_positive_int
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.staleness import asynchronous, check_num_workers, require_protocol

PyTree = Any


class GatherFreshState(NamedTuple):
    """State of :func:`gather_fresh`."""

    gathered: jax.Array  # int32 []; gradients of this round so far.
    mean: PyTree  # Like params but at least float32; what they add to the mean.
    refusals: Refusals


def gather_fresh(batch_size: int) -> optax.GradientTransformationExtraArgs:
    """Gathers gradients at the current parameters until there are enough, and refuses those at older ones.

    The atom of :func:`gemjax.rennala`, where the mathematics is explained. It lets zeros through until the round is full, and
    then the mean; stands inside :func:`gemjax.asynchronous`, before a plain learning rate.

    Args:
      batch_size: gradients a round, a positive int.

    Returns:
      A transformation that keeps one copy of the parameters at the centre and needs the extra argument ``staleness``.

    Raises:
      ValueError: if ``batch_size`` is not a positive int.
    """
    check_positive_int("batch_size", batch_size)

    def init_fn(params) -> Any:
        mean = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params)
        return GatherFreshState(jnp.zeros([], jnp.int32), mean, Refusals(jnp.zeros([], jnp.int32)))

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("gather_fresh", staleness=staleness)
        # The parameters have stood still for as many commits as this round has gathered.
        late = staleness > state.gathered
        mean = jax.tree.map(lambda m, g: m + g.astype(m.dtype) / batch_size, state.mean, updates)
        gathered = state.gathered + 1
        full = gathered >= batch_size
        updates = jax.tree.map(lambda g, m: jnp.where(full, m, jnp.zeros_like(m)).astype(g.dtype), updates, mean)
        mean = jax.tree.map(lambda m: jnp.where(full, jnp.zeros_like(m), m), mean)
        gathered = jnp.where(full, 0, gathered)
        return updates, GatherFreshState(gathered, mean, Refusals(state.refusals.count + late))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def rennala(
    learning_rate: optax.ScalarOrSchedule, num_workers: int = 1, *, batch_size: int | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""Rennala SGD: mini-batch SGD whose mini-batch is whatever arrives first.

    All workers keep computing at the same :math:`\theta`. The first :math:`S` gradients at it, no matter whose, make one step;
    those that come later are refused. No gradient is ever used at other parameters than it was computed at, and nobody waits
    for the slowest. (A commit's ``staleness`` counts the gradients gathered since the pull, so it is not 0.)

    .. math::

      \theta \leftarrow \theta - \frac{\eta_t}{S} \sum_{j=1}^{S} g_j(\theta)

    Reductions: at ``batch_size=1`` it is :func:`gemjax.ringmaster` at ``threshold=1``; with one worker it is SGD that
    accumulates ``batch_size`` gradients, ``optax.MultiSteps``.

    Args:
      learning_rate: :math:`\eta`, a non-negative float or a schedule over commits of the central variable. Every gradient
        gathered is a commit; a step is made with the rate of the commit that completes it.
      num_workers: number of workers N, default 1.
      batch_size: :math:`S \ge 1`, gradients a step; ``None`` (default) is N. The theory's is
        :math:`\max(1, \lceil\sigma^2/\varepsilon\rceil)`, with :math:`\sigma^2` the variance of a gradient and
        :math:`\varepsilon` the squared gradient norm to reach.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. Keeps no copy of the parameters a
      worker and one at the centre (the sum so far).

    Raises:
      ValueError: if ``learning_rate`` is negative, or ``batch_size`` or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.rennala(learning_rate=1.0, num_workers=2)
    >>> params = jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for grads in (1.0, 2.0):
    ...     updates, state = tx.update(jnp.array([grads]), state, worker=0)
    ...     params = optax.apply_updates(params, updates)
    ...     _, state = gemjax.pull(state, params, worker=0)
    ...     print(params)
    [0.]
    [-1.5]

    References:
      Tyurin & Richtárik, `Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
      Model <https://arxiv.org/abs/2305.12387>`_, 2023

    Deviations from the paper:
      1. A worker is not interrupted when the step is made; it finishes its gradient in vain.
      2. The sum is kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    check_num_workers(num_workers)
    atom = gather_fresh(num_workers if batch_size is None else batch_size)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
