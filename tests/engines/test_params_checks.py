"""Checks of parameters and of arguments per seed."""

import dataclasses
import fractions

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import EVERY_ENTRANCE, PARAMS, PER_SEED, asgd, every_engine, run
from flax import linen, nnx
from flax.training.train_state import TrainState

import gemjax
from gemjax.protocol.compat import enable_x64


@every_engine
def test_per_seed_for_a_model_state(engine):
    with pytest.raises(
        TypeError, match=r"model_state is a gemjax\.PerSeed, which is accepted for params, batches and trace"
    ):
        run(engine, model_state=PER_SEED)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_per_seed_is_for_sweeps(engine):
    with pytest.raises(TypeError, match=r"params is a gemjax\.PerSeed, .* of gemjax\.sweep only"):
        run(engine, params=PER_SEED)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(x)


TRAIN_STATE = TrainState.create(apply_fn=Net().apply, params={"w": PARAMS}, tx=optax.sgd(0.1))


@EVERY_ENTRANCE
@pytest.mark.parametrize("name", ["params", "model_state"])
def test_arrays_of_64_bits_without_x64_are_refused(engine, name):
    with enable_x64(True):
        given = {"params": PARAMS} | {name: {"w": jnp.ones(2, jnp.float64)}}
    with pytest.raises(TypeError, match=rf"{name} at \['w'\] is float64, but numbers of 64 bits are not enabled here"):
        run(engine, **given)


@EVERY_ENTRANCE
@pytest.mark.parametrize(
    ("params", "found"),
    [
        (Net(), r"params is the module Net, which has no parameters; give those that its init returns"),
        (
            nnx.Linear(2, 1, rngs=nnx.Rngs(0)),
            r"params is the Flax NNX module Linear; give its parameters, .* nnx\.split\(",
        ),
        (TRAIN_STATE, r"params is a TrainState; give its \.params"),
        (
            {"a": [PARAMS, "resnet"]},
            r"params at \['a'\]\[1\] is the str 'resnet', but params may have arrays only; keep it",
        ),
        ({"w": PARAMS, "act": jnp.tanh}, r"params at \['act'\] is a function, but params may have arrays only"),
        ({"w": fractions.Fraction(1, 2)}, r"params at \['w'\] is .*, but params may have arrays only"),
        ({"w": np.array(["a"])}, r"params at \['w'\] is an array of shape \[1\], but params may have arrays only"),
        (
            nnx.split(nnx.Dropout(0.1, rngs=nnx.Rngs(0)))[1],
            r"is .*, but only floats can be trained; keep integers and keys",
        ),
    ],
    ids=["linen", "nnx", "train-state", "string", "function", "fraction", "strings", "keys"],
)
def test_parameters_that_are_no_arrays(engine, params, found):
    with pytest.raises((TypeError, ValueError), match=found):
        run(engine, params=params)


@pytest.mark.parametrize("engine", ["simulate", "devices", "sweep", "initial_state"])
@pytest.mark.parametrize("tx", [asgd(), gemjax.gem(0.1, num_workers=2)], ids=["asgd", "gem"])
def test_complex_parameters_are_refused_before_anything_is_computed(engine, tx):
    params = {"w": jnp.ones(2), "z": jnp.ones(4, jnp.complex64)}
    wrong = (
        r"^params at \['z'\] is complex64, but methods are defined for real numbers; give .* as two arrays, and join"
    )
    with pytest.raises(ValueError, match=wrong):
        run(engine, lambda params, batch: jnp.sum(jnp.abs(params["z"] - batch) ** 2), params, tx)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_complex_parameters_can_be_given_as_two_real_arrays(engine):
    loss_fn = lambda params, batch: jnp.sum(jnp.abs(jax.lax.complex(*params) - (batch + 1j * batch)) ** 2)
    params = jnp.zeros(4), jnp.zeros(4)
    assert run(engine, loss_fn, params, gemjax.gem(0.1, num_workers=2)).params[1].any()


@pytest.mark.parametrize("engine", ["simulate", "devices", "sweep"])
def test_parameters_too_narrow_to_compute_with_are_refused(engine):
    with pytest.raises(
        ValueError, match="params at the root is float8_e4m3fn, which JAX does not mix with other floats"
    ):
        run(engine, params=jnp.ones(4, jnp.float8_e4m3fn))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """Parameters that are a class with methods."""

    w: jax.Array

    def init(self):
        return self

    def apply(self, x):
        return self.w * x


def test_registered_parameters_may_have_methods():
    assert gemjax.initial_state(asgd(), Linear(PARAMS)).params.w.shape == (4,)
    with pytest.raises(TypeError, match="params is the module Linear, which has no parameters"):
        gemjax.initial_state(asgd(), Linear(None))


def mesh_of(kind):
    return jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType[kind],), devices=jax.devices()[:2])


@pytest.mark.parametrize("spec", [(), ("x",)])
@pytest.mark.parametrize("engine", ["simulate", "sweep"])
def test_params_on_a_mesh_with_explicit_axes_are_refused(engine, spec):
    place = jax.sharding.NamedSharding(mesh_of("Explicit"), jax.sharding.PartitionSpec(*spec))
    with pytest.raises(ValueError, match=r"params at \['w'\] is on a mesh with explicit axes.*AxisType\.Auto"):
        run(engine, params={"w": jax.device_put(jnp.zeros(2), place)})


def test_divided_params_with_explicit_axes_are_refused_on_devices():
    place = jax.sharding.NamedSharding(mesh_of("Explicit"), jax.sharding.PartitionSpec("x"))
    with pytest.raises(ValueError, match=r"params at \['w'\] is on a mesh with explicit axes"):
        run("devices", params={"w": jax.device_put(jnp.zeros(2), place)})


@pytest.mark.parametrize("engine", ["simulate", "sweep"])
def test_params_on_several_devices_are_refused_by_the_simulator(engine):
    params = {name: jax.device_put(jnp.zeros(2), jax.devices()[number]) for number, name in enumerate("ab")}
    with pytest.raises(
        ValueError, match=r"params at \['a'\] is on .*0, but params at \['b'\] on .*1; put all arrays on"
    ):
        run(engine, params=params)


def test_a_mesh_in_effect_is_refused_on_devices():
    within = jax.set_mesh if hasattr(jax, "set_mesh") else jax.sharding.use_mesh  # JAX before 0.8.
    with (
        within(mesh_of("Auto")),
        pytest.raises(ValueError, match=r"jax\.set_mesh is in effect .* placement="),
    ):
        run("devices")
