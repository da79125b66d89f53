"""Checkpoints: a saved state is restored exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from checkpoints.states import BATCHES, LOSS, PARAMS, arrived, like, method

import gemjax
from gemjax import arrivals


def test_state_and_trace_are_restored_and_the_run_continues_bit_for_bit(tmp_path):
    trace = arrivals.Gamma(3).trace(40)
    tx = method()
    whole = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace)
    half = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace, callback_every=20, callback=lambda progress: True)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, trace.first(20), {"note": "half"})
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        state, recorded, metadata = checkpoints.load(like())
    assert recorded == trace.first(20)
    assert metadata == {"note": "half"}
    rest = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace, state=state)
    for one, other in zip(jax.tree.leaves(rest.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(rest.opt_state[1].clock) == 40


@pytest.mark.slow
def test_a_simulation_with_parameters_on_another_device_than_the_first_continues_from_a_checkpoint(tmp_path):
    params, trace = jax.device_put(PARAMS, jax.devices()[1]), arrivals.Gamma(3).trace(12)
    half, whole = (gemjax.simulate(method(), LOSS, params, BATCHES, part) for part in (trace.first(6), trace))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, half.trace)
        state, _, _ = checkpoints.load(gemjax.initial_state(method(), params, num_workers=3))
    rest = gemjax.simulate(method(), LOSS, params, BATCHES, trace, state=state)
    for one, other in zip(jax.tree.leaves(rest.params), jax.tree.leaves(whole.params), strict=True):
        assert one.devices() == {jax.devices()[1]}
        np.testing.assert_array_equal(one, other)


def test_arrays_are_restored_with_the_shardings_of_their_shapes(tmp_path):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), jax.eval_shape(like)
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(0))
        state, _, _ = checkpoints.load(shapes)
    for found, saved in zip(jax.tree.leaves(state), jax.tree.leaves(like()), strict=True):
        assert found.sharding == sharding
        np.testing.assert_array_equal(found, saved)


def test_double_precision_is_restored_where_only_the_calling_thread_has_it(tmp_path, x64):
    state = gemjax.initial_state(method(), {"x": jnp.full(4, 1 / 3)}, num_workers=3)
    assert state.params["x"].dtype == "float64"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, arrivals.Gamma(3).trace(0))
        found, _, _ = checkpoints.load(state)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        assert one.dtype == other.dtype
        assert one.sharding == other.sharding
        np.testing.assert_array_equal(one, other)


def test_bfloat16_and_empty_traces_are_restored(tmp_path):
    params = {"w": jnp.array([1.5, -2.0], jnp.bfloat16)}
    state = gemjax.initial_state(gemjax.gem(0.1, num_workers=2), params, num_workers=2)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, gemjax.Trace(worker=[], num_workers=2))
        loaded, trace, _ = checkpoints.load(state)
    assert len(trace) == 0
    assert loaded.params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(loaded.params["w"], params["w"])


def test_names_of_the_format_are_those_of_earlier_versions():
    assert gemjax.checkpoints.FORMAT == "gemjax.run.2"
    assert gemjax.checkpoints.KINDS["worker"] is np.int32


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_ruined_state_is_not_saved(bad, tmp_path):
    """The checkpoint before it remains the newest; what a method keeps for itself may be infinite."""
    tx, params = gemjax.lsgd(num_workers=2), {"w": jnp.ones(3)}  # Its losses are infinite before the first commit.
    state = arrived(gemjax.initial_state(tx, params, local=gemjax.LocalSteps(optax.sgd(0.1), 1)))
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(state, gemjax.Trace([0, 1, 0]))
    ruined = state._replace(params={"w": jnp.array([1.0, bad, bad])})
    message = r"after 4 commits is not saved, because params\['w'\] has 2 of 3 numbers .* 3 commits is kept; .* clip"
    with pytest.raises(gemjax.CheckpointError, match=message) as error:
        checkpoints.save(ruined, gemjax.Trace([0, 1, 0, 1]), wait=False)
    assert "\n" not in str(error.value)
    assert checkpoints.latest == 3
    np.testing.assert_array_equal(checkpoints.load(state)[0].params["w"], np.ones(3))
