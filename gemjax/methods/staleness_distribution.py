"""Scaling of commits by the distribution of staleness that the run itself shows (Bäckström et al., 2019 and 2022)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.protocol import Method
from gemjax.protocol.checks import check_at_least, check_choice, check_momentum, check_positive, check_positive_int
from gemjax.protocol.staleness import require_protocol

BACKSTROM2019MINDTHESTEP = Paper("inproceedings", "backstrom2019mindthestep", {
    "author": "B{\\\"a}ckstr{\\\"o}m, Karl and Papatriantafilou, Marina and Tsigas, Philippas",
    "title": "{MindTheStep-AsyncPSGD}: Adaptive Asynchronous Parallel Stochastic Gradient Descent",
    "booktitle": "IEEE International Conference on Big Data", "year": "2019", "eprint": "1911.03444"})  # fmt: skip
BACKSTROM2022ASAP = Paper("inproceedings", "backstrom2022asap", {
    "author": "B{\\\"a}ckstr{\\\"o}m, Karl and Papatriantafilou, Marina and Tsigas, Philippas",
    "title": "{ASAP.SGD}: Instance-based Adaptiveness to Staleness in Asynchronous {SGD}",
    "booktitle": "International Conference on Machine Learning", "year": "2022",
    "url": "https://proceedings.mlr.press/v162/backstrom22a.html"})  # fmt: skip
DAMASKINOS2020FLEET = Paper("article", "damaskinos2020fleet", {
    "author": "Damaskinos, Georgios and Guerraoui, Rachid and Kermarrec, Anne-Marie and Nitu, Vlad and Patra, Rhicheek and "
    "Taiani, Francois",
    "title": "{FLeet}: Online Federated Learning via Staleness Awareness and Performance Prediction", "year": "2020",
    "eprint": "2006.07273"})  # fmt: skip
PAPERS = {
    "scale_by_staleness_distribution": (BACKSTROM2019MINDTHESTEP, BACKSTROM2022ASAP),
    "exponential_weight": (DAMASKINOS2020FLEET,),
}


class ScaleByStalenessDistributionState(NamedTuple):
    """State of :func:`scale_by_staleness_distribution`, shared by all workers."""

    counts: jax.Array  # int32 [bins]; commits so far by their staleness.


def scale_by_staleness_distribution(
    rule: str = "tail", *, momentum: float = 0.9, cap: float | None = None, bins: int = 200, warmup: int | None = None
) -> "Method":
    """Scale a commit by a function of its staleness that fits the staleness of this run.

    Damping rules such as :func:`gemjax.dynsgd` are fixed functions of the staleness, whatever is usual in the run. These rules
    count how often each staleness has occurred, P(τ):

        tail:       1 + (1 - 2 F(τ)),   F(τ) = Σ_(i<τ) P(i) + P(τ) / 2
        geometric:  min(r^τ / P(τ), cap)

    The tail rule gives the usual staleness the factor 1, the freshest commits up to 2 and the oldest almost 0; its mean is 1.
    The geometric rule makes the expected step Σ_i r^i ∇f(θ[t-i]): asynchrony itself becomes the momentum r of a heavy ball,
    without a velocity. The part works anywhere inside :func:`gemjax.asynchronous`.

    Reductions: where all commits have the same staleness, the tail rule changes nothing. At ``momentum=0`` the geometric
    rule uses only fresh commits.

    Args:
      rule: ``"tail"`` (default) or ``"geometric"``.
      momentum: r in [0, 1) of the geometric rule, default 0.9.
      cap: largest factor of the geometric rule; ``None`` (default) is the number of workers.
      bins: number of different values of the staleness, default 200; above that they count as the largest.
      warmup: commits at the start with the factor 1, at least 0; ``None`` (default) is 10 per worker.

    Returns:
      A transformation that needs the extra arguments ``staleness`` and ``num_workers``. It keeps ``bins`` integers and no copy
      of the parameters. It offers the diagnostic ``compensation``, the share by which it changes a commit, and multiplies the
      diagnostic ``learning_rate`` of the chain.

    Raises:
      ValueError: if ``rule`` is unknown, ``momentum`` outside [0, 1), ``bins`` not positive, or ``cap`` or ``warmup`` negative.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> part = gemjax.rules.scale_by_staleness_distribution(warmup=0)
    >>> tx = gemjax.asynchronous(optax.chain(part, optax.scale(-1.0)), num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 1):  # The second one is older than half of the commits, and than half of those as old as itself.
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-0.5]

    References:
      - Bäckström, Papatriantafilou & Tsigas, `MindTheStep-AsyncPSGD: Adaptive Asynchronous Parallel Stochastic Gradient Descent
        <https://arxiv.org/abs/1911.03444>`_, 2019 (geometric)
      - Bäckström, Papatriantafilou & Tsigas, `ASAP.SGD: Instance-based Adaptiveness to Staleness in Asynchronous SGD
        <https://proceedings.mlr.press/v162/backstrom22a.html>`_, 2022 (tail)

    Readings: the tail rule is that of `the authors' code <https://github.com/dcs-chalmers/shared-memory-sgd>`_; the geometric
    one is derived from the idea of the first paper, whose text was not available.

    Deviations from that code:
      1. There F leaves P(τ) / 2 out, so the mean factor is 1 + Σ_τ P(τ)²: 2 for workers in
         turn.
      2. There P is counted once, during commits 10 N to 15 N. Here it is counted all the time, this commit included.
    """
    check_choice("rule", rule, ("tail", "geometric"))
    check_momentum("momentum", momentum)
    check_positive_int("bins", bins)
    for name, value in (("cap", cap), ("warmup", warmup)):
        if value is not None:
            check_at_least(name, value, 0.0)

    def init_fn(params) -> Any:
        del params
        return ScaleByStalenessDistributionState(jnp.zeros(bins, jnp.int32))

    def update_fn(
        updates,
        state,
        params=None,
        *,
        staleness: Any = None,
        num_workers: Any = None,
        observe: Any = None,
        **extra_args,
    ) -> Any:
        del params, extra_args
        require_protocol("scale_by_staleness_distribution", staleness=staleness, num_workers=num_workers)
        late = jnp.minimum(staleness, bins - 1)
        counts = state.counts.at[late].add(1)
        share = counts / (1.0 * counts.sum())
        if rule == "tail":
            scale = 2.0 - 2.0 * jnp.sum(jnp.where(jnp.arange(bins) < late, share, 0.0)) - share[late]
        else:
            scale = jnp.minimum(jnp.power(1.0 * momentum, late) / share[late], num_workers if cap is None else cap)
        scale = jnp.where(counts.sum() > (10 * num_workers if warmup is None else warmup), scale, 1.0)
        if observe is not None:
            observe("compensation", lambda: jnp.abs(1.0 - scale))
            observe.scale("learning_rate", lambda: scale)
        scaled = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
        return scaled, ScaleByStalenessDistributionState(counts)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def exponential_weight(usual: float) -> Callable[[jax.Array], jax.Array]:
    """Return FLeet's factor e^(-βτ) for :func:`gemjax.rules.scale_by_staleness`.

    β = (2/T) ln(1 + T/2), so that it equals that of :func:`gemjax.dynsgd` at τ = 0 and τ = T/2; older commits are damped more.

    Args:
      usual: T > 0, a staleness that most commits do not exceed. The authors of ASAP.SGD take N + 1.

    Returns:
      A function from the staleness (int32 scalar) to a float scalar.

    Raises:
      ValueError: if ``usual`` is not positive.

    >>> import jax.numpy as jnp
    >>> [round(float(exponential_weight(16)(jnp.int32(tau))), 3) for tau in range(3)]
    [1.0, 0.76, 0.577]

    References:
      Damaskinos et al., `FLeet: Online Federated Learning via Staleness Awareness and Performance Prediction
      <https://arxiv.org/abs/2006.07273>`_, 2020

    Deviation from the code of ASAP.SGD:
      1. There T/2 in the logarithm is rounded down to a whole number.
    """
    check_positive("usual", usual)
    beta = 2.0 / usual * math.log1p(usual / 2.0)
    return lambda staleness: jnp.exp(-beta * staleness)
