"""Variance reduction by a snapshot: AsySVRG (Reddi et al., 2015; Huo & Huang, 2016)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from gemjax.methods.papers import Paper
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_positive_int
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.staleness import require_protocol

REDDI2015VARIANCE = Paper("article", "reddi2015variance", {
    "author": "Reddi, Sashank J. and Hefny, Ahmed and Sra, Suvrit and P{\\'o}czos, Barnab{\\'a}s and Smola, Alex",
    "title": "On Variance Reduction in Stochastic Gradient Descent and its Asynchronous Variants", "year": "2015",
    "eprint": "1506.06840"})  # fmt: skip
HUO2016ASYNCHRONOUS = Paper("article", "huo2016asynchronous", {
    "author": "Huo, Zhouyuan and Huang, Heng",
    "title": "Asynchronous Stochastic Gradient Descent with Variance Reduction for Non-Convex Optimization",
    "year": "2016", "eprint": "1604.03584"})  # fmt: skip
PAPERS = {"reduce_variance": (REDDI2015VARIANCE, HUO2016ASYNCHRONOUS)}


class Snapshot(NamedTuple):
    """The anchor that :func:`reduce_variance` sends with a view."""

    params: PyTree  # The snapshot, like params.
    mean: PyTree  # The mean gradient at it, like params but at least float32.
    reduces: jax.Array  # bool []; False while the mean is being gathered.


class ReduceVarianceState(NamedTuple):
    """State of :func:`reduce_variance`."""

    count: jax.Array  # int32 []; commits in this phase so far.
    reduces: jax.Array  # bool []; False while gradients are gathered.
    snapshot: PyTree  # Like params.
    mean: PyTree  # Like params but at least float32.
    refusals: Refusals

    def refuses(self, staleness: jax.Array) -> jax.Array:
        """Return True for a gradient that was begun in an earlier phase."""
        return staleness > self.count

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Send the snapshot and its mean gradient along."""
        return self, view, (Snapshot(self.snapshot, self.mean, self.reduces),)


