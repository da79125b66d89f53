"""The staleness protocol: who pulled what and when, kept once, for every method.

A worker **pulls** a view of the central variable, computes a gradient at it and **commits** the gradient, by which time
other workers have committed too. :func:`asynchronous` keeps the state of that exchange around any optax transformation
and hands it to every member as the extra arguments ``worker``, ``staleness`` and ``stale_params``; :func:`pull` records
a pull. Both are pure functions of arrays: threads, devices and clocks are an engine's business.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.protocol import slots
from gemjax.protocol.board import Board
from gemjax.protocol.diagnostics import offer_injected_rate
from gemjax.protocol.hooks import NeedsLocalSteps, NoticesPull, ReadsStaleParams, Refusals, SendsAnchors, ShiftsView
from gemjax.protocol.slots import Slots

PyTree = Any


class StalenessState(NamedTuple):
    """State of :func:`asynchronous`.

    ``clock``, ``pulled_at`` and ``stale_params`` are all that staleness needs; ``state.pulled_at[3]`` and
    ``state.stale_params[3]`` read worker 3's.
    """

    clock: jax.Array  # int32 []; commits applied so far.
    pulled_at: Slots  # int32 [] a worker; the clock when it pulled.
    stale_params: Slots | None  # Like params, a worker; the view it pulled. None where no member reads it.
    inner_state: optax.OptState  # What the members keep; their Slots hold a worker's, the rest is shared.


def asynchronous(inner: optax.GradientTransformation, num_workers: int = 1) -> optax.GradientTransformationExtraArgs:
    r"""Lets ``num_workers`` workers commit to one central variable through ``inner``.

    Keeps a clock :math:`t` that counts commits, the clock :math:`t_w` at which each worker :math:`w` last pulled, and,
    if a member of ``inner`` reads it, the view :math:`s_w` that it pulled. At a commit of worker :math:`w` every member
    that accepts extra arguments receives

    - ``worker``: :math:`w`, an integer scalar;
    - ``staleness``: :math:`\tau = t - t_w`, the commits applied since that worker's pull, an int32 scalar;
    - ``stale_params``: :math:`s_w`, like ``params``; ``None`` unless some member asked (:class:`ReadsStaleParams`).

    Members keep per-worker memory in :class:`gemjax.Slots` and see only the slot of the worker that commits. Published
    methods (:func:`gemjax.gem` and the others) are this wrapper around a chain; use it to build chains that no paper
    has. A call compiles once for all workers.

    Args:
      inner: any optax transformation; ``optax.chain`` of several is the rule.
      num_workers: number of workers N, a positive int. With 1 the argument ``worker`` may be left out; a commit without
        it is taken to be computed at ``params`` unless the worker pulled since the last commit (so that the result is
        an ordinary optax optimizer).

    Returns:
      A transformation whose ``update(grads, state, params, *, worker, **extra_args)`` is one commit.

    Raises:
      ValueError: if ``num_workers`` is not positive; at a commit, if ``worker`` is missing or out of range (of a traced
        number that cannot be noticed), or if the gradients do not match ``params`` in tree, shape or dtype.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(
    ...     optax.chain(optax.clip_by_global_norm(1.0), gemjax.scale_by_staleness(), optax.scale_by_learning_rate(0.5)),
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
    check_num_workers(num_workers)
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        inner_state = inner.init(params)
        state = StalenessState(
            clock=jnp.zeros([], jnp.int32),
            pulled_at=Slots(jnp.zeros([], jnp.int32)),
            stale_params=Slots(params) if _nodes(inner_state, ReadsStaleParams) else None,
            inner_state=inner_state,
        )
        return slots.stack(state, _static_num_workers(num_workers))

    def update_fn(updates, state, params=None, *, worker=None, **extra_args):
        if params is not None:
            _check_alike("the gradient", updates, params)
        mine, index = _checked_out(state, worker)
        staleness, stale_params = _staleness(mine, params, implicit=worker is None)
        extra_args |= {"worker": index, "staleness": staleness, "stale_params": stale_params}
        no = _refuses(inner, updates, mine.inner_state, params, extra_args)
        if no is not None:
            extra_args["applied"] = jnp.logical_and(extra_args.get("applied", True), ~no)
        updates, inner_state = inner.update(updates, mine.inner_state, params, **extra_args)
        if extra_args.get("observe") is not None:
            offer_injected_rate(extra_args["observe"], inner_state)
        new = mine._replace(clock=jnp.asarray(optax.safe_increment(mine.clock)), inner_state=inner_state)
        if no is not None:
            updates = jax.tree.map(lambda u: jnp.where(no, jnp.zeros_like(u), u), updates)
            new = _take_back(no, new, mine)
        return updates, slots.put(state, new, index)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def pull(state: PyTree, params: PyTree, worker: jax.typing.ArrayLike | None = None) -> tuple[PyTree, PyTree]:
    """Hands worker ``worker`` its view of the central variable and records that it pulled.

    Finds the staleness state wherever it stands in ``state`` (inside ``chain``, ``masked``, ``inject_hyperparams``, …),
    sets ``pulled_at[worker]`` to the clock and, where kept, ``stale_params[worker]`` to the view. Before its first pull
    a worker counts as having pulled the parameters that ``init`` was given.

    Args:
      state: optimizer state, of any optax transformation.
      params: the central variable now.
      worker: who pulls; an int or an integer scalar array. May be left out with one worker.

    Returns:
      ``(view, state)``. The view is what this worker computes its gradient at: ``params`` itself, unless a member of
      the method shifts it (DANA's look-ahead, EASGD's own positions).

    Raises:
      ValueError: if ``worker`` is missing with several workers, or out of range (of a traced number that cannot be noticed).

    >>> import gemjax, jax.numpy as jnp
    >>> params = jnp.array([1.0])
    >>> state = gemjax.gem(0.1, num_workers=2).init(params)
    >>> view, state = gemjax.pull(state, params, worker=1)
    >>> view is params
    True
    """
    state = _map_mine(state, worker, lambda mine: mine._replace(inner_state=_notice(mine, params)))
    view = params
    for node in _nodes(state, StalenessState):
        mine, _ = _checked_out(node, worker)
        for shift in _nodes(mine.inner_state, ShiftsView):
            view = shift.shift_view(view)
    return view, _map_mine(state, worker, lambda mine: _record_pull(mine, view))


def refused(before: PyTree, after: PyTree) -> jax.Array | None:
    """Whether a rule refused the commit between two optimizer states, a bool scalar; ``None`` if none ever does."""
    counts = [_nodes(state, Refusals) for state in (before, after)]
    risen = [new.count != old.count for old, new in zip(*counts, strict=True)]
    return jnp.any(jnp.stack(risen)) if risen else None


def anchors_of(mine: PyTree) -> tuple[PyTree, ...]:
    """The points that the method sends the checked-out worker along with its view."""
    return tuple(point for node in _nodes(mine, SendsAnchors) for point in node.anchors())


def needs_local_steps(state: PyTree) -> bool:
    """Whether a member of the method takes displacements for gradients."""
    return bool(_nodes(state, NeedsLocalSteps))


def is_asynchronous(state: PyTree) -> bool:
    """Whether a staleness state stands anywhere in ``state``."""
    return bool(_nodes(state, StalenessState))


def num_workers_of(state: PyTree) -> int:
    """How many workers an optimizer state in its stacked form is kept for.

    Raises:
      ValueError: if its parts were made for different numbers.
    """
    numbers = {node.pulled_at.num_workers for node in _nodes(state, StalenessState)}
    if len(numbers) > 1:
        raise ValueError(f"parts of the method were made for different numbers of workers: {sorted(numbers)}")
    return numbers.pop()


def recorded_view(mine: PyTree, params: PyTree) -> PyTree | None:
    """The whole view that the checked-out worker pulled, if the optimizer state ``mine`` keeps it; else ``None``."""
    for node in _nodes(mine, StalenessState):
        kept = node.stale_params
        if kept is not None and jax.tree.structure(kept.value) == jax.tree.structure(params):
            return kept.value
    return None


def check_num_workers(num_workers: Any) -> None:
    """Raises ``ValueError`` unless ``num_workers`` is a positive integer (a traced value passes, and is refused later)."""
    if isinstance(num_workers, jax.core.Tracer):
        return
    try:
        valid = operator.index(num_workers) >= 1 and not isinstance(num_workers, bool)
    except TypeError:
        valid = False
    if not valid:
        raise ValueError(f"num_workers must be a positive int, got {num_workers!r}")


def require_protocol(rule: str, **needed: Any) -> None:
    """Raises ``TypeError`` with the mend if an atom was used outside :func:`asynchronous`, which supplies ``needed``."""
    for name, value in needed.items():
        if value is None:
            raise TypeError(
                f"{rule} was called without {name}=. It acts on one worker's commit, so it must stand inside "
                f"gemjax.asynchronous(optax.chain(…, {rule}(…), …), num_workers=N) and be given params"
            )


def _static_num_workers(num_workers: Any) -> int:
    if isinstance(num_workers, jax.core.Tracer):
        raise TypeError(
            "num_workers decides the shape of the state, so it cannot be traced; under optax.inject_hyperparams pass "
            "static_args=('num_workers',)"
        )
    return operator.index(num_workers)


def _nodes(state: PyTree, kind: type) -> list:
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def _checked_out(state: StalenessState, worker: Any) -> tuple[StalenessState, Any]:
    """``state`` as one worker sees it; an engine may have checked the slot out already."""
    num_workers = state.pulled_at.num_workers
    if num_workers is None:
        return state, worker
    index = slots.check_worker(worker, num_workers)
    return slots.take(state, index), index


def _staleness(mine: StalenessState, params: PyTree, *, implicit: bool) -> tuple[jax.Array, PyTree]:
    staleness = mine.clock - mine.pulled_at.value
    stale_params = None if mine.stale_params is None else mine.stale_params.value
    if stale_params is not None and params is None:
        raise ValueError("this method compares params with what the worker pulled: call update(grads, state, params)")
    if implicit:
        if stale_params is not None:
            pulled = staleness == 0
            stale_params = jax.tree.map(lambda s, p: jnp.where(pulled, s, p), stale_params, params)
        staleness = jnp.zeros_like(staleness)
    return staleness, stale_params


def counting_refusals(old: PyTree, new: PyTree) -> PyTree:
    """``old`` with the refusals that ``new`` counts: an optimizer state after a commit that was refused."""
    return jax.tree.map(lambda o, n: n if isinstance(n, Refusals) else o, old, new, is_leaf=_is_refusals)


def _refuses(inner: Any, updates: PyTree, state: PyTree, params: PyTree, extra_args: dict) -> jax.Array | None:
    """Whether ``inner`` is going to refuse this commit; ``None`` if it never does.

    Asked before the commit, so that members which write where nothing is taken back can be told; compiled, nothing but
    the answer is computed twice.
    """
    if not _nodes(state, Refusals):
        return None
    _, after = inner.update(updates, state, params, **(extra_args | {"observe": None}))
    return refused(state, after)


def _take_back(no: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """``old`` where ``no`` is true, but for the counts of refusals, and boards, on which nothing was written then."""

    def choose(n, o):
        return n if isinstance(n, (Refusals, Board)) else jnp.where(no, o, n)

    return jax.tree.map(choose, new, old, is_leaf=lambda node: isinstance(node, (Refusals, Board)))


def _is_refusals(node: Any) -> bool:
    return isinstance(node, Refusals)


def _map_mine(state: PyTree, worker: Any, fn: Callable) -> PyTree:
    """``state`` with ``fn`` applied to every wrapper as ``worker`` sees it, those that stand inside another one included."""

    def apply(node):
        if not isinstance(node, StalenessState):
            return node
        mine, index = _checked_out(node, worker)
        mine = mine._replace(inner_state=_map_mine(mine.inner_state, index, fn))
        return slots.put(node, fn(mine), index)

    return jax.tree.map(apply, state, is_leaf=lambda node: isinstance(node, StalenessState))


def _notice(mine: StalenessState, params: PyTree) -> PyTree:
    """The rule's state, told of a pull; as it was if nothing was committed since the last one, which no trace could tell."""
    again = mine.pulled_at.value == mine.clock

    def is_leaf(node):
        return isinstance(node, (NoticesPull, StalenessState))

    def tell(node):
        if not isinstance(node, NoticesPull):
            return node
        return jax.tree.map(lambda before, after: jnp.where(again, before, after), node, node.pulled(params))

    return jax.tree.map(tell, mine.inner_state, is_leaf=is_leaf)


def _record_pull(mine: StalenessState, view: PyTree) -> StalenessState:
    stale_params = mine.stale_params
    if stale_params is not None:
        view = slots.like(view, stale_params.value)
        _check_alike("the pulled view", view, stale_params.value)
        stale_params = Slots(view)
    return mine._replace(pulled_at=Slots(mine.clock), stale_params=stale_params)


def _check_alike(what: str, found: PyTree, expected: PyTree) -> None:
    """Raises ``ValueError`` unless both trees have the same structure, shapes and dtypes."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        raise ValueError(
            f"the tree of {what} differs from that of params: got {jax.tree.structure(found)}, "
            f"expected {jax.tree.structure(expected)}"
        )
    with_paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, wanted), leaf in zip(with_paths, jax.tree.leaves(found), strict=True):
        got = (jnp.result_type(leaf), jnp.shape(leaf))
        want = (jnp.result_type(wanted), jnp.shape(wanted))
        if got != want:
            raise ValueError(
                f"{what} at {jax.tree_util.keystr(path) or 'the root'} is {got[0]}{list(got[1])}, but the parameter there "
                f"is {want[0]}{list(want[1])}; give it the same shape and dtype"
            )
