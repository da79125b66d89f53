"""DiLoCo's outer step (Douillard et al., 2023)."""

import jax.numpy as jnp
import optax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.checks import check_learning_rate, check_momentum
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous, check_num_workers


def diloco(
    learning_rate: optax.ScalarOrSchedule = 0.7,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    nesterov: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""DiLoCo: a Nesterov step by the mean displacement of N commits, and none before.

    Workers run hundreds of local steps and commit how far they came; the centre takes the mean of N displacements for a
    gradient. If all workers wait for each other and pull after the N-th commit, that is DiLoCo. If each goes on by itself,
    it is DiLoCo's buffered form: N commits are gathered, whoever they are from, and a worker that pulls in between gets the
    central variable of the last step again.

    .. math::

      \bar\Delta &= \frac{1}{N} \sum_{j=1}^{N} \Delta_j \\
      v &\leftarrow \gamma v + \bar\Delta \\
      \theta &\leftarrow \theta - \eta_t \left(\bar\Delta + \gamma v\right)

    at every N-th commit, with :math:`v = 0` at the start and :math:`\Delta_1, \dots, \Delta_N` the commits since the last
    step, each what the worker pulled less where its local steps took it.

    Reductions: at a constant rate it is ``optax.MultiSteps`` of ``optax.sgd(learning_rate, momentum, nesterov=True)`` over N
    commits inside :func:`gemjax.asynchronous`; with one worker it is that optimizer itself. :func:`gemjax.delayed_nesterov`
    at ``spread=0`` has the same central variable after every N commits if it was committed the same displacements. With
    ``nesterov=False`` it is SlowMo (with its barrier, over local SGD of a constant rate :math:`\gamma_l`): SlowMo's
    velocity is :math:`v / \gamma_l` and its slow rate is ``learning_rate``.

    Args:
      learning_rate: :math:`\eta` of the outer step, a non-negative float or a schedule over commits of the central variable
        (N to an outer step, which has the rate of its last commit); default 0.7. Local steps have their own.
      momentum: :math:`\gamma` in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      nesterov: ``False`` for a heavy ball, :math:`\theta \leftarrow \theta - \eta_t v`; default ``True``.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. Keeps no copy of the
      parameters a worker and two at the centre (:math:`v`, :math:`\bar\Delta`).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.diloco(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1, 0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates + 0.0)
    [0.]
    [-1.5]
    [0.]
    [-1.75]

    References:
      Douillard et al., `DiLoCo: Distributed Low-Communication Training of Language Models
      <https://arxiv.org/abs/2311.08105>`_, 2023; Wang et al., `SlowMo: Improving Communication-Efficient Distributed SGD
      with Slow Momentum <https://arxiv.org/abs/1910.00643>`_, 2020

    Readings: the asynchronous form is what `a notebook by authors of DiLoCo
    <https://github.com/google-deepmind/asyncdiloco>`_ calls delayed SGD: the mean of as many displacements as there are
    workers, of which one worker may have sent several.

    Deviations from the paper:
      1. The barrier is left to whoever runs the workers.
      2. The mean is taken in the default float type, whatever that of the parameters.
    """
    check_learning_rate(learning_rate)
    check_momentum(momentum)
    check_num_workers(num_workers)
    # Outside of the rounds the learning rate counts commits.
    outer = _in_rounds(optax.trace(momentum, nesterov=nesterov), num_workers)
    return asynchronous(optax.chain(displacements(), outer, scale_by_learning_rate(learning_rate)), num_workers)


def _in_rounds(inner: optax.GradientTransformation, count: int) -> optax.GradientTransformationExtraArgs:
    """``inner`` on the mean of every ``count`` updates, kept in the float type that is the default when it is used."""

    def rounds() -> optax.GradientTransformationExtraArgs:
        kind = jnp.result_type(float)
        steps = optax.MultiSteps(inner, every_k_schedule=lambda _: count, accumulator_dtype=kind)
        return optax.with_extra_args_support(steps.gradient_transformation())

    def update_fn(updates, state, params=None, **extra_args):
        return rounds().update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(lambda params: rounds().init(params), update_fn)
