"""Asynchronous local SGD: momentum once per round, and local steps by speed (Liu et al., 2024)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import (
    check_between,
    check_learning_rate,
    check_momentum,
    check_positive,
    check_positive_int,
)
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous

LIU2024ASYNCHRONOUS = Paper("article", "liu2024asynchronous", {
    "author": "Liu, Bo and Chhaparia, Rachita and Douillard, Arthur and Kale, Satyen and Rusu, Andrei A. and "
    "Shen, Jiajun and Szlam, Arthur and Ranzato, Marc'Aurelio",
    "title": "Asynchronous Local-{SGD} Training for Language Modeling", "year": "2024", "eprint": "2401.09135"})  # fmt: skip
PAPERS = {"delay_momentum": (LIU2024ASYNCHRONOUS,)}


class DelayMomentumState(NamedTuple):
    """State of :func:`delay_momentum`, shared by all workers."""

    gathered: jax.Array  # int32 []; commits in the sum.
    total: PyTree  # D, like params but at least float32; the sum of the displacements since the momentum changed.
    velocity: PyTree  # v, like params.


def delay_momentum(momentum: float = 0.9, buffer_size: int = 1, spread: float = 0.0) -> "Method":
    """Nesterov momentum that changes once per round of commits, while each commit acts at once.

    The atom of :func:`gemjax.delayed_nesterov`, whose docstring explains the mathematics and the arguments. It goes before the
    learning rate in a chain.

    Args:
      momentum: as in :func:`gemjax.delayed_nesterov`.
      buffer_size: as in :func:`gemjax.delayed_nesterov`, a positive int.
      spread: as in :func:`gemjax.delayed_nesterov`.

    Returns:
      A transformation that keeps two copies of the parameters centrally (the velocity and the sum).

    Raises:
      ValueError: if ``momentum`` is outside [0, 1), ``buffer_size`` not positive or ``spread`` outside
        [0, 1/``buffer_size``].
    """
    check_momentum("momentum", momentum)
    check_positive_int("buffer_size", buffer_size)
    check_between("spread", spread, 0.0, 1 / buffer_size)

    def init_fn(params) -> Any:
        return DelayMomentumState(
            gathered=jnp.zeros([], jnp.int32),
            total=jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params),
            velocity=optax.tree.zeros_like(params),
        )

    def update_fn(updates, state, params=None, **extra_args) -> Any:
        del params, extra_args
        gathered = state.gathered + 1
        full = gathered >= buffer_size
        total = jax.tree.map(lambda d, g: d + g.astype(d.dtype), state.total, updates)

        def renew(v, d):
            mean = (d / buffer_size).astype(v.dtype)
            return jnp.where(full, jnp.asarray(momentum, v.dtype) * v + mean, v)

        velocity = jax.tree.map(renew, state.velocity, total)
        part = momentum * jnp.where(full, 1 - spread * buffer_size + spread, spread)
        updates = jax.tree.map(
            lambda v, g: jnp.asarray(part, v.dtype) * v + g / jnp.asarray(buffer_size, g.dtype), velocity, updates
        )
        return updates, DelayMomentumState(
            gathered=jnp.where(full, jnp.zeros_like(gathered), gathered),
            total=jax.tree.map(lambda d: jnp.where(full, jnp.zeros_like(d), d), total),
            velocity=velocity,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def delayed_nesterov(
    learning_rate: "optax.ScalarOrSchedule" = 0.07,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    buffer_size: int | None = None,
    spread: float = 0.0,
) -> "Method":
    """Delayed Nesterov: each displacement acts at once, and the momentum changes once per round.

    Workers run local steps and commit their displacements. A Nesterov momentum that takes in each displacement on arrival
    carries each stale displacement into later steps. Here the momentum takes in the mean of K displacements, and the commits
    before the last of a round are plain steps. The K steps of a round together are one Nesterov step.

        D ← D + Δ,   k ← k + 1
        if k < K:
            θ ← θ - η_t (c γ v + Δ / K)
        if k = K:
            v ← γ v + D / K
            θ ← θ - η_t ((1 - c K + c) γ v + Δ / K),   D, k ← 0

    with v = D = 0 and k = 0 at the start, shared by all workers, and Δ = s_w - x_w the displacement of the worker w that
    commits, from its view s_w to the point x_w after its local steps.

    Reductions: at ``spread=0`` and a constant rate the updates of K commits sum to one update of ``optax.sgd(learning_rate,
    momentum, nesterov=True)`` by the mean displacement; at ``buffer_size=1`` each commit is such an update; at ``momentum=0``
    it is :func:`gemjax.asgd` at ``learning_rate / buffer_size``.

    Args:
      learning_rate: η of the outer step, a non-negative float or a schedule over commits of the central variable;
        default 0.07. The local optimizer has its own rate.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      buffer_size: K, commits per round, a positive int; ``None`` (default) is N.
      spread: c in [0, 1/K], the share of the momentum in each commit before the last of a round; default 0.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. It keeps no copy of the
      parameters per worker and two centrally (v, D).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1), ``num_workers`` or ``buffer_size`` not
        positive or ``spread`` outside [0, 1/``buffer_size``].

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.delayed_nesterov(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1, 0, 1):  # Half of each displacement; every second commit adds the momentum.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-0.5]
    [-1.]
    [-0.5]
    [-1.25]

    References:
      Liu et al., `Asynchronous Local-SGD Training for Language Modeling <https://arxiv.org/abs/2401.09135>`_, 2024

    Readings: the text of the paper was not available in full; the steps are those of an implementation that names it as its
    source. The rate is that of `the authors' notebook <https://github.com/google-deepmind/asyncdiloco>`_, where the momentum
    acts at each commit.

    Deviations from the paper:
      1. Commits that arrive close together are not merged into one (the grace period of the paper); an engine can do that.
      2. D is kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    check_positive_int("num_workers", num_workers)
    atom = delay_momentum(momentum, num_workers if buffer_size is None else buffer_size, spread)
    return asynchronous(optax.chain(displacements(), atom, scale_by_learning_rate(learning_rate)), num_workers)


def dynamic_periods(period: int, speeds: Sequence[float], minimum: int = 1) -> tuple[int, ...]:
    """Return the local steps of each worker so that all workers finish at about the same time (dynamic local updates).

        H_w = max(H_min, ⌊H u_w / max_j u_j⌋)

    Args:
      period: H, the local steps of the fastest worker, a positive int.
      speeds: u_w, local steps per unit of time, one positive number per worker (a rate, not a duration).
      minimum: H_min, the fewest local steps of a worker, from 1 to ``period``; default 1.

    Returns:
      A tuple of N ints, the local steps of each worker.

    Raises:
      ValueError: if ``period`` is not positive, ``minimum`` not between 1 and ``period``, or ``speeds`` empty or not
        positive.

    >>> import gemjax
    >>> gemjax.rules.dynamic_periods(20, speeds=(4.0, 2.0, 1.0, 0.1))
    (20, 10, 5, 1)

    References:
      Liu et al., `Asynchronous Local-SGD Training for Language Modeling <https://arxiv.org/abs/2401.09135>`_, 2024
    """
    check_positive_int("period", period)
    check_positive_int("minimum", minimum)
    check_between("minimum", minimum, 1, period)
    speeds = tuple(speeds)
    for speed in speeds:
        check_positive("each of speeds", speed)
    fastest = max(speeds)
    # The small term keeps a whole number whole if its quotient rounds down.
    return tuple(max(minimum, math.floor(period * float(speed / fastest) + 1e-9)) for speed in speeds)
