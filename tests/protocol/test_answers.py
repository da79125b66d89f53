"""The answers of a rule: refusals, states and updates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.protocol.compat import enable_x64
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.slots import Slots
from gemjax.testing import run_in_python

PARAMS = {"x": jnp.array([1.0, -2.0])}


def rule(state, update=lambda updates, state: (updates, state)):
    """Return a method for two workers with this initial state."""
    run = lambda updates, state, params=None, **_: update(updates, state)
    return gemjax.asynchronous(optax.GradientTransformationExtraArgs(lambda params: state, run), 2)


def commit(tx):
    """Trace a commit of worker 0 and return its updates and state."""
    return jax.jit(lambda: tx.update(PARAMS, tx.init(PARAMS), PARAMS, worker=0))()


ANSWERS = {
    "true": lambda staleness: True,
    "int": lambda staleness: (staleness >= 0) * 1,
    "float": lambda staleness: jnp.float32(1),
    "bool": lambda staleness: staleness >= 0,
}


class Refusing(NamedTuple):
    """Node that refuses each commit with one kind of answer."""

    refusals: Any
    kind: Any

    def refuses(self, staleness):
        return list(ANSWERS.values())[len(self.kind) - 1](staleness)


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_refusal_of_any_type_stops_the_clock_and_is_counted(kind):
    node = Refusing(Refusals(jnp.int32(0)), (None,) * (1 + list(ANSWERS).index(kind)))
    updates, state = commit(rule(node))
    np.testing.assert_array_equal(updates["x"], [0, 0])
    assert (int(state.clock), int(state.inner_state.refusals.count)) == (0, 1)


def test_wider_updates_and_weak_types_are_accepted():
    half = jnp.ones(2, jnp.float16)
    tx = rule(Slots(jnp.float32(0)), lambda u, s: (u.astype(jnp.float32), Slots(s.value * 0 + 1.0)))
    updates, _ = tx.update(half, tx.init(half), half, worker=0)
    assert updates.dtype == jnp.float32
    weak = rule(Slots(0.0), lambda u, s: (u, Slots(jnp.ones([]))))
    commit(weak)


@pytest.mark.parametrize("wrapped", [True, False], ids=["in asynchronous", "beside it"])
@pytest.mark.parametrize(
    ("dtype", "kind", "x64"),
    [("float32", float, False), ("float32", int, False), ("int32", int, False), ("int32", int, True)],
)
def test_a_state_may_become_a_python_number(wrapped, dtype, kind, x64):
    """A rule that resets its memory to 0 returns what JAX takes for an array."""
    first = jnp.zeros([], dtype)
    resets = optax.GradientTransformationExtraArgs(lambda params: first, lambda u, s, params=None, **_: (u, kind(0)))
    method = gemjax.asgd(0.5, num_workers=2)
    tx = resets if wrapped else optax.chain(resets, method)
    trace = gemjax.Trace([0, 1, 0])
    with enable_x64(x64):
        result = gemjax.simulate(tx, lambda p, b: jnp.sum(p["x"] ** 2), PARAMS, lambda worker, step: 0.0, trace)
    assert int(result.state.commits) == 3


@pytest.mark.parametrize("method", [gemjax.gem, gemjax.momentum_asgd, gemjax.multi_asgd], ids=lambda f: f.__name__)
def test_numpy_hyper_parameters_do_not_widen_the_state(method):
    """Next to half precision a NumPy number makes float32, which a state of fixed dtypes cannot hold."""
    half = {"x": jnp.array([1.0, -2.0], jnp.bfloat16)}
    states = []
    for kind in (np.float64, float):
        tx = method(kind(0.25), kind(0.5), num_workers=2)
        states.append(tx.update(half, tx.init(half), half, worker=1)[1])
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert [leaf.dtype for leaf in jax.tree.leaves(states[0])] == [leaf.dtype for leaf in jax.tree.leaves(states[1])]


def beside(update, state=()):
    """Return functions that run this rule behind a method."""
    return engines(optax.chain(gemjax.asgd(0.1, 2), optax.GradientTransformation(lambda params: state, update)))


def engines(tx):
    """Return functions that run a method for a few commits."""
    problem = tx, lambda p, b: jnp.sum(p["x"] ** 2), PARAMS, lambda worker, step: 0.0
    trace = gemjax.Trace([0, 1, 0])
    return {
        "simulate": lambda: gemjax.simulate(*problem, trace),
        "devices": lambda: gemjax.run_on_devices(*problem, 3),
        "python": lambda: run_in_python(*problem, trace),
    }


def around(change):
    """Return functions that run a method whose updates another transformation changes, which keeps its state."""
    inner = gemjax.asgd(0.1, 2)

    def update(updates, state, params=None, **extra_args):
        updates, state = inner.update(updates, state, params, **extra_args)
        return {"x": change(updates["x"])}, state

    tx = optax.GradientTransformationExtraArgs(inner.init, update)
    return engines(tx)


@pytest.mark.parametrize("engine", ["simulate", "devices", "python"])
@pytest.mark.parametrize("place", ["behind", "around"])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (jnp.mean, r"float32\[\]"),
    ],
)
def test_updates_outside_of_asynchronous_are_checked(change, found, place, engine):
    """``optax.apply_updates`` spreads a scalar over the parameters, and drops an imaginary part."""
    runs = around(change) if place == "around" else beside(lambda u, s, params=None: ({"x": change(u["x"])}, s))
    run = runs[engine]
    with pytest.raises(ValueError, match=rf"the tree of updates at \['x'\] is {found}, expected float32\[2\]"):
        run()


@pytest.mark.parametrize("engine", ["simulate", "devices", "python"])
def test_updates_of_a_part_behind_asynchronous_may_be_of_another_precision(engine):
    halve = lambda u, s, params=None: (jax.tree.map(lambda x: (0.5 * x).astype(jnp.bfloat16), u), s)
    assert beside(halve)[engine]() is not None


def test_updates_of_integers_may_be_floats():
    """As ``optax.apply_updates`` takes them, in a loop of one's own."""
    params = {"n": jnp.int32([1, 2]), "x": jnp.ones(2)}
    tx = gemjax.asgd(0.1, 2)
    updates, _ = tx.update(params, tx.init(params), params, worker=0)
    assert optax.apply_updates(params, updates)["n"].dtype == jnp.int32


def test_a_state_may_have_typed_keys():
    """They have no dtype to which another one could be promoted."""
    tx = gemjax.asynchronous(optax.add_noise(0.01, 0.5, key=3), 2)
    _, state = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)), jnp.zeros(2), worker=0)
    assert int(state.inner_state.count) == 1


def test_one_asynchronous_around_two_methods_refuses_for_both():
    """In a loop without an engine, too; the parts of ``optax.partition`` alone refuse each for itself, as README says."""
    parts = {"x": gemjax.ringmaster(0.1, 2, threshold=1), "y": gemjax.asgd(0.1, 2)}
    apart = optax.partition(parts, {"a": "x", "b": "y"})

    def in_a_loop(tx):
        params = {"a": jnp.float32(1.0), "b": jnp.float32(1.0)}
        state, views = tx.init(params), {}
        for worker in (0, 1, 0, 1):
            updates, state = tx.update(views.get(worker, params), state, params, worker=worker)
            params = optax.apply_updates(params, updates)
            views[worker], state = gemjax.pull(state, params, worker=worker)
        return params

    together, alone = in_a_loop(gemjax.asynchronous(apart, 2)), in_a_loop(apart)
    assert together["a"] == together["b"] == alone["a"] != alone["b"]
