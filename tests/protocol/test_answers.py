"""Checks of the answers of a rule: refusals, nodes, views, states and updates."""

import contextlib
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.protocol.checks import is_wider, kept
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


class Vector(NamedTuple):
    """Node that refuses per number instead of per commit."""

    refusals: Any

    def refuses(self, staleness):
        return jnp.array([True, False])


class Silent(NamedTuple):
    """Node that says nothing."""

    refusals: Any

    def refuses(self, staleness):
        return None


@pytest.mark.parametrize(("node", "found"), [(Vector, r"an array of shape \[2\]"), (Silent, "None")])
def test_a_refusal_is_one_bool(node, found):
    with pytest.raises(TypeError, match=f"{node.__name__}.refuses must return one bool, got {found}"):
        commit(rule(node(Refusals(jnp.int32(0)))))


class Pulled(NamedTuple):
    """Node whose answer to a pull is given by a name in ``BAD_PULLS``, kept as the number of its Nones."""

    memory: Any
    bad: Any

    def on_pull(self, params, view, moved):
        return list(BAD_PULLS.values())[len(self.bad)][0](self, view)


SHORT = {"x": jnp.ones(1)}
BAD_PULLS = {
    "two": (lambda node, view: (node, view), r"on_pull must return \(node, view, anchors\)"),
    "none": (lambda node, view: (node, view, None), r"on_pull must return \(node, view, anchors\)"),
    "view": (
        lambda node, view: (node, SHORT, ()),
        r"view that Pulled.on_pull returned at \['x'\] is float32\[1\], expected float32\[2\]",
    ),
    "half": (
        lambda node, view: (node, {"x": view["x"].astype(jnp.float16)}, ()),
        r"view that Pulled.on_pull returned at \['x'\] is float16\[2\], expected float32\[2\]",
    ),
    "node": (
        lambda node, view: (node._replace(memory=SHORT), view, ()),
        r"node that Pulled.on_pull returned at .memory\['x'\] is float32\[1\], expected float32\[2\]",
    ),
    "class": (
        lambda node, view: ((node.memory, node.bad), view, ()),
        r"node that Pulled.on_pull returned at the root is tuple, expected Pulled",
    ),
}


@pytest.mark.parametrize("bad", BAD_PULLS)
def test_an_answer_to_a_pull_is_checked(bad):
    tx = rule(Slots(Pulled(PARAMS, (None,) * list(BAD_PULLS).index(bad))))
    with pytest.raises((TypeError, ValueError), match=BAD_PULLS[bad][1]):
        gemjax.pull(tx.init(PARAMS), PARAMS, worker=1)


BAD_UPDATES = {
    "complex updates": (
        lambda u, s: ({"x": 1j * u["x"]}, s),
        r"tree of updates at \['x'\] is complex64\[2\], expected float32\[2\]",
    ),
    "a slot of another shape": (lambda u, s: (u, Slots(SHORT)), r"state after update at .value\['x'\] is float32\[1\]"),
    "a state of another dtype": (
        lambda u, s: (u, Slots({"x": s.value["x"].astype(jnp.float16)})),
        r"state after update at .value\['x'\] is float16\[2\], expected float32\[2\]",
    ),
    "no slots": (lambda u, s: (u, s.value), r"state after update at the root is dict, expected Slots"),
    "another leaf": (lambda u, s: (u, Slots({"x": (u["x"],)})), r"at .value\['x'\] is tuple, expected float32\[2\]"),
    "another key": (lambda u, s: (u, Slots({"y": u["x"]})), r"at .value is PyTreeDef\({'y': \*}\), expected PyTreeDef"),
    "short updates": (lambda u, s: (SHORT, s), r"tree of updates at \['x'\] is float32\[1\], expected float32\[2\]"),
    "narrow updates": (lambda u, s: ({"x": u["x"].astype(jnp.float16)}, s), r"tree of updates at \['x'\] is float16"),
    "updates of another tree": (
        lambda u, s: (u["x"], s),
        r"tree of updates at the root is float32\[2\], expected dict",
    ),
}


@pytest.mark.parametrize("bad", BAD_UPDATES)
def test_what_update_returns_is_checked(bad):
    update, message = BAD_UPDATES[bad]
    with pytest.raises(ValueError, match=message):
        commit(rule(Slots(PARAMS), update))


def test_wider_updates_and_weak_types_are_accepted():
    half = jnp.ones(2, jnp.float16)
    tx = rule(Slots(jnp.float32(0)), lambda u, s: (u.astype(jnp.float32), Slots(s.value * 0 + 1.0)))
    updates, _ = tx.update(half, tx.init(half), half, worker=0)
    assert updates.dtype == jnp.float32
    weak = rule(Slots(0.0), lambda u, s: (u, Slots(jnp.ones([]))))
    commit(weak)


