"""DiLoCo's outer step (Douillard et al., 2023)."""

import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_bool, check_learning_rate, check_momentum, check_positive_int
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous

DOUILLARD2023DILOCO = Paper("article", "douillard2023diloco", {
    "author": "Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and Chhaparia, Rachita and Donchev, Yani and "
    "Kuncoro, Adhiguna and Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun",
    "title": "{DiLoCo}: Distributed Low-Communication Training of Language Models", "year": "2023",
    "eprint": "2311.08105"})  # fmt: skip
WANG2020SLOWMO = Paper("inproceedings", "wang2020slowmo", {
    "author": "Wang, Jianyu and Tantia, Vinayak and Ballas, Nicolas and Rabbat, Michael",
    "title": "{SlowMo}: Improving Communication-Efficient Distributed {SGD} with Slow Momentum",
    "booktitle": "International Conference on Learning Representations", "year": "2020", "eprint": "1910.00643"})  # fmt: skip
PAPERS = {
    "in_rounds": (
        DOUILLARD2023DILOCO,
        WANG2020SLOWMO,
    )
}


def diloco(
    learning_rate: "optax.ScalarOrSchedule" = 0.7,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    nesterov: bool = True,
) -> "Method":
    """DiLoCo: one Nesterov step by the mean displacement of N commits.

    Workers run hundreds of local steps and commit their displacements. The mean of N displacements is the gradient of one
    central step; the commits in between change nothing. All workers wait for each other and pull after the N-th commit: with
    real workers that is the default of :class:`gemjax.Policy`, and in a simulation a trace of :class:`gemjax.arrivals.Barrier`.
    If workers do not wait, it is the buffered form: any N commits make a step, even if they began at different views. A worker
    that pulls between two steps gets the central variable after the earlier one.

        Δ̄ = (1/N) Σ_j Δ_j   over the N displacements
        v ← γ v + Δ̄
        θ ← θ - η_t (Δ̄ + γ v)

    at every N-th commit, with v = 0 at the start and Δ_1, …, Δ_N the displacements committed since the last step, from the
    worker's view to the point after its local steps.

    Reductions: at a constant rate it is ``optax.MultiSteps`` of ``optax.sgd(learning_rate, momentum, nesterov=True)`` over N
    commits inside :func:`gemjax.asynchronous`; with one worker it is that optimizer itself. :func:`gemjax.delayed_nesterov` at
    ``spread=0`` has the same central variable after every N commits of the same displacements. With ``nesterov=False`` it is
    SlowMo (with its barrier, over local SGD of a constant rate γ_l): the velocity of SlowMo is v / γ_l and its slow rate is
    ``learning_rate``.

    Args:
      learning_rate: η of the outer step, a non-negative float or a schedule over commits of the central variable;
        default 0.7. An outer step has the rate of its last commit. The local optimizer has its own rate.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      nesterov: ``True`` (default), or ``False`` for heavy-ball momentum, θ ← θ - η_t v.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. It keeps no copy of the
      parameters per worker and two centrally (v, Δ̄).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1), ``nesterov`` no bool or ``num_workers`` not
        positive.

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

    Readings: the asynchronous form is what `a notebook by authors of DiLoCo <https://github.com/google-deepmind/asyncdiloco>`_
    calls delayed SGD: the mean of as many displacements as there are workers, several of which may come from one worker.

    Deviation from the paper: the mean is taken in the default float type, whatever the parameters' dtype.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    check_bool("nesterov", nesterov)
    check_positive_int("num_workers", num_workers)
    # The learning rate stays outside `in_rounds`, so that its schedule counts commits.
    outer = in_rounds(optax.trace(momentum, nesterov=nesterov), num_workers)
    return asynchronous(
        optax.chain(displacements(in_rounds=True), outer, scale_by_learning_rate(learning_rate)), num_workers
    )


def in_rounds(inner: optax.GradientTransformation, count: int) -> "Method":
    """Apply ``inner`` to the mean of every ``count`` updates, taken in JAX's default float type at the time of each call."""

    def rounds() -> optax.MultiSteps:
        return optax.MultiSteps(inner, every_k_schedule=lambda _: count, accumulator_dtype=jnp.result_type(float))

    def update_fn(updates, state, params=None, **_):
        return rounds().update(updates, state, params)

    return optax.GradientTransformationExtraArgs(lambda params: rounds().init(params), update_fn)
