"""Elastic averaging: workers keep their own positions, coupled elastically to the central variable (Zhang et al., 2015)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_between, check_learning_rate, check_momentum, check_positive_int
from gemjax.protocol.hooks import Position
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.per_worker import per_worker
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, require_protocol

ZHANG2015DEEP = Paper("inproceedings", "zhang2015deep", {
    "author": "Zhang, Sixin and Choromanska, Anna and LeCun, Yann",
    "title": "Deep Learning with Elastic Averaging {SGD}",
    "booktitle": "Advances in Neural Information Processing Systems", "year": "2015", "eprint": "1412.6651"})  # fmt: skip
PAPERS = {"average_elastically": (ZHANG2015DEEP,)}


class ElasticState(NamedTuple):
    """State of :func:`average_elastically`."""

    position: Slots  # x_w, a Position; the point from which the worker continues.


def average_elastically(strength: float) -> "Method":
    """Pull a worker's position and the central variable towards each other.

    The atom of :func:`gemjax.easgd` and :func:`gemjax.eamsgd`, whose docstrings explain the mathematics. It takes its input for
    the worker's displacement and goes last in a chain, without a learning rate behind it.

    Args:
      strength: α in [0, 1].

    Returns:
      A transformation that keeps one copy of the parameters per worker (x_w), which :func:`gemjax.pull` returns. It
      needs ``params`` and works inside :func:`gemjax.asynchronous`.

    Raises:
      ValueError: if ``strength`` is outside [0, 1].
    """
    check_between("strength", strength, 0.0, 1.0)

    def init_fn(params) -> Any:
        return ElasticState(Slots(Position(params)))

    def update_fn(updates, state, params=None, *, worker: Any = None, **extra_args) -> Any:
        del extra_args
        require_protocol("average_elastically", worker=worker, params=params)
        trained = jax.tree.map(jnp.subtract, state.position.value.params, updates)
        pulls = jax.tree.map(lambda x, theta: jnp.asarray(strength, x.dtype) * (x - theta), trained, params)
        position = Position(jax.tree.map(jnp.subtract, trained, pulls))
        return pulls, ElasticState(Slots(position))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def easgd(
    learning_rate: "optax.ScalarOrSchedule" = 1.0, num_workers: int = 1, *, strength: float | None = None
) -> "Method":
    """Elastic averaging SGD: each worker explores from its own position, coupled elastically to the central variable.

    Workers are not reset to the central variable. At a commit, after τ local steps, the worker and the central variable move
    towards each other by the same vector. The weaker the coupling, the farther workers explore and the less a stale worker can
    harm the central variable, which is an average of the workers over time.

        x_w ← x_w - η_t Δ_w
        e = α (x_w - θ)
        x_w ← x_w - e
        θ ← θ + e

    with w the worker that commits, all x_w equal to the central variable θ at the start, and Δ_w the displacement by its local
    optimizer since its last commit. Run it with ``local=gemjax.LocalSteps(optax.sgd(rate), period)``. For EAMSGD with longer
    periods use ``optax.sgd(rate, momentum, nesterov=True)`` there.

    Reductions: at ``strength=0`` workers train alone and the central variable stays; at ``strength=1`` a worker and the central
    variable exchange their positions; with ``period=1`` and momentum it is :func:`gemjax.eamsgd`.

    Args:
      learning_rate: η, scales displacements, a non-negative float or a schedule over commits of the central
        variable; default 1. The local optimizer has the rate of the steps.
      num_workers: number of workers N, default 1.
      strength: α in [0, 1]; ``None`` (default) is 0.9/N, the published β/p.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``; :func:`gemjax.pull` returns the
      worker's own position. It keeps one copy of the parameters per worker (x_w).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``strength`` outside [0, 1] or ``num_workers`` not positive; in an
        engine, without ``local=``.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.easgd(num_workers=2, strength=0.25)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.array([-1.0]), tx.init(params), params, worker=0)  # The worker trained from 0 to 1.
    >>> params = optax.apply_updates(params, updates)
    >>> view, state = gemjax.pull(state, params, worker=0)
    >>> print(params, view)
    [0.25] [0.75]

    References:
      Zhang, Choromanska & LeCun, `Deep Learning with Elastic Averaging SGD <https://arxiv.org/abs/1412.6651>`_, 2015

    Readings: the text of the paper was not available in full; the asynchronous form is that of its first author's code.

    Deviations from the paper:
      1. A worker exchanges first and computes its next gradient at its position after the exchange. In the paper it computes
        that gradient at its position before the exchange, so that the two overlap. They differ by O(ηα) per
        period.
      2. Model state (BatchNorm statistics) is one for all workers and follows the engine's policy.
      3. The default strength does not depend on the period. The program of TensorFlow 1 divides it by the period, too.
    """
    check_learning_rate(learning_rate)
    pull = average_elastically(_default_strength(strength, num_workers))
    return asynchronous(optax.chain(displacements(), _scale(learning_rate), pull), num_workers)


def eamsgd(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.99,
    num_workers: int = 1,
    *,
    strength: float | None = None,
) -> "Method":
    """EAMSGD: elastic averaging with Nesterov momentum at each worker and an exchange after each gradient.

    As :func:`gemjax.easgd` with a period of 1. The velocity of a worker is its own and is never exchanged.

        v_w ← γ v_w + g(x_w)
        x_w ← x_w - η_t (γ v_w + g(x_w))
        e = α (x_w - θ)
        x_w ← x_w - e
        θ ← θ + e

    with v_w = 0 and x_w = θ at the start and w the worker that commits.

    Reductions: at ``strength=0`` each worker is ``optax.sgd(learning_rate, momentum, nesterov=True)`` alone; it is
    :func:`gemjax.easgd` with ``LocalSteps`` of that optimizer and ``period=1``, which is also the form for longer periods.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: γ in [0, 1), default 0.99 as published (the rate is then about 100 times smaller than without).
      num_workers: number of workers N, default 1.
      strength: α in [0, 1]; ``None`` (default) is 0.9/N.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the worker's
      own position. It keeps two copies of the parameters per worker (v_w, x_w).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1), ``strength`` outside [0, 1] or
        ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.eamsgd(learning_rate=1.0, momentum=0.5, num_workers=2, strength=0.5)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(params), params, worker=0)  # The step is -1.5.
    >>> updates
    Array([-0.75], dtype=float32)

    References:
      Zhang, Choromanska & LeCun, `Deep Learning with Elastic Averaging SGD <https://arxiv.org/abs/1412.6651>`_, 2015

    Deviations from the paper:
      1. Nesterov momentum is written in the coordinates of optax, whose parameters are the look-ahead. The paper exchanges the
        point behind the look-ahead.
      2. Those of :func:`gemjax.easgd`.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    momenta = per_worker(optax.trace(momentum, nesterov=True))
    pull = average_elastically(_default_strength(strength, num_workers))
    return asynchronous(optax.chain(momenta, _scale(learning_rate), pull), num_workers)


def _scale(learning_rate: "optax.ScalarOrSchedule") -> optax.GradientTransformation:
    return scale_by_learning_rate(learning_rate, flip_sign=False)


def _default_strength(strength: float | None, num_workers: int) -> float:
    check_positive_int("num_workers", num_workers)
    return 0.9 / num_workers if strength is None else strength
