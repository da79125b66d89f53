"""Malenia: a step averages each worker's gradients first, then the workers (Tyurin & Richtárik, 2023)."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.methods.rennala import TYURIN2023OPTIMAL
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_at_least, check_learning_rate, check_positive_int
from gemjax.protocol.hooks import MadeFor, Refusals
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, require_protocol

PAPERS = {"gather_per_worker": (TYURIN2023OPTIMAL,)}


def take_in(own: PyTree, mean: PyTree, count: jax.Array, gradient: PyTree, num_workers: int) -> tuple[PyTree, PyTree]:
    """Return a worker's mean with one more gradient, and the mean over all workers.

    Args:
      own: mean of the worker's gradients in the table; ignored if ``count`` is 0, so that no table needs to be cleared.
      mean: the sum of all workers' means divided by their number.
      count: int32 []; gradients in ``own``.
      gradient: the gradient to take in.
      num_workers: number of workers.
    """
    own = jax.tree.map(lambda o: jnp.where(count > 0, o, jnp.zeros_like(o)), own)
    change = jax.tree.map(lambda o, g: (g.astype(o.dtype) - o) / (count + 1).astype(o.dtype), own, gradient)
    return jax.tree.map(jnp.add, own, change), jax.tree.map(lambda m, c: m + c / num_workers, mean, change)


class GatherPerWorkerState(NamedTuple):
    """State of :func:`gather_per_worker`."""

    gathered: jax.Array  # int32 []; gradients in this round so far.
    counts: jax.Array  # b, int32 [N]; those of each worker.
    own: Slots  # h_w, like params but at least float32; the mean of the worker's gradients in its last round.
    mean: PyTree  # h, like them; the sum of the means of this round over N.
    refusals: Refusals
    workers: MadeFor

    def refuses(self, staleness: jax.Array) -> jax.Array:
        """Return True for a gradient at older parameters: these have not changed for ``gathered`` commits."""
        return staleness > self.gathered


def gather_per_worker(num_workers: int, batch_size: int | None = None) -> "Method":
    """Gather gradients at the current parameters until each worker has enough, and refuse those at older parameters.

    The atom of :func:`gemjax.malenia`, whose docstring explains the mathematics and the arguments. Its output is zero until the
    round is full, and then the mean over workers. It goes before a plain learning rate, inside :func:`gemjax.asynchronous`.

    Args:
      num_workers: number of workers N, the same as that of :func:`gemjax.asynchronous`.
      batch_size: as in :func:`gemjax.malenia`.

    Returns:
      A transformation that keeps one copy of the parameters per worker and one centrally.

    Raises:
      ValueError: if ``num_workers`` is not positive or ``batch_size`` below it.
    """
    check_positive_int("num_workers", num_workers)
    least = num_workers if batch_size is None else batch_size
    check_positive_int("batch_size", least)
    check_at_least("batch_size", least, num_workers)
    num_workers = operator.index(num_workers)

    def init_fn(params) -> Any:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params)
        nothing = lambda: jnp.zeros([], jnp.int32)  # Two arrays, so that jit can donate the state.
        return GatherPerWorkerState(
            nothing(), jnp.zeros(num_workers, jnp.int32), Slots(zeros), zeros, Refusals(nothing()), MadeFor(num_workers)
        )

    def update_fn(updates, state, params=None, *, worker: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("gather_per_worker", worker=worker)
        own, mean = take_in(state.own.value, state.mean, state.counts[worker], updates, num_workers)
        counts = state.counts.at[worker].add(1)
        # Harmonic mean >= S / N; the factor keeps equality in spite of rounding.
        spread = jnp.sum(1.0 / jnp.maximum(counts, 1))
        full = jnp.all(counts > 0) & (float(num_workers) ** 2 >= least * spread * (1 - 1e-6))
        step = jax.tree.map(lambda g, m: jnp.where(full, m, jnp.zeros_like(m)).astype(g.dtype), updates, mean)
        return step, GatherPerWorkerState(
            gathered=jnp.where(full, 0, state.gathered + 1),
            counts=jnp.where(full, jnp.zeros_like(counts), counts),
            own=Slots(own),
            mean=jax.tree.map(lambda m: jnp.where(full, jnp.zeros_like(m), m), mean),
            refusals=state.refusals,
            workers=state.workers,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def malenia(
    learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1, *, batch_size: int | None = None
) -> "Method":
    """Malenia SGD: mini-batch SGD for workers with data of their own, whose fast workers do not wait.

    As in :func:`gemjax.rennala`, all workers compute at the same θ, again and again, and a gradient at older parameters is
    refused. A round ends when each worker has committed and there are enough gradients. Then the gradients of each worker are
    averaged, and these means over the workers: a fast worker has a more exact mean, but no larger weight. The slowest worker
    determines the length of a round.

        b_w ← b_w + 1,   h_w ← h_w + (g - h_w) / b_w
        if all b_j > 0 and 1 / ((1/n) Σ_j 1/b_j) ≥ S/n:
            θ ← θ - (η_t / n) Σ_j h_j,   all b_j ← 0

    with w the worker that commits, g its gradient, b_j the number of gradients of worker j in this round, 0 at the start, h_j
    their mean, and n the number of workers. h_w restarts at 0 where b_w = 0.

    Reductions: with one worker it is :func:`gemjax.rennala`; if each worker commits once per round, it is
    :func:`gemjax.rennala` at ``batch_size=num_workers``, which is mini-batch SGD.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. Each gathered
        gradient is a commit; a step has the rate of the commit that completes it.
      num_workers: number of workers n, default 1. Each of them must commit in each round.
      batch_size: S ≥ n: the harmonic mean of the workers' gradients in a round is at least S/n. ``None``
        (default) is n, one gradient of each worker. The theory has
        max(n, ⌈σ²/ε⌉), with σ² the variance of a gradient and
        ε the target for the squared norm of the gradient.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (h_w) and one centrally (their mean).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``num_workers`` not positive or ``batch_size`` below ``num_workers``.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.malenia(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker, grads in ((0, 1.0), (0, 3.0), (1, 4.0)):  # The mean of 2 and 4.
    ...     updates, state = tx.update(jnp.array([grads]), state, worker=worker)
    ...     print(updates + 0.0)
    [0.]
    [0.]
    [-3.]

    References:
      Tyurin & Richtárik, `Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
      Model <https://arxiv.org/abs/2305.12387>`_, 2023

    Readings: the text of the paper was not available in full; the condition for S > n is recalled from it. At S = n the rule is
    that of `the code of Ringmaster LMO <https://github.com/vectozavr/ringmaster-lmo>`_, which ends a round when each worker has
    committed.

    Deviations from the paper:
      1. A worker is not interrupted at a step. It finishes its gradient, which is then refused.
      2. The means are kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    atom = gather_per_worker(num_workers, batch_size)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
