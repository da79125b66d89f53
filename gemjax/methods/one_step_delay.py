"""Error feedback against a delay of one step (Zmushko et al., 2026)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree, diagnostics
from gemjax.protocol.checks import check_at_least, check_learning_rate, check_momentum
from gemjax.protocol.staleness import asynchronous

ZMUSHKO2026ONE = Paper("inproceedings", "zmushko2026one", {
    "author": "Zmushko, Philip and Petrov, Egor and Abdullaev, Nursultan and Khrushchev, Mikhail and "
    "Horv{\\'a}th, Samuel",
    "title": "One-Step Gradient Delay is Not a Barrier for Large-Scale Asynchronous Pipeline Parallel {LLM} Pretraining",
    "booktitle": "International Conference on Machine Learning", "year": "2026", "eprint": "2606.30634"})  # fmt: skip
PAPERS = {"correct_one_step_delay": (ZMUSHKO2026ONE,)}


class CorrectOneStepDelayState(NamedTuple):
    """State of :func:`correct_one_step_delay`, shared by all workers."""

    started: jax.Array  # bool []; True after the first update.
    previous: PyTree  # u_{t-1}, like params; the last update before its correction.


def correct_one_step_delay(strength: float = 1.0) -> "Method":
    """Add to each update c times its difference from the previous one, to make up for a delay of one step.

    The atom of :func:`gemjax.one_step_delay`. It acts on *updates that already carry the learning rate*, so it goes last in a
    chain, behind any optax optimizer. It reads nothing of the staleness protocol and also works in an ordinary ``optax.chain``.

    Args:
      strength: c, as in :func:`gemjax.one_step_delay`.

    Returns:
      A transformation that keeps one copy of the parameters centrally (u[t-1]). It offers the diagnostic
      ``compensation``.

    Raises:
      ValueError: if ``strength`` is negative.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.rules.correct_one_step_delay()
    >>> state = tx.init(jnp.zeros(1))
    >>> for update in (1.0, 3.0, 4.0):  # The first update is not corrected.
    ...     found, state = tx.update(jnp.array([update]), state)
    ...     print(found)
    [1.]
    [5.]
    [5.]
    """
    check_at_least("strength", strength, 0.0)

    def init_fn(params) -> Any:
        return CorrectOneStepDelayState(jnp.zeros([], bool), optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None, *, observe=None, **extra_args) -> Any:
        del params, extra_args

        def correct(u, previous):
            return u + jnp.where(state.started, jnp.asarray(strength, u.dtype) * (u - previous), jnp.zeros_like(u))

        corrected = jax.tree.map(correct, updates, state.previous)
        if observe is not None:
            observe("compensation", lambda: diagnostics.relative_change(corrected, updates))
        return corrected, CorrectOneStepDelayState(jnp.ones_like(state.started), updates)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def one_step_delay(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    strength: float = 1.0,
) -> "Method":
    """One-step-delay correction: each update is extended by its difference from the previous one.

    In a pipeline with two versions of the weights every gradient is one step old. What the newest update adds to the previous
    one, u_t - u[t-1], is added once more in the same step, as error feedback does with the error of a compression. If updates
    drift evenly, the sum is the update without delay.

        v ← γ v + g(θ[t-1]),   u_t = -η_t v
        θ[t+1] = θ[t] + u_t + c (u_t - u[t-1])

    with v = 0 and no correction at the first commit; v and u[t-1] are shared by all workers.

    Reductions: at ``strength=0``, and where updates do not change, it is :func:`gemjax.momentum_asgd`. With a delay of exactly
    one (two workers in turn) and updates that drift evenly, its updates are those without delay.

    For another optimizer, such as AdamW, put the atom behind it:

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(
    ...     optax.chain(optax.adamw(1e-3), gemjax.rules.correct_one_step_delay()), num_workers=2)

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable. At the first commit
        with rate 0 the parameters still move by -c u[t-1].
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1; two workers in turn have the paper's delay. No result is known for longer
        delays: the correction looks one step ahead, whatever the staleness.
      strength: c ≥ 0, default 1 as in the paper.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters per
      worker and two centrally (v, u[t-1]).

    Raises:
      ValueError: if ``learning_rate`` or ``strength`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not
        positive.

    >>> tx = gemjax.one_step_delay(learning_rate=1.0, momentum=0.0, num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker, gradient in ((0, 4.0), (1, 3.0), (0, 2.0)):
    ...     updates, state = tx.update(jnp.array([gradient]), state, worker=worker)
    ...     print(updates)
    [-4.]
    [-2.]
    [-1.]

    References:
      Zmushko et al., `One-Step Gradient Delay is Not a Barrier for Large-Scale Asynchronous Pipeline Parallel LLM
      Pretraining <https://arxiv.org/abs/2606.30634>`_, 2026

    Readings: the text of the paper was not available in full. The equation, c = 1 and the plain first step are those of an
    independent implementation, in which u also carries the learning rate of its own step (and the decoupled weight decay, if
    the optimizer has one).

    Deviations from the paper:
      1. The paper corrects optimizers such as AdamW and Muon. This alias has SGD with momentum; a chain has any other.
      2. Delays are those of asynchronous workers. In the paper the delay is always one step.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    delayed = optax.chain(optax.trace(momentum), scale_by_learning_rate(learning_rate))
    return asynchronous(optax.chain(delayed, correct_one_step_delay(strength)), num_workers)
