"""State on the devices of the central variable: small leaves in vectors, the others apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import assert_same_bits

import gemjax
from gemjax.batches.local import LocalBatches
from gemjax.engines.devices.hardware import central
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.transition import Transition

LARGE = central.SMALL // 4 + 1  # Numbers of a float32 leaf that is too large for a vector.


def loss_fn(params, batch):
    return sum(jnp.mean((leaf.astype(jnp.float32) - batch) ** 2) for leaf in jax.tree.leaves(params))


def programs_for(params, tx, num_workers=2):
    transition = Transition(tx=tx, loss_fn=loss_fn, num_workers=num_workers).bind(params)
    batches = gemjax.Computed(lambda worker, step: jnp.sin(worker + 2.0 * step))
    return Programs(transition, batches, gemjax.place(num_workers, "dedicated"), transition.init(params))


def train(programs, workers=(0, 1, 1, 0)):
    programs.warm_up()
    for worker in workers:
        programs.commit(worker, programs.bring(programs.compute(worker, programs.select(worker))))
        programs.deliver(worker)
    return programs.gather()


def sizes(packed):
    return {dtype: vector.size for dtype, vector in packed.vectors.items()}, [leaf.size for leaf in packed.apart]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at a stack", pytest.param("at the end", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "local", [None, pytest.param(gemjax.LocalSteps(optax.adam(0.1), 2), marks=pytest.mark.nightly)]
)
def test_the_state_is_gathered_on_the_host_if_its_devices_have_no_room(monkeypatch, when, local):
    tx, batches = gemjax.downpour(num_workers=2) if local else gemjax.gem(0.1, num_workers=2), lambda worker, step: step
    run = functools.partial(
        gemjax.run_on_devices, tx, loss_fn, {"w": jnp.ones(1000), "b": jnp.ones(())}, batches, local=local
    )
    host, central, stack, wait = jax.devices()[0], jax.devices()[3], jnp.stack, jax.block_until_ready
    placement = gemjax.Placement(jax.devices()[1:3], central)
    full, found = [False], []

    def without_room(function):
        def called(tree):
            if full[0] and any(
                isinstance(leaf, jax.Array) and central in leaf.devices() for leaf in jax.tree.leaves(tree)
            ):
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4000 bytes")
            return function(tree)

        return called

    def look(progress):
        full[0] = False
        expected = jax.device_get(progress.state())
        full[0] = True
        found.append(progress.state())
        assert_same_bits(jax.device_get(found[0]), expected)

    if when == "at a stack":
        monkeypatch.setattr(jnp, "stack", without_room(stack))
    else:
        monkeypatch.setattr(jax, "block_until_ready", without_room(wait))
    first = run(10, placement=placement, callback=look, callback_every=10)
    assert all(leaf.devices() == {host} for leaf in jax.tree.leaves((found, first.state)))
    full[0] = False
    assert run(14, placement=placement, state=first).state.commits == 14


@pytest.mark.slow
def test_a_view_that_is_not_delivered_yet_counts_on_the_host_too():
    local = gemjax.LocalSteps(optax.adam(0.1), 2)
    params, batches = (
        {"w": jnp.ones(10)},
        LocalBatches(gemjax.Computed(lambda worker, step: jnp.sin(2.0 * step)), local),
    )
    transition = Transition(tx=gemjax.downpour(num_workers=2), loss_fn=loss_fn, num_workers=2, local=local).bind(params)
    programs = Programs(transition, batches, gemjax.place(2, "dedicated"), transition.init(params))
    train(programs)
    before = jax.device_get(programs._gathered())
    programs.commit(1, programs.bring(programs.compute(1, programs.select(1))))
    host = jax.devices()[0]
    found = programs._gathered(host)
    assert all(leaf.devices() == {host} for leaf in jax.tree.leaves(found))
    assert_same_bits(jax.device_get(found), jax.device_get(programs._gathered()))
    moved = [one.view.value.local[0].count for one in (before, jax.device_get(found))]
    np.testing.assert_array_equal(moved[1] - moved[0], [0, 2])  # Two local steps of worker 1.


@pytest.mark.slow
def test_a_large_leaf_stays_apart_and_in_place():
    programs = programs_for({"large": jnp.ones(LARGE), "small": jnp.ones(LARGE - 1)}, gemjax.asgd(0.1, 2))
    before = programs.central.shared.apart[0].unsafe_buffer_pointer()
    train(programs)
    assert sizes(programs.central.shared)[0]["float32"] == LARGE - 1
    assert sizes(programs.central.shared)[1] == [LARGE]
    assert programs.central.shared.apart[0].unsafe_buffer_pointer() == before


@pytest.mark.slow
def test_packing_changes_no_bit(monkeypatch):
    params = {
        "half": jnp.linspace(0, 1, 7, dtype=jnp.bfloat16),
        "single": jnp.linspace(0, 1, 5),
        "weak": jnp.full(3, 0.1),
        "scalar": jnp.float32(0.3),
        "empty": jnp.zeros((0, 3)),
        "hole": None,
    }
    mask = {"half": True, "single": False, "weak": True, "scalar": True, "empty": True, "hole": None}
    make = lambda: optax.chain(
        optax.masked(gemjax.asynchronous(optax.trace(0.9), 2), mask), optax.inject_hyperparams(optax.sgd)(0.1)
    )
    packed = programs_for(params, make())
    together = train(packed)
    assert {"float32", "bfloat16", "int32"} <= packed.central.shared.vectors.keys() | packed.central.slots[
        0
    ].vectors.keys()
    monkeypatch.setattr(central, "SMALL", -1)
    apart = programs_for(params, make())
    assert_same_bits(jax.device_get(together), jax.device_get(train(apart)))
    assert not apart.central.shared.vectors


def test_the_commit_is_compiled_once_though_the_parameters_are_weakly_typed():
    programs = programs_for({"w": jnp.full(4, 0.1)}, gemjax.gem(0.1, num_workers=2))
    train(programs)
    assert programs.central._commit._cache_size() == 1
