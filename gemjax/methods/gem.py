"""Gradient energy matching (Hermans & Louppe, 2018)."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree, diagnostics
from gemjax.protocol.checks import check_at_least, check_between, check_choice, check_learning_rate, check_momentum
from gemjax.protocol.hooks import ReadsStaleParams, where_present
from gemjax.protocol.slots import Slots, match_mask
from gemjax.protocol.staleness import asynchronous, require_protocol

HERMANS2018GRADIENT = Paper("article", "hermans2018gradient", {
    "author": "Hermans, Joeri and Louppe, Gilles",
    "title": "Gradient Energy Matching for Distributed Asynchronous Gradient Descent", "year": "2018",
    "eprint": "1805.08469"})  # fmt: skip
PAPERS = {"match_energy": (HERMANS2018GRADIENT,)}

READINGS = ("equations", "code", "algorithm")
QUANTILES = {"pi_05": 0.05, "pi_25": 0.25, "pi_median": 0.5, "pi_75": 0.75, "pi_95": 0.95}  # Diagnostics of pi.


class BeforeCommit(NamedTuple):
    """Central variable just before the worker's last commit.

    A pull without a commit (after a rejected gradient, or a retry) takes the central variable instead, if that has moved.
    """

    params: PyTree  # Like the parameters that the rule sees.
    committed: jax.Array  # bool []; True if the worker has committed since it pulled.

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Leave the view as it is."""
        keep = self.committed | ~moved
        point = jax.tree.map(lambda own, now: jnp.where(keep, own, now), self.params, match_mask(params, self.params))
        return type(self)(point, jnp.zeros_like(self.committed)), view, ()


