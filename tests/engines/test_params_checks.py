"""Checks of parameters and of arguments per seed."""

import jax
import jax.numpy as jnp
import pytest
from engines.entrances import EVERY_ENTRANCE, PARAMS, run

import gemjax
from gemjax.protocol.compat import enable_x64


@EVERY_ENTRANCE
@pytest.mark.parametrize("name", ["params", "model_state"])
def test_arrays_of_64_bits_without_x64_are_refused(engine, name):
    with enable_x64(True):
        given = {"params": PARAMS} | {name: {"w": jnp.ones(2, jnp.float64)}}
    with pytest.raises(TypeError, match=rf"{name} at \['w'\] is float64, but numbers of 64 bits are not enabled here"):
        run(engine, **given)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_complex_parameters_can_be_given_as_two_real_arrays(engine):
    loss_fn = lambda params, batch: jnp.sum(jnp.abs(jax.lax.complex(*params) - (batch + 1j * batch)) ** 2)
    params = jnp.zeros(4), jnp.zeros(4)
    assert run(engine, loss_fn, params, gemjax.gem(0.1, num_workers=2)).params[1].any()


@pytest.mark.parametrize("engine", ["simulate", "sweep"])
def test_params_on_several_devices_are_refused_by_the_simulator(engine):
    params = {name: jax.device_put(jnp.zeros(2), jax.devices()[number]) for number, name in enumerate("ab")}
    with pytest.raises(
        ValueError, match=r"params at \['a'\] is on .*0, but params at \['b'\] on .*1; put all arrays on"
    ):
        run(engine, params=params)
