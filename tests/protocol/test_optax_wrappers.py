"""Asynchronous methods in the wrappers of optax, and with hyper-parameters that it injects."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.rows import METHODS as ROWS
from protocol.commits_and_pulls import PARAMS, READINGS, equal, gradients, run

import gemjax
from gemjax.protocol.staleness import num_workers_of

# --- Wrappers


WRAPPERS = {
    "chain": lambda tx: optax.chain(optax.identity(), tx),
    "named_chain": lambda tx: optax.named_chain(("nothing", optax.identity()), ("method", tx)),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(lambda unused: tx)(unused=1.0),
    "multi_steps": lambda tx: optax.MultiSteps(tx, every_k_schedule=1),
    "masked": lambda tx: optax.masked(tx, {"a": True, "b": True}),
    "partition": lambda tx: optax.partition({"all": tx}, {"a": "all", "b": "all"}),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("reading", ["equations", "algorithm"])
def test_pull_finds_the_state_in_every_wrapper(wrapper, reading):
    tx = gemjax.gem(0.1, num_workers=3, reading=reading)
    expected, state, _ = run(tx)
    found, wrapped, _ = run(WRAPPERS[wrapper](tx), compiled=True)
    equal(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(optax.tree.get(wrapped, "pulled_at").value, state.pulled_at.value)
    assert num_workers_of(wrapped) == 3


@pytest.mark.parametrize("reading", READINGS)
def test_parts_of_the_parameters_may_have_methods_of_their_own(reading):
    """Both methods are elementwise, so each part moves as it would alone."""
    methods = {
        "gem": gemjax.gem(0.1, num_workers=3, reading=reading),
        "sgd": gemjax.multi_asgd(0.1, 0.5, num_workers=3),
    }
    labels = {"a": "gem", "b": "sgd"}
    found, state, _ = run(optax.partition(methods, labels))
    for name, method in labels.items():
        alone, _, _ = run(methods[method], params={name: PARAMS[name]})
        equal(found[name], alone[name], rtol=1e-6)
    assert num_workers_of(state) == 3


@pytest.mark.parametrize("reading", READINGS)
def test_masked_outside_and_inside(reading):
    """A masked part receives its gradient unchanged, as in optax, and the rest moves as it would alone."""
    mask = {"a": True, "b": False}
    outside = optax.masked(gemjax.gem(0.1, num_workers=3, reading=reading), mask)
    energy = gemjax.rules.match_energy(reading=reading)
    inside = gemjax.asynchronous(
        optax.masked(optax.chain(optax.scale_by_learning_rate(0.1), energy), mask), num_workers=3
    )
    alone, _, _ = run(gemjax.gem(0.1, num_workers=3, reading=reading), params={"a": PARAMS["a"]})
    found, _, made = run(outside)
    equal(found["a"], alone["a"], rtol=1e-6)
    equal(made[0]["b"], gradients(PARAMS, 0)["b"])
    equal(run(inside)[0], found, rtol=1e-6)


def test_a_chain_of_two_wrappers():
    """Per-worker momentum by itself in front of GEM is one wrapper around both."""
    two = optax.chain(gemjax.per_worker(optax.trace(0.5), num_workers=3), gemjax.gem(0.05, num_workers=3))
    members = gemjax.per_worker(optax.trace(0.5)), optax.scale_by_learning_rate(0.05), gemjax.rules.match_energy()
    one = gemjax.asynchronous(optax.chain(*members), num_workers=3)
    found, state, _ = run(two)
    equal(found, run(one)[0])
    for node in state:
        np.testing.assert_array_equal(node.pulled_at.value, [5, 6, 3])


@pytest.mark.parametrize("reading", READINGS)
def test_a_wrapper_inside_a_wrapper_changes_nothing(reading):
    tx = gemjax.gem(0.05, num_workers=3, reading=reading)
    found, state, _ = run(gemjax.asynchronous(optax.chain(optax.identity(), tx), num_workers=3))
    expected, alone, _ = run(tx)
    equal(found, expected)
    equal(state._replace(inner_state=state.inner_state[1], copies=alone.copies), alone)


METHODS = {
    "gem": lambda: gemjax.gem(0.1),
    "dc_asgd": lambda: gemjax.dc_asgd(0.1, strength=1.0),
    "ringmaster": lambda: gemjax.ringmaster(0.1, threshold=2),
    "rennala": lambda: gemjax.rennala(0.1, batch_size=1),
    "staleness_aware": lambda: gemjax.staleness_aware(0.1),
    "gap_aware": lambda: gemjax.gap_aware(0.1),
    "fedasync": lambda: gemjax.fedasync(0.5),
    "refusing twice": lambda: gemjax.asynchronous(gemjax.ringmaster(0.1, threshold=2)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pulls", [False, True])
def test_without_worker_nothing_is_stale_inside_of_a_wrapper_either(method, pulls):
    """The outer wrapper names the worker to its members, and so to the one inside."""

    def ends_at(tx):
        params = jnp.array([1.0, -2.0])
        state = tx.init(params)
        for _ in range(6):
            updates, state = tx.update(2 * params, state, params)
            params = optax.apply_updates(params, updates)
            if pulls:
                _, state = gemjax.pull(state, params)
        return params

    wrapped = gemjax.asynchronous(optax.chain(optax.clip(1e9), METHODS[method]()))
    equal(ends_at(wrapped), ends_at(METHODS[method]()), rtol=1e-6)


def test_multi_steps_commits_once_every_k_arrivals():
    tx = optax.MultiSteps(gemjax.gem(0.1, momentum=0.0, num_workers=2), every_k_schedule=2)
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    first, state = update(PARAMS, state, PARAMS, worker=0)
    assert int(state.inner_opt_state.clock) == 0
    second, state = update(jax.tree.map(lambda p: 3 * p, PARAMS), state, PARAMS, worker=1)
    assert int(state.inner_opt_state.clock) == 1
    equal(first, jax.tree.map(jnp.zeros_like, PARAMS))
    equal(second, jax.tree.map(lambda p: -0.2 * p, PARAMS), rtol=1e-6)  # The mean of 1 and 3, at a rate of 0.1.
    _, state = gemjax.pull(state, PARAMS, worker=1)
    np.testing.assert_array_equal(state.inner_opt_state.pulled_at.value, [0, 1])


# --- inject_hyperparams


def test_num_workers_as_a_static_argument_of_inject_hyperparams():
    injected = optax.inject_hyperparams(gemjax.gem, static_args=("num_workers",))(0.1, num_workers=3)
    state = jax.jit(injected.init)(PARAMS)
    assert set(state.hyperparams) == {"learning_rate", "momentum", "kappa", "eps"}
    found, _, _ = run(injected, state=state)
    equal(found, run(gemjax.gem(0.1, num_workers=3))[0], rtol=1e-5)


def test_num_workers_as_an_injected_number_works_until_it_is_traced():
    injected = optax.inject_hyperparams(gemjax.gem)(0.1, num_workers=3)
    found, _, _ = run(injected)  # `init` receives the number; later it is in the shape of the state.
    equal(found, run(gemjax.gem(0.1, num_workers=3))[0], rtol=1e-5)
    with pytest.raises(jax.errors.TracerIntegerConversionError):
        jax.jit(injected.init)(PARAMS)


def test_hyper_parameters_injected_inside_the_wrapper():
    energy = optax.inject_hyperparams(gemjax.rules.match_energy)(momentum=0.9, kappa=1.0)
    tx = gemjax.asynchronous(optax.chain(optax.scale_by_learning_rate(0.1), energy), num_workers=3)
    equal(run(tx)[0], run(gemjax.gem(0.1, num_workers=3))[0], rtol=1e-5)


# --- Methods inside of others


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_method_inside_of_another_one_is_for_as_many_workers(row):
    outer = gemjax.asynchronous(optax.chain(optax.clip(1.0), row(2)), num_workers=3)
    with pytest.raises(ValueError, match="a state for 2 workers is inside one for 3"):
        outer.init(jnp.ones(4))


def test_several_steps_around_a_method_are_no_part_of_another_one():
    """The method would count other commits than the staleness that it receives."""
    inside = optax.MultiSteps(gemjax.rennala(0.1, num_workers=4), 4)
    with pytest.raises(ValueError, match="put it around the whole"):
        gemjax.asynchronous(inside, 4).init(jnp.ones(2))
    with pytest.raises(ValueError, match="inner of merge_quorum is a whole method"):
        gemjax.rules.merge_quorum(gemjax.rennala(0.1, num_workers=4), 2).init(jnp.ones(2))


def test_the_state_of_the_chain_alone_is_no_state_of_the_method():
    """It has one slot, which all workers would share."""
    chain = optax.chain(gemjax.per_worker(optax.trace(0.9)), optax.scale(-1.0))
    with pytest.raises(TypeError, match=r"is not the state that the init of gemjax.asynchronous returned"):
        gemjax.asynchronous(chain, 2).update(jnp.ones(2), chain.init(jnp.ones(2)), jnp.ones(2), worker=1)
