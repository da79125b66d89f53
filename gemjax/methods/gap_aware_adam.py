"""Gap-Aware in front of Adam (Barkai, Hakimi & Schuster, 2020)."""

import optax

from gemjax.methods.gap_aware import scale_by_gap
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_at_least, check_momentum
from gemjax.protocol.staleness import asynchronous


def gap_aware_adam(
    learning_rate: "optax.ScalarOrSchedule",
    num_workers: int = 1,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> "Method":
    """Gap-Aware Adam: a gradient is damped where the parameters have moved since its pull, measured in steps of Adam.

    :func:`gemjax.gap_aware` with Adam in place of the momentum. The gap is measured in the steps that Adam takes, and the
    gradient is divided by one plus it *before* it enters Adam's moments. To divide Adam's step would be another method: Adam
    cancels a constant factor of all its gradients, but not the ratios between them.

        C = η_max (√(a / (1 - β_2^n)) + ε_C)
        ĝ = g / (1 + |θ - s_w| / C)
        m ← β_1 m + (1 - β_1) ĝ
        q ← β_2 q + (1 - β_2) ĝ ⊙ ĝ,   n ← n + 1
        v = m / (1 - β_1^n) / (√(q / (1 - β_2^n)) + ε)
        a ← β_2 a + (1 - β_2) v ⊙ v
        θ ← θ - η_t v

    all elementwise, with w the worker that commits, s_w its view, m = q = a = 0 and n = 0 at the start, one of each for all
    workers, and ε_C = 10^(-8). η_max is the largest rate so far, this commit's included.

    Reductions:
      - where the gap is zero, so with one worker: ``optax.adam(learning_rate, b1, b2, eps)``;
      - it is ``scale_by_gap(learning_rate, optax.scale_by_adam(b1, b2, eps), decay=b2)`` in front of the learning rate and
        nothing more; any other optax optimizer can take Adam's place.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers N, default 1.
      b1: β_1 in [0, 1), default 0.9.
      b2: β_2 in [0, 1), also of the running mean of squared steps; default 0.999.
      eps: ε ≥ 0 of Adam, default 1e-8.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps one copy of the parameters per
      worker (s_w) and three centrally (m, q, ``a``).

    Raises:
      ValueError: if ``learning_rate`` or ``eps`` is negative, ``b1`` or ``b2`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.gap_aware_adam(learning_rate=0.5, num_workers=2, b1=0.0, b2=0.0)
    >>> params = jnp.array([1.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # For worker 1 the central variable has moved by one step: its gradient counts half.
    ...     updates, state = tx.update(jnp.array([3.0]), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    >>> optax.tree.get(state, "mu")
    Array([1.5], dtype=float32)

    References:
      Barkai, Hakimi & Schuster, `Gap-Aware Mitigation of Gradient Staleness <https://arxiv.org/abs/1909.10802>`_, 2020

    Readings: the text of the paper was not available in full. The form is that of a port by the authors' institute (FTPipe),
    in the one of its two variants that measures in steps of the largest rate, as the paper does without Adam. The running mean
    takes in a step after the commit that applied it, here as in the port: with Adam there is no other reading.

    Deviations from the port:
      1. The running mean is corrected for its start at zero. The port's is not and damps the first commits more.
      2. The rate is not part of the mean, so the damping fades when the rate falls. In the port's other variant the mean takes
         in whole steps, rate included, and forgets a larger rate after about 1 / (1 - β_2) commits.
      3. ``a`` is kept in float32 where the parameters are narrower.
      4. Weight decay is left to the chain.
    """
    check_momentum("b1", b1)
    check_momentum("b2", b2)
    check_at_least("eps", eps, 0.0)
    damped = scale_by_gap(learning_rate, optax.scale_by_adam(b1, b2, eps), decay=b2)
    return asynchronous(optax.chain(damped, scale_by_learning_rate(learning_rate)), num_workers)
