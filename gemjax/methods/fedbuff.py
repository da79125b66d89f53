"""FedBuff: displacements are buffered, and their weighted mean makes a step (Nguyen et al., 2022)."""

import optax

from gemjax.methods.gather import Weight, gather, once_per_round, weight_by_name
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate, check_positive_int
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous


def fedbuff(
    learning_rate: "optax.ScalarOrSchedule" = 1.0,
    num_workers: int = 1,
    *,
    buffer_size: int = 10,
    weight: "str | Weight" = "polynomial",
    mean_staleness: float = 0.0,
    inner: "optax.GradientTransformation | None" = None,
) -> "Method":
    """FedBuff: the central variable moves once per buffer of displacements, and none is refused.

    Workers run local steps and commit their displacements. A step averages the next K that arrive, several of them possibly
    from one worker. It is less noisy than one displacement, and no worker waits for a slow one. A stale displacement is damped.

        θ ← θ - (η_t / K) Σ_k w(τ_k) Δ_k   over the K displacements
        w(τ) = u(τ) / u(τ̄)
        u(τ) = 1,   (1 + τ)^(-1/2)   or   1 / (1 + 10 max(0, τ - 4))

    with Δ_k the k-th displacement since the last step, from its worker's view to the point after the local steps, and τ_k the
    number of steps since that worker's pull.

    Reductions: at ``buffer_size=1`` and a constant weight it is :func:`gemjax.downpour`; at ``buffer_size=num_workers`` and a
    constant weight it is :func:`gemjax.diloco` without momentum, so with a barrier FedAvg, and :func:`gemjax.diloco` with
    ``inner=optax.trace(0.9, nesterov=True)``.

    Args:
      learning_rate: η of the central step, a non-negative float or a schedule over commits of the central variable;
        default 1, the mean of the workers' points where no displacement is stale. Each displacement is a commit; a step has the
        rate of the commit that completes it. The local optimizer has its own rate.
      num_workers: number of workers N, default 1.
      buffer_size: K, commits per step, a positive int, default 10, the published one for about a thousand workers. Take
        fewer for few workers.
      weight: u: ``"constant"``, ``"polynomial"`` (default) or ``"hinge"``, as above, or a function from the staleness
        in steps (int32 scalar) to a float scalar, such as :func:`gemjax.rules.polynomial_weight` or
        :func:`gemjax.rules.hinge_weight` with other numbers. Under ``optax.inject_hyperparams`` a function must be named in
        ``static_args``.
      mean_staleness: τ̄ ≥ 0, the staleness that counts in full, default 0. With the mean staleness of a run,
        fresher displacements count more and staler ones less than in full.
      inner: an optimizer of the central variable without a learning rate, applied to the mean of each full buffer and not
        called in between: ``optax.trace(0.9)`` for momentum, ``optax.scale_by_adam()`` for FedAdam. ``None`` (default): none.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. It keeps no copy of the
      parameters per worker and one centrally (the sum so far), besides the state of ``inner``, and offers the diagnostic
      ``compensation``.

    Raises:
      ValueError: if ``learning_rate`` or ``mean_staleness`` is negative, ``buffer_size`` or ``num_workers`` not positive, or
        ``weight`` unknown, or u(τ̄) not finite and positive; in an engine, without ``local=``.
      TypeError: if ``inner`` is no optax transformation.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.fedbuff(num_workers=2, buffer_size=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1, 1):  # One step was made since the pull of the last two: they count 1 / sqrt(2).
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates.round(3) + 0.0)
    [0.]
    [-1.]
    [0.]
    [-0.707]

    References:
      - Nguyen et al., `Federated Learning with Buffered Asynchronous Aggregation <https://arxiv.org/abs/2106.06639>`_, 2022
      - Xie, Koyejo & Gupta, `Asynchronous Federated Optimization <https://arxiv.org/abs/1903.03934>`_, 2019 (the weights)

    Readings: the text of the papers was not available in full. The rule, the polynomial weight and the division by that of a
    mean staleness are those of `the first authors' simulator <https://github.com/facebookresearch/FLSim>`_; the hinge is that
    of programs that follow the second paper. The published buffer size is recalled.

    Deviations from the simulator:
      1. A step takes the sum of weighted displacements over K. There the sum is not divided, so its rate is
         η / K; it can also divide by the sum of the weights.
      2. Displacements are not weighted by the number of a worker's examples.
      3. There is no privacy. Without a buffer the simulator has a momentum that rises with the staleness; here it is constant.
      4. The rest of a buffer at the end of a run is not applied.
      5. The sum is kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    check_positive_int("buffer_size", buffer_size)
    parts: list[optax.GradientTransformation] = [
        displacements(),
        gather(buffer_size, weight_by_name(weight, mean_staleness)),
    ]
    if inner is not None:
        parts.append(once_per_round(inner, buffer_size))
    return asynchronous(optax.chain(*parts, scale_by_learning_rate(learning_rate)), num_workers)
