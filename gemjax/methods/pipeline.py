"""Asynchronous pipeline parallelism: the staleness differs among the leaves of one commit (Ajanthan et al., 2025)."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.dc_asgd import compensate_delay
from gemjax.methods.leaf_groups import Groups, checked_groups, chosen, number_leaves
from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import (
    check_at_least,
    check_learning_rate,
    check_method,
    check_momentum,
    integer,
    with_extra_args,
)
from gemjax.protocol.hooks import MadeFor, ReadsStaleParams, where_present
from gemjax.protocol.nodes import nodes
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, is_asynchronous

AJANTHAN2025NESTEROV = Paper("inproceedings", "ajanthan2025nesterov", {
    "author": "Ajanthan, Thalaiyasingam and Ramasinghe, Sameera and Zuo, Yan and Avraham, Gil and Long, Alexander",
    "title": "Nesterov Method for Asynchronous Pipeline Parallel Optimization",
    "booktitle": "International Conference on Machine Learning", "year": "2025", "eprint": "2505.01099"})  # fmt: skip
PAPERS = {"stage_momentum": (AJANTHAN2025NESTEROV,), "delay_stages": (AJANTHAN2025NESTEROV,)}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["last_update", "horizon"], meta_fields=["num_stages", "stages"]
)
@dataclasses.dataclass(frozen=True)
class Prediction:
    """Weight prediction: shifts the view of a leaf by horizon × delay × last update."""

    last_update: PyTree  # Like params.
    horizon: jax.Array  # float [].
    num_stages: int
    stages: Any

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Add the updates that will be made until the gradient acts, if all are like the last one."""
        delays = delays_of(self.num_stages, self.stages, self.last_update)
        steps = jax.tree.map(lambda delay, u: (self.horizon * delay).astype(u.dtype) * u, delays, self.last_update)
        return self, where_present(lambda step, x: x + step, steps, view), ()


ALONE = MadeFor(
    1,
    "inner of delay_stages keeps state per worker, but its leaves are of gradients of several workers; put that part in front, "
    "as in optax.chain(gemjax.per_worker(...), gemjax.rules.delay_stages(...)), choose one without such state, or make a "
    "pipeline per worker, gemjax.per_worker(gemjax.rules.delay_stages(...))",
)


class DelayStagesState(NamedTuple):
    """State of :func:`delay_stages`."""

    grads: tuple  # The last P - 1 gradients, the newest first.
    params: tuple  # The points of these gradients; () if no member compares with them.
    ahead: Prediction | None
    inner: optax.OptState
    workers: MadeFor | None  # Refuses several workers if P > 1 and the inner state is per worker; else None.


