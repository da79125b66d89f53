"""Rennala: a step uses the first gradients at the current parameters and no others (Tyurin & Richtárik, 2023)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.gather import GatherState, gather, once_per_round
from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_learning_rate, check_positive_int
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.staleness import asynchronous, require_protocol

TYURIN2023OPTIMAL = Paper("article", "tyurin2023optimal", {
    "author": "Tyurin, Alexander and Richt{\\'a}rik, Peter",
    "title": "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation Model",
    "year": "2023", "eprint": "2305.12387"})  # fmt: skip
PAPERS = {"gather_fresh": (TYURIN2023OPTIMAL,)}


class GatherFreshState(NamedTuple):
    """State of :func:`gather_fresh`."""

    gathered: jax.Array  # int32 []; gradients in this round so far.
    mean: PyTree  # Like params but at least float32; their share of the mean.
    refusals: Refusals

    def refuses(self, staleness: jax.Array) -> jax.Array:
        """Return True for a gradient at older parameters: these have not changed for ``gathered`` commits."""
        return staleness > self.gathered


def gather_fresh(batch_size: int) -> "Method":
    """Gather gradients at the current parameters until a round is full, and refuse those at older parameters.

    The atom of :func:`gemjax.rennala`, whose docstring explains the mathematics. Its output is zero until the round is full,
    and then the mean. It works inside :func:`gemjax.asynchronous`, before a plain learning rate.

    Args:
      batch_size: gradients per round, a positive int.

    Returns:
      A transformation that keeps one copy of the parameters centrally and needs the extra argument ``staleness``.

    Raises:
      ValueError: if ``batch_size`` is not a positive int.
    """
    check_positive_int("batch_size", batch_size)
    inner = gather(batch_size)

    def init_fn(params) -> Any:
        start: Any = inner.init(params)
        return GatherFreshState(start.gathered, start.mean, Refusals(jnp.zeros([], jnp.int32)))

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        del extra_args
        require_protocol("gather_fresh", staleness=staleness)
        after: Any = inner.update(updates, GatherState(state.gathered, state.mean), params)
        return after[0], state._replace(gathered=after[1].gathered, mean=after[1].mean)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def rennala(
    learning_rate: "optax.ScalarOrSchedule",
    num_workers: int = 1,
    *,
    batch_size: int | None = None,
    inner: "optax.GradientTransformation | None" = None,
) -> "Method":
    """Rennala SGD: mini-batch SGD with the gradients that arrive first.

    All workers compute at the same θ. The first S gradients at it, from any workers, make one step; later ones are refused. No
    gradient is used at other parameters than its own, and no worker waits for the slowest one. (The ``staleness`` of a commit
    counts the gradients gathered since the pull, so it is not 0.)

        θ ← θ - (η_t / S) Σ_j g_j(θ)   over S gradients

    Reductions: at ``batch_size=1`` it is :func:`gemjax.ringmaster` at ``threshold=1``; with one worker it is SGD that
    accumulates ``batch_size`` gradients, ``optax.MultiSteps``; where no gradient is stale it is :func:`gemjax.rules.gather`
    before the rate. Behind a barrier of the first S workers, ``gemjax.arrivals.Barrier(model, quorum=S)``, it is m-synchronous
    SGD with m = S.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. Each gathered
        gradient is a commit; a step has the rate of the commit that completes it.
      num_workers: number of workers N, default 1.
      batch_size: S ≥ 1, gradients per step; ``None`` (default) is N. The theory has
        max(1, ⌈σ²/ε⌉), with σ² the variance of a gradient and
        ε the target for the squared norm of the gradient.
      inner: an optimizer of the central variable without a learning rate, applied to the mean of each step, such as
        ``optax.trace(0.9, nesterov=True)``; ``None`` (default) is the published method.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters per
      worker and one centrally (the sum so far), besides the state of ``inner``.

    Raises:
      TypeError: if ``inner`` is no optax transformation.
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
      1. A worker is not interrupted at a step. It finishes its gradient, which is then refused.
      2. The sum is kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    check_positive_int("num_workers", num_workers)
    batch_size = num_workers if batch_size is None else batch_size
    parts = [gather_fresh(batch_size)] + ([] if inner is None else [once_per_round(inner, batch_size)])
    return asynchronous(optax.chain(*parts, scale_by_learning_rate(learning_rate)), num_workers)
