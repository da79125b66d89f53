"""Workers that are called back at a limit of staleness."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.arrivals import Delayed, Exponential, Interrupted, Scaled
from gemjax.testing import run_in_python

MODEL = Scaled(Exponential(6), [1, 1, 1, 0.5, 0.1, 0.02])


@pytest.mark.parametrize("threshold", [1, 3, 7])
def test_no_gradient_reaches_the_limit(threshold):
    model = Interrupted(MODEL, threshold)
    trace = model.trace(300, seed=2)
    assert trace.staleness.max() == threshold - 1
    assert model.interruptions(300, seed=2)[-1] > 5
    assert MODEL.trace(300, seed=2).staleness.max() > 7
    assert model.trace(100, seed=2) == trace.first(100)


def test_a_limit_that_is_not_reached_changes_nothing():
    model = Interrupted(MODEL, 10_000)
    found, plain = model.trace(200, seed=1), MODEL.trace(200, seed=1)
    np.testing.assert_array_equal(found.worker, plain.worker)
    np.testing.assert_array_equal(found.pulled_at, plain.pulled_at)
    np.testing.assert_allclose(found.time, plain.time, rtol=1e-12)
    assert not model.interruptions(200, seed=1).any()


def test_an_interrupted_gradient_repeats_its_step_at_a_newer_view():
    """The last interruption of a worker before a commit is the late pull of that row."""
    model = Interrupted(MODEL, 5)
    trace = model.trace(400)
    late = 0
    for worker in range(6):
        rows = np.flatnonzero(trace.worker == worker)
        assert trace.step[rows].tolist() == list(range(len(rows)))
        late += (trace.pulled_at[rows] > np.concatenate([[-1], rows[:-1]]) + 1).sum()
    assert 20 < late < model.interruptions(400).sum()


@pytest.mark.slow
@pytest.mark.parametrize("local", [None, gemjax.LocalSteps(optax.sgd(0.1), 2)], ids=["gradients", "local steps"])
def test_the_law_holds_for_interrupted_runs(x64, local):
    loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    batches = lambda worker, step: jnp.sin(jnp.arange(3.0) + worker + step)
    trace = Interrupted(Delayed(MODEL, up=0.1, down=0.1), 4).trace(80)
    assert len(trace.events().worker) > len(trace)
    tx = gemjax.heloco(0.1, 0.5, 6) if local else gemjax.gem(0.05, num_workers=6)
    simulated = gemjax.simulate(tx, loss_fn, jnp.zeros(3), batches, trace, local=local)
    plain = run_in_python(tx, loss_fn, jnp.zeros(3), batches, trace, local=local)
    np.testing.assert_allclose(simulated.params, plain, rtol=1e-12)
