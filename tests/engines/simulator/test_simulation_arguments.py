"""Data on other devices than the parameters, and the former name of an argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.simulator.simulations import LATE, QUADRATIC, asgd, run

import gemjax


@pytest.mark.slow
def test_data_on_another_device_than_the_parameters_are_brought_there():
    here, there = jax.devices()[:2]
    put = lambda array, place: array if place is None else jax.device_put(array, place)
    data = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    loss_fn, trace = lambda params, rows: jnp.mean((params[None] - rows) ** 2), gemjax.Trace([0, 1, 0, 1])
    expected = gemjax.simulate(gemjax.asgd(0.1, num_workers=2), loss_fn, jnp.zeros(2), gemjax.Epochs(data, 2), trace)
    for places in ((here, there), (there, None)):
        params, rows = map(put, (jnp.zeros(2), data), places)
        run = loss_fn, params, gemjax.Epochs(rows, 2), trace
        result = gemjax.simulate(gemjax.asgd(0.1, num_workers=2), *run)
        np.testing.assert_array_equal(result.params, expected.params)
        swept = gemjax.sweep(lambda rate: gemjax.asgd(rate, num_workers=2), *run, {"rate": [0.1]})
        np.testing.assert_allclose(swept.params[0], expected.params, rtol=1e-6)


@pytest.mark.slow
def test_data_on_one_device_are_brought_to_all_of_a_divided_central_variable():
    devices = jax.devices()[:4]
    data = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    batches = gemjax.Epochs(jax.device_put(data, devices[0]), 2)
    problem = gemjax.gem(0.05, num_workers=2), lambda params, rows: jnp.mean((params[None] - rows) ** 2), jnp.zeros(8)
    placement = gemjax.place(2, devices=devices, central_devices=2)
    first = gemjax.run_on_devices(*problem, batches, 10, placement=placement)
    result = gemjax.run_on_devices(*problem, batches, 20, placement=placement, state=first)
    replayed = gemjax.simulate(*problem, batches, result.trace, state=first)
    np.testing.assert_allclose(replayed.params, result.params, rtol=1e-5)


def test_the_old_name_of_callback_every_works_with_a_warning():
    calls = []
    with pytest.warns(DeprecationWarning, match="chunk_size= is callback_every= now"):
        run(QUADRATIC, asgd, LATE, chunk_size=12, callback=lambda progress: calls.append(progress.commits))
    assert calls == [12, 24]