class OwnPosition(BeforeCommit):
    """The same point; the worker also computes there, whatever the central variable is."""

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Hand out the point."""
        node, view, anchors = super().on_pull(params, view, moved)
        return node, where_present(lambda own, _: own, node.params, view), anchors


class MatchEnergyState(NamedTuple):
    """State of :func:`match_energy`, all of it per worker."""

    momentum: Slots  # m, like params; written at that worker's commits.
    stale_point: Slots | ReadsStaleParams  # s if the reading stores it, else a request for stale_params.


def match_energy(
    momentum: float = 0.9,
    kappa: float = 1.0,
    clamp: tuple[float, float] | None = (0.0, 5.0),
    eps: float = 1e-12,
    reading: str = "equations",
) -> "Method":
    """Scale each worker's update so that all workers together keep the kinetic energy of sequential momentum SGD.

    The atom of :func:`gemjax.gem`, whose docstring explains the mathematics and the arguments. It acts on *updates that carry
    the learning rate already*, so it goes last in a chain, behind any optax optimizer:
    ``gemjax.asynchronous(optax.chain(optax.adam(1e-3), gemjax.rules.match_energy()), num_workers=8)``.

    Args:
      momentum: as in :func:`gemjax.gem`.
      kappa: as in :func:`gemjax.gem`.
      clamp: as in :func:`gemjax.gem`.
      eps: as in :func:`gemjax.gem`.
      reading: as in :func:`gemjax.gem`.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It offers
      the diagnostics ``pi_05``, ``pi_25``, ``pi_median``, ``pi_75`` and ``pi_95``, quantiles of π over all
      parameters; ``energy_ratio``, the energy after the commit over that of the proxy; and ``compensation``.

    Raises:
      ValueError: if ``momentum`` is outside [0, 1), ``kappa`` or ``eps`` negative, ``clamp`` empty or ``reading`` unknown.
    """
    check_momentum("momentum", momentum)
    check_at_least("kappa", kappa, 0.0)
    check_at_least("eps", eps, 0.0)
    check_choice("reading", reading, READINGS)
    if clamp is not None:
        check_between("the lower bound of clamp", clamp[0], -math.inf, clamp[1])

    def init_fn(params) -> Any:
        kind = {"code": BeforeCommit, "algorithm": OwnPosition}.get(reading)
        stale_point = ReadsStaleParams() if kind is None else Slots(kind(params, jnp.zeros([], bool)))
        return MatchEnergyState(Slots(optax.tree.zeros_like(params)), stale_point)

    def update_fn(updates, state, params=None, *, stale_params=None, staleness=None, observe=None, **extra_args) -> Any:
        del extra_args
        require_protocol("match_energy", staleness=staleness, params=params)
        if reading == "equations":
            stale, stale_point = match_mask(stale_params, updates), state.stale_point
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
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    kappa: float = 1.0,
    clamp: tuple[float, float] | None = (0.0, 5.0),
    eps: float = 1e-12,
    reading: str = "equations",
) -> "Method":
    """Gradient energy matching: asynchronous workers that together move like one process with momentum.

    Worker w pulls s and commits τ commits later. Until then the other workers move the central variable by θ - s, the kinetic
    energy of all. GEM matches the energy *after* this commit to that of a proxy, sequential SGD with momentum, and scales the
    commit coordinate by coordinate. The distance that the others have moved counts as part of the step. Many workers thus share
    one momentum instead of multiplying it.

        Δ = -η_t g(s)
        m_w ← μ m_w + Δ
        π = clip((κ |m_w| - |θ - s|) / (|Δ| + ε), c_0, c_1)
        θ ← θ + π ⊙ Δ

    all elementwise, with m_w = 0 at the start and θ the central variable before the commit. Where π is not clamped,
    |θ - s| + π|Δ| = κ|m_w|: the energy matches exactly.

    Reductions:
      - one worker, nothing stale: |πΔ| = min(κ|m|, c_1|Δ|) with the sign of Δ, the
        step length of momentum SGD;
      - in addition ``momentum=0`` and ``kappa=1``: ``optax.sgd`` (up to ε).

    Args:
      learning_rate: η, a non-negative float or a schedule over commits. The paper's default is 0.01; its MNIST
        experiments use 0.05.
      momentum: μ of the proxy, in [0, 1), default 0.9.
      num_workers: number of workers N, default 1.
      kappa: κ ≥ 0, energy of the proxy (appendix B); default 1. Above 1 workers take longer steps; in the paper
        the loss improves up to about 3 and diverges at 4.
      clamp: (c_0, c_1), bounds of π; default (0, 5) as in the authors' code. ``None`` removes them:
        π is then negative where the others have moved farther than the proxy allows, and reverses the update there;
        with several workers that can diverge at any rate.
      eps: ε ≥ 0, default 1e-12 (authors' code; the paper's text says 1e-16).
      reading: the point s and the point of the gradient; the sources differ.

        - ``"equations"`` (default): the worker pulls after its own commit and computes there, and s is that point.
        - ``"code"``: the worker computes after its own commit, but s is the central variable *before* that commit, so
          |θ - s| includes the worker's own last update.
        - ``"algorithm"``: Algorithm 1 to the letter. The worker pulls before its own commit; both the gradient and s
          are at that point.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps two copies of the parameters
      per worker (m_w and s). In the reading ``"algorithm"`` :func:`gemjax.pull` returns the point before the
      worker's own commit.

    Raises:
      ValueError: if ``learning_rate``, ``kappa`` or ``eps`` is negative, ``momentum`` outside [0, 1), ``clamp`` empty,
        ``reading`` unknown or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.gem(learning_rate=0.1, momentum=0.9, num_workers=2)
    >>> params = jnp.array([1.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # Both pulled 1.0; worker 0 has used the energy.
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
      1. π is clamped, as in the authors' code but not in the equations; ``clamp=None`` gives the equations.
      2. The default order is that of the equations; see ``reading``.
      3. κ scales |m| (equation 27), not |m|² (equation 26).
      4. ε is added to |Δ|, as in the paper; the authors' code adds it inside the absolute value.
    """
    check_learning_rate(learning_rate)
    energy = match_energy(momentum, kappa, clamp, eps, reading)
    return asynchronous(optax.chain(scale_by_learning_rate(learning_rate), energy), num_workers)


def _energy_ratio(scaled: PyTree, params: PyTree, stale: PyTree, m: PyTree, kappa: Any) -> jax.Array:
    """Return the energy after the commit over that of the proxy, for this worker; at most 1 unless the clamp raised pi."""
    distance = jax.tree.map(lambda u, theta, s: jnp.abs(theta - s) + jnp.abs(u), scaled, params, stale)
    return jnp.square(diagnostics.rms(distance) / (kappa * diagnostics.rms(m)))
