"""YellowFin: momentum and learning rate tuned during the run, with feedback for asynchrony (Zhang & Mitliagkas, 2019)."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_bool, check_learning_rate, check_momentum, check_positive_int, integer
from gemjax.protocol.slots import SharedRows
from gemjax.protocol.staleness import asynchronous, require_protocol

ZHANG2019YELLOWFIN = Paper("article", "zhang2019yellowfin", {
    "author": "Zhang, Jian and Mitliagkas, Ioannis", "title": "{YellowFin} and the Art of Momentum Tuning",
    "year": "2019", "eprint": "1706.03471"})  # fmt: skip
PAPERS = {"tune_momentum": (ZHANG2019YELLOWFIN,)}

EPS = 1e-6  # As in the authors' code; keeps curvatures, variances and distances above 0.


class Landscape(NamedTuple):
    """Statistics of the tuner: a window, and running means, each before its division by 1 - decay^n."""

    window: jax.Array  # [window]; log h of the last commits.
    log_largest: jax.Array  # Of the largest log h in the window.
    log_smallest: jax.Array  # Of the smallest.
    square: jax.Array  # Of h = |g|^2.
    norm: jax.Array  # Of |g|.
    distance: jax.Array  # Of the mean of |g| over that of h.


class TuneMomentumState(NamedTuple):
    """State of :func:`tune_momentum`, shared by all workers."""

    count: jax.Array  # int32 []; commits so far.
    velocity: PyTree  # v, like params.
    mean_gradient: PyTree  # Running mean of g, like params but at least float32.
    landscape: Landscape
    momentum: jax.Array  # float []; mu, the momentum of the next commit.
    samples: SharedRows  # [history, sample]; some coordinates of the last velocities; v_t is row t % history.

    def next_row(self) -> jax.Array:
        """Return the index of the row that the next commit writes."""
        return self.count % len(self.samples.rows)


def tune_momentum(
    history: int,
    *,
    closed_loop: bool = True,
    decay: float = 0.999,
    gain: float = 0.01,
    window: int = 20,
    sample: int = 4096,
) -> "Method":
    """Turn gradients into steps of momentum SGD with a momentum and a learning rate that it tunes itself.

    The atom of :func:`gemjax.yellowfin`, whose docstring explains the mathematics and the arguments. Its output is rate times
    velocity, to be subtracted: ``optax.scale_by_learning_rate(factor)`` goes behind it.

    Args:
      history: H, number of stored velocities; gradients of a staleness above H - 2 are not measured.
      closed_loop: as in :func:`gemjax.yellowfin`.
      decay: as in :func:`gemjax.yellowfin`.
      gain: as in :func:`gemjax.yellowfin`.
      window: commits in the range of curvatures, default 20.
      sample: largest number of coordinates in the measurement of the total momentum, default 4096.

    Returns:
      A transformation that needs ``staleness``, as :func:`gemjax.asynchronous` supplies it. It offers the diagnostics
      ``momentum``, ``target_momentum`` and ``total_momentum``, and multiplies the diagnostic ``learning_rate`` of the chain.

    Raises:
      ValueError: if ``closed_loop`` is no bool, ``decay`` or ``gain`` outside [0, 1), ``history`` below 2, or ``window`` or
        ``sample`` below 1.
    """
    check_bool("closed_loop", closed_loop)
    check_momentum("decay", decay)
    check_momentum("gain", gain)
    for name, value, lowest in (("history", history, 2), ("window", window, 1), ("sample", sample, 1)):
        integer(name, value, lowest)

    def init_fn(params) -> Any:
        return TuneMomentumState(
            count=jnp.zeros([], jnp.int32),
            velocity=optax.tree.zeros_like(params),
            mean_gradient=jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params),
            landscape=Landscape(jnp.zeros(window), *(jnp.zeros([]) for _ in range(5))),
            momentum=jnp.zeros([]),
            # Shared rows, of which a commit writes one: a choice between old and new would copy all of them.
            samples=SharedRows.of(jnp.zeros(_sample(params, sample).size), history),
        )

    def update_fn(updates, state, params=None, *, staleness=None, observe=None, **extra_args) -> Any:
        del params, extra_args
        require_protocol("tune_momentum", staleness=staleness)
        landscape, mean, rate, target = _tune(state, updates, decay)
        momentum = state.momentum if closed_loop else target
        velocity = jax.tree.map(lambda v, g: jnp.asarray(momentum, v.dtype) * v + g, state.velocity, updates)
        samples = state.samples.write(state.next_row(), _sample(velocity, sample), in_turn=True)
        total, measured = _total_momentum(samples, _sample(updates, sample), state.count, staleness)
        corrected = momentum + gain * jnp.where(measured, target - total, 0.0)
        corrected = jnp.clip(corrected, -1.0, 1.0)  # The total of one extreme gradient may be of any size.
        if observe is not None:
            observe.scale("learning_rate", lambda: rate)
            observe("momentum", lambda: momentum)
            observe("target_momentum", lambda: target)
            observe("total_momentum", lambda: jnp.where(measured, total, jnp.nan))
        # Computed in float32 at least: in half precision the rate may be infinite.
        steps = jax.tree.map(lambda v, m: (v.astype(m.dtype) * rate.astype(m.dtype)).astype(v.dtype), velocity, mean)
        count = jnp.asarray(optax.safe_increment(state.count))
        return steps, TuneMomentumState(count, velocity, mean, landscape, corrected, samples)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def yellowfin(
    learning_rate: "optax.ScalarOrSchedule" = 1.0,
    num_workers: int = 1,
    *,
    closed_loop: bool = True,
    decay: float = 0.999,
    gain: float = 0.01,
) -> "Method":
    """YellowFin: momentum SGD that tunes its momentum and its rate, and subtracts the momentum that asynchrony adds.

    Stale gradients act like momentum: the commits of other workers since a pull continue in the direction of the past. The open
    loop chooses from the gradients alone the momentum and the rate that suit a noisy quadratic. The closed loop measures the
    total momentum of the central variable and changes the applied momentum, if necessary below zero, until the total is the
    chosen one.

        h_t = ‖g‖²
        h_max, h_min = exp(mean of the largest, of the smallest log h in a window of 20)
        C = mean(h) - ‖mean(g)‖²
        D = mean(mean(‖g‖) / mean(h))
        q = √(h_max / h_min),   x = argmin over 0 ≤ x ≤ 1 of x² D² + (1 - x)^4 C / h_min²
        μ* = max(x², ((q - 1) / (q + 1))²)
        α_t = (1 - √μ*)² / h_min · min(1, (t + 1) / 200)
        v_t = μ v[t-1] + g,   θ ← θ - η_t α_t v_t
        μ̂ = median_i of (v_s - g)_i / (v[s-1])_i,   s = t - τ
        μ ← μ + κ (μ* - μ̂)

    with mean(…) a running mean with decay β, corrected for its start at zero, and μ = v = 0 at the start, all shared by all
    workers. Without momentum, v_s would be the gradient g computed at clock s; what v_s has beyond g, as a multiple of v[s-1],
    is the total momentum.

    α relies on noise: if gradients vanish, it grows until it is too large, and with long delays a run may not recover. A
    ``learning_rate`` below 1 is safer. After one gradient that is far larger than the others, α is tiny until mean(h) has
    forgotten it, which takes thousands of commits at the default β. Clip gradients of which a few are extreme.

    Reductions: with one worker the measured total is μ itself, and the loop makes μ follow μ*; ``closed_loop=False`` applies
    μ*, which is YellowFin for one process.

    Args:
      learning_rate: η, a factor on the tuned rate; a non-negative float or a schedule over commits of the
        central variable. Default 1, the paper's; many workers may need less: eight learn the digits of ``train`` at 0.3.
      num_workers: number of workers N, default 1.
      closed_loop: ``True`` (default) to feed the measured momentum back, ``False`` for the open loop.
      decay: β in [0, 1) of all running means, per commit; default 0.999.
      gain: κ in [0, 1) of the feedback; default 0.01.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters per
      worker and two centrally (v, mean(g)), and samples of 2N + 2 velocities.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``closed_loop`` no bool, ``decay`` or ``gain`` outside [0, 1) or
        ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.yellowfin(num_workers=2)
    >>> params = jnp.array([3.0, 4.0])
    >>> updates, state = tx.update(params, tx.init(params), params, worker=0)
    >>> print((-200.0 * updates).round(4))  # No momentum yet, and 1 / 200 of a rate of 1 / 25.
    [0.12 0.16]

    References:
      Zhang & Mitliagkas, `YellowFin and the Art of Momentum Tuning <https://arxiv.org/abs/1706.03471>`_, 2019

    Readings: the open loop is that of the authors' code, with logarithms at both ends of the range. As there, a commit is made
    with its own μ* and α; the paper smooths both. The authors' code has no closed loop; the measurement and κ are recalled
    from the paper, whose text was not available in full.

    Deviations from the paper:
      1. The total is measured between velocities, not between parameters. At a constant rate that is the same; a change of the
        rate does not count as momentum.
      2. It is the median over at most 4096 evenly spaced coordinates, without those where v[s-1] is 0. Gradients that
        are more than 2N commits old, or computed at the initial parameters, measure nothing.
      3. The first commit is tuned, too (the code asks the user), and D is computed from means that are already
        corrected.
      4. μ stays in [-1, 1]. A gradient 10^5 times larger than the others shows a total of that size, and
         without the limits the velocity would grow until every commit is rejected.
      5. Clipping (the code cuts gradients above √h_max), weight decay and the correction for sparse
         gradients are left to the chain.
    """
    check_learning_rate(learning_rate)
    check_positive_int("num_workers", num_workers)
    num_workers = operator.index(num_workers)  # It also decides the length of the window.
    tuned = tune_momentum(2 * num_workers + 2, closed_loop=closed_loop, decay=decay, gain=gain)
    return asynchronous(optax.chain(tuned, scale_by_learning_rate(learning_rate)), num_workers)


def _tune(state: TuneMomentumState, gradient: PyTree, decay: Any) -> tuple[Landscape, PyTree, jax.Array, jax.Array]:
    """Return the new statistics and mean gradient, and the rate and the momentum for them."""
    old, window = state.landscape, len(state.landscape.window)
    unbias = 1 - jnp.asarray(decay, old.square.dtype) ** (state.count + 1)

    def square(tree):
        return jnp.asarray(optax.tree.norm(tree, squared=True), unbias.dtype)

    def average(mean, new):
        rest = jnp.asarray(decay, mean.dtype)
        return rest * mean + (1 - rest) * new.astype(mean.dtype)

    mean = jax.tree.map(average, state.mean_gradient, gradient)
    h = square(jax.tree.map(lambda m, g: g.astype(m.dtype), mean, gradient))
    logs = old.window.at[state.count % window].set(jnp.log(h + EPS))
    seen = jnp.arange(window) <= state.count
    mean_square, norm = average(old.square, h), average(old.norm, jnp.sqrt(h))
    new = Landscape(
        window=logs,
        log_largest=average(old.log_largest, jnp.max(jnp.where(seen, logs, -jnp.inf))),
        log_smallest=average(old.log_smallest, jnp.min(jnp.where(seen, logs, jnp.inf))),
        square=mean_square,
        norm=norm,
        distance=average(old.distance, norm / unbias / (mean_square / unbias + EPS)),
    )
    largest, smallest = (jnp.exp(log / unbias) + EPS for log in (new.log_largest, new.log_smallest))
    variance = jnp.maximum(mean_square / unbias - square(mean) / unbias**2, EPS)
    root = _root(jnp.square((new.distance / unbias + EPS) * smallest) / (2 * (variance + EPS)))
    spread = jnp.sqrt(jnp.maximum(largest / smallest, 1.0))
    momentum = jnp.square(jnp.maximum(root, (spread - 1) / (spread + 1)))
    slow_start = jnp.minimum(1.0, (state.count + 1).astype(old.square.dtype) / (10 * window))
    return new, mean, jnp.square(1 - jnp.sqrt(momentum)) / smallest * slow_start, momentum


def _root(p: jax.Array) -> jax.Array:
    """Return the x in [0, 1] that minimises x^2 p + (1 - x)^4 / 2, by Cardano's formula in hyperbolic form: no cancellation."""
    # After a huge gradient p underflows to 0, where the product is one of 0 and infinity.
    tiny = jnp.finfo(p.dtype).tiny
    p = jnp.clip(p, tiny, 1 / tiny)
    y = -2 * jnp.sqrt(p / 3) * jnp.sinh(jnp.arcsinh(1.5 * jnp.sqrt(3 / p)) / 3)
    return jnp.clip(1 + y, 0.0, 1.0)


