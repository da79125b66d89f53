"""Checkpoints: a saved state is restored exactly."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.running.checkpoints.states import BATCHES, LOSS, PARAMS, arrived, like, method

import gemjax
from gemjax import arrivals
from gemjax.engines.running.checkpoints import contents


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
    spectrum = jnp.full(4, 1 / 3 + 1j)
    state = gemjax.initial_state(method(), {"x": jnp.full(4, 1 / 3)}, num_workers=3, model_state={"spectrum": spectrum})
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


def test_numbers_are_finite_in_their_own_dtype():
    """JAX makes infinity of a float64 beyond the range of float32, unless 64 bits are enabled."""
    params = {
        "wide": np.array([1e39, 1.0]),
        "narrow": jnp.array([1.0, jnp.nan], jnp.bfloat16),
        "whole": np.arange(2),
        "key": jax.random.key(0),
    }
    with pytest.raises(gemjax.CheckpointError, match=r"params\['narrow'\] has 1 of 2 numbers that are not finite"):
        contents.check_finite(params, "the state", None)
    contents.check_finite(params | {"narrow": jnp.ones(2, jnp.bfloat16)}, "the state", None)


def data(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def is_equal(state, other):
    def is_same(one, two):
        return (one.dtype, one.shape) == (two.dtype, two.shape) and np.array_equal(data(one), data(two))

    return jax.tree.structure(state) == jax.tree.structure(other) and all(
        map(is_same, jax.tree.leaves(state), jax.tree.leaves(other))
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_arrays_without_elements_train_and_are_restored(tmp_path, engine):
    params = {"x": jnp.ones(3), "none": jnp.zeros((2, 0, 4), jnp.bfloat16), "keys": jnp.zeros(0)}
    model_state = {"seen": jnp.zeros((0,), jnp.int32), "keys": jax.random.split(jax.random.key(0), 3)[:0]}
    tx = gemjax.gem(0.05, num_workers=2)

    def loss_fn(params, model_state, batch, key):
        return jnp.sum((params["x"] - batch) ** 2) + params["keys"].sum(), (model_state, {})

    batches = lambda worker, step: jnp.arange(3.0) + 0.1 * step
    start = gemjax.initial_state(tx, params, model_state=model_state)
    whole, trace = tmp_path / "whole", arrivals.Gamma(2).trace(12)
    if engine == "simulate":
        half = gemjax.simulate(tx, loss_fn, params, batches, trace.first(6), model_state=model_state)
    else:
        half = gemjax.run_on_devices(tx, loss_fn, params, batches, 6, model_state=model_state)
    with gemjax.Checkpoints(whole) as checkpoints:
        checkpoints.save(half.state, half.trace)
        state, recorded, _ = checkpoints.load(start)
    assert recorded == half.trace
    assert is_equal(state, half.state)
    if engine == "simulate":
        rest = gemjax.simulate(tx, loss_fn, params, batches, trace, model_state=model_state, state=state)
    else:
        rest = gemjax.run_on_devices(
            tx, loss_fn, params, batches, 12, model_state=model_state, state=state, recorded=recorded
        )
    assert int(rest.state.commits) == 12


def test_arrays_without_elements_are_compared_by_shape_and_dtype(tmp_path):
    state = lambda *none: gemjax.initial_state(
        gemjax.asgd(0.1, num_workers=3), {"x": jnp.ones(2), "none": jnp.zeros(*none)}
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state((0, 4)), arrivals.Gamma(3).trace(0))
        for other, wrong in (
            (state((0, 5)), r"saved params.none float32\[0, 4\], expected params.none float32\[0, 5\]"),
            (state((0, 4), jnp.bfloat16), r"saved params.none float32\[0, 4\], expected params.none bfloat16\[0, 4\]"),
            (state((1, 4)), r"saved params.none float32\[0, 4\], expected params.none float32\[1, 4\]"),
        ):
            with pytest.raises(gemjax.CheckpointError, match=wrong):
                checkpoints.load(other)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["unsafe_rbg", "rbg", "threefry2x32"])
def test_keys_of_another_implementation_are_refused(tmp_path, impl):
    def state(impl):
        model_state = {"key": jax.random.key(3, impl=impl)}
        return gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), jnp.ones(2), model_state=model_state)

    other = "rbg" if impl == "unsafe_rbg" else "unsafe_rbg"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(impl), arrivals.Gamma(3).trace(0))
        assert is_equal(checkpoints.load(state(impl))[0], state(impl))
        wrong = rf"PRNG implementation, .* differs: saved model_state.key .* {impl}, expected .* {other}"
        with pytest.raises(gemjax.CheckpointError, match=wrong):
            checkpoints.load(jax.eval_shape(lambda: state(other)))


def test_arrays_in_another_order_are_refused(tmp_path):
    def state(*names):
        model_state = collections.OrderedDict((name, jnp.ones(2)) for name in names)
        return gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), jnp.ones(2), model_state=model_state)

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state("a", "b"), arrivals.Gamma(3).trace(0))
        with pytest.raises(gemjax.CheckpointError, match=r"differs: saved model_state\.a .*, expected model_state\.b "):
            checkpoints.load(state("b", "a"))
