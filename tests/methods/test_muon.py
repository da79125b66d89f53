"""Muon and Adam on stale gradients; the page of methods has the table."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

COMMITS = 1500


def _problem():
    rng = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(rng.normal(0, 1, shape), jnp.float32)
    x, w, v = array(512, 16), array(16, 8), array(8, 4)
    y = jnp.tanh(x @ w / 4) @ v
    params = {"in": {"w": array(16, 32) / 4, "b": jnp.zeros(32)}, "out": {"w": array(32, 4) / 6, "b": jnp.zeros(4)}}

    def loss_fn(params, rows):
        hidden = jnp.tanh(x[rows] @ params["in"]["w"] + params["in"]["b"][None])
        return jnp.mean((hidden @ params["out"]["w"] + params["out"]["b"][None] - y[rows]) ** 2)

    def batches(worker, step):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), worker), step)
        return jax.random.randint(key, (32,), 0, 512)

    return loss_fn, params, batches


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("workers", "adam", "muon"),
    [(1, (0.03, 2.8e-4), (0.03, 2.3e-6)), (16, (0.003, 0.056), (0.01, 0.017)), (64, (0.003, 0.142), (0.003, 0.085))],
)
def test_muon_keeps_its_advantage_over_adam_under_staleness(workers, adam, muon):
    """Each has the best of the rates 0.001, 0.003, 0.01, 0.03 and 0.1; the errors are those of the page."""
    loss_fn, params, batches = _problem()
    trace = gemjax.arrivals.Gamma(workers, machine_variation=0.4).trace(COMMITS)

    def error(make, rate):
        schedule = optax.linear_schedule(rate, 0.0, COMMITS)
        tx = gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(4 * workers), make(schedule)), workers)
        result = gemjax.simulate(tx, loss_fn, params, batches, trace)
        return float(loss_fn(result.params, jnp.arange(512)))

    np.testing.assert_allclose(error(optax.adam, adam[0]), adam[1], rtol=0.5)
    found = error(lambda rate: optax.contrib.muon(rate, adam_learning_rate=rate), muon[0])
    assert 0.1 * muon[1] < found < 1.5 * muon[1] < adam[1]
