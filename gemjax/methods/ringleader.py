"""Ringleader: rounds of one step per worker along the mean over workers (Maranjyan & Richtárik, 2025)."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.malenia import take_in
from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_learning_rate, check_positive_int
from gemjax.protocol.hooks import MadeFor
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, require_protocol

MARANJYAN2025RINGLEADER = Paper("article", "maranjyan2025ringleader", {
    "author": "Maranjyan, Artavazd and Richt{\\'a}rik, Peter",
    "title": "{Ringleader ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity under Data Heterogeneity",
    "year": "2025", "eprint": "2509.22860"})  # fmt: skip
PAPERS = {"take_turns": (MARANJYAN2025RINGLEADER,)}


class TakeTurnsState(NamedTuple):
    """State of :func:`take_turns`."""

    counts: jax.Array  # b, int32 [N]; gradients in each worker's entry.
    stepped: jax.Array  # bool [N]; True if the worker made its step of this round; its entry is then in the next table.
    own: Slots  # h_w, like params but at least float32; the worker's entry, the mean of its gradients.
    mean: PyTree  # h, like them; the mean of the entries of this round's table.
    ahead: PyTree  # h+, like them; that of the next round's table, with 0 for workers that are not in it.
    workers: MadeFor


def take_turns(num_workers: int) -> "Method":
    """Replace gradients by the mean over workers, once per worker and round.

    The atom of :func:`gemjax.ringleader`, whose docstring explains the mathematics. Its output is zero for commits that only
    enter a table. It goes before the learning rate in a chain inside :func:`gemjax.asynchronous`.

    Args:
      num_workers: number of workers N, the same as that of :func:`gemjax.asynchronous`.

    Returns:
      A transformation that keeps one copy of the parameters per worker and two centrally.

    Raises:
      ValueError: if ``num_workers`` is not positive.
    """
    check_positive_int("num_workers", num_workers)
    num_workers = operator.index(num_workers)

    def init_fn(params) -> Any:
        # Arrays of their own, so that jit can donate the state.
        zeros = lambda: jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params)
        return TakeTurnsState(
            jnp.zeros(num_workers, jnp.int32),
            jnp.zeros(num_workers, bool),
            Slots(zeros()),
            zeros(),
            zeros(),
            MadeFor(num_workers),
        )

    def update_fn(updates, state, params=None, *, worker: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("take_turns", worker=worker)
        early = state.stepped[worker]
        table = jax.tree.map(lambda m, a: jnp.where(early, a, m), state.mean, state.ahead)
        own, table = take_in(state.own.value, table, state.counts[worker], updates, num_workers)
        mean = jax.tree.map(lambda m, t: jnp.where(early, m, t), state.mean, table)
        ahead = jax.tree.map(lambda a, t: jnp.where(early, t, a), state.ahead, table)
        counts = state.counts.at[worker].add(1)
        # After the first step of a round, counts of 0 are those of the next table.
        step = ~early & (jnp.any(state.stepped) | jnp.all(counts > 0))
        stepped = state.stepped.at[worker].set(early | step)
        done = jnp.all(stepped)
        output = jax.tree.map(lambda g, m: jnp.where(step, m, jnp.zeros_like(m)).astype(g.dtype), updates, mean)
        return output, TakeTurnsState(
            counts=jnp.where(step, counts.at[worker].set(0), counts),
            stepped=stepped & ~done,
            own=Slots(own),
            mean=jax.tree.map(lambda m, a: jnp.where(done, a, m), mean, ahead),
            ahead=jax.tree.map(lambda a: jnp.where(done, jnp.zeros_like(a), a), ahead),
            workers=state.workers,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ringleader(learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1) -> "Method":
    """Ringleader ASGD: each worker makes one step per round, along the mean over all workers.

    For workers with data of their own. A table has the mean of each worker's gradients, and a step goes along the mean over the
    workers, so all of them have the same weight. In contrast to :func:`gemjax.malenia` no gradient is refused, and a round has
    n steps instead of one. In contrast to :func:`gemjax.incremental` no entry grows old: each worker contributes to each round,
    and a gradient is at most 2n - 2 steps old.

    A round has two phases. In the first, commits only enter the table, until each worker has an entry. In the second, each
    worker makes one step by its next commit; the commit that completes the table is the first of these steps. What a worker
    commits after its step enters the table of the next round.

        if w is not in A:
            b_w ← b_w + 1,   h_w ← h_w + (g - h_w) / b_w
            if all entries are there:
                θ ← θ - (η_t / n) Σ_j h_j,   A ← A ∪ {w}
        if w is in A:
            b_w⁺ ← b_w⁺ + 1,   h_w⁺ ← h_w⁺ + (g - h_w⁺) / b_w⁺
        if |A| = n:
            h ← h⁺,   b ← b⁺,   h⁺, b⁺ ← 0,   A ← ∅

    with w the worker that commits, g its gradient, h_j the entry of worker j, a mean of b_j gradients, h⁺ and b⁺ those of the
    next round, all 0 at the start, n the number of workers and A the workers that made their step of this round, none at the
    start.

    Reductions: with one worker it is :func:`gemjax.asgd`. Its first step is that of :func:`gemjax.malenia`.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable, also over those that
        make no step. The theory has at most 1/(8nL), with L the smoothness of the loss.
      num_workers: number of workers n, default 1. Each of them must commit in each round.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (h_w before its step, h_w⁺ after it) and two centrally (the means over the workers).

    Raises:
      ValueError: if ``learning_rate`` is negative or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.ringleader(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker, grads in ((0, 1.0), (1, 3.0), (1, 9.0), (0, 3.0), (0, 5.0)):  # The 9 waits for the next round.
    ...     updates, state = tx.update(jnp.array([grads]), state, worker=worker)
    ...     print(updates + 0.0)
    [0.]
    [-2.]
    [0.]
    [-2.5]
    [-7.]

    References:
      Maranjyan & Richtárik, `Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data Heterogeneity
      <https://arxiv.org/abs/2509.22860>`_, 2025

    Readings: the text of the paper was not available in full; the rule is that of `the code of Ringmaster LMO
    <https://github.com/vectozavr/ringmaster-lmo>`_, of which its authors are authors.

    Deviations from that code:
      1. The two tables share one copy per worker, because after its step a worker's old entry is needed in the mean only.
      2. The means are kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    return asynchronous(optax.chain(take_turns(num_workers), scale_by_learning_rate(learning_rate)), num_workers)
