import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_tuned, runs

import gemjax
from gemjax import arrivals, testing
from gemjax.methods import yellowfin
from gemjax.protocol.slots import SharedRows

N = runs.NUM_WORKERS
MOMENTA = ("momentum", "target_momentum", "total_momentum")


@pytest.mark.parametrize("closed_loop", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["closed", "open"])
def test_agrees_with_the_paper(x64, closed_loop):
    found, quantities = runs.run(
        gemjax.yellowfin(runs.schedule, N, closed_loop=closed_loop, decay=0.99), observe=MOMENTA
    )
    expected, seen = reference_tuned.yellowfin(
        runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, beta=0.99, closed_loop=closed_loop
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose([[q[name] for name in MOMENTA] for q in quantities], seen, rtol=0, atol=1e-11)
    assert 0 < np.isnan(seen[N:, 2]).sum() < 30  # Some are too stale to be measured.


@pytest.mark.slow
def test_with_one_worker_the_total_is_the_applied_momentum_and_follows_the_target(x64):
    _, quantities = runs.run(gemjax.yellowfin(gain=0.2), [0] * 100, observe=MOMENTA)
    momentum, target, total = (np.array([q[name] for q in quantities]) for name in MOMENTA)
    np.testing.assert_allclose(total[1:], momentum[1:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.diff(momentum)[1:], 0.2 * (target - momentum)[1:-1], rtol=0, atol=1e-9)
    assert target[-1] > 0.1


@pytest.mark.nightly
def test_the_loop_brings_the_total_momentum_of_eight_workers_to_the_target():
    """The open loop does not subtract the momentum that asynchrony adds."""
    loss_fn, params, batches = testing.quadratic(dimension=20, noise=0.1)

    def means(closed_loop):
        tx = gemjax.yellowfin(0.1, num_workers=8, closed_loop=closed_loop)
        trace = arrivals.Gamma(8).trace(4000)
        result = gemjax.simulate(tx, loss_fn, params, batches, trace, diagnostics=MOMENTA)
        assert np.abs(result.params["x"]).max() < 0.5
        return [np.nanmean(result.history[name][2000:]) for name in MOMENTA]

    momentum, target, total = means(closed_loop=True)
    assert abs(total - target) < 0.02
    assert momentum < target - 0.05
    momentum, target, total = means(closed_loop=False)
    assert momentum == target
    assert total > target + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.0, 1e5])
def test_a_run_goes_on_after_gradients_of_zero_or_a_large_one(factor):
    """Each shows a total momentum of any size, and without limits the momentum would be that times the gain."""
    loss_fn, params, batches = testing.quadratic(dimension=4, noise=0.05)
    odd = lambda worker, step: jnp.where(
        (worker == 1) & (step >= 10) & (step < (16 if factor == 0 else 11)), factor, 1.0
    )
    result = gemjax.simulate(
        gemjax.yellowfin(0.1, num_workers=4),
        lambda params, batch: batch[0] * loss_fn(params, batch[1]),
        params,
        lambda worker, step: (odd(worker, step), batches(worker, step)),
        arrivals.Gamma(4, machine_variation=0.6).trace(600, seed=3),
        diagnostics=MOMENTA,
    )
    assert result.history["applied"].all()
    assert np.abs(result.history["momentum"]).max() <= 1
    if factor:  # The rate is tiny for thousands of commits, but nothing grows.
        assert np.nanmax(np.abs(result.history["total_momentum"])) > 1e4
        assert result.history["loss"][-1] < 2 * result.history["loss"][0]
    else:
        assert result.history["loss"][-1] < 0.01 * result.history["loss"][0]


def test_the_momentum_may_become_negative():
    """The measured total is above the target throughout, because all gradients repeat the past of the others."""
    tx = gemjax.yellowfin(num_workers=2, gain=0.5)
    params = jnp.array([1.0, 2.0])
    state, update = tx.init(params), jax.jit(tx.update)
    for worker in (0, 1, 0, 1):
        _, state = update(params, state, params, worker=worker)
        _, state = gemjax.pull(state, params, worker=worker)
    _, state = update(-params, state, params, worker=0)
    assert optax.tree.get(state, "momentum") < 0


