"""Asynchronous SGD with one momentum for all workers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import rate_at, scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_at_least, check_learning_rate, check_momentum
from gemjax.protocol.hooks import LookAhead
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, require_protocol

HAKIMI2019TAMING = Paper("article", "hakimi2019taming", {
    "author": "Hakimi, Ido and Barkai, Saar and Gabel, Moshe and Schuster, Assaf",
    "title": "Taming Momentum in a Distributed Asynchronous Environment", "year": "2019", "eprint": "1907.11612"})  # fmt: skip
KOSSON2020PIPELINED = Paper("article", "kosson2020pipelined", {
    "author": "Kosson, Atli and Chiley, Vitaliy and Venigalla, Abhinav and Hestness, Joel and K{\\\"o}ster, Urs",
    "title": "Pipelined Backpropagation at Scale: Training Large Models without Batches", "year": "2020",
    "eprint": "2003.11666"})  # fmt: skip
Horizon = float | Callable[[jax.Array], jax.Array]
PAPERS = {
    "look_ahead_momentum": (
        HAKIMI2019TAMING,
        KOSSON2020PIPELINED,
    )
}


class OwnLookAhead(NamedTuple):
    """Look-ahead whose length in steps is the worker's own."""

    velocity: Any  # Like the parameters that the rule sees.
    rate: jax.Array  # float []; the learning rate of the last commit.
    steps: Slots  # float []; set at the worker's last commit.

    def resolved(self) -> LookAhead:
        """Return the look-ahead of the worker whose slot is checked out."""
        return LookAhead(self.velocity, self.rate * self.steps.value)

    def on_pull(self, params: Any, view: Any, moved: jax.Array) -> tuple:
        """Subtract ``rate * steps`` velocities, the worker's distance, from the view."""
        return self, *self.resolved().on_pull(params, view, moved)[1:]


class LookAheadMomentumState(NamedTuple):
    """State of :func:`look_ahead_momentum`, shared by all workers."""

    count: jax.Array  # int32 []; commits so far.
    ahead: LookAhead | OwnLookAhead  # v, like params, and the distance of the look-ahead along it.


def look_ahead_momentum(
    learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, horizon: Horizon | None = None
) -> "Method":
    """Heavy-ball momentum shared by all workers, with views ahead of the central variable.

    The atom of :func:`gemjax.nag_asgd` and :func:`gemjax.lwp`. It turns gradients into the velocity v ← γ v + g, so it goes
    before the learning rate in a chain. :func:`gemjax.pull` then returns θ - D η_t v, with the rate of the last commit.

    Args:
      learning_rate: η, the rate that the chain applies; here it only sets the length of a step.
      momentum: γ in [0, 1), default 0.9.
      horizon: D ≥ 0, the look-ahead in steps η v; or a function from the staleness of the worker's last
        commit (int32 scalar) to it, as :func:`gemjax.rules.momentum_horizon`. ``None`` (default) is ``momentum``, as in
        Nesterov's method.

    Returns:
      A transformation that keeps one copy of the parameters centrally (v). It offers the diagnostic ``look_ahead``.

    Raises:
      ValueError: if ``learning_rate`` or ``horizon`` is negative or ``momentum`` outside [0, 1).
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    steps_ahead = momentum if horizon is None else horizon
    own_steps = steps_ahead if callable(steps_ahead) else None  # From the staleness; None if all workers have the same.
    if own_steps is None:
        check_at_least("horizon", steps_ahead, 0.0)

    def init_fn(params) -> Any:
        velocity, nothing = optax.tree.zeros_like(params), jnp.zeros([])
        ahead = OwnLookAhead(velocity, nothing, Slots(nothing)) if own_steps else LookAhead(velocity, nothing)
        return LookAheadMomentumState(count=jnp.zeros([], jnp.int32), ahead=ahead)

    def update_fn(updates, state, params=None, *, staleness: Any = None, observe=None, **extra_args) -> Any:
        del params, extra_args
        velocity = jax.tree.map(lambda v, g: jnp.asarray(momentum, v.dtype) * v + g, state.ahead.velocity, updates)
        step = rate_at(learning_rate, state.count)
        if own_steps:
            require_protocol("look_ahead_momentum", staleness=staleness)
            ahead = OwnLookAhead(velocity, step, Slots(jnp.asarray(own_steps(staleness), step.dtype)))
            resolved = ahead.resolved()
        else:
            ahead = resolved = LookAhead(velocity, step * jnp.asarray(steps_ahead, step.dtype))
        if observe is not None:
            observe("look_ahead", resolved.length)
        return velocity, LookAheadMomentumState(jnp.asarray(optax.safe_increment(state.count)), ahead)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def momentum_asgd(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1) -> "Method":
    """Asynchronous SGD with one heavy-ball momentum that all workers share.

    This is a parameter server with a momentum optimizer. Each gradient acts for about 1/(1-γ) commits, while other gradients
    arrive that were computed before it was applied. Momentum thus multiplies the distance between the central variable and the
    points of the gradients, and many workers diverge at a rate that is safe for one.

        v ← γ v + g
        θ ← θ - η_t v

    with v = 0 at the start, one for all workers.

    Reductions: with one worker it is ``optax.sgd(learning_rate, momentum)``; at ``momentum=0`` it is :func:`gemjax.asgd`. It
    consists of ``optax.trace(momentum)`` in front of the learning rate.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters per
      worker and one centrally (v).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.momentum_asgd(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-1.5]
    [-1.75]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019 (as a baseline)
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    return asynchronous(optax.chain(optax.trace(momentum), scale_by_learning_rate(learning_rate)), num_workers)


def nag_asgd(learning_rate: "optax.ScalarOrSchedule", momentum: float = 0.9, num_workers: int = 1) -> "Method":
    """NAG-ASGD: one Nesterov momentum that all workers share.

    :func:`gemjax.momentum_asgd` in which a view is the point to which the momentum alone would carry the central variable next.
    That point is one commit ahead, but N - 1 commits happen before the gradient arrives, so the method diverges like the heavy
    ball. It is the baseline of DANA.

        v ← γ v + g(s_w)
        θ ← θ - η_t v
        s_w ← θ - η_t γ v

    with v = 0 at the start, w the worker that commits and s_w its view.

    Reductions: with one worker and a constant rate the views are the parameters of
    ``optax.sgd(learning_rate, momentum, nesterov=True)``; at ``momentum=0`` it is :func:`gemjax.asgd`. It is
    :func:`gemjax.lwp` with ``horizon=momentum``.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. A view between two
        commits uses the rate of the last one.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; :func:`gemjax.pull` returns the
      look-ahead. It keeps no copy of the parameters per worker and one centrally (v).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.nag_asgd(learning_rate=1.0, momentum=0.5, num_workers=2)
    >>> params = jnp.zeros(1)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(params), params, worker=0)
    >>> params = optax.apply_updates(params, updates)
    >>> view, state = gemjax.pull(state, params, worker=0)
    >>> print(params, view)
    [-1.] [-1.5]

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019 (as a baseline)

    Readings: NAG-ASGD is taken to be one Nesterov optimizer at the central variable that sends its look-ahead, and not one in
    Bengio's coordinates, as in some parameter servers. At a constant rate the points of the gradients are the same in both.
    """
    atom = look_ahead_momentum(learning_rate, momentum)
    return asynchronous(optax.chain(atom, scale_by_learning_rate(learning_rate)), num_workers)
