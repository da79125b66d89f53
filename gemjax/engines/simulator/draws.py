"""A search for random numbers that ``jax.vmap`` changes: JAX's generators rbg and unsafe_rbg draw such."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex

from gemjax.batches.base import select
from gemjax.engines.transition import RunState, Transition, view_of
from gemjax.protocol import slots
from gemjax.protocol.trace import Events

PyTree = Any
DRAWS = ("random_bits", "random_gamma")  # Primitives that take a key and return numbers.


def are_alike(
    make: Callable[[Any], Transition], given: PyTree, batches: Any, events: Events, state: RunState, *, commits: bool
) -> bool:
    """Return True unless a gradient draws from keys whose numbers ``jax.vmap`` changes, or with ``commits`` a commit does.

    Keys may be of the default generator, or made by batches, loss or method, or come with the model state. ``state`` may be
    that of ``jax.eval_shape``; of the batches one is read. ``make(given)`` is called with traced numbers.
    """
    one = Events(*(column[:1] for column in events))
    own, selection = batches.gather(select(batches, one.worker, one.step, one.draw))

    def arrive(given: PyTree, state: RunState, data: Any, worker: Any, step: Any, selection: Any):
        transition = make(given)
        store, join, shared = slots.split(state)
        mine = join(slots.take(store, worker), shared)
        params = view_of(mine).params
        gradient = transition.gradient(view_of(mine), batches.batch(data, selection), worker, step)
        if not commits:
            return gradient
        return transition.commit_and_pull(
            mine, params, gradient, worker, step, True, transition.own_rows(state, worker)
        )

    first = jax.tree.map(lambda column: column[0], (one.worker, one.step, selection))
    return not _draws(jax.make_jaxpr(arrive)(given, state, batches.data if own is None else own, *first).jaxpr)


def _draws(program: Any) -> bool:
    """Return True if a program or a part of it draws with rbg or unsafe_rbg."""
    for equation in program.eqns:
        name, inputs = equation.primitive.name, [str(getattr(var.aval, "dtype", "")) for var in equation.invars[:1]]
        if name == "rng_bit_generator" or (name in DRAWS and "rbg" in inputs[0]):
            return True
        parts = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
        if any(_draws(getattr(part, "jaxpr", part)) for part in parts if _is_program(part)):
            return True
    return False


def _is_program(part: Any) -> bool:
    return isinstance(part, (jex.Jaxpr, jex.ClosedJaxpr))