@pytest.mark.parametrize(("p", "root"), [(0.0, 1.0), (1e-45, 1.0), (3e38, 0.0), (float("inf"), 0.0)])
def test_the_root_has_its_limits_where_single_precision_ends(p, root):
    assert yellowfin._root(jnp.float32(p)).item() == pytest.approx(root, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [17.0, *(pytest.param(more, marks=pytest.mark.nightly) for more in (18.5, 19.2))])
def test_a_run_goes_on_after_a_huge_gradient(exponent):
    """Its square is in the curvature and in the variance of the tuner for hundreds of commits."""
    loss_fn = lambda p, batch: batch[0] * jnp.mean((p - batch[1]) ** 2)

    def batches(worker, step):
        noise = 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(worker), step), (4,))
        return jnp.where((worker == 1) & (step == 40), 10.0**exponent, 1.0), noise

    trace = gemjax.arrivals.Gamma(4).trace(600)
    result = gemjax.simulate(gemjax.yellowfin(num_workers=4), loss_fn, jnp.ones(4), batches, trace)
    assert int(result.state.rejected) == 0
    assert float(jnp.max(jnp.abs(result.params))) < 1


@pytest.mark.parametrize("p", [1e-20, 1e-6, 1.0, 40.0, 1e6, 1e20])
def test_the_root_does_not_cancel_in_single_precision(p):
    x = yellowfin._root(jnp.float32(p)).item()
    assert 0.0 <= x <= 1.0
    if 1e-6 <= p <= 40.0:  # There x minimises what the paper minimises.
        assert x * p == pytest.approx((1 - x) ** 3, rel=1e-3)


def test_the_total_is_the_median_over_what_can_be_measured():
    velocities = jnp.array([[2.0, 4.0, 0.0, 1.0], [3.0, 3.0, 5.0, 3.0], [9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0]])
    gradient = jnp.array([1.0, 1.0, 1.0, 1.0])
    count = 6  # Rows hold the velocities of the commits 4, 5, 6 and 3.
    total, measured = yellowfin._total_momentum(SharedRows(velocities), gradient, count, 1)
    assert measured
    assert total == 1.0  # The median of 2/2, 2/4 and 2/1; the third coordinate did not move.
    for staleness, why in ((2, "at rest everywhere"), (3, "forgotten")):
        total, measured = yellowfin._total_momentum(SharedRows(velocities), gradient, count, staleness)
        assert not measured, why
        assert total == 0.0
    even, _ = yellowfin._total_momentum(SharedRows(velocities[:, :2]), gradient[:2], count, 1)
    assert even == 0.75


def test_the_sample_is_spread_evenly_over_all_leaves():
    tree = {"a": jnp.arange(5.0), "b": jnp.arange(5.0, 12.0).reshape(7, 1), "c": jnp.float16(12.0)}
    np.testing.assert_array_equal(yellowfin._sample(tree, 100), np.arange(13.0))
    np.testing.assert_array_equal(yellowfin._sample(tree, 5), [0.0, 3.0, 6.0, 9.0, 12.0])


def test_a_tree_without_leaves_is_unchanged():
    tx = gemjax.rules.tune_momentum(4)
    assert tx.update({}, tx.init({}), staleness=0)[0] == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_zero_and_tiny_ones_are_no_division_by_zero(dtype):
    tx = gemjax.yellowfin(num_workers=2)
    params = jnp.ones(3, dtype)
    state, update = tx.init(params), jax.jit(tx.update)
    for scale in (0.0, 0.0, 1e-7, 0.0, 1.0):
        updates, state = update(jnp.array([scale, -scale, 0.0], dtype), state, params, worker=0)
        _, state = gemjax.pull(state, params, worker=0)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((updates, state)))
