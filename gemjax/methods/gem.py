"""Gradient energy matching (Hermans & Louppe, 2018)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import diagnostics
from gemjax.protocol.checks import check_at_least, check_choice, check_learning_rate, check_momentum
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.slots import Slots, like
from gemjax.protocol.staleness import asynchronous, require_protocol
from gemjax.protocol.views import BeforeCommit, OwnPosition

PyTree = Any
READINGS = ("equations", "code", "algorithm")
QUANTILES = {"pi_05": 0.05, "pi_25": 0.25, "pi_median": 0.5, "pi_75": 0.75, "pi_95": 0.95}  # Diagnostics of pi.


class MatchEnergyState(NamedTuple):
    """State of :func:`match_energy`; all of it is a worker's own."""

    momentum: Slots  # m, like params; changes at that worker's commits.
    stale_point: Slots | ReadsStaleParams  # s where the reading keeps it itself, else a request for stale_params.


def match_energy(
    momentum: float = 0.9,
    kappa: float = 1.0,
    clamp: tuple[float, float] | None = (0.0, 5.0),
    eps: float = 1e-12,
    reading: str = "equations",
) -> optax.GradientTransformationExtraArgs:
    r"""Scales each worker's update so that the collective keeps the kinetic energy of sequential momentum SGD.

    The atom of :func:`gemjax.gem`, where mathematics and arguments are explained. It acts on *updates that carry the
    learning rate already*, so it goes last in a chain, behind any optax optimizer:
    ``gemjax.asynchronous(optax.chain(optax.adam(1e-3), gemjax.match_energy()), num_workers=8)``.

    Args:
      momentum: as in :func:`gemjax.gem`.
      kappa: as in :func:`gemjax.gem`.
      clamp: as in :func:`gemjax.gem`.
      eps: as in :func:`gemjax.gem`.
      reading: as in :func:`gemjax.gem`.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It offers
      the diagnostics ``pi_05``, ``pi_25``, ``pi_median``, ``pi_75`` and ``pi_95``, quantiles of :math:`\pi` over all
      parameters; ``energy_ratio``, the energy after the commit over that of the proxy; and ``compensation``.

    Raises:
      ValueError: for a ``momentum`` outside [0, 1), a negative ``kappa``, ``eps`` or empty ``clamp``, or an unknown reading.
    """
    check_momentum(momentum)
    check_at_least("kappa", kappa, 0.0)
    check_at_least("eps", eps, 0.0)
    check_choice("reading", reading, READINGS)
    _check_clamp(clamp)

    def init_fn(params) -> Any:
        kind = {"code": BeforeCommit, "algorithm": OwnPosition}.get(reading)
        stale_point = ReadsStaleParams() if kind is None else Slots(kind(params, jnp.zeros([], bool)))
        return MatchEnergyState(Slots(optax.tree.zeros_like(params)), stale_point)

    def update_fn(updates, state, params=None, *, stale_params=None, staleness=None, observe=None, **extra_args) -> Any:
        del extra_args
        require_protocol("match_energy", staleness=staleness, params=params)
        if reading == "equations":
            stale, stale_point = like(stale_params, updates), state.stale_point
        else:
            aside = state.stale_point.value
            stale, stale_point = aside.params, Slots(type(aside)(params, jnp.ones_like(aside.committed)))

        def accumulate(m, delta):
            return jnp.asarray(momentum, m.dtype) * m + delta

        def proxy_less_travelled(m, theta, s):
            return jnp.asarray(kappa, m.dtype) * jnp.abs(m) - jnp.abs(theta - s)

        def scaling(rest, delta):
            length = jnp.abs(delta) + jnp.asarray(eps, delta.dtype)
            # eps may be 0, or round to it (float16): a gradient of 0 must not give 0/0.
            pi = jnp.where(length > 0, rest / length, jnp.ones_like(rest))
            return pi if clamp is None else jnp.clip(pi, *(jnp.asarray(bound, pi.dtype) for bound in clamp))

        m = jax.tree.map(accumulate, state.momentum.value, updates)
        pi = jax.tree.map(scaling, jax.tree.map(proxy_less_travelled, m, params, stale), updates)
        scaled = jax.tree.map(jnp.multiply, pi, updates)
        if observe is not None:
            for name, quantile in QUANTILES.items():
                observe(name, lambda q=quantile: diagnostics.quantile(pi, q))
            observe("energy_ratio", lambda: _energy_ratio(scaled, params, stale, m, kappa))
            observe("compensation", lambda: diagnostics.relative_change(scaled, updates))
        return scaled, MatchEnergyState(Slots(m), stale_point)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def gem(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    kappa: float = 1.0,
    clamp: tuple[float, float] | None = (0.0, 5.0),
    eps: float = 1e-12,
    reading: str = "equations",
) -> optax.GradientTransformationExtraArgs:
    r"""Gradient energy matching: asynchronous workers that together move like one process with momentum.

    Seen from worker :math:`w`, which pulled :math:`s` and commits :math:`\tau` commits later, the central variable has
    moved by :math:`\theta - s`: that is its kinetic energy, built up by everybody. GEM holds the energy *after* this
    worker's commit to that of a proxy, sequential SGD with momentum, and scales the commit coordinate by coordinate so
    that the two match. What the others have travelled already is taken off; many workers then share one momentum
    instead of multiplying it.

    .. math::

      \Delta &= -\eta_t \, g(s) \\
      m_w &\leftarrow \mu m_w + \Delta \\
      \pi &= \mathrm{clip}\!\left(\frac{\kappa |m_w| - |\theta - s|}{|\Delta| + \varepsilon},\; c_0,\; c_1\right) \\
      \theta &\leftarrow \theta + \pi \odot \Delta

    all elementwise, with :math:`m_w = 0` at the start and :math:`\theta` the central variable before the commit. Where
    :math:`\pi` is not clamped, :math:`|\theta - s| + \pi|\Delta| = \kappa|m_w|`: the energy is matched exactly.

    Reductions:
      - one worker, nothing stale: :math:`|\pi\Delta| = \min(\kappa|m|, c_1|\Delta|)` with the sign of :math:`\Delta`, the
        step length of momentum SGD;
      - in addition ``momentum=0`` and ``kappa=1``: ``optax.sgd`` (up to :math:`\varepsilon`).

    Args:
      learning_rate: :math:`\eta`, a non-negative float or a schedule over commits. The paper's default is 0.01; its MNIST
        experiments use 0.05.
      momentum: :math:`\mu` of the proxy, in [0, 1), default 0.9.
      num_workers: number of workers N, default 1.
      kappa: :math:`\kappa \ge 0`, energy of the proxy (appendix B); default 1. Above 1 workers push harder; in the paper
        the loss improves up to about 3 and diverges at 4.
      clamp: :math:`(c_0, c_1)`, bounds of :math:`\pi`; default (0, 5) as in the authors' code. ``None`` takes them away:
        then :math:`\pi` is negative wherever the others have moved farther than the proxy allows, and reverses the
        update there; with several workers that can diverge at any rate.
      eps: :math:`\varepsilon \ge 0`, default 1e-12 (authors' code; the paper's text says 1e-16).
      reading: which point :math:`s` is, and where gradients are computed; the sources differ.

        - ``"equations"`` (default): the worker pulls after its own commit, computes there, and :math:`s` is that point.
        - ``"code"``: it computes after its own commit, but :math:`s` is the central variable *before* that commit, so
          :math:`|\theta - s|` holds the worker's own last update too.
        - ``"algorithm"``: Algorithm 1 to the letter. It pulls before its own commit, and both the gradient and :math:`s`
          are there.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. Keeps two copies of the parameters
      a worker (:math:`m_w` and :math:`s`); in the reading ``"algorithm"`` :func:`gemjax.pull` returns a view of its own.

    Raises:
      ValueError: for a negative ``learning_rate``, ``kappa`` or ``eps``, a ``momentum`` outside [0, 1), an empty ``clamp``,
        an unknown ``reading`` or a ``num_workers`` that is not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.gem(learning_rate=0.1, momentum=0.9, num_workers=2)
    >>> params = jnp.array([1.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # Both pulled 1.0; worker 1 finds that worker 0 has spent the energy already.
    ...     updates, state = tx.update(jnp.array([2.0]), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     view, state = gemjax.pull(state, params, worker=worker)
    ...     print(params)
    [0.8]
    [0.8]

    References:
      Hermans & Louppe, `Gradient Energy Matching for Distributed Asynchronous Gradient Descent
      <https://arxiv.org/abs/1805.08469>`_, 2018

    Deviations from the paper:
      1. :math:`\pi` is clamped (in the authors' code, not in the equations); ``clamp=None`` is the equations.
      2. The default order is that of the equations, see ``reading``.
      3. :math:`\kappa` scales :math:`|m|` (equation 27), not :math:`|m|^2` (equation 26).
      4. :math:`\varepsilon` is added to :math:`|\Delta|` (the paper); the authors' code has it inside the absolute value.
    """
    check_learning_rate(learning_rate)
    energy = match_energy(momentum, kappa, clamp, eps, reading)
    return asynchronous(optax.chain(scale_by_learning_rate(learning_rate), energy), num_workers)


def _check_clamp(clamp: tuple[float, float] | None) -> None:
    if clamp is None:
        return
    numbers = isinstance(clamp, (tuple, list)) and all(isinstance(bound, (int, float)) for bound in clamp)
    if not (numbers and len(clamp) == 2 and clamp[0] <= clamp[1]):
        raise ValueError(f"clamp must be None or a pair (lowest, highest) with lowest <= highest, got {clamp!r}")


def _energy_ratio(scaled: PyTree, params: PyTree, stale: PyTree, m: PyTree, kappa: Any) -> jax.Array:
    """Energy after the commit as this worker sees it, over its proxy's; at most 1 where no clamp lifted it."""
    distance = jax.tree.map(lambda u, theta, s: jnp.abs(theta - s) + jnp.abs(u), scaled, params, stale)
    return jnp.square(diagnostics.rms(distance) / (kappa * diagnostics.rms(m)))
