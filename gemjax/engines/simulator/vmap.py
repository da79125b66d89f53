"""A search for what ``jax.vmap`` changes or refuses: numbers drawn by rbg and unsafe_rbg, and some calls back to Python."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex

from gemjax.batches.base import select
from gemjax.batches.functions import jaxprs
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import PyTree, slots
from gemjax.protocol.trace import Events

DRAWS = ("random_bits", "random_gamma")  # Primitives that take a key and return numbers.


def is_faithful(
    make: Callable[[Any], Transition], given: PyTree, batches: Any, events: Events, state: RunState, *, commits: bool
) -> bool:
    """Return True if ``jax.vmap`` of gradients, or with ``commits`` of commits too, gives what they give one by one.

    It draws other numbers from keys of rbg and unsafe_rbg. These may be of the default generator, or made by batches, loss or
    method, or come with the model state. And it refuses some calls back to Python, such as those in order. ``state`` may be
    that of ``jax.eval_shape``; of the batches one is read. ``make(given)`` is called with traced numbers.
    """
    one = Events(*(column[:1] for column in events))
    own, selection = batches.gather(select(batches, one.worker, one.step, one.draw))

    def arrive(given: PyTree, state: RunState, data: Any, worker: Any, step: Any, selection: Any):
        transition = make(given)
        store, join, shared = slots.split(state)
        mine = join(slots.take(store, worker), shared)
        gradient = transition.gradient(transition.view_of(mine), batches.batch(data, selection), worker, step)
        if not commits:
            return gradient
        return transition.commit_and_pull(mine, gradient, worker, step, True, transition.own_rows(state, worker))

    first = jax.tree.map(lambda column: column[0], (one.worker, one.step, selection))
    program = jax.make_jaxpr(arrive)(given, state, batches.data if own is None else own, *first)
    equations = [equation for part in jaxprs(program.jaxpr) for equation in part.eqns]
    calls_back = any("callback" in one.primitive.name or "ffi" in one.primitive.name for one in equations)
    return not any(map(_draws, equations)) and (not calls_back or _is_accepted(program))


def _draws(equation: Any) -> bool:
    """Return True if an equation draws with rbg or unsafe_rbg."""
    name, inputs = equation.primitive.name, [str(getattr(var.aval, "dtype", "")) for var in equation.invars[:1]]
    return name == "rng_bit_generator" or (name in DRAWS and "rbg" in inputs[0])


def _is_accepted(program: jex.ClosedJaxpr) -> bool:
    pairs = [jax.ShapeDtypeStruct((2, *var.aval.shape), var.aval.dtype) for var in program.jaxpr.invars]
    try:
        jax.eval_shape(jax.vmap(jex.jaxpr_as_fun(program)), *pairs)
    except Exception:  # JAX has several for it, Exception itself among them.
        return False
    return True
