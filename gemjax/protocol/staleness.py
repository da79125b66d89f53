"""The staleness protocol: the record of all pulls, kept once for every method.

A worker **pulls** a view of the central variable, computes a gradient at it and **commits** the gradient, by which time
other workers have committed too. :func:`asynchronous` keeps the state of that exchange around any optax transformation
and passes it to every member as the extra arguments ``worker``, ``staleness`` and ``stale_params``; :func:`pull` records
a pull. Both are pure functions of arrays. Threads, devices and clocks belong to the engines.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.protocol import Method, PyTree, slots
from gemjax.protocol.checks import check_alike, check_method, check_positive_int, check_worker, kept, with_extra_args
from gemjax.protocol.diagnostics import offer_injected_rate
from gemjax.protocol.hooks import NeedsLocalSteps, NeedsRounds, ReadsStaleParams, Refusals, answer_pull, has_on_pull
from gemjax.protocol.nodes import (
    StalenessState,
    ask,
    check_made_for,
    check_nested,
    check_of_one_run,
    copies_in,
    counting_refusals,
    is_wrapper,
    map_nodes,
    nodes,
    refused,
    without_wrappers,
)
from gemjax.protocol.slots import Slots


def asynchronous(inner: "optax.GradientTransformation", num_workers: int = 1) -> "Method":
    """Let ``num_workers`` workers commit to one central variable through ``inner``.

    The state has a clock t that counts commits, the clock t_w at which each worker w last pulled, and, if a member of ``inner``
    reads it, the view s_w that it pulled. At a commit of worker w every member that accepts extra arguments receives

    - ``worker``: w, an integer scalar;
    - ``staleness``: τ = t - t_w, the commits applied since that worker's pull, an int32 scalar;
    - ``stale_params``: s_w, like ``params``; ``None`` unless a member asks for it by
      :class:`gemjax.rules.ReadsStaleParams`;
    - ``num_workers``: N, an int; 1 inside of :func:`gemjax.per_worker`;
    - ``local_steps``: 1 if it is not given and no member expects displacements;
    - what else is given to ``update``; engines give the losses and the number of local steps behind a commit.

    Members keep per-worker memory in :class:`gemjax.rules.Slots` and see only the slot of the worker that commits. Published
    methods (:func:`gemjax.gem` and the others) are this wrapper around a chain; use it for chains of your own. A call
    compiles once for all workers. Around a whole method it keeps clock, pulls and views for that method, too.

    Args:
      inner: any optax transformation, usually an ``optax.chain``.
      num_workers: number of workers N, a positive int. With 1 the argument ``worker`` is optional; a commit without it
        counts as computed at ``params`` unless the worker pulled since the last commit. The result is then an ordinary optax
        optimizer.

    Returns:
      A transformation whose ``update(grads, state, params, *, worker, **extra_args)`` is one commit.

    Raises:
      ValueError: if ``num_workers`` is not positive; at a commit, if ``worker`` is missing or out of range (a traced number is
        not checked), or if the gradients do not match ``params`` in tree or shape.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(
    ...     optax.chain(optax.clip_by_global_norm(1.0), gemjax.rules.scale_by_staleness(), optax.scale_by_learning_rate(0.5)),
    ...     num_workers=2)
    >>> params = jnp.array([2.0])
    >>> state = tx.init(params)
    >>> for worker in (0, 1):  # Both pulled the initial parameters.
    ...     grads = jnp.array([0.5])
    ...     updates, state = tx.update(grads, state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    ...     view, state = gemjax.pull(state, params, worker=worker)
    >>> int(state.clock), int(state.pulled_at[0]), int(state.pulled_at[1])
    (2, 1, 2)
    """
    check_positive_int("num_workers", num_workers)
    check_method("inner", inner)
    inner = with_extra_args(inner)

    def init_fn(params):
        number = operator.index(num_workers)
        inner_state, copies = inner.init(params), copies_in(inner.init, params)
        check_nested(inner_state, number)
        inner_state, copies = without_wrappers(inner_state, copies)
        check_made_for(inner_state, number)
        state = StalenessState(
            clock=jnp.zeros([], jnp.int32),
            pulled_at=Slots(jnp.zeros([], jnp.int32)),
            stale_params=Slots(params) if nodes(inner_state, ReadsStaleParams) else None,
            inner_state=inner_state,
            own_commits=Slots(jnp.zeros([], jnp.int32)),
            copies=copies,
        )
        return slots.stack(state, number)

    def update_fn(updates, state, params=None, *, worker=None, **extra_args):
        if not is_wrapper(state):  # That of the members: another wrapper around this one keeps the rest.
            if "num_workers" not in extra_args:
                raise TypeError(
                    f"{type(state).__name__} is not the state that the init of gemjax.asynchronous returned; give that one, "
                    "and put transformations that pass on no extra arguments around the whole method"
                )
            return inner.update(updates, state, params, worker=worker, **extra_args)
        if params is not None:
            check_alike("the gradient", updates, params)
        mine, index = _checked_out(state, worker)
        staleness, stale_params = _staleness(mine, params, implicit=worker is None)
        # A gradient is one step; the number behind a displacement is not known.
        if not needs_local_steps(mine):
            extra_args.setdefault("local_steps", 1)
        # Under optax.inject_hyperparams N is traced; then the stacked state has it.
        number = state.pulled_at.num_workers or (None if isinstance(num_workers, jax.core.Tracer) else int(num_workers))
        extra_args |= {"worker": index, "num_workers": number, "staleness": staleness, "stale_params": stale_params}
        before = ask(mine.inner_state, staleness)
        if may_refuse := bool(nodes(before, Refusals)):
            before = slots.begin_commit(before)
        updates, inner_state = inner.update(updates, before, params, **extra_args)
        inner_state = kept("the state after update", inner_state, before)
        if extra_args.get("observe") is not None:
            offer_injected_rate(extra_args["observe"], inner_state)
        clock, own_commits = map(optax.safe_increment, (mine.clock, mine.own_commits.value))
        new = mine._replace(
            clock=jnp.asarray(clock), own_commits=Slots(jnp.asarray(own_commits)), inner_state=inner_state
        )
        if may_refuse:
            dropped = refused(mine.inner_state, inner_state)
            updates = jax.tree.map(lambda u: jnp.where(dropped, jnp.zeros_like(u), u), updates)
            unchanged = mine._replace(inner_state=counting_refusals(mine.inner_state, inner_state))
            new = slots.select(~dropped, new, unchanged)
        return updates, slots.put(state, new, index)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def pull(state: "PyTree", params: "PyTree", worker: "jax.typing.ArrayLike | None" = None) -> "tuple[PyTree, PyTree]":
    """Return the view of the central variable for worker ``worker``, and record its pull.

    Finds the staleness state anywhere in ``state`` (inside ``chain``, ``masked``, ``inject_hyperparams``, …), sets
    ``pulled_at[worker]`` to the clock and, where kept, ``stale_params[worker]`` to the view. Before its first pull a worker
    counts as having pulled the parameters that ``init`` received. One that has never committed begins at ``params``: copies of
    the parameters that the method keeps for it (EASGD's positions) are renewed.

    Args:
      state: optimizer state, of any optax transformation; without :func:`asynchronous` inside it is returned as it is.
      params: the central variable now.
      worker: number of the worker that pulls; an int or an integer scalar array. Optional with one worker.

    Returns:
      ``(view, state)``. The worker computes its gradient at the view: ``params`` itself, unless a member of the method
      shifts it (DANA's look-ahead, EASGD's own positions).

    Raises:
      ValueError: if ``worker`` is missing with several workers, or out of range (a traced number is not checked), or ``state``
        is that of all runs of a sweep.

    >>> import gemjax, jax.numpy as jnp
    >>> params = jnp.array([1.0])
    >>> state = gemjax.gem(0.1, num_workers=2).init(params)
    >>> view, state = gemjax.pull(state, params, worker=1)
    >>> view is params
    True
    """
    check_of_one_run(state, "pull")
    view, state, _ = pull_with_anchors(state, params, worker)
    return view, state


def pull_with_anchors(
    state: PyTree, params: PyTree, worker: jax.typing.ArrayLike | None = None
) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
    """Do what :func:`pull` does, and also return the points for local steps that the method sends along with the view."""
    view, anchors = params, ()
    index: Any = worker

    def begin(node):
        nonlocal index
        mine, index = _checked_out(node, worker)
        never_committed = mine.own_commits.value == 0
        return mine._replace(inner_state=mine.copies.renewed(mine.inner_state, params, never_committed))

    def arrive(mine):
        moved = mine.pulled_at.value != mine.clock

        def call(node):
            nonlocal view, anchors
            after, view, more = answer_pull(node, params, view, moved)
            anchors += more
            return node if after is node else slots.select(moved, after, node)

        return mine._replace(inner_state=map_nodes(call, has_on_pull, mine.inner_state))

    for node in jax.tree.leaves(state, is_leaf=lambda node: is_wrapper(node) or has_on_pull(node)):
        if has_on_pull(node):
            raise TypeError(
                f"{type(node).__name__} takes part in pulls, but is outside of gemjax.asynchronous, which would call it; "
                "put the whole chain inside of one, gemjax.asynchronous(optax.chain(…), num_workers=N)"
            )
    # No wrapper records the view before all nodes were called.
    arrived = map_nodes(lambda node: arrive(begin(node)), is_wrapper, state)
    put = lambda node, mine: slots.put(node, _record_pull(mine, view), index)
    return view, map_nodes(put, is_wrapper, state, arrived), anchors


def read_again(
    state: PyTree,
    params: PyTree,
    choose: Callable[[PyTree, PyTree], PyTree],
    view: PyTree,
    worker: jax.typing.ArrayLike | None = None,
) -> tuple[PyTree, PyTree]:
    """Return ``view`` with some of the numbers that a pull would return now, and ``state`` with it as the record.

    It belongs to an earlier pull: neither ``pulled_at`` nor any memory of a rule changes.

    Args:
      state, params, worker: as for :func:`pull`.
      choose: ``choose(fresh, view)`` returns ``view`` with some of the numbers of ``fresh``, what a pull would return.
      view: what the worker has read so far, like ``params``.
    """
    fresh, _, _ = pull_with_anchors(state, params, worker)
    view = choose(fresh, view)

    def record(node):
        mine, index = _checked_out(node, worker)
        if mine.stale_params is None:
            return node
        return slots.put(node, mine._replace(stale_params=_recorded(view, mine.stale_params)), index)

    return view, map_nodes(record, is_wrapper, state)


def needs_local_steps(state: PyTree) -> bool:
    """Return True if a member of the method expects displacements of local steps."""
    return bool(nodes(state, NeedsLocalSteps))


def needs_rounds(state: PyTree) -> bool:
    """Return True if a member of the method is defined in rounds of all workers."""
    return bool(nodes(state, NeedsRounds))


def is_asynchronous(state: PyTree) -> bool:
    """Return True if ``state`` contains a staleness state."""
    return bool(nodes(state, StalenessState))


def num_workers_of(state: PyTree) -> int:
    """Return the number of workers of an optimizer state in its stacked form.

    Raises:
      ValueError: if its parts are for different numbers.
    """
    numbers = {node.pulled_at.num_workers for node in nodes(state, StalenessState)}
    if len(numbers) > 1:
        raise ValueError(f"parts of the method were made for different numbers of workers: {sorted(numbers)}")
    return numbers.pop()


def recorded_view(mine: PyTree, params: PyTree) -> PyTree | None:
    """Return the view that the checked-out worker pulled; ``None`` if the optimizer state ``mine`` lacks any part of it."""
    for node in nodes(mine, StalenessState):
        view = node.stale_params
        if view is not None and jax.tree.structure(view.value) == jax.tree.structure(params):
            return view.value
    return None


def require_protocol(rule: str, **needed: Any) -> None:
    """Raise ``TypeError`` with advice if an atom is used outside :func:`asynchronous`, which supplies ``needed``."""
    for name, value in needed.items():
        if value is None:
            raise TypeError(
                f"{rule} was called without {name}=. It acts on one worker's commit, so it must be inside "
                f"gemjax.asynchronous(optax.chain(…, {rule}(…), …), num_workers=N) and be given params; if it is "
                "inside of an optax.MultiSteps in a chain, give optax.GradientTransformationExtraArgs(steps.init, "
                'steps.update); if it is inside of optax.inject_hyperparams, give that static_args=("num_workers",)'
            )


def _checked_out(state: StalenessState, worker: Any) -> tuple[StalenessState, Any]:
    """Return ``state`` with the worker's slot checked out, unless an engine has done so, and the worker's index."""
    num_workers = state.pulled_at.num_workers
    if num_workers is None:
        return state, worker
    index = check_worker(worker, num_workers)
    return slots.take(state, index), index


def _staleness(mine: StalenessState, params: PyTree, *, implicit: bool) -> tuple[jax.Array, PyTree]:
    staleness = mine.clock - mine.pulled_at.value
    stale_params = None if mine.stale_params is None else mine.stale_params.value
    if implicit:
        if stale_params is not None:
            pulled = staleness == 0
            stale_params = jax.tree.map(lambda s, p: jnp.where(pulled, s, p), stale_params, params)
        staleness = jnp.zeros_like(staleness)
    return staleness, stale_params


def _record_pull(mine: StalenessState, view: PyTree) -> StalenessState:
    stale_params = None if mine.stale_params is None else _recorded(view, mine.stale_params)
    return mine._replace(pulled_at=Slots(mine.clock), stale_params=stale_params)


def _recorded(view: PyTree, before: Slots) -> Slots:
    return Slots(slots.match_mask(view, before.value))