def delay_stages(
    inner: optax.GradientTransformation, num_stages: int, stages: Groups | None = None, *, horizon: float = 0.0
) -> "Method":
    """Delay the gradient of each leaf as the stages of an asynchronous pipeline do.

    While a mini-batch runs through P stages and back, stage k makes τ_k = P - 1 - k updates. For its leaves ``inner`` receives
    the gradients of commit t - τ_k, zero before there is one, and, if a member asks for ``stale_params``, these leaves as they
    were then: :func:`gemjax.rules.compensate_delay` works inside, leaf by leaf (with several workers in its constant variant,
    which keeps nothing per worker). The delay adds to the staleness of several workers and is not part of the ``staleness``
    that members receive.

    With more than one stage the leaves that ``inner`` receives are of several commits. So it receives neither ``local_steps``
    nor ``local_losses``, with several workers no ``worker`` either, and ``staleness`` and ``value`` are those of the newest
    commit: :func:`gemjax.rules.scale_by_local_steps` and, with several workers, :func:`gemjax.rules.scale_by_staleness` and
    :func:`gemjax.per_worker` go in front. For a pipeline per worker put all of it inside of :func:`gemjax.per_worker`.

    Reductions: with one stage it is ``inner``; if all leaves are in the first stage and there is one worker, it is ``inner``
    with P workers in turn, P - 1 commits later.

    Args:
      inner: an optimizer with its learning rate, such as ``optax.adamw(1e-3)``.
      num_stages: P, a positive int.
      stages: the stage of each leaf: ``None`` (default): consecutive leaves in groups of equal size, as far as possible;
        prefixes of paths, one or a tuple per stage; or a function from path and leaf to the stage, as the fragments of
        :func:`gemjax.rules.by_fragment`.
      horizon: weight prediction: the view of a leaf is ``horizon`` times τ_k last updates ahead; default 0. With 1
        the gradient is computed where the leaf will be, if updates do not change.

    Returns:
      A transformation that keeps P - 1 copies of the parameters centrally, twice as many for members that compare with
      stale parameters, and one more for weight prediction.

    Raises:
      ValueError: if ``num_stages`` is not positive, ``horizon`` negative, or a stage is not below ``num_stages``; if ``inner``
        keeps state per worker, and there are several stages and workers.
      TypeError: at ``init``, if ``inner`` is a whole method, and there are several stages.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.rules.delay_stages(optax.sgd(1.0), num_stages=3, stages=["in", "mid", "out"])
    >>> params = {"in": jnp.zeros([]), "mid": jnp.zeros([]), "out": jnp.zeros([])}
    >>> state = tx.init(params)
    >>> for t in (1.0, 2.0, 3.0):  # Each gradient is the number of its commit.
    ...     updates, state = tx.update({name: jnp.array(t) for name in params}, state, params)
    >>> [float(updates[name]) for name in params]
    [-1.0, -2.0, -3.0]
    """
    check_method("inner", inner)
    num_stages = integer("num_stages", num_stages, 1)
    check_at_least("horizon", horizon, 0.0)
    stages = num_stages if stages is None else checked_groups("stages", stages)
    inner = with_extra_args(inner)

    def init_fn(params) -> Any:
        delays_of(num_stages, stages, params)
        state, zeros = inner.init(params), optax.tree.zeros_like(params)
        if num_stages > 1 and is_asynchronous(state):  # It would compare with views of its own, which are not delayed.
            raise TypeError(
                "delay_stages with several stages takes parts, such as optax.chain(gemjax.rules.compensate_delay(0.1), "
                "optax.sgd(0.1)), and nothing with its own gemjax.asynchronous, as whole methods and "
                "per_worker(..., num_workers=N) have it; put gemjax.asynchronous around delay_stages"
            )
        ahead = (
            Prediction(zeros, jnp.asarray(horizon, jnp.result_type(float)), num_stages, chosen(stages, params))
            if _may_act(horizon)
            else None
        )
        copies = lambda tree: tuple(
            jax.tree.map(jnp.copy, tree) for _ in range(num_stages - 1)
        )  # So that jit can donate.
        kept = copies(params) if nodes(state, ReadsStaleParams) else ()
        return DelayStagesState(
            copies(zeros), kept, ahead, state, ALONE if num_stages > 1 and nodes(state, Slots) else None
        )

    def update_fn(updates, state, params=None, **extra_args) -> Any:
        delays = delays_of(num_stages, stages, updates)
        number = extra_args.get("num_workers")  # Traced, where the caller has compiled this function.
        has_several_workers = number is not None and not (isinstance(number, int) and number == 1)

        def at_delay(newest, older):
            return jax.tree.map(lambda delay, *each: each[delay], delays, newest, *older), (newest, *older)[:-1]

        stale, grads = at_delay(updates, state.grads)
        kept = state.params
        if kept:
            view = extra_args.get("stale_params")
            extra_args["stale_params"], kept = at_delay(params if view is None else view, kept)
        if num_stages > 1:
            hidden = ("local_steps", "local_losses", *(["worker"] if has_several_workers else []))
            extra_args = {name: value for name, value in extra_args.items() if name not in hidden}
        updates, after = inner.update(stale, state.inner, params, **extra_args)
        ahead = (
            None
            if state.ahead is None
            else dataclasses.replace(
                state.ahead, last_update=updates, horizon=jnp.asarray(horizon, state.ahead.horizon.dtype)
            )
        )
        return updates, DelayStagesState(grads, kept, ahead, after, state.workers)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def delays_of(num_stages: int, stages: Any, params: PyTree) -> PyTree:
    """Return a tree like ``params`` with the delay of each leaf, P - 1 - k at stage k."""
    numbers, count = number_leaves(stages, params, all_used=False)
    if count > num_stages:
        raise ValueError(f"a leaf is in stage {count - 1}, but there are only {num_stages} stages, from 0 on")
    return jax.tree.map(lambda number: num_stages - 1 - number, numbers)


def stage_momentum(
    momentum: float, num_stages: int, stages: Groups | None = None, *, highest: float = 0.99
) -> "Method":
    """Discounted Nesterov momentum that rises with the delay of a stage.

    The momentum of stage k is β_k = β + τ_k (β_max - β) / P. The atom of :func:`gemjax.async_pipeline`, whose docstring
    explains the mathematics. It goes before the learning rate in a chain, inside :func:`gemjax.rules.delay_stages`.

    Args:
      momentum: β in [0, 1), that of the last stage.
      num_stages: as in :func:`gemjax.rules.delay_stages`.
      stages: as in :func:`gemjax.rules.delay_stages`.
      highest: β_max in [0, 1), default 0.99; ``momentum`` for the same momentum at all stages.

    Returns:
      A transformation that keeps one copy of the parameters centrally (m).

    Raises:
      ValueError: if ``momentum`` or ``highest`` is outside [0, 1) or ``num_stages`` not positive.
    """
    check_momentum("momentum", momentum)
    check_momentum("highest", highest)
    num_stages = integer("num_stages", num_stages, 1)
    stages = num_stages if stages is None else checked_groups("stages", stages)

    def update_fn(updates, state, params=None, **extra_args) -> Any:
        del params, extra_args
        delays = delays_of(num_stages, stages, updates)
        betas = jax.tree.map(lambda delay: momentum + delay * (highest - momentum) / num_stages, delays)

        def mix(beta, old, g):
            beta = jnp.asarray(beta, g.dtype)
            return beta * old + (1 - beta) * g

        mean = jax.tree.map(mix, betas, state, updates)
        return jax.tree.map(mix, betas, mean, updates), mean

    return optax.GradientTransformationExtraArgs(lambda params: optax.tree.zeros_like(params), update_fn)


