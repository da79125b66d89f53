import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_outer, runs

import gemjax

N = runs.NUM_WORKERS


@pytest.mark.parametrize(("buffer_size", "spread"), [(None, 0.0), (3, 0.25)], ids=["defaults", "spread"])
def test_agrees_with_the_paper(x64, buffer_size, spread):
    found, _ = runs.run(gemjax.delayed_nesterov(runs.schedule, 0.7, N, buffer_size=buffer_size, spread=spread))
    expected = reference_outer.delayed_nesterov(
        runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7, buffer_size or N, spread
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.25])
def test_a_round_sums_to_one_step_of_nesterov(x64, spread):
    """It is exact without spread; with it, all shares but the last are of the previous round's momentum."""
    ours, theirs = gemjax.delayed_nesterov(0.3, 0.8, 4, spread=spread), optax.sgd(0.3, 0.8, nesterov=True)
    params = jnp.zeros(3)
    state, theirs_state, velocity = ours.init(params), theirs.init(params), np.zeros(3)
    for round_ in range(4):
        displacements = np.random.default_rng(round_).normal(size=(4, 3))
        total = jnp.zeros(3)
        for worker, displacement in enumerate(displacements):
            updates, state = ours.update(jnp.asarray(displacement), state, params, worker=worker)
            total = total + updates
        mean = displacements.mean(0)
        expected, theirs_state = theirs.update(jnp.asarray(mean), theirs_state, params)
        late = 3 * spread * 0.8 * (0.8 * velocity + mean - velocity)  # This part is one round later than Nesterov's.
        velocity = 0.8 * velocity + mean
        np.testing.assert_allclose(total, expected + 0.3 * late, rtol=0, atol=1e-14)


def test_a_buffer_of_one_is_nesterov(x64):
    order = runs.ORDER[:50]
    found, _ = runs.run(gemjax.delayed_nesterov(0.05, 0.7, N, buffer_size=1), order)
    expected, _ = runs.run(gemjax.asynchronous(optax.sgd(0.05, 0.7, nesterov=True), N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_without_momentum_it_is_asgd_at_a_part_of_the_rate(x64):
    order = runs.ORDER[:50]
    found, _ = runs.run(gemjax.delayed_nesterov(0.5, 0.0, N, spread=0.1), order)
    expected, _ = runs.run(gemjax.asgd(0.5 / N, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_in_bfloat16_the_sum_does_not_stall():
    """In bfloat16 itself 256 ones would add up to 256, and 512 as well."""
    tx = gemjax.rules.delay_momentum(0.5, buffer_size=512)
    state = tx.init(jnp.zeros(1, jnp.bfloat16))
    update = jax.jit(tx.update)
    for _ in range(512):
        _, state = update(jnp.ones(1, jnp.bfloat16), state)
    assert state.velocity.item() == 1.0
    assert int(state.gathered) == 0


def test_the_largest_spread_is_taken():
    gemjax.delayed_nesterov(num_workers=3, spread=1 / 3)


def test_dynamic_periods_follow_speeds():
    assert gemjax.rules.dynamic_periods(32, (1.0, 4.0, 3.9)) == (8, 32, 31)
    assert gemjax.rules.dynamic_periods(20, (0.1, 10.0), minimum=5) == (5, 20)
    assert gemjax.rules.dynamic_periods(7, np.array([2, 2])) == (7, 7)
    assert gemjax.rules.dynamic_periods(1, [3]) == (1,)


@pytest.mark.parametrize("denominator", [3, 7, 49, 1e-3])
def test_dynamic_periods_do_not_lose_a_step_to_rounding(denominator):
    """In floating point 49 * (1 / 49) is below 1."""
    speeds = [k / denominator for k in range(1, 51)]
    assert gemjax.rules.dynamic_periods(50, speeds) == tuple(range(1, 51))
