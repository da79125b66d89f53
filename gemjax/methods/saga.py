"""Variance reduction by the last gradients of all workers: asynchronous SAGA (Defazio et al., 2014; Leblond et al., 2017)."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.incremental import aggregate_last
from gemjax.methods.papers import Paper
from gemjax.protocol import Method
from gemjax.protocol.staleness import require_protocol

DEFAZIO2014SAGA = Paper("article", "defazio2014saga", {
    "author": "Defazio, Aaron and Bach, Francis and {Lacoste-Julien}, Simon",
    "title": "{SAGA}: A Fast Incremental Gradient Method With Support for Non-Strongly Convex Composite Objectives",
    "year": "2014", "eprint": "1407.0202"})  # fmt: skip
LEBLOND2017ASAGA = Paper("article", "leblond2017asaga", {
    "author": "Leblond, R{\\'e}mi and Pedregosa, Fabian and {Lacoste-Julien}, Simon",
    "title": "{ASAGA}: Asynchronous Parallel {SAGA}", "year": "2017", "eprint": "1606.04809"})  # fmt: skip
PAPERS = {"correct_by_last": (DEFAZIO2014SAGA, LEBLOND2017ASAGA)}


def correct_by_last(num_workers: int) -> "Method":
    """Correct a gradient by its worker's last one and the mean of the last ones of all workers (SAGA over batches).

    Each worker has one batch of its own, or data that it computes full gradients of. A step goes along

        g - h_w + h,   h = (1/n) Σ_j h_j

    with g the gradient of the worker w that commits, and h_j the last gradient of worker j before this commit.
    :func:`gemjax.incremental` steps along the mean of the same table after the commit. Here the new gradient has its full
    weight: if all workers are equally likely to commit, the step is the gradient of all data in expectation. Near a minimum its
    variance falls to 0, so a constant learning rate converges.

    It helps convex problems and not modern networks (Defazio & Bottou, 2019), as :func:`gemjax.rules.reduce_variance`, which
    needs no copy per batch. If some workers are faster, their data count more.

    Reductions: with one worker it is no change. Its output is zero until each worker has committed once; that commit takes the
    mean, as :func:`gemjax.rules.aggregate_last` does.

    Args:
      num_workers: number of workers n, the same as that of :func:`gemjax.asynchronous`.

    Returns:
      A transformation that keeps one copy of the parameters per worker and one centrally. It goes before the learning rate.

    Raises:
      ValueError: if ``num_workers`` is not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(optax.chain(gemjax.rules.correct_by_last(2), optax.sgd(1.0)), num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker, grads in ((0, 1.0), (1, 3.0), (0, 2.0)):  # The third: 2 - 1 + (1 + 3) / 2.
    ...     updates, state = tx.update(jnp.array([grads]), state, worker=worker)
    ...     print(updates + 0.0)
    [0.]
    [-2.]
    [-3.]

    References:
      - Defazio, Bach & Lacoste-Julien, `SAGA: A Fast Incremental Gradient Method With Support for Non-Strongly Convex Composite
        Objectives <https://arxiv.org/abs/1407.0202>`_, 2014
      - Leblond, Pedregosa & Lacoste-Julien, `ASAGA: Asynchronous Parallel SAGA <https://arxiv.org/abs/1606.04809>`_, 2017
      - Defazio & Bottou, `On the Ineffectiveness of Variance Reduced Optimization for Deep Learning
        <https://arxiv.org/abs/1812.04529>`_, 2019

    Deviations from the papers:
      1. The table has an entry per worker, not per sample.
      2. It begins with a gradient of each worker, there with zeros.
      3. A commit is applied whole (ASAGA writes entry after entry).
    """
    init_fn = aggregate_last(num_workers).init

    def update_fn(updates, state, params=None, *, staleness: Any = None, **extra_args) -> Any:
        require_protocol("correct_by_last", staleness=staleness)
        mean, after = aggregate_last(num_workers).update(updates, state, params, staleness=staleness, **extra_args)
        corrected = jax.tree.map(
            lambda g, h, m, first: jnp.where(
                state.missing == 0, g.astype(m.dtype) - h.astype(m.dtype) + m, first.astype(m.dtype)
            ).astype(g.dtype),
            updates,
            state.entry.value,
            state.mean,
            mean,
        )
        return corrected, after

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
