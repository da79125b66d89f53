"""Ringmaster: gradients above a limit of staleness are refused (Maranjyan et al., 2025)."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_between, check_learning_rate, check_positive_int
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.staleness import asynchronous, require_protocol

MARANJYAN2025RINGMASTER = Paper("article", "maranjyan2025ringmaster", {
    "author": "Maranjyan, Artavazd and Tyurin, Alexander and Richt{\\'a}rik, Peter",
    "title": "{Ringmaster ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity", "year": "2025",
    "eprint": "2501.16168"})  # fmt: skip
Threshold = Callable[[jax.Array], Any]
PAPERS = {"drop_stale": (MARANJYAN2025RINGMASTER,)}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["count"], meta_fields=["threshold"])
@dataclasses.dataclass(frozen=True)
class RefusalsOfStale(Refusals):
    """Refuses commits of a staleness of ``threshold``, a number of Python, which is no part of a checkpoint."""

    threshold: Any

    def refuses(self, staleness: jax.Array) -> jax.Array:
        """Return True if a commit is too old."""
        return staleness >= self.threshold


@functools.partial(jax.tree_util.register_dataclass, data_fields=["count", "applied"], meta_fields=["threshold"])
@dataclasses.dataclass(frozen=True)
class RefusalsBySchedule(Refusals):
    """Refuses commits of a staleness of ``threshold(applied)``."""

    applied: jax.Array  # int32 []; commits that were not refused.
    threshold: Threshold

    def refuses(self, staleness: jax.Array) -> jax.Array:
        """Return True if a commit is too old."""
        return staleness >= self.threshold(self.applied)


class DropStaleState(NamedTuple):
    """State of :func:`drop_stale`."""

    refusals: Refusals  # Of a threshold that is an array: a count, which the rule raises itself.


def drop_stale(threshold: float | Threshold) -> "Method":
    """Refuse every commit that is ``threshold`` or more commits old.

    The atom of :func:`gemjax.ringmaster`. It works anywhere inside :func:`gemjax.asynchronous`, in front of any method. A
    refused commit changes neither the parameters nor the clock nor the memory of any member; its worker pulls again.
    ``state…refusals.count`` is the number of refused commits. Engines report them as ``dropped``.

    Args:
      threshold: R ≥ 1 in commits; an int, a float (``math.inf`` refuses nothing) or an integer scalar array, as under
        ``optax.inject_hyperparams``. An int or float holds from the first commit on, also where a wrapper such as
        ``optax.conditionally_transform`` skips this rule; an array holds at the commits at which the rule runs. A schedule
        maps the number of applied commits (int32 scalar) to it.

    Returns:
      A transformation that needs the extra argument ``staleness``.

    Raises:
      ValueError: if ``threshold`` is below 1.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(2), optax.scale_by_adam()), num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):  # The commit of worker 1 is two commits late.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    >>> print(updates, state.clock)
    [0.] 2
    """
    first = threshold(jnp.int32(0)) if callable(threshold) else threshold
    check_between("threshold(0)" if callable(threshold) else "threshold", first, 1.0, math.inf)
    by_array = isinstance(threshold, jax.Array)
    if not by_array and not callable(threshold):
        threshold = np.asarray(threshold).item()  # It needs a hash.

    def init_fn(params) -> Any:
        del params
        count = jnp.zeros([], jnp.int32)
        if callable(threshold):
            return DropStaleState(RefusalsBySchedule(count, jnp.zeros([], jnp.int32), threshold))
        return DropStaleState(Refusals(count) if by_array else RefusalsOfStale(count, threshold))

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("drop_stale", staleness=staleness)
        refusals = state.refusals
        if by_array:
            refusals = Refusals(refusals.count + (staleness >= threshold))
        elif isinstance(refusals, RefusalsBySchedule):
            refusals = dataclasses.replace(refusals, applied=jnp.asarray(optax.safe_increment(refusals.applied)))
        return updates, DropStaleState(refusals)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ringmaster(
    learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1, *, threshold: "float | Threshold | None" = None
) -> "Method":
    """Ringmaster ASGD: asynchronous SGD that refuses gradients above a limit of staleness.

    Delays are not damped but cut off: a gradient less than R commits old counts in full, any other is refused and its worker
    pulls again. The rate then does not depend on the slowest worker, and with R matched to the noise the time to a given
    accuracy is optimal, however unequal the workers are.

        θ[t+1] = θ[t] - η_t g(θ[t-τ])   if τ < R, else nothing happens

    Reductions: at ``threshold=math.inf`` it is :func:`gemjax.asgd`; at ``threshold=1`` only gradients at the current parameters
    count, so it is sequential SGD by the worker that commits first.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits (applied ones) of the central variable.
      num_workers: number of workers N, default 1.
      threshold: R ≥ 1 in commits, or a schedule over applied commits; ``None`` (default) is N. The theory has
        max(1, ⌈σ²/ε⌉), with σ² the variance of a gradient and
        ε the target for the squared norm of the gradient. Where these are not known, the parameter-agnostic
        form of the authors' code lets R_t grow as √t while η_t falls as t^(-3/4).

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``threshold`` below 1 or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.ringmaster(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):  # The commit of worker 1 is two commits late.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    >>> print(updates, state.clock)
    [0.] 2

    References:
      Maranjyan, Tyurin & Richtárik, `Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity
      <https://arxiv.org/abs/2501.16168>`_, 2025

    Readings: the rule is that of the authors' later code; its constants are from memory.

    Deviations from the paper:
      1. This is the first form in the paper, in which a worker finishes a gradient that has become too old. Traces of the
        second form (algorithm 2), which interrupts the worker, come from :class:`gemjax.arrivals.Interrupted`, and runs on
        devices and clusters have it with ``gemjax.Policy(interrupt=R)``. There a worker ends its local steps at the next one; a
        single gradient is finished, because XLA cannot be stopped, and then dropped.
    """
    check_learning_rate(learning_rate)
    check_positive_int("num_workers", num_workers)
    atom = drop_stale(num_workers if threshold is None else threshold)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
