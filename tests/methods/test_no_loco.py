"""NoLoCo against a plain loop without rounds, its pairs and its limits; ``tests/external`` has its rounds."""

from collections import defaultdict

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run_locally, schedule

import gemjax
from gemjax.methods.no_loco import partner

N, BETA = NUM_WORKERS, 0.6
ROWS = (
    Row("no-loco", gemjax.no_loco, 0.1, {"momentum": 0.5}, variant=True, takes_displacements=True, moves_at_rest=True),
)


def no_loco(theta_0, grad, order, eta, tau, alpha, beta, met):
    """Let worker i train, and average with the last position of the worker that it meets; return the mean after each."""
    phi, m = defaultdict(lambda: theta_0), defaultdict(lambda: np.zeros_like(theta_0))
    x, alone, steps, history = {}, {}, dict.fromkeys(order, 0), []
    for t, i in enumerate(order):
        x[i] = phi[i]
        for _ in range(tau):
            x[i] = x[i] - eta * grad(x[i], i, steps[i])
            steps[i] += 1
        alone[i] = phi[i] + beta * m[i] + alpha(t) * (x[i] - phi[i])
        other = x.get(met(i, steps[i] // tau), x[i])
        m[i] = beta * m[i] + alpha(t) * ((x[i] + other) / 2 - phi[i])
        phi[i] = phi[i] + m[i]
        history.append(np.mean(list(alone.values()), axis=0))
    return np.stack(history)


def test_it_equals_the_reference(x64):
    pairs = [[int(partner(i, exchange, N)) for i in range(N)] for exchange in range(len(ORDER) + 1)]
    expected = no_loco(THETA_0, grad, ORDER, 0.05, 2, schedule, BETA, lambda i, exchange: pairs[exchange][i])
    trace = gemjax.Trace(ORDER, num_workers=N)
    found, _ = run_locally(gemjax.no_loco(schedule, BETA, N), gemjax.LocalSteps(optax.sgd(0.05), 2), trace)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_workers", [1, 4, 5])
def test_each_meets_one_other_and_over_time_all(num_workers):
    met = np.array([[partner(i, exchange, num_workers) for i in range(num_workers)] for exchange in range(30)])
    np.testing.assert_array_equal(np.take_along_axis(met, met, axis=1), np.arange(num_workers)[None].repeat(30, axis=0))
    assert ((met == np.arange(num_workers)).sum(axis=1) == num_workers % 2).all()
    assert all(len({*column}) >= num_workers - 1 for column in met.T.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_alone_or_as_two_in_rounds_it_is_diloco_with_heavy_ball(x64, num_workers):
    trace = gemjax.arrivals.Barrier(gemjax.arrivals.Gamma(num_workers)).trace(20 * num_workers)
    local = gemjax.LocalSteps(optax.sgd(0.05), 2)
    found, _ = run_locally(gemjax.no_loco(0.5, BETA, num_workers), local, trace)
    expected, _ = run_locally(gemjax.diloco(0.5, BETA, num_workers, nesterov=False), local, trace)
    ends = slice(num_workers - 1, None, num_workers)
    np.testing.assert_allclose(found[ends], expected[ends], rtol=0, atol=1e-12)


def test_without_momentum_and_at_rate_one_a_worker_goes_on_from_the_mean_of_two_positions():
    tx, params, views = gemjax.no_loco(1.0, 0.0, num_workers=2), jnp.zeros(1), []
    state = tx.init(params)
    for worker, moved in ((0, 1.0), (1, 3.0), (0, 2.0)):  # To 1 alone; to 3, which meets 1; from 1 to 3, which meets 3.
        updates, state = tx.update(jnp.array([-moved]), state, params, worker=worker)
        params = params + updates
        view, state = gemjax.pull(state, params, worker)
        views.append(view.item())
    assert views == [1.0, 2.0, 3.0]