def test_a_rule_without_extra_arguments_can_be_given_as_a_plain_transformation():
    sam = optax.contrib.sam(optax.sgd(0.5), optax.sgd(0.1), reset_state=False)
    tx = gemjax.per_worker(optax.GradientTransformation(sam.init, sam.update), 2)
    state = tx.init(PARAMS)
    for _ in range(2):
        updates, state = tx.update(PARAMS, state, PARAMS, worker=1)
    assert updates["x"].shape == (2,)


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


@pytest.mark.parametrize(
    ("first", "change"), [(np.int32(0), 0.5), (False, 1), (np.int8(0), np.int32(100)), (np.float32(0), 1j)]
)
def test_a_state_of_another_kind_is_refused(first, change):
    """It cannot be rounded to the first one as a float of another precision, and a run with it could not be continued."""
    rule = optax.GradientTransformation(lambda params: jnp.asarray(first), lambda u, s, params=None: (u, s + change))
    tx = gemjax.asynchronous(rule, 2)
    problem = tx, lambda p, b: jnp.sum(p["x"] ** 2), PARAMS, lambda worker, step: 0.0
    beside = (optax.chain(rule, gemjax.asgd(0.1, 2)), *problem[1:])
    runs = [
        lambda: gemjax.simulate(*beside, gemjax.Trace([0, 1, 0])),
        lambda: gemjax.run_on_devices(*beside, 3),
        lambda: tx.update(PARAMS, tx.init(PARAMS), PARAMS, worker=0),
        lambda: gemjax.simulate(*problem, gemjax.Trace([0, 1, 0])),
        lambda: gemjax.run_on_devices(*problem, 3),
    ]
    for run in runs:
        with pytest.raises(
            ValueError, match=r"the state after update at (the root|\[0\]) is \w+\[\], expected \w+\[\]; a rule keeps"
        ):
            run()


@pytest.mark.parametrize(
    ("dtype", "new"),
    [
        ("uint8", -1),
        ("int32", 2**40),
        ("int32", True),
        ("bool", 0),
        ("float16", 70000),
        ("bfloat16", 257),
        ("float32", 10**400),
        ("bfloat16", np.int32(257)),
        ("complex64", 2**24 + 1),
    ],
)
def test_a_number_that_a_state_cannot_hold_and_a_bool_for_an_int_are_refused(dtype, new):
    tx = rule(jnp.zeros([], dtype), lambda updates, state: (updates, new))
    with pytest.raises(ValueError, match=f"the state after update at the root is .*, expected {dtype}"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, worker=0)


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


@pytest.mark.parametrize("engine", ["simulate", "devices", "python"])
@pytest.mark.parametrize("number", [np.int64(2**40 + 5), np.array([2**40], np.int64)], ids=["scalar", "array"])
def test_integers_of_numpy_that_do_not_fit_are_refused(number, engine):
    """JAX would take them for others."""
    run = beside(lambda u, s, params=None: (u, number), jnp.zeros(np.shape(number), jnp.int32))[engine]
    with pytest.raises(
        ValueError, match=r"the state after update at \[1\] has the integer 1099511\d+, which does not fit"
    ):
        run()


@pytest.mark.parametrize("engine", ["simulate", "devices", "python"])
@pytest.mark.parametrize(
    ("state", "new"),
    [
        (jnp.ones([]), jnp.int32(3)),
        (jnp.ones([]), np.int32(2**24 + 1)),
        (jnp.ones([], "bfloat16"), jnp.int16(3)),
        (jnp.int32(0), jnp.uint32(3e9)),
        (jnp.int32(0), np.array(3e9).astype("uint32")),
    ],
)
def test_a_part_beside_asynchronous_may_not_return_integers_of_which_its_state_cannot_hold_all(state, new, engine):
    """Large counts would be rounded, and those of no sign become negative."""
    run = beside(lambda u, s, params=None: (u, new), state)[engine]
    found = rf"the state after update at \[1\] is {new.dtype}\[\], expected {state.dtype}\[\]"
    with pytest.raises(ValueError, match=found):
        run()


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
        (lambda u: (1 + 5j) * u, r"complex64\[2\]"),
        (lambda u: u[None], r"float32\[1, 2\]"),
        (lambda u: 2**40, "1099511627776"),
        (lambda u: jax.random.split(jax.random.key(0)), r"key<fry>\[2\]"),
        (lambda u: u.astype("float8_e4m3fn"), r"float8_e4m3fn\[2\]"),
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


