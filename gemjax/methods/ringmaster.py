"""Ringmaster: gradients that are too old are not used (Maranjyan et al., 2025)."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.checks import check_at_least, check_learning_rate
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.staleness import asynchronous, check_num_workers, require_protocol


class DropStaleState(NamedTuple):
    """State of :func:`drop_stale`."""

    refusals: Refusals


def drop_stale(threshold: float) -> optax.GradientTransformationExtraArgs:
    r"""Refuses every commit that is ``threshold`` or more commits old.

    The atom of :func:`gemjax.ringmaster`; stands anywhere inside :func:`gemjax.asynchronous`, in front of any method. A refused
    commit changes nothing, neither parameters nor clock nor any member's memory; its worker pulls again, and
    ``state…refusals.count`` tells how many there were. Engines report it as ``dropped``.

    Args:
      threshold: :math:`R \ge 1` in commits; an int, a float (``math.inf`` refuses nothing) or an integer scalar array.

    Returns:
      A transformation that needs the extra argument ``staleness``.

    Raises:
      ValueError: if ``threshold`` is below 1.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(optax.chain(gemjax.drop_stale(2), optax.scale_by_adam(), gemjax.scale_by_staleness()),
    ...                          num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):  # Worker 1 comes two commits late.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    >>> print(updates, state.clock)
    [0.] 2
    """
    if isinstance(threshold, jax.core.Tracer) or float(threshold) != math.inf:
        check_at_least("threshold", threshold, 1.0)

    def init_fn(params) -> Any:
        del params
        return DropStaleState(Refusals(jnp.zeros([], jnp.int32)))

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("drop_stale", staleness=staleness)
        return updates, DropStaleState(Refusals(state.refusals.count + (staleness >= threshold)))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ringmaster(
    learning_rate: optax.ScalarOrSchedule, num_workers: int = 1, *, threshold: float | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""Ringmaster ASGD: asynchronous SGD that ignores what is too old.

    Delays are not damped but cut off: a gradient less than :math:`R` commits old counts in full, any other not at all, and
    its worker starts anew. So the rate need not fear the slowest worker, and with :math:`R` matched to the noise the time to a
    given accuracy is the best that is possible, however unequal the workers are.

    .. math::

      \theta_{t+1} = \theta_t - \eta_t \, g(\theta_{t-\tau}) \quad \text{if } \tau < R, \text{ else nothing happens}

    Reductions: at ``threshold=math.inf`` it is :func:`gemjax.asgd`; at ``threshold=1`` only gradients at the current
    parameters count, so that it is sequential SGD by whoever is fastest.

    Args:
      learning_rate: :math:`\eta`, a non-negative float or a schedule over commits (applied ones) of the central variable.
      num_workers: number of workers N, default 1.
      threshold: :math:`R \ge 1` in commits; ``None`` (default) is N. The theory's is
        :math:`\max(1, \lceil\sigma^2/\varepsilon\rceil)`, with :math:`\sigma^2` the variance of a gradient and
        :math:`\varepsilon` the squared gradient norm to reach.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. Keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``threshold`` below 1 or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.ringmaster(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):  # Worker 1 comes two commits late.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    >>> print(updates, state.clock)
    [0.] 2

    References:
      Maranjyan, Tyurin & Richtárik, `Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity
      <https://arxiv.org/abs/2501.16168>`_, 2025

    Readings: the rule is that of the authors' later code; its constants are from memory.

    Deviations from the paper:
      1. A worker is not interrupted when its gradient becomes too old (the paper's second form); it finishes it in vain.
    """
    check_learning_rate(learning_rate)
    check_num_workers(num_workers)
    atom = drop_stale(num_workers if threshold is None else threshold)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
