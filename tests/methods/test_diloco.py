import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_outer, runs

import gemjax
from gemjax.protocol.compat import enable_x64

N = runs.NUM_WORKERS


@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "heavy-ball"])
def test_agrees_with_the_paper(x64, nesterov):
    found, _ = runs.run(gemjax.diloco(runs.schedule, 0.7, N, nesterov=nesterov))
    expected = reference_outer.delayed_sgd(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7, N, nesterov)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def _with_a_barrier(tx, rounds):
    """Return the central variable after each round in which all workers commit before any of them pulls."""
    params = jnp.asarray(runs.THETA_0)
    state, history = tx.init(params), []
    update = jax.jit(tx.update)
    for round_ in range(rounds):
        start = np.asarray(params)
        for worker in range(N):
            displacement = jnp.asarray(runs.grad(start, worker, round_))
            updates, state = update(displacement, state, params, worker=worker)
            params = optax.apply_updates(params, updates)
        for worker in range(N):
            _, state = gemjax.pull(state, params, worker=worker)
        history.append(np.asarray(params))
    return np.stack(history)


def test_with_a_barrier_it_is_diloco(x64):
    found = _with_a_barrier(gemjax.diloco(0.4, 0.8, N), 20)
    expected = reference_outer.diloco(runs.THETA_0, runs.grad, N, 20, 0.4, 0.8)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_a_heavy_ball_with_a_barrier_is_slowmo(x64):
    found = _with_a_barrier(gemjax.diloco(0.4, 0.8, N, nesterov=False), 20)
    expected = reference_outer.slowmo(runs.THETA_0, runs.grad, N, 20, alpha=0.4, beta=0.8, gamma=0.05)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_it_is_multi_steps_of_nesterov(x64):
    order = runs.ORDER[:60]
    steps = optax.MultiSteps(optax.sgd(0.3, 0.7, nesterov=True), every_k_schedule=N).gradient_transformation()
    found, _ = runs.run(gemjax.diloco(0.3, 0.7, N), order)
    expected, _ = runs.run(gemjax.asynchronous(steps, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # Its mean is in float32.


def test_one_worker_is_nesterov(x64):
    found, _ = runs.run(gemjax.diloco(0.1, 0.8), [0] * 40)
    expected, _ = runs.run(gemjax.asynchronous(optax.sgd(0.1, 0.8, nesterov=True)), [0] * 40)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_after_every_round_it_equals_delayed_nesterov(x64):
    """Both receive the same displacements."""
    both = gemjax.diloco(0.3, 0.8, 3), gemjax.delayed_nesterov(0.3, 0.8, 3)
    params = [jnp.zeros(2)] * 2
    states = [tx.init(jnp.zeros(2)) for tx in both]
    for t in range(9):
        displacement = jnp.asarray(np.random.default_rng(t).normal(size=2))
        for k, tx in enumerate(both):
            updates, states[k] = tx.update(displacement, states[k], params[k], worker=t % 2)
            params[k] = optax.apply_updates(params[k], updates)
        apart = float(jnp.max(jnp.abs(params[0] - params[1])))
        assert apart < 1e-14 if t % 3 == 2 else apart > 1e-3


def test_between_steps_a_pull_gives_the_same_point_again():
    tx = gemjax.diloco(1.0, 0.5, 3)
    params = jnp.zeros(2)
    state, moved = tx.init(params), []
    for _ in range(6):
        updates, state = tx.update(jnp.ones(2), state, params, worker=1)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker=1)
        assert view is params
        moved.append(bool(jnp.any(updates != 0)))
    assert moved == [False, False, True] * 2
    assert int(state.clock) == 6


def test_schedules_count_commits():
    """The second step uses the rate of the sixth commit."""
    tx = gemjax.diloco(lambda count: 1.0 * count, 0.0, 3)
    state, steps = tx.init(jnp.zeros(1)), []
    for worker in (0, 1, 2, 0, 1, 2):
        updates, state = tx.update(jnp.ones(1), state, worker=worker)
        steps.append(updates.item())
    np.testing.assert_array_equal(steps, [0, 0, -2, 0, 0, -5])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_half_precision_the_mean_is_kept_in_float32(dtype):
    state = gemjax.diloco(num_workers=2).init(jnp.zeros(3, dtype))
    assert optax.tree.get(state, "acc_grads").dtype == jnp.float32


def test_it_may_be_made_in_double_precision_and_used_in_single():
    with enable_x64(True):
        tx = gemjax.diloco(num_workers=2)
    state = tx.init(jnp.zeros(2))
    assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim and leaf.dtype.kind == "f"} == {
        jnp.dtype("float32")
    }
    updates, _ = tx.update(jnp.ones(2), state, jnp.zeros(2), worker=0)
    assert updates.dtype == jnp.float32