def _total_momentum(samples: SharedRows, gradient: jax.Array, count: jax.Array, staleness: Any) -> tuple:
    """Return the momentum that a gradient of that staleness shows, and True if it shows one."""
    history, pulled_at = len(samples.rows), count - staleness
    then, before = samples.read(pulled_at % history), samples.read((pulled_at - 1) % history)
    ratio = (then - gradient) / jnp.where(before == 0, 1.0, before)
    usable = (staleness <= history - 2) & (before != 0) & jnp.isfinite(ratio)
    ratio, number = jnp.sort(jnp.where(usable, ratio, jnp.inf)), jnp.sum(usable)
    median = 0.5 * (ratio[jnp.maximum(number - 1, 0) // 2] + ratio[number // 2])
    return jnp.where(number > 0, median, 0.0), number > 0


def _sample(tree: PyTree, sample: int) -> jax.Array:
    """Return at most ``sample`` coordinates, evenly spaced over all leaves; a zero for an empty tree."""
    leaves = jax.tree.leaves(tree)
    size = sum(leaf.size for leaf in leaves)
    parts, first, stride = [jnp.zeros(0 if size else 1)], 0, max(1, -(-size // sample))
    for leaf in leaves:
        parts.append(jnp.ravel(leaf)[first::stride].astype(parts[0].dtype))
        first = (first - leaf.size) % stride
    found = jnp.concatenate(parts)
    mesh = jax.typeof(found).sharding.mesh
    if mesh.empty or not mesh.are_all_axes_auto or not isinstance(found, jax.core.Tracer):
        return found
    # Replicated on every device: otherwise the compiler would shard it and compile once more.
    return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, PartitionSpec()))
