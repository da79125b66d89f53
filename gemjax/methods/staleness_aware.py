"""Damping by staleness: learning rates that fall with the staleness of a gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate
from gemjax.protocol.staleness import asynchronous, require_protocol

ZHANG2016STALENESS = Paper("inproceedings", "zhang2016staleness", {
    "author": "Zhang, Wei and Gupta, Suyog and Lian, Xiangru and Liu, Ji",
    "title": "Staleness-aware {Async-SGD} for Distributed Deep Learning",
    "booktitle": "International Joint Conference on Artificial Intelligence", "year": "2016",
    "eprint": "1511.05950"})  # fmt: skip
JIANG2017HETEROGENEITY = Paper("inproceedings", "jiang2017heterogeneity", {
    "author": "Jiang, Jiawei and Cui, Bin and Zhang, Ce and Yu, Lele",
    "title": "Heterogeneity-aware Distributed Parameter Servers",
    "booktitle": "ACM International Conference on Management of Data", "year": "2017",
    "doi": "10.1145/3035918.3035933"})  # fmt: skip
PAPERS = {"inverse": (ZHANG2016STALENESS,), "inverse_plus_one": (JIANG2017HETEROGENEITY,)}


def inverse(staleness: jax.Array) -> jax.Array:
    """Return 1/max(1, τ), the factor of :func:`gemjax.staleness_aware`."""
    return 1.0 / jnp.maximum(staleness, 1)


def inverse_plus_one(staleness: jax.Array) -> jax.Array:
    """Return 1/(τ + 1), the factor of :func:`gemjax.dynsgd`."""
    return 1.0 / (staleness + 1)


def scale_by_staleness(
    factor: Callable[[jax.Array], jax.Array] = inverse,
) -> "Method":
    """Scale a commit by a function of its staleness.

    The atom of :func:`gemjax.staleness_aware` and :func:`gemjax.dynsgd`. It works anywhere inside :func:`gemjax.asynchronous`.
    A factor below 1 *damps* the commit. In front of a momentum it damps the gradient in that momentum; behind a momentum it
    damps the step only.

    Args:
      factor: maps the staleness (int32 scalar, commits since the pull) to a float scalar. Default: 1/max(1, staleness).

    Returns:
      A stateless transformation that needs the extra argument ``staleness``. It offers the diagnostic ``compensation``, the
      share by which it damps a commit, and multiplies the diagnostic ``learning_rate`` of the chain.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.rules.scale_by_staleness(lambda staleness: 2.0 ** -staleness)
    >>> updates, _ = tx.update(jnp.ones(1), tx.init(None), staleness=jnp.int32(3))
    >>> updates
    Array([0.125], dtype=float32)
    """

    def update_fn(updates, state, params=None, *, staleness: Any = None, observe: Any = None, **extra_args):
        del params, extra_args
        require_protocol("scale_by_staleness", staleness=staleness)
        scale = factor(staleness)
        if observe is not None:
            observe("compensation", lambda: jnp.abs(1.0 - jnp.asarray(scale)))
            observe.scale("learning_rate", lambda: scale)
        return jax.tree.map(lambda u: u * jnp.asarray(scale, u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


class StalenessScheduleState(NamedTuple):
    """State of :class:`StalenessSchedule`."""

    count: jax.Array  # int32 []; commits so far.


class StalenessSchedule:
    """A hyper-parameter that depends on a commit's staleness, for ``optax.inject_hyperparams``.

    A stateful schedule of optax, for the learning rate, the momentum or another hyper-parameter of any optimizer. On a plain
    learning rate it does the same as :func:`scale_by_staleness` behind the optimizer. An ordinary schedule would not do,
    because it receives the count only.

    Args:
      value: a float or a schedule over commits of the central variable.
      factor: maps the staleness (int32 scalar, commits since the pull) to a float scalar that ``value`` is multiplied by.
        Default: 1/max(1, staleness).

    >>> import gemjax, jax.numpy as jnp, optax
    >>> adam = optax.inject_hyperparams(optax.adam)(learning_rate=gemjax.rules.StalenessSchedule(0.5))
    >>> tx = gemjax.asynchronous(adam, num_workers=3)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1, 2):  # All three pulled the initial parameters.
    ...     updates, state = tx.update(jnp.ones(1), state, jnp.zeros(1), worker=worker)
    ...     print(updates.round(3))
    [-0.5]
    [-0.5]
    [-0.25]
    """

    def __init__(self, value: "optax.ScalarOrSchedule", factor: Callable[[jax.Array], jax.Array] = inverse):
        self.value, self.factor = value, factor

    def init(self) -> StalenessScheduleState:
        """Return the state before the first commit."""
        return StalenessScheduleState(jnp.zeros([], jnp.int32))

    def update(
        self, state: StalenessScheduleState, *, staleness: Any = None, **extra_args: Any
    ) -> StalenessScheduleState:
        """Return the state after one more commit."""
        del extra_args
        require_protocol("StalenessSchedule", staleness=staleness)
        return StalenessScheduleState(jnp.asarray(optax.safe_increment(state.count)))

    def __call__(self, state: StalenessScheduleState, *, staleness: Any = 0, **extra_args: Any) -> jax.Array:
        """Return the value at this commit; optax asks for one without a staleness when it makes its state."""
        del extra_args
        return rate_at(self.value, state.count) * self.factor(jnp.asarray(staleness))


def staleness_aware(learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1) -> "Method":
    """Staleness-aware asynchronous SGD: the rate of a gradient is divided by its staleness.

        θ[t+1] = θ[t] - (η_t / max(1, τ)) g(θ[t-τ])

    The rule prevents divergence at the cost of speed: with N equal workers τ ≈ N - 1, so all of them together move about as far
    as one worker alone.

    Reductions: at τ ≤ 1, so with one or two workers in turn, it is :func:`gemjax.asgd`.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.staleness_aware(learning_rate=1.0, num_workers=3)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1, 2):  # All three pulled the initial parameters.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-1.]
    [-0.5]

    References:
      Zhang et al., `Staleness-aware Async-SGD for Distributed Deep Learning <https://arxiv.org/abs/1511.05950>`_, 2016

    Deviations from the paper:
      1. A gradient is applied when it arrives (the paper's n-softsync with n equal to the number of workers).
        ``optax.MultiSteps`` averages over several arrivals.
    """
    check_learning_rate(learning_rate)
    return asynchronous(optax.chain(scale_by_staleness(inverse), scale_by_learning_rate(learning_rate)), num_workers)


def dynsgd(learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1) -> "Method":
    """DynSGD: the rate of a gradient is divided by its staleness plus one.

        θ[t+1] = θ[t] - (η_t / (τ + 1)) g(θ[t-τ])

    It differs from :func:`gemjax.staleness_aware` in that a gradient one commit old already counts half. This is the "adaptive
    staleness" in the comparisons of the GEM paper.

    Reductions: at τ = 0 it is :func:`gemjax.asgd`; with one worker it is ``optax.sgd``.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.dynsgd(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-0.5]

    References:
      Jiang et al., `Heterogeneity-aware Distributed Parameter Servers <https://doi.org/10.1145/3035918.3035933>`_, 2017
    """
    check_learning_rate(learning_rate)
    return asynchronous(
        optax.chain(scale_by_staleness(inverse_plus_one), scale_by_learning_rate(learning_rate)), num_workers
    )
