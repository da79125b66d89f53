"""A learning rate that falls only at more than the ordinary staleness (Mishchenko et al., 2022)."""

import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.methods.staleness_aware import scale_by_staleness
from gemjax.protocol import Method
from gemjax.protocol.checks import check_at_least, check_learning_rate, check_positive_int
from gemjax.protocol.staleness import asynchronous

MISHCHENKO2022ASYNCHRONOUS = Paper("inproceedings", "mishchenko2022asynchronous", {
    "author": "Mishchenko, Konstantin and Bach, Francis and Even, Mathieu and Woodworth, Blake",
    "title": "Asynchronous {SGD} Beats Minibatch {SGD} Under Arbitrary Delays",
    "booktitle": "Advances in Neural Information Processing Systems", "year": "2022", "eprint": "2206.07638"})  # fmt: skip
KOLOSKOVA2022SHARPER = Paper("inproceedings", "koloskova2022sharper", {
    "author": "Koloskova, Anastasia and Stich, Sebastian U. and Jaggi, Martin",
    "title": "Sharper Convergence Guarantees for Asynchronous {SGD} for Distributed and Federated Learning",
    "booktitle": "Advances in Neural Information Processing Systems", "year": "2022", "eprint": "2206.08307"})  # fmt: skip
PAPERS = {
    "delay_adaptive": (
        MISHCHENKO2022ASYNCHRONOUS,
        KOLOSKOVA2022SHARPER,
    )
}


def delay_adaptive(
    learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1, *, threshold: float | None = None
) -> "Method":
    """Delay-adaptive asynchronous SGD: a gradient more than N commits old is damped.

    With N equal workers the ordinary staleness is N - 1, and the rate was chosen for it. Only stragglers are damped, in
    proportion to their staleness. The safe rate then depends on the number of workers and no longer on the slowest one.

        θ[t+1] = θ[t] - η_t (n / max(n, τ)) g(θ[t-τ])

    Reductions: where τ ≤ n, so with equal workers in turn, it is :func:`gemjax.asgd`; at ``threshold=1`` it is
    :func:`gemjax.staleness_aware`. It consists of :func:`gemjax.rules.scale_by_staleness` in front of the learning rate.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers N, default 1.
      threshold: n ≥ 1, the largest staleness, in commits, at which a gradient counts in full; ``None`` (default) is
        N.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``threshold`` below 1 or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.delay_adaptive(learning_rate=1.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(5):  # Without a pull the gradients are 0, 1, 2, 3, 4 commits old.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=1)
    >>> updates
    Array([-0.5], dtype=float32)

    References:
      - Mishchenko et al., `Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays
        <https://arxiv.org/abs/2206.07638>`_, 2022
      - Koloskova et al., `Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated Learning
        <https://arxiv.org/abs/2206.08307>`_, 2022

    Deviations from the papers:
      1. The rate is η n/max(n, τ), the form in later comparisons. The papers state rates with the smoothness
        constant, such as min(1/(4Ln), 1/(4Lτ)), which is the same number for η = 1/(4Ln).
      2. The second paper also allows stale gradients to be skipped. Here none is skipped.
    """
    check_learning_rate(learning_rate)
    check_positive_int("num_workers", num_workers)
    if threshold is not None:
        check_at_least("threshold", threshold, 1.0)
    whole = num_workers if threshold is None else threshold
    damp = scale_by_staleness(lambda staleness: 1.0 * whole / jnp.maximum(staleness, whole))
    return asynchronous(optax.chain(damp, scale_by_learning_rate(learning_rate)), num_workers)
