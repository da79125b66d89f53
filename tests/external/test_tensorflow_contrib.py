"""Golden numbers of three asynchronous optimizers of TensorFlow 1.

Source: https://github.com/tensorflow/tensorflow/tree/r1.15, ``tensorflow/contrib/opt/python/training/``: the tests
``agn_optimizer_test.py``, ``elastic_average_optimizer_test.py`` and ``drop_stale_gradient_optimizer_test.py``.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax


def _adam():
    return optax.adam(0.1, b1=0.0, b2=0.0)


def _agn(workers, period, exchanges):
    """Run AGN with Adam in both places on a gradient of -1; return local points and the central variable.

    TensorFlow sends the mean of the gradients through the central optimizer; :func:`gemjax.agn` sends the mean of the local
    steps. With ``scale_by_local_steps`` in front of the same central optimizer both are expressible.
    """
    central = gemjax.asynchronous(optax.chain(gemjax.rules.scale_by_local_steps(), _adam()), workers)
    params, local_points, history = jnp.zeros([]), [], []
    state = central.init(params)
    for exchange in range(exchanges):
        worker = exchange % workers
        view, state = gemjax.pull(state, params, worker)
        inner, total = _adam(), jnp.zeros([])
        local_state = inner.init(view)
        for _ in range(period):
            updates, local_state = inner.update(-jnp.ones([]), local_state, view)
            view, total = view + updates, total - 1.0
            local_points.append(float(view))
        updates, state = central.update(total, state, params, worker=worker, local_steps=period)
        params = params + updates
        history.append(float(params))
    return local_points, history


def test_agn_with_one_worker_and_a_period_of_four():
    local_points, central = _agn(1, 4, 2)
    np.testing.assert_allclose(local_points[:3], [0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(central, [0.1, 0.2], rtol=1e-6)


def test_agn_with_two_workers_and_a_period_of_one():
    _, central = _agn(2, 1, 6)
    np.testing.assert_allclose(central, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], rtol=1e-6)


@pytest.mark.slow
def test_the_alias_gives_the_same_where_each_local_step_is_the_rate():
    """Adam without moments steps by 0.1 whatever the gradient, so the mean step is that of TensorFlow's central Adam."""
    loss_fn = lambda params, batch: -params
    for workers, period, golden in ((1, 4, [0.1, 0.2]), (2, 1, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])):
        found = []
        gemjax.simulate(
            gemjax.agn(num_workers=workers), loss_fn, jnp.zeros([]), lambda worker, step: 0.0,
            gemjax.arrivals.RoundRobin(workers).trace(len(golden)), local=gemjax.LocalSteps(_adam(), period),
            callback=lambda progress, found=found: found.append(float(progress.params)), callback_every=1,
        )  # fmt: skip
        np.testing.assert_allclose(found, golden, rtol=1e-5)


def test_elastic_averaging_with_one_worker_and_a_period_of_two():
    """After one local step, after two and the exchange, and after one more: (x, c) = (1, 0), (0, 2), (1, 2)."""
    tx = gemjax.easgd(1.0, 1, strength=1.0)
    params = jnp.zeros([])
    state = tx.init(params)
    view, state = gemjax.pull(state, params, 0)
    assert (float(view + 1), float(params)) == (1.0, 0.0)
    updates, state = tx.update(jnp.full([], -2.0), state, params, worker=0)
    params = params + updates
    view, state = gemjax.pull(state, params, 0)
    assert (float(view), float(params)) == (0.0, 2.0)
    assert (float(view + 1), float(params)) == (1.0, 2.0)


def test_elastic_averaging_with_two_workers_and_a_period_of_one():
    tx = gemjax.easgd(1.0, 2, strength=0.5)
    params = jnp.zeros([])
    state, views = tx.init(params), []
    for worker in (0, 1):
        updates, state = tx.update(jnp.full([], -1.0), state, params, worker=worker)
        params = params + updates
        view, state = gemjax.pull(state, params, worker)
        views.append(float(view))
    assert views == [0.5, 0.75]
    assert float(params) == 0.75


def test_the_default_of_the_elastic_strength():
    """TensorFlow: 0.9 / (period * workers). Gemjax leaves the period out, as the paper's experiments do."""
    tx = gemjax.easgd(num_workers=3)
    updates, _ = tx.update(jnp.full([], -1.0), tx.init(jnp.zeros([])), jnp.zeros([]), worker=0)
    assert float(updates) == pytest.approx(0.9 / 3)


@pytest.mark.parametrize(
    ("workers", "limit", "applied", "dropped"), [(1, 0, 1, 0), (2, 0, 1, 1), (2, 1, 2, 0), (3, 0, 1, 2), (3, 1, 2, 1)]
)
def test_drop_stale_gradients(workers, limit, applied, dropped):
    """All workers compute at clock 0. The limit is the largest staleness that counts, one below gemjax's threshold."""
    tx = gemjax.ringmaster(1.0, workers, threshold=limit + 1)
    params = jnp.array([0.0, 1.0])
    state = tx.init(params)
    for worker in range(workers):
        updates, state = tx.update(-jnp.ones(2), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
    assert int(state.clock) == applied
    assert int(optax.tree.get(state, "refusals").count) == dropped
    np.testing.assert_array_equal(params, [0.0 + applied, 1.0 + applied])