def async_pipeline(
    learning_rate: "optax.ScalarOrSchedule",
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    num_stages: int = 4,
    stages: "Groups | None" = None,
    highest: float = 0.99,
    horizon: float = 0.0,
    strength: float = 0.0,
) -> "Method":
    """Asynchronous pipeline parallelism: Nesterov momentum whose strength rises with the delay of a stage.

    A pipeline without bubbles updates a stage with gradients that are one commit old per later stage. Nesterov's
    look-ahead compensates a delay if the momentum is large, so the momentum of a stage grows with its delay.

        τ_k = P - 1 - k,   β_k = β + τ_k (β_max - β) / P
        g̃ = g[t-τ_k] + λ g[t-τ_k]² (θ[t] - θ[t-τ_k])
        m ← β_k m + (1 - β_k) g̃
        θ ← θ - η_t (β_k m + (1 - β_k) g̃)

    for the leaves of stage k = 0, …, P - 1, with m = 0 at the start, g_j the gradient of commit j, zero before the first one,
    and λ the strength of DC-ASGD's delay compensation. With weight prediction gradients are computed at θ[t] + h τ_k u_t, for
    u_t the last update.

    Reductions: with one stage it is discounted Nesterov momentum; with ``momentum=highest=0`` and one stage,
    :func:`gemjax.asgd`.

    For another optimizer delay that one: ``gemjax.asynchronous(gemjax.rules.delay_stages(optax.nadamw(1e-3), num_stages=8))``.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      momentum: β in [0, 1), that of the last stage, default 0.9. The mean does not carry the learning rate.
      num_workers: number of workers N, default 1: one pipeline. The staleness of several adds to the delays.
      num_stages: P, a positive int, default 4.
      stages: the stage of each leaf, as in :func:`gemjax.rules.delay_stages`; ``None`` (default): groups of equal size.
      highest: β_max in [0, 1), default 0.99.
      horizon: h ≥ 0 of weight prediction, default 0.
      strength: λ ≥ 0, default 0.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``; with ``horizon`` :func:`gemjax.pull`
      returns the prediction. It keeps P copies of the parameters centrally (P - 1 gradients, m), with
      ``strength`` another P - 1 and one copy per worker, and with ``horizon`` one more.

    Raises:
      ValueError: if ``learning_rate``, ``horizon`` or ``strength`` is negative, ``momentum`` or ``highest`` outside [0, 1), or
        ``num_stages`` or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.async_pipeline(1.0, momentum=0.0, num_stages=2, stages=["in", "out"], highest=0.5)
    >>> params = {"in": jnp.zeros([]), "out": jnp.zeros([])}
    >>> state = tx.init(params)
    >>> for t in (1.0, 2.0):
    ...     updates, state = tx.update({"in": jnp.array(t), "out": jnp.array(t)}, state, params)
    >>> updates["out"], updates["in"]  # 0.25 m + 0.75 g with m = 0.75 g, for g = 1 of the commit before.
    (Array(-2., dtype=float32), Array(-0.9375, dtype=float32))

    References:
      - Ajanthan et al., `Nesterov Method for Asynchronous Pipeline Parallel Optimization
        <https://arxiv.org/abs/2505.01099>`_, 2025
      - Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, 2019 (the delays)

    Readings: the text of the papers was not available in full. Delays and momentum are those of `the first authors' program
    <https://github.com/PluralisResearch/AsyncPP>`_, where they are given by the number of stashed weights; the queue and its
    corrections are those of `Marin <https://github.com/marin-community/marin>`_.

    Deviations from the program:
      1. The authors' optimizer is NAdam with weight decay; this alias has its momentum without the second moment.
      2. The whole gradient is computed at the parameters of one commit and delayed. In a pipeline with stashed weights its
         parts are also computed at weights of different ages.
      3. The momentum is not corrected for its bias at the start.

    Deviations from Marin's program, which has the delays, ``strength`` and ``horizon``:
      1. With both, the correction is measured from the parameters at which the gradient was computed, prediction included.
      2. The curvature is that of the gradient alone; there it may be an average of squared gradients.
    """
    check_learning_rate(learning_rate)
    check_at_least("strength", strength, 0.0)
    rule = optax.chain(
        compensate_delay(strength) if _may_act(strength) else optax.identity(),
        stage_momentum(momentum, num_stages, stages, highest=highest),
        scale_by_learning_rate(learning_rate),
    )
    return asynchronous(delay_stages(rule, num_stages, stages, horizon=horizon), num_workers)


def _may_act(value: Any) -> bool:
    """Return True unless ``value`` is 0; an array, as under ``optax.inject_hyperparams``, may be any number."""
    return isinstance(value, jax.Array) or bool(value)
