"""Incremental aggregation: a step uses the last gradient of every worker (Chang et al., 2025)."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.methods.ringleader import MARANJYAN2025RINGLEADER
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_learning_rate, check_positive_int
from gemjax.protocol.hooks import MadeFor
from gemjax.protocol.slots import SharedRows, Slots
from gemjax.protocol.staleness import asynchronous, require_protocol

CHANG2025MITIGATING = Paper("article", "chang2025mitigating", {
    "author": "Chang, Xiangyu and Yao, Manyi and Krishnamurthy, Srikanth V. and Shelton, Christian R. and "
    "Chakraborty, Anirban and Swami, Ananthram and Oymak, Samet and {Roy-Chowdhury}, Amit",
    "title": "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning", "year": "2025",
    "eprint": "2511.19066"})  # fmt: skip
PAPERS = dict.fromkeys(("aggregate_last", "aggregate_recent"), (CHANG2025MITIGATING, MARANJYAN2025RINGLEADER))


class AggregateLastState(NamedTuple):
    """State of :func:`aggregate_last`."""

    missing: jax.Array  # int32 []; workers without an entry.
    committed: Slots  # bool []; True once the worker has an entry.
    entry: Slots  # h_w, like params; the worker's last gradient.
    mean: PyTree  # h, like params but at least float32; the mean of all entries.
    workers: MadeFor


def aggregate_last(num_workers: int) -> "Method":
    """Replace a gradient by the mean of the last gradients of all workers.

    The atom of :func:`gemjax.incremental`, whose docstring explains the mathematics. Its output is zero until each worker has
    committed once. It goes before the learning rate in a chain inside :func:`gemjax.asynchronous`.

    Args:
      num_workers: number of workers N, the same as that of :func:`gemjax.asynchronous`.

    Returns:
      A transformation that keeps one copy of the parameters per worker and one centrally.

    Raises:
      ValueError: if ``num_workers`` is not positive.
    """
    check_positive_int("num_workers", num_workers)
    num_workers = operator.index(num_workers)

    def init_fn(params) -> Any:
        return AggregateLastState(
            missing=jnp.asarray(num_workers, jnp.int32),
            committed=Slots(jnp.zeros([], bool)),
            entry=Slots(optax.tree.zeros_like(params)),
            mean=jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params),
            workers=MadeFor(num_workers),
        )

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("aggregate_last", staleness=staleness)
        mean = jax.tree.map(
            lambda m, g, h: m + (g.astype(m.dtype) - h.astype(m.dtype)) / num_workers,
            state.mean,
            updates,
            state.entry.value,
        )
        missing = state.missing - jnp.where(state.committed.value, 0, 1)
        step = jax.tree.map(lambda g, m: jnp.where(missing == 0, m, jnp.zeros_like(m)).astype(g.dtype), updates, mean)
        return step, AggregateLastState(missing, Slots(jnp.ones([], bool)), Slots(updates), mean, state.workers)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class AggregateRecentState(NamedTuple):
    """State of :func:`aggregate_recent`, shared by all workers."""

    count: jax.Array  # int32 []; commits so far.
    last: jax.Array  # int32 [N]; clock of each worker's last commit, -1 before its first.
    recent: jax.Array  # int32 [max_age + 1]; workers of the last commits, that of clock t at t mod (max_age + 1).
    entries: SharedRows  # h_w, like params; each worker's last gradient.
    total: PyTree  # Like params but at least float32; the sum of the entries that are young enough.
    workers: MadeFor


def aggregate_recent(num_workers: int, max_age: int) -> "Method":
    """Replace a gradient by the mean of the workers' last gradients, without those of ``max_age`` commits ago and before.

    The atom of :func:`gemjax.incremental` with ``max_age``. Its output is zero until each worker has committed once. It goes
    before the learning rate in a chain inside :func:`gemjax.asynchronous`.

    Args:
      num_workers: number of workers N, the same as that of :func:`gemjax.asynchronous`.
      max_age: commits since a gradient's own, from which on it counts no more; a positive int.

    Returns:
      A transformation that needs the extra argument ``worker``. It keeps one copy of the parameters per worker and one
      centrally.

    Raises:
      ValueError: if ``num_workers`` or ``max_age`` is not positive.
    """
    check_positive_int("num_workers", num_workers)
    check_positive_int("max_age", max_age)
    num_workers = operator.index(num_workers)

    def init_fn(params) -> Any:
        return AggregateRecentState(
            count=jnp.zeros([], jnp.int32),
            last=jnp.full(num_workers, -1, jnp.int32),
            recent=jnp.full(operator.index(max_age), -1, jnp.int32),
            entries=SharedRows.of(optax.tree.zeros_like(params), num_workers),
            total=jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params),
            workers=MadeFor(num_workers),
        )

    def update_fn(updates, state, params=None, *, worker: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("aggregate_recent", worker=worker)
        clock, limit = state.count, len(state.recent)
        old = state.recent[clock % limit]
        before, oldest = state.last[worker], jnp.maximum(old, 0)
        counted = (before >= 0) & (clock - before <= limit)  # The entry that this gradient replaces.
        ends = (old >= 0) & (old != worker) & (state.last[oldest] == clock - limit)
        replaced = state.entries.to_be_replaced(worker)
        entries = state.entries.write(worker, updates)
        total = jax.tree.map(
            lambda s, g, h, o: s + (g.astype(s.dtype) - jnp.where(counted, h, 0) - jnp.where(ends, o, 0)),
            state.total,
            updates,
            replaced,
            entries.read(oldest),
        )
        last = state.last.at[worker].set(clock)
        young = jnp.sum((last >= 0) & (clock - last < limit))
        full = jnp.all(last >= 0)
        step = jax.tree.map(
            lambda g, s: jnp.where(full, s / young.astype(s.dtype), jnp.zeros_like(s)).astype(g.dtype), updates, total
        )
        recent = state.recent.at[clock % limit].set(worker)
        clock = jnp.asarray(optax.safe_increment(clock))
        return step, AggregateRecentState(clock, last, recent, entries, total, state.workers)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def incremental(
    learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1, *, max_age: int | None = None
) -> "Method":
    """Incremental aggregated asynchronous SGD (IA²SGD, ACE): each step uses the last gradient of every worker.

    If each worker has data of its own, steps along single gradients favour the fast workers, which commit more often. Here the
    last gradient of each worker stays in a table, and a step goes along the mean of the table: every worker has the same
    weight, whatever its speed. The price is a copy of the parameters per worker, and gradients that are used again until their
    worker returns, so the entry of a straggler grows old.

        h ← h + (g - h_w) / n
        h_w ← g
        θ ← θ - η_t h

    with g the gradient of the worker w that commits, h_w its entry, h the mean of the n entries, all 0 at the start, and n the
    number of workers. θ does not move until the table is full.

    With ``max_age`` (ACED) the mean is that of the entries of the last ``max_age`` commits alone, so a worker that is lost or
    very slow stops to hold the others back, at the price of less weight for slow workers.

    Reductions: with one worker it is :func:`gemjax.asgd`. If all workers commit before one pulls, the last of these commits
    makes the step of synchronous SGD.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers n, default 1. Each of them must commit once before the first step.
      max_age: A, commits since a gradient's own, from which on it counts no more; a positive int, at best some multiple
        of n; ``None`` (default) is no limit.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (h_w) and one centrally (h).

    Raises:
      ValueError: if ``learning_rate`` is negative, or ``num_workers`` or ``max_age`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.incremental(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker, grads in ((0, 1.0), (1, 3.0), (0, 2.0)):
    ...     updates, state = tx.update(jnp.array([grads]), state, worker=worker)
    ...     print(updates + 0.0)
    [0.]
    [-2.]
    [-2.5]

    References:
      - Chang et al., `Mitigating Participation Imbalance Bias in Asynchronous Federated Learning
        <https://arxiv.org/abs/2511.19066>`_, 2025 (ACE, ACED)
      - Maranjyan & Richtárik, `Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
        Heterogeneity <https://arxiv.org/abs/2509.22860>`_, 2025 (the name IA²SGD and the comparison)

    Readings: the text of the papers was not available in full; the rule is that of `the code of Ringmaster LMO
    <https://github.com/vectozavr/ringmaster-lmo>`_, which authors of the second paper wrote.

    Deviations from that code:
      1. The commit that fills the table makes the first step. There the next one does.
      2. h is kept in float32 where the parameters are narrower, and is updated by differences as there, so rounding
         errors add up: slowly those of ordinary gradients, at once those of a very large one, which no later commit removes.
         Clip gradients to prevent them.
      3. A worker that leaves keeps its entry, without ``max_age``. With it the age counts from the commit of a gradient; the
         rule of ACED is from a summary.
    """
    check_learning_rate(learning_rate)
    part = aggregate_last(num_workers) if max_age is None else aggregate_recent(num_workers, max_age)
    return asynchronous(optax.chain(part, scale_by_learning_rate(learning_rate)), num_workers)
