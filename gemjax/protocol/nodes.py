"""The state of :func:`gemjax.asynchronous`, and the search for nodes inside any optimizer state."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.protocol import PyTree
from gemjax.protocol.hooks import MadeFor, Refusals, Sends, can_refuse
from gemjax.protocol.slots import Slots, check_same_num_workers, is_rows, is_slots


@jax.tree_util.register_static
class Copies:
    """Places of the leaves of :class:`gemjax.rules.Slots` that begin as copies of parameters.

    They are a part of the structure of a state. The copies of a state made without parameters, as by ``optax.tree.map_params``,
    equal all others.

    Args:
      sources: path of a leaf in the state -> path of its parameter; ``None`` if there were no parameters.
    """

    def __init__(self, sources: Mapping[str, str] | None):
        self.sources = sources

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Copies) and (None in (self.sources, other.sources) or self.sources == other.sources)

    def __hash__(self) -> int:
        return hash(Copies)

    def __repr__(self) -> str:
        return f"Copies({self.sources!r})"

    def renewed(self, state: PyTree, params: PyTree, never_committed: jax.Array) -> PyTree:
        """Return the ``state`` of one worker, with its copies taken from ``params`` if it has ``never_committed``."""
        if not self.sources:
            return state
        now = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

        def renew(path, leaf):
            source = self.sources.get(_name(path))
            if source not in now:
                return leaf
            new = jnp.asarray(now[source], leaf.dtype)
            if not isinstance(never_committed, jax.core.Tracer):
                return new if never_committed else leaf
            # A loop without iterations costs nothing; a choice would read both.
            return jax.lax.fori_loop(0, never_committed.astype(jnp.int32), lambda _, old: new, leaf)

        return jax.tree_util.tree_map_with_path(renew, state, is_leaf=is_rows)


class StalenessState(NamedTuple):
    """State of :func:`asynchronous`.

    ``state.pulled_at[3]`` and ``state.stale_params[3]`` are those of worker 3.
    """

    clock: jax.Array  # int32 []; commits applied so far.
    pulled_at: Slots  # int32 [] per worker; the clock when it pulled.
    stale_params: Slots | None  # Like params, per worker; the view it pulled. None where no member reads it.
    inner_state: optax.OptState  # State of the members; their Slots hold one worker's, the rest is shared.
    own_commits: Slots  # int32 [] per worker; its applied commits. While there are none, each pull renews its copies.
    copies: Copies  # The parts of inner_state that are copies of the central variable; no array.


def copies_in(init: Callable, params: PyTree) -> Copies:
    """Return the copies of parameters in the slots of ``init(params)``, which is traced; none if it cannot be.

    Copies are made by copying or a change of dtype, also inside of ``jax.jit``; results of arithmetic are none.

    >>> copies_in(lambda params: {"own": Slots(params), "shared": params, "sum": Slots(0 * params["w"])}, {"w": jnp.ones(2)})
    Copies({"['own'].value['w']": "['w']"})
    >>> copies_in(jax.jit(lambda params: Slots(jax.tree.map(jnp.copy, params))), {"w": jnp.ones(2)})
    Copies({".value['w']": "['w']"})
    """
    inputs = jax.tree_util.tree_leaves_with_path(params)
    if not inputs:
        return Copies(None)
    try:
        closed, state = jax.make_jaxpr(init, return_shape=True)(params)
    except TypeError:  # Also of JAX, for an `init` that looks at numbers.
        return Copies({})
    # By identity, because literals have no hash.
    sources = {id(var): _name(path) for (path, _), var in zip(inputs, closed.jaxpr.invars, strict=True)}
    _follow(closed.jaxpr, sources)
    in_slots = jax.tree.map(lambda node: jax.tree.map(lambda _: is_slots(node), node), state, is_leaf=is_slots)
    places = zip(jax.tree_util.tree_leaves_with_path(in_slots), closed.jaxpr.outvars, strict=True)
    return Copies({_name(path): sources[id(var)] for (path, is_in), var in places if is_in and id(var) in sources})


def _follow(program: Any, sources: dict[int, str]) -> None:
    """Add the copies that ``program`` makes of the variables in ``sources``."""
    for equation in program.eqns:
        ins, outs, name = equation.invars, equation.outvars, equation.primitive.name
        if name in ("jit", "pjit"):
            inner = equation.params["jaxpr"].jaxpr
            inside = {
                id(var): sources[id(own)] for var, own in zip(inner.invars, ins, strict=True) if id(own) in sources
            }
            _follow(inner, inside)
            sources |= {
                id(own): inside[id(var)] for var, own in zip(inner.outvars, outs, strict=True) if id(var) in inside
            }
        elif name in ("copy", "convert_element_type") and id(ins[0]) in sources:
            sources[id(outs[0])] = sources[id(ins[0])]


def check_nested(state: PyTree, num_workers: int) -> None:
    """Raise ``ValueError`` if methods in ``state``, which is to be a part of another one, cannot share its clock and pulls."""
    for steps in nodes(state, optax.MultiStepsState):
        if nodes(steps, StalenessState):
            raise ValueError(
                "optax.MultiSteps around a method is inside of gemjax.asynchronous, where a staleness would count other "
                "commits than the method does; put it around the whole, optax.MultiSteps(method, k)"
            )
    for node in jax.tree.leaves(state, is_leaf=lambda node: is_wrapper(node) or is_slots(node)):
        if is_wrapper(node):
            check_same_num_workers(node.pulled_at.num_workers, num_workers)


def without_wrappers(state: PyTree, copies: Copies) -> tuple[PyTree, Copies]:
    """Return ``state`` with the states of the members in place of those of their wrappers, and ``copies`` with theirs."""
    sources = copies.sources
    for path, node in jax.tree_util.tree_leaves_with_path(state, is_leaf=is_wrapper):
        if is_wrapper(node) and sources is not None:
            inside = node.copies.sources or {}
            sources = {**sources, **{_name(path) + place: source for place, source in inside.items()}}
    return map_nodes(lambda node: node.inner_state, is_wrapper, state), Copies(sources)


def check_of_one_run(state: PyTree, function: str) -> None:
    """Raise ``ValueError`` if ``state`` is that of all runs of a sweep, whose first axis would be taken for that of workers."""
    for node in nodes(state, StalenessState):
        if runs := jnp.shape(node.clock):
            raise ValueError(
                f"{function} was given the optimizer state of all {runs[0]} runs of a sweep; give that of one run, "
                f"jax.tree.map(lambda leaf: leaf[run], state), or map the runs with jax.vmap"
            )


def check_made_for(state: PyTree, num_workers: int) -> None:
    """Raise ``ValueError`` if a rule outside of ``Slots`` was made for another number of workers."""
    for node in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, (MadeFor, Slots))):
        if isinstance(node, MadeFor) and node.num_workers != num_workers:
            if node.advice:
                raise ValueError(node.advice)
            check_same_num_workers(node.num_workers, num_workers)


def is_wrapper(node: PyTree) -> bool:
    """Return True if ``node`` is the state of :func:`gemjax.asynchronous`."""
    return isinstance(node, StalenessState)


def nodes(state: PyTree, kind: type | tuple[type, ...]) -> list:
    """Return the nodes of ``state`` that are of class ``kind``, or of one of several, in order."""
    return [leaf for leaf in jax.tree.leaves(state, is_leaf=lambda n: isinstance(n, kind)) if isinstance(leaf, kind)]


def in_front(state: PyTree) -> Sends | None:
    """Return the :class:`gemjax.protocol.hooks.Sends` that receives the gradients as they come, before all other members."""
    while is_wrapper(state) or (type(state) is tuple and state):
        state = state.inner_state if is_wrapper(state) else state[0]
    return state if isinstance(state, Sends) else None


def with_errors(state: PyTree, error: Slots | None) -> PyTree:
    """Return ``state`` with other errors in the node that :func:`in_front` returns."""
    first = in_front(state)
    is_first = lambda node: isinstance(node, Sends) and node is first
    return map_nodes(lambda node: Sends(error, node.code, node.decay), is_first, state)


def map_nodes(fn: Callable, is_node: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
    """Map ``fn`` over nodes of ``tree``, in order; everything else is kept."""
    apply = lambda node, *others: fn(node, *others) if is_node(node) else node
    # Shared rows are kept whole: a map over their leaves forgets which row a commit replaces.
    return jax.tree.map(apply, tree, *rest, is_leaf=lambda node: is_node(node) or is_rows(node))


def ask(inner_state: PyTree, staleness: jax.Array) -> PyTree:
    """Ask the rules if they refuse a commit of this staleness; return the state with the count of each that does raised."""

    def ask_one(node):
        if not nodes(node, Refusals):
            raise TypeError(
                f"{type(node).__name__} refuses commits but has no count of them; give it a field with Refusals"
            )
        answer = jnp.asarray(node.refuses(staleness), bool)
        return map_nodes(lambda refusals: _plus(refusals, answer), _is_refusals, node)

    return map_nodes(ask_one, can_refuse, inner_state)


def refused(before: PyTree, after: PyTree) -> jax.Array:
    """Return True if a rule refused the commit between two optimizer states, a bool scalar."""
    counts = zip(nodes(before, Refusals), nodes(after, Refusals), strict=True)
    return functools.reduce(jnp.logical_or, [jnp.any(new.count != old.count) for old, new in counts], jnp.array(False))


def counting_refusals(old: PyTree, new: PyTree, dropped: jax.typing.ArrayLike = True) -> PyTree:
    """Return ``old`` with the count of refusals of ``new`` where ``dropped``: the state after a refused commit."""

    def count(o, n):
        return _plus(o, jnp.where(dropped, n.count - o.count, 0)) if _is_refusals(o) else o

    return jax.tree.map(count, old, new, is_leaf=lambda node: _is_refusals(node) or is_rows(node))


def _plus(refusals: Refusals, more: jax.Array) -> Refusals:
    return dataclasses.replace(refusals, count=refusals.count + more)


def _is_refusals(node: PyTree) -> bool:
    return isinstance(node, Refusals)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path)