def test_keys_are_no_floats_of_64_bits():
    """No dtype is what NumPy takes ``None`` for."""
    with enable_x64(True):
        state, key = jnp.zeros([], "float64"), jax.random.key(0)
        for either in ((key, state), (state, key)):
            assert not is_wider(*either)
            with pytest.raises(ValueError, match=r"the state at the root is .*, expected"):
                kept("the state", *either, or_narrower=True)


@pytest.mark.parametrize("new", [0, True, np.int32(0), jnp.bfloat16(1), jnp.int8(0), jnp.uint16(0)])
def test_a_part_beside_asynchronous_may_return_what_its_state_can_hold(new):
    reset = optax.GradientTransformation(lambda params: jnp.ones([]), lambda u, s, params=None: (u, new))
    problem = (
        optax.chain(reset, gemjax.asgd(0.1, 2)),
        lambda p, b: jnp.sum(p["x"] ** 2),
        PARAMS,
        lambda worker, step: 0.0,
    )
    for result in (gemjax.simulate(*problem, gemjax.Trace([0, 1, 0])), gemjax.run_on_devices(*problem, 3)):
        assert result.opt_state[0].dtype == jnp.float32


def test_updates_of_integers_may_be_floats():
    """As ``optax.apply_updates`` takes them, in a loop of one's own."""
    params = {"n": jnp.int32([1, 2]), "x": jnp.ones(2)}
    tx = gemjax.asgd(0.1, 2)
    updates, _ = tx.update(params, tx.init(params), params, worker=0)
    assert optax.apply_updates(params, updates)["n"].dtype == jnp.int32


@pytest.mark.parametrize("extra", [True, False])
def test_the_arguments_of_a_wrapped_update_are_its_own(extra):
    def plain(updates, state, params=None):
        return updates, state

    @functools.wraps(plain)
    def update(updates, state, params=None, **extra_args):
        assert "worker" in extra_args
        return plain(updates, state, params)

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update if extra else plain)
    with contextlib.nullcontext() if extra else pytest.raises(TypeError, match="refuses extra arguments"):
        gemjax.asynchronous(rule, 2).update(PARAMS, gemjax.asynchronous(rule, 2).init(PARAMS), PARAMS, worker=1)


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


@pytest.mark.parametrize(
    "part",
    [
        gemjax.by_fragment(optax.trace(0.5), 2),
        gemjax.average_elastically(0.1),
        gemjax.look_ahead_momentum(0.9),
        gemjax.align_with_momentum(0.9),
    ],
    ids=["by_fragment", "average_elastically", "look_ahead_momentum", "align_with_momentum"],
)
def test_a_part_that_takes_part_in_pulls_is_refused_outside(part):
    """Beside a whole method it would not be called."""
    tx = optax.chain(part, gemjax.asgd(0.5, num_workers=2))
    params = {"x": jnp.ones(2), "y": jnp.ones(2)}
    with pytest.raises(
        TypeError, match=r"takes part in pulls, but is outside of gemjax\.asynchronous, .*put the whole chain"
    ):
        gemjax.simulate(
            tx, lambda p, b: jnp.sum(p["x"] * b), params, lambda w, s: 1.0 * s, gemjax.arrivals.RoundRobin(2).trace(3)
        )
    with pytest.raises(TypeError, match="takes part in pulls, but is outside"):
        gemjax.pull(tx.init(params), params, worker=0)


@pytest.mark.parametrize("part", [gemjax.aggregate_last, gemjax.gather_per_worker, gemjax.take_turns])
def test_a_part_for_several_workers_is_refused_inside_of_per_worker(part):
    """Each worker would have a table of its own, in which it is alone."""
    with pytest.raises(ValueError, match=r"a part for 2 workers is inside of gemjax\.per_worker"):
        gemjax.asynchronous(gemjax.per_worker(part(2)), 2).init(PARAMS)


@pytest.mark.parametrize("part", [gemjax.aggregate_last, gemjax.gather_per_worker, gemjax.take_turns])
def test_a_part_for_another_number_of_workers_is_refused(part):
    """It would wait for workers that there are not, or step without some."""
    for number in (2, 8):
        tx = gemjax.asynchronous(optax.chain(part(number), optax.scale(-0.1)), 4)
        with pytest.raises(ValueError, match=f"a state for {number} workers is inside one for 4; give both the same"):
            tx.init(PARAMS)
    gemjax.asynchronous(part(4), 4).init(PARAMS)
