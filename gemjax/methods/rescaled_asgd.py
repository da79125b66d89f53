"""Rescaled asynchronous SGD: rates such that all workers count alike (Mahran et al., 2026)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_at_least, check_choice, check_learning_rate
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, require_protocol

MAHRAN2026RESCALED = Paper("article", "mahran2026rescaled", {
    "author": "Mahran, Ammar and Maranjyan, Artavazd and Richt{\\'a}rik, Peter",
    "title": "Rescaled Asynchronous {SGD}: Optimal Distributed Optimization under Data and System Heterogeneity",
    "year": "2026", "eprint": "2605.13434"})  # fmt: skip
PAPERS = {"scale_by_participation": (MAHRAN2026RESCALED,)}
FIRST = 3  # Commits of a worker from which its share is an estimate.


class ScaleByParticipationState(NamedTuple):
    """State of :func:`scale_by_participation`."""

    count: jax.Array  # int32 []; commits so far.
    own: Slots  # int32 []; commits of the worker.


def scale_by_participation(estimator: str = "count", *, cap: float = 4.0) -> "Method":
    """Scale a commit by the inverse of its worker's share of all commits, so that all workers count alike.

    The atom of :func:`gemjax.rescaled_asgd`, whose docstring explains the mathematics. It works anywhere inside
    :func:`gemjax.asynchronous`. In front of a momentum it scales the gradient in that momentum.

    Args:
      estimator: ``"count"`` (default) divides by the worker's share of the commits so far; ``"interval"`` multiplies by the
        commits since the worker's pull.
      cap: largest factor, at least 1, default 4. Above it the worker counts less than others.

    Returns:
      A transformation that needs the extra arguments ``staleness`` and ``num_workers``. It keeps one number per worker. It
      offers the diagnostic ``compensation``, the share by which it changes a commit, and multiplies the diagnostic
      ``learning_rate`` of the chain.

    Raises:
      ValueError: if ``estimator`` is unknown or ``cap`` below 1.
    """
    check_choice("estimator", estimator, ("count", "interval"))
    check_at_least("cap", cap, 1.0)

    def init_fn(params) -> Any:
        del params
        return ScaleByParticipationState(jnp.zeros([], jnp.int32), Slots(jnp.zeros([], jnp.int32)))

    def update_fn(
        updates, state, params=None, *, staleness: Any = None, num_workers: Any = None, observe=None, **extra_args
    ) -> Any:
        del params, extra_args
        require_protocol("scale_by_participation", staleness=staleness, num_workers=num_workers)
        count, own = (jnp.asarray(optax.safe_increment(c)) for c in (state.count, state.own.value))
        by_count = jnp.where(own < FIRST, 1.0, 1.0 * count / (num_workers * own))
        scale = jnp.minimum(by_count if estimator == "count" else (staleness + 1.0) / num_workers, cap)
        if observe is not None:
            observe("compensation", lambda: jnp.abs(1.0 - scale))
            observe.scale("learning_rate", lambda: scale)
        scaled = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
        return scaled, ScaleByParticipationState(count, Slots(own))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def rescaled_asgd(
    learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1, *, estimator: str = "count", cap: float = 4.0
) -> "Method":
    """Rescaled ASGD: the rate of a worker is proportional to the time that it needs, so that all workers count alike.

    If each worker has data of its own, plain :func:`gemjax.asgd` minimises a mean in which fast workers weigh more. With rates
    inverse to the workers' shares p_w of all commits, each worker contributes the same total rate. Against
    :func:`gemjax.incremental`, :func:`gemjax.ringleader` and :func:`gemjax.malenia` it needs no copy of the parameters, but its
    steps along a slow worker are large.

        θ[t+1] = θ[t] - η_t min(1 / (n p_w), cap) g(θ[t-τ])

    with n the number of workers. With ``estimator="count"`` the share is p_w = c_w / (t + 1), where c_w commits of the t + 1 so
    far are the worker's; the factor is 1 at its first two. With ``"interval"`` the factor is (τ + 1) / n: a worker that
    computes all the time returns every 1/p_w commits on average. It needs no memory and follows workers whose speed changes,
    but multiplies just the stalest gradients, as the inverse of :func:`gemjax.dynsgd`.

    Reductions: with one worker, and with equal workers in turn, it is :func:`gemjax.asgd`, for ``"interval"`` from the second
    round on. It consists of :func:`gemjax.rules.scale_by_participation` in front of the learning rate.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable; the mean rate of a
        commit.
      num_workers: number of workers n, default 1.
      estimator: ``"count"`` (default) or ``"interval"``.
      cap: largest factor, at least 1, default 4. Workers with a share below 1 / (n · cap) still count less.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``estimator`` unknown, ``cap`` below 1 or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.rescaled_asgd(learning_rate=1.0, num_workers=2, estimator="interval")
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1):  # Both pulled the initial parameters.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-0.5]
    [-1.]

    References:
      Mahran, Maranjyan & Richtárik, `Rescaled Asynchronous SGD: Optimal Distributed Optimization under Data and System
      Heterogeneity <https://arxiv.org/abs/2605.13434>`_, 2026

    Readings: only the abstract was available. It has rates in proportion to known times of computation.

    Deviations from the paper:
      1. The times are not given but estimated from the commits.
      2. The factor has a cap.
    """
    check_learning_rate(learning_rate)
    part = scale_by_participation(estimator, cap=cap)
    return asynchronous(optax.chain(part, scale_by_learning_rate(learning_rate)), num_workers)
