"""Model state of all kinds: floats, counters and typed PRNG keys, as in a network with BatchNorm and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, Problem, assert_close, assert_same_bits

import gemjax
from gemjax import arrivals
from gemjax.engines.devices.hardware.placement import Placement
from gemjax.engines.running import keys
from gemjax.testing import run_in_python

N = 3
GEM = gemjax.gem(0.05, num_workers=N)
LOCAL = gemjax.LocalSteps(optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(1)), optax.sgd(0.05, momentum=0.5)), 2)


def loss_fn(params, model_state, batch, key):
    """Return a loss with noise from the key in the model state, which every commit changes."""
    stream = jax.random.fold_in(model_state["stream"], model_state["count"])
    kept = (jax.random.bits(stream, params.shape, "uint8") < 200).astype(params.dtype)
    mean = 0.9 * model_state["mean"] + 0.1 * jax.lax.stop_gradient(params)
    loss = jnp.sum((params * kept - batch - 0.1 * mean) ** 2)
    new = {
        "stream": jax.random.fold_in(stream, jax.random.bits(key)),
        "several": jax.random.split(model_state["several"][0], 4),
        "count": model_state["count"] + 1,
        "mean": mean,
    }
    return loss, (new, {"error": jnp.abs(params - batch).max()})


def problem(dtype=jnp.float32):
    model_state = {
        "stream": jax.random.key(3),
        "several": jax.random.split(jax.random.key(4, impl="rbg"), 4),
        "count": jnp.uint32(0),
        "mean": jnp.zeros(4, dtype),
    }
    return Problem(
        loss_fn, jnp.ones(4, dtype), lambda worker, step: jnp.sin(jnp.arange(4, dtype=dtype) + worker), model_state
    )


def simulated(trace, given, tx=GEM, **options):
    return gemjax.simulate(tx, *given[:3], trace, model_state=given.model_state, seed=5, **options)


def on_devices(given, num_commits=24, tx=GEM, **options):
    options = {"placement": gemjax.place(N), "gate": Abreast(N), "seed": 5} | options
    return gemjax.run_on_devices(tx, *given[:3], num_commits, model_state=given.model_state, **options)


def assert_states_close(actual, desired, rtol=1e-10):
    """Check that two states are close; a local optimizer may also contain keys."""
    assert_close(keys.as_data(actual.model_state), keys.as_data(desired.model_state), rtol)
    assert_close(actual.params, desired.params, rtol)
    assert_close(keys.as_data(actual.view), keys.as_data(desired.view), rtol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tx", "options"),
    [
        (GEM, {}),
        (GEM, {"average_model_state": True}),
        pytest.param(gemjax.easgd(num_workers=N), {"local": LOCAL}, marks=pytest.mark.nightly),
    ],
    ids=["latest", "average", "local"],
)
def test_a_run_on_devices_replays_in_the_simulator(tx, options, x64):
    given = problem(jnp.float64)
    result = on_devices(given, tx=tx, **options)
    assert result.trace.staleness.max() > 0
    assert result.history["applied"].all()
    replay = simulated(result.trace, given, tx, **options)
    assert_states_close(result.state, replay.state)
    if "average_model_state" not in options:
        plain = run_in_python(tx, *given[:3], result.trace, model_state=given.model_state, seed=5, **options)
        assert_close(result.params, plain, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("average", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_it_replays_with_a_sharded_central_variable_and_workers_of_two_devices(average, x64):
    devices, given = jax.devices(), problem(jnp.float64)
    placement = Placement((tuple(devices[:2]), devices[2], devices[3]), tuple(devices[4:6]))
    result = on_devices(given, placement=placement, average_model_state=average)
    assert_states_close(result.state, simulated(result.trace, given, average_model_state=average).state)


@pytest.mark.slow
def test_only_floats_are_averaged():
    """Counters and keys are those of the commit; a mean of two counters would be meaningless."""
    given, trace = problem(), gemjax.arrivals.RoundRobin(N).trace(9)
    latest, average = (
        keys.as_data(simulated(trace, given, average_model_state=flag).model_state) for flag in (False, True)
    )
    for name in ("stream", "several", "count"):
        np.testing.assert_array_equal(latest[name], average[name])
    assert not np.allclose(latest["mean"], average["mean"], rtol=1e-3)


@pytest.mark.slow
def test_a_run_continues_from_its_checkpoint_bit_for_bit(tmp_path):
    given, trace = problem(), gemjax.arrivals.Gamma(N).trace(20)
    whole = simulated(trace, given)
    half = simulated(trace, given, callback_every=10, callback=lambda progress: True)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, half.trace)
        like = gemjax.initial_state(GEM, given.params, num_workers=N, model_state=given.model_state)
        state, recorded, _ = checkpoints.load(like)
    assert recorded == trace.first(10)
    assert jax.random.key_impl(state.model_state["several"]) == jax.random.key_impl(given.model_state["several"])
    assert_same_bits(keys.as_data(state), keys.as_data(half.state))
    assert_same_bits(keys.as_data(simulated(trace, given, state=state).state), keys.as_data(whole.state))


@pytest.mark.slow
@pytest.mark.parametrize(
    "average", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["replaced", "averaged"]
)
@pytest.mark.parametrize("local", [None, gemjax.LocalSteps(optax.sgd(0.1), 2)], ids=["gradients", "local steps"])
def test_infinities_that_a_commit_leaves_as_they_were_do_not_count(local, average, x64):
    """A mask of attention is made of them."""

    def loss_fn(params, model_state, batch, key):
        attention = jax.nn.softmax(params + model_state["mask"])
        return jnp.sum((attention - batch) ** 2), (model_state, {})

    tx = gemjax.asgd(0.5, num_workers=2) if local is None else gemjax.downpour(num_workers=2)
    model_state = {"mask": jnp.array([0.0, 0.0, -jnp.inf])}
    problem = loss_fn, jnp.zeros(3), lambda worker, step: jnp.array([0.7, 0.3, 0.0])
    options = {"model_state": model_state, "local": local, "average_model_state": average}
    result = gemjax.run_on_devices(tx, *problem, 200, num_workers=2, **options)
    replayed = gemjax.simulate(tx, *problem, result.trace, **options)
    for run in (result, replayed):
        assert int(run.state.rejected) == 0
        assert run.history["loss"][-1] < 0.01
        np.testing.assert_array_equal(run.model_state["mask"], [0.0, 0.0, -np.inf])
    np.testing.assert_allclose(replayed.params, result.params, rtol=1e-12)


@pytest.mark.parametrize("engine", ["devices", "simulator"])
def test_an_average_with_an_infinity_is_that_infinity(engine):
    """As of a running minimum that begins there; the difference of both would be NaN, and each commit rejected."""

    def loss_fn(params, model_state, batch, key):
        return jnp.sum((params - batch) ** 2), ({"least": jnp.minimum(model_state["least"], 1.0)}, {})

    problem = gemjax.asgd(0.1, num_workers=2), loss_fn, jnp.zeros(3), lambda worker, step: jnp.ones(3)
    options = {"model_state": {"least": jnp.full(2, jnp.inf)}, "average_model_state": True}
    if engine == "devices":
        result = gemjax.run_on_devices(*problem, 20, num_workers=2, **options)
    else:
        result = gemjax.simulate(*problem, gemjax.arrivals.RoundRobin(2).trace(20), **options)
    assert int(result.state.rejected) == 0
    assert np.all(np.isposinf(result.model_state["least"]))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(arrivals.RoundRobin(8), id="asynchronous", marks=pytest.mark.nightly),
        pytest.param(arrivals.Barrier(arrivals.RoundRobin(8)), id="barrier"),
    ],
)
def test_workers_draw_numbers_of_their_own(model):
    """Keys come from the model state; the variance of a sum of 16 independent numbers is 16."""

    def loss_fn(params, model_state, batch, key):
        stream, draw = jax.random.split(model_state["stream"])
        return jnp.vdot(params, jax.random.normal(draw, params.shape)), ({"stream": stream}, {})

    result = gemjax.simulate(
        gemjax.asgd(1.0, 8), loss_fn, jnp.zeros(20_000), lambda worker, step: 0.0, model.trace(16),
        model_state={"stream": jax.random.key(0)},
    )  # fmt: skip
    np.testing.assert_allclose(jnp.var(result.params), 16.0, rtol=0.05)


@pytest.mark.parametrize("stacked", [False, True])
def test_raw_keys_of_any_name_are_those_of_the_worker(stacked):
    """As of a network of Linen with dropout, or of layers in a scan."""
    raw = jax.random.split(jax.random.PRNGKey(0), 3) if stacked else jax.random.PRNGKey(0)

    def loss_fn(params, model_state, batch, key):
        return jnp.vdot(params, jax.random.normal(model_state["dropout"].reshape(-1, 2)[0], params.shape)), (
            model_state,
            {},
        )

    result = gemjax.simulate(
        gemjax.asgd(1.0, 8), loss_fn, jnp.zeros(20_000), lambda worker, step: 0.0, arrivals.RoundRobin(8).trace(8),
        model_state={"dropout": raw},
    )  # fmt: skip
    np.testing.assert_allclose(jnp.var(result.params), 8.0, rtol=0.05)
