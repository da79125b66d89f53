"""Linear weight prediction (Kosson et al., 2020)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.momentum_asgd import Horizon, look_ahead_momentum
from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_momentum, check_positive_int
from gemjax.protocol.staleness import asynchronous

FANG2018ACCELERATING = Paper("article", "fang2018accelerating", {
    "author": "Fang, Cong and Huang, Yameng and Lin, Zhouchen",
    "title": "Accelerating Asynchronous Algorithms for Convex Optimization by Momentum Compensation", "year": "2018",
    "eprint": "1802.09747"})  # fmt: skip
PAPERS = {"momentum_horizon": (FANG2018ACCELERATING,)}


def momentum_horizon(momentum: float = 0.9) -> Callable[[jax.Array], jax.Array]:
    """Return the horizon of Fang's momentum compensation, for ``lwp(horizon=…)``.

    A gradient τ commits late meets a velocity that has run on τ times. Without gradients it leads
    μ + μ² + … + μ^τ = (μ - μ^(τ+1)) / (1 - μ) steps ahead, where a horizon of τ would assume that it does not decay.

    Args:
      momentum: μ in [0, 1), that of the method, default 0.9.

    Returns:
      A function from the staleness (int32 scalar) to the number of steps, a float scalar.

    Raises:
      ValueError: if ``momentum`` is outside [0, 1).

    >>> import gemjax, jax.numpy as jnp
    >>> print(momentum_horizon(0.5)(jnp.array([0, 1, 2])))
    [0.   0.5  0.75]
    >>> tx = gemjax.lwp(0.1, 0.5, num_workers=4, horizon=momentum_horizon(0.5))

    References:
      Fang, Huang & Lin, `Accelerating Asynchronous Algorithms for Convex Optimization by Momentum Compensation
      <https://arxiv.org/abs/1802.09747>`_, 2018

    Deviations from the paper:
      1. The momentum is constant; the paper has that of Nesterov's schedule, which grows to 1.
      2. The delay is not known before the commit, so that of the worker's last commit stands for it.
    """
    check_momentum("momentum", momentum)
    return lambda staleness: (momentum - jnp.power(1.0 * momentum, staleness + 1)) / (1 - momentum)


def lwp(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    horizon: "Horizon | None" = None,
) -> "Method":
    """Linear weight prediction: workers compute at the point to which the momentum will have led by their return.

    One momentum, shared by all workers, is assumed to stay constant for the D commits by which a gradient will be late, and the
    view is that many steps ahead. This suits the even delays of a pipeline. In asynchronous SGD the prediction itself is made
    of stale gradients, and with many workers it diverges sooner than no prediction.

        v ← γ v + g(s_w)
        θ ← θ - η_t v
        s_w ← θ - D η_t v

    with v = 0 at the start, w the worker that commits and s_w its view.

    Reductions: at ``horizon=0``, so by default with one worker, it is :func:`gemjax.momentum_asgd`; at
    ``horizon=momentum`` it is :func:`gemjax.nag_asgd`.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. A view between two
        commits uses the rate of the last one.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      horizon: D ≥ 0 in commits, or a function from the staleness of the worker's last commit (int32 scalar) to it;
        ``None`` (default) is N - 1, the mean staleness. ``momentum_horizon(momentum)`` of :mod:`gemjax.rules` is Fang's
        momentum compensation.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the
      prediction. It keeps no copy of the parameters per worker and one centrally (v).

    Raises:
      ValueError: if ``learning_rate`` or ``horizon`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not
        positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.lwp(learning_rate=1.0, momentum=0.5, num_workers=4)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(params), params, worker=0)
    >>> params = optax.apply_updates(params, updates)
    >>> view, state = gemjax.pull(state, params, worker=0)
    >>> print(params, view)
    [-1.] [-4.]

    References:
      Kosson et al., `Pipelined Backpropagation at Scale: Training Large Models without Batches
      <https://arxiv.org/abs/2003.11666>`_, 2020

    Readings: the prediction is the paper's velocity form; its weight-difference form gives the same at a constant rate. The
    value of D in the DANA paper's LWP baseline is not certain; N - 1 is the mean staleness of N workers.

    Deviations from the paper:
      1. The spike compensation of the paper is left out.
      2. Delays are those of asynchronous workers, and D is only their mean.
    """
    check_positive_int("num_workers", num_workers)
    atom = look_ahead_momentum(learning_rate, momentum, num_workers - 1 if horizon is None else horizon)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
