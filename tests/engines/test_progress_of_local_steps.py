"""Local optimizers learn how far the run is: the commits until their pull, and the number of each step since then."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast

import gemjax
from gemjax import LocalSteps, testing

WORKERS, PERIOD = 3, 2
SUM = gemjax.downpour(num_workers=WORKERS)


def counting():
    """Return an optimizer whose step tells what it learnt: 100 per commit until the pull, and the number of the step."""

    def update_fn(updates, state, params=None, *, commits, local_step, **extra_args):
        assert commits.dtype == local_step.dtype == jnp.int32
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, 100.0 * commits + local_step), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


LOCAL = LocalSteps(counting(), PERIOD)
GIVEN = (lambda params, batch: jnp.sum(params * batch), jnp.zeros(2), lambda worker, step: jnp.ones(2))


def learnt(trace):
    """Return the sum of what all workers learnt, in a run of ``trace`` all of whose commits are applied."""
    return sum(PERIOD * 100 * pulled + sum(range(PERIOD)) for pulled in trace.pulled_at.tolist())


@pytest.mark.parametrize("callback_every", [None, 5])
def test_in_a_simulation(callback_every):
    trace = gemjax.arrivals.ConstantSpeeds([1.0, 0.7, 0.2]).trace(23)
    result = gemjax.simulate(SUM, *GIVEN, trace, local=LOCAL, callback_every=callback_every)
    np.testing.assert_array_equal(result.params, learnt(trace))
    np.testing.assert_array_equal(testing.run_in_python(SUM, *GIVEN, trace, local=LOCAL), learnt(trace))


def test_after_rejected_commits():
    """The clock counts applied commits."""
    trace = gemjax.arrivals.RoundRobin(WORKERS).trace(12)
    batches = lambda worker, step: jnp.where((worker == 1) & (step == 2), jnp.nan, jnp.ones(2))
    result = gemjax.simulate(SUM, *GIVEN[:2], batches, trace, local=LOCAL)
    kept = result.history["applied"]
    assert np.flatnonzero(~kept).tolist() == [4]
    clock = result.history["pulled_at"][kept]
    assert clock.max() == 8
    np.testing.assert_array_equal(result.params, PERIOD * 100 * clock.sum() + kept.sum())


def test_on_devices_and_in_a_continued_run():
    run = lambda commits, **options: gemjax.run_on_devices(
        SUM, *GIVEN, commits, num_workers=WORKERS, local=LOCAL, gate=Abreast(WORKERS), **options
    )
    first = run(9)
    np.testing.assert_array_equal(first.params, learnt(first.trace))
    second = run(20, state=first)
    assert second.trace.staleness.max() > 0
    np.testing.assert_array_equal(second.params, learnt(second.trace))


def test_in_a_sweep():
    trace = gemjax.arrivals.ConstantSpeeds([1.0, 0.7, 0.2]).trace(14)
    make = lambda rate: gemjax.downpour(rate, num_workers=WORKERS)
    result = gemjax.sweep(make, *GIVEN, trace, over={"rate": [0.5, 2.0]}, local=LOCAL)
    np.testing.assert_array_equal(np.asarray(result.params).reshape(2, -1)[:, 0], np.array([0.5, 2.0]) * learnt(trace))