def reduce_variance(period: int, num_batches: int) -> "Method":
    """Take snapshots, with the mean gradient at them, for a loss that :func:`reduced_loss` made (asynchronous SVRG).

    Phases alternate. In the first the parameters do not move, and ``num_batches`` gradients at them are gathered; then the
    snapshot θ̃ is these parameters, and μ the mean of the gradients. In the second, ``period`` commits pass as they are.
    Workers compute them by the loss, which knows snapshot and mean:

        v = ∇f_i(θ_view) - ∇f_i(θ̃) + μ

    with f_i the loss of the batch. Near a minimum v has far less variance than ∇f_i, so a constant learning rate converges. It
    helps convex problems, where the batches are few enough to be gathered. It does not help modern networks (Defazio & Bottou,
    2019): dropout, data augmentation and batch normalisation make the gradient of a batch at the snapshot another one each
    time, and the snapshot is soon too far away. Each commit costs two gradients.

    A gradient that was begun in an earlier phase is refused, in place of a barrier at the end of each phase.

    Reductions: with one worker it is SVRG. At θ_view = θ̃ every batch gives v = μ. Without :func:`reduced_loss` it is SGD that
    pauses while it gathers.

    Args:
      period: commits per snapshot, a positive int; usually one to five times the number of batches.
      num_batches: gradients in μ, a positive int. If it is the number of all batches, and each of them comes once in
        the phase, μ is the full gradient; otherwise an estimate, whose error stays in all steps of the period.

    Returns:
      A transformation that keeps two copies of the parameters centrally; engines keep two more per worker, which were sent
      with its view. It works inside :func:`gemjax.asynchronous`, before a plain learning rate.

    Raises:
      ValueError: if ``period`` or ``num_batches`` is not a positive int.

    >>> import gemjax
    >>> batches = jnp.array([1.0, 3.0, 8.0])             # Means 4, where the gradients are -3, -1 and 4.
    >>> loss_fn = gemjax.rules.reduced_loss(lambda x, batch: 0.5 * (x - batch) ** 2)
    >>> tx = gemjax.asynchronous(optax.chain(gemjax.rules.reduce_variance(3, num_batches=3), optax.sgd(0.5)))
    >>> result = gemjax.simulate(tx, loss_fn, jnp.array(0.0), lambda worker, step: batches[step % 3], gemjax.Trace([0] * 12))
    >>> float(result.params)                             # Halves the distance six times, whatever the batch.
    3.9375

    References:
      - Reddi et al., `On Variance Reduction in Stochastic Gradient Descent and its Asynchronous Variants
        <https://arxiv.org/abs/1506.06840>`_, 2015
      - Huo & Huang, `Asynchronous Stochastic Gradient Descent with Variance Reduction for Non-Convex Optimization
        <https://arxiv.org/abs/1604.03584>`_, 2016
      - Defazio & Bottou, `On the Ineffectiveness of Variance Reduced Optimization for Deep Learning
        <https://arxiv.org/abs/1812.04529>`_, 2019

    Deviations from `the authors' program <https://github.com/ahefnycmu/asvrg>`_:
      1. It begins with a snapshot, there with an epoch of plain SGD.
      2. Workers do not wait at the end of a phase; what they had begun is refused.
      3. A commit is applied whole (there a lock around it is optional), and works on batches instead of single samples.
    """
    check_positive_int("period", period)
    check_positive_int("num_batches", num_batches)

    def init_fn(params) -> Any:
        wide = lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32))
        return ReduceVarianceState(
            jnp.zeros([], jnp.int32), jnp.zeros([], bool), jax.tree.map(jnp.copy, params), jax.tree.map(wide, params),
            Refusals(jnp.zeros([], jnp.int32)),
        )  # fmt: skip

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        del extra_args
        require_protocol("reduce_variance", staleness=staleness, params=params)
        gathers, count = ~state.reduces, state.count + 1
        ends = count == jnp.where(gathers, num_batches, period)
        gather = lambda m, g: jnp.where(gathers, jnp.where(state.count == 0, 0, m) + g.astype(m.dtype) / num_batches, m)
        after = ReduceVarianceState(
            count=jnp.where(ends, 0, count),
            reduces=jnp.where(ends, gathers, state.reduces),
            snapshot=jax.tree.map(lambda s, p: jnp.where(gathers & ends, p, s), state.snapshot, params),
            mean=jax.tree.map(gather, state.mean, updates),
            refusals=state.refusals,
        )
        return jax.tree.map(lambda g: jnp.where(gathers, jnp.zeros_like(g), g), updates), after

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def reduced_loss(loss_fn: Callable) -> "ReducedLoss":
    """Return a loss with the values of ``loss_fn``, and with gradients whose variance a snapshot reduces.

    It belongs to :func:`reduce_variance`, whose docstring explains the mathematics. Engines hand it the snapshot by
    ``with_anchors``. Without one, as in an evaluation, it is ``loss_fn``.

    Args:
      loss_fn: ``loss_fn(params, batch)``, or the form with model state and key, as for :func:`gemjax.simulate`. Both gradients
        are at the same batch, model state and key.

    Returns:
      A loss with the same arguments, for an engine.
    """
    return ReducedLoss(loss_fn)


class ReducedLoss:
    """The loss that :func:`reduced_loss` returns."""

    def __init__(self, loss_fn: Callable):
        self._loss_fn = loss_fn
        functools.update_wrapper(self, loss_fn)  # With its arguments.

    def __call__(self, *args):
        """Return ``loss_fn(*args)``."""
        return self._loss_fn(*args)

    def with_anchors(self, anchors: tuple) -> Callable:
        """Return the loss whose gradients the snapshot in ``anchors`` corrects.

        Raises:
          ValueError: if the method sends none.
        """
        if len(anchors) != 1 or not isinstance(anchors[0], Snapshot):
            raise ValueError(
                "the loss is of gemjax.rules.reduced_loss, but the method sends no snapshot; put "
                "gemjax.rules.reduce_variance(…) first in its chain"
            )
        snapshot, loss_fn = anchors[0], self._loss_fn

        def correction(params, rest):
            """Return 0, with the gradient mean - g(snapshot)."""
            gradient = jax.grad(lambda x: _value(loss_fn(x, *rest)))(snapshot.params)
            dot = lambda g, m, x: jnp.sum(lax.stop_gradient((m - g).astype(x.dtype)) * x)
            total = jnp.asarray(sum(jax.tree.leaves(jax.tree.map(dot, gradient, snapshot.mean, params))))
            return total - lax.stop_gradient(total)

        @functools.wraps(loss_fn)
        def loss(params, *rest):
            outcome = loss_fn(params, *rest)
            value = _value(outcome)
            none = lambda *_: jnp.zeros_like(value)
            correct = lambda *args: correction(*args).astype(value.dtype)
            value = value + lax.cond(snapshot.reduces, correct, none, params, rest)
            return (value, *outcome[1:]) if isinstance(outcome, tuple) else value

        return loss


def _value(outcome: Any) -> jax.Array:
    return outcome[0] if isinstance(outcome, tuple) else outcome
