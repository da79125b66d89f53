"""The buffer ``gather``, FedBuff, FedAsync and their weights against their references and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_buffers as reference
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, schedule

import gemjax
from gemjax.methods.gather import steps_since_pull

N = NUM_WORKERS
WEIGHTS = {
    "constant": ("constant", lambda tau: 1.0),
    "polynomial": ("polynomial", reference.polynomial(0.5)),
    "hinge": ("hinge", reference.hinge(10, 4)),
    "other": (gemjax.rules.hinge_weight(0.5, 1), reference.hinge(0.5, 1)),
}
some_weights = pytest.mark.parametrize(
    "weight", [pytest.param(name, marks=pytest.mark.slow if name == "constant" else ()) for name in WEIGHTS]
)


@pytest.mark.parametrize("buffer_size", [pytest.param(1, marks=pytest.mark.slow), 3])
@some_weights
def test_fedbuff_equals_the_reference(x64, buffer_size, weight):
    given, s = WEIGHTS[weight]
    expected, taus = reference.fedbuff(THETA_0, grad, ORDER, schedule, buffer_size, s)
    assert min(taus) == 0
    assert max(taus) > 5
    found, _ = run(gemjax.fedbuff(schedule, N, buffer_size=buffer_size, weight=given))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@some_weights
def test_fedasync_equals_the_reference(x64, weight):
    given, s = WEIGHTS[weight]
    found, _ = run(gemjax.fedasync(schedule, N, weight=given))
    expected = reference.fedasync(THETA_0, grad, ORDER, schedule, s)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("mean_staleness", [2.5])
def test_weights_are_divided_by_that_of_the_mean_staleness(x64, mean_staleness):
    s = reference.normalised(reference.polynomial(0.5), mean_staleness)
    fedbuff, fedasync = (
        run(method(0.1, N, mean_staleness=mean_staleness, **more))[0]
        for method, more in ((gemjax.fedbuff, {"buffer_size": 2}), (gemjax.fedasync, {}))
    )
    expected, _ = reference.fedbuff(THETA_0, grad, ORDER, lambda t: 0.1, 2, s)
    np.testing.assert_allclose(fedbuff, expected, rtol=0, atol=1e-12)
    expected = reference.fedasync(THETA_0, grad, ORDER, lambda t: 0.1, s)
    np.testing.assert_allclose(fedasync, expected, rtol=0, atol=1e-11)


def test_the_weights_are_those_of_the_paper():
    staleness = np.arange(12)
    polynomial, hinge = gemjax.rules.polynomial_weight(0.3), gemjax.rules.hinge_weight(2.0, 3.0)
    for weight, expected in ((polynomial, reference.polynomial(0.3)), (hinge, reference.hinge(2.0, 3.0))):
        found = [float(weight(jnp.int32(tau))) for tau in staleness]
        np.testing.assert_allclose(found, [expected(tau) for tau in staleness], rtol=1e-6)
    np.testing.assert_array_equal(gemjax.rules.polynomial_weight(0.0)(jnp.arange(5)), 1.0)
    np.testing.assert_allclose(gemjax.rules.polynomial_weight(1.0)(jnp.arange(5)), 1 / (1 + np.arange(5)), rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_staleness_in_steps_is_a_count_of_steps(count):
    """For every clock and every earlier pull, compared with a count."""
    for clock in range(3 * count):
        for pulled_at in range(clock + 1):
            steps = sum((t + 1) % count == 0 for t in range(pulled_at, clock))
            assert int(steps_since_pull(jnp.int32(clock - pulled_at), jnp.int32(clock % count), count)) == steps


def test_a_buffer_of_one_is_asgd(x64):
    expected, _ = run(gemjax.asgd(0.05, N))
    for tx in (
        gemjax.asynchronous(optax.chain(gemjax.rules.gather(1), optax.scale_by_learning_rate(0.05)), N),
        gemjax.fedbuff(0.05, N, buffer_size=1, weight="constant"),
    ):
        found, _ = run(tx)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_a_weighted_buffer_of_one_scales_by_staleness(x64):
    weight = gemjax.rules.polynomial_weight(1.0)
    expected, _ = run(gemjax.dynsgd(0.05, N))
    found, _ = run(gemjax.fedbuff(0.05, N, buffer_size=1, weight=weight))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    scaled = gemjax.asynchronous(optax.chain(gemjax.rules.scale_by_staleness(weight), optax.scale(-0.05)), N)
    np.testing.assert_allclose(run(scaled)[0], expected, rtol=0, atol=1e-13)


def test_a_buffer_of_all_workers_is_diloco_without_momentum(x64):
    expected, _ = run(gemjax.diloco(0.2, 0.0, N))
    found, _ = run(gemjax.fedbuff(0.2, N, buffer_size=N, weight="constant"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_where_no_gradient_is_stale_it_is_rennala(x64):
    """Each worker commits once per round, and all pull after it."""
    order, expected = [w for _ in range(4) for w in range(3)], None
    for tx in (gemjax.rennala(0.1, 3), gemjax.fedbuff(0.1, 3, buffer_size=3), gemjax.malenia(0.1, 3)):
        params, update = jnp.asarray(THETA_0), jax.jit(tx.update)
        state = tx.init(params)
        for t, worker in enumerate(order):
            view = params  # It does not change within a round.
            updates, state = update(jnp.asarray(grad(np.asarray(view), worker, t)), state, params, worker=worker)
            params = params + updates
            if t % 3 == 2:
                for w in range(3):
                    _, state = gemjax.pull(state, params, w)
        expected = params if expected is None else expected
        np.testing.assert_allclose(params, expected, rtol=0, atol=1e-14)
    assert int(jnp.sum(expected != THETA_0)) == 9


@pytest.mark.parametrize("weight", ["polynomial", pytest.param("hinge", marks=pytest.mark.nightly)])
def test_without_staleness_fedasync_is_downpour(x64, weight):
    expected, _ = run(gemjax.downpour(0.3), [0] * 40)
    found, _ = run(gemjax.fedasync(0.3, weight=weight), [0] * 40)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_at_a_rate_of_one_fedasync_is_the_last_workers_point(x64):
    tx = gemjax.fedasync(1.0, 2, weight="constant")
    params = jnp.zeros(2)
    state = tx.init(params)
    for worker, moved in ((0, [1.0, 2.0]), (1, [5.0, -3.0])):  # Both from 0.
        updates, state = tx.update(-jnp.array(moved), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params, moved, atol=1e-15)


def test_under_a_mask_the_other_leaves_are_not_touched(x64):
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    inner = optax.masked(gemjax.rules.mix_with_worker(), {"a": True, "b": False})
    tx = gemjax.asynchronous(optax.chain(inner, optax.scale(-0.5)), 2)
    state, grads = tx.init(params), {"a": jnp.ones(2), "b": jnp.ones(2)}
    for worker in (0, 1):
        updates, state = tx.update(grads, state, params, worker=worker)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["a"], -0.75)
    np.testing.assert_allclose(params["b"], -1.0)


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.nightly), "bfloat16"])
def test_in_half_precision_the_sum_is_kept_in_float32(dtype):
    tx = gemjax.asynchronous(optax.chain(gemjax.rules.gather(300), optax.scale(-1.0)), 1)
    params, state, update = jnp.zeros(2, dtype), tx.init(jnp.zeros(2, dtype)), jax.jit(tx.update)
    for _ in range(300):
        updates, state = update(jnp.ones(2, dtype), state, params, worker=0)
    assert updates.dtype == dtype
    np.testing.assert_allclose(updates, -1.0, rtol=2e-3)


@pytest.mark.parametrize("method", [gemjax.fedbuff, gemjax.fedasync])
def test_a_constant_weight_compensates_nothing(method):
    problem = lambda params, batch: params**2, jnp.ones([]), lambda worker, step: 0.0
    tx, local = method(weight="constant", num_workers=2), gemjax.LocalSteps(optax.sgd(0.1), 1)
    trace = gemjax.Trace([0, 1, 1, 0])
    result = gemjax.simulate(tx, *problem, trace, local=local, diagnostics=["compensation"])
    assert result.history["compensation"].tolist() == [0.0] * 4


def test_a_buffer_without_weights_leaves_the_compensation_to_other_members():
    tx = gemjax.asynchronous(optax.chain(gemjax.rules.scale_by_staleness(), gemjax.rules.gather(2), optax.sgd(0.1)), 2)
    problem = lambda params, batch: params**2, jnp.ones([]), lambda worker, step: 0.0
    result = gemjax.simulate(tx, *problem, gemjax.Trace([0, 1, 1, 0]), diagnostics=["compensation"])
    assert result.history["compensation"].max() > 0
