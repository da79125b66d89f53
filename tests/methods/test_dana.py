import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax
from gemjax import arrivals
from gemjax.testing import quadratic

N = runs.NUM_WORKERS


@pytest.mark.parametrize("lam", [0.0, 0.5], ids=["zero", "dc"])
def test_zero_and_dc_agree_with_the_paper(x64, lam):
    method = gemjax.dana_dc(runs.schedule, 0.7, N, strength=lam) if lam else gemjax.dana_zero(runs.schedule, 0.7, N)
    found, _ = runs.run(method)
    expected, _ = reference.dana(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, gamma=0.7, lam=lam)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_slim_agrees_with_the_paper(x64):
    found, _ = runs.run(gemjax.dana_slim(runs.schedule, 0.7, N))
    expected = reference.dana_slim(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, gamma=0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_views_agree_with_the_paper(x64):
    found, _ = runs.run(gemjax.dana_zero(runs.schedule, 0.7, N), views_instead=True)
    _, sent = reference.dana(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, gamma=0.7)
    np.testing.assert_allclose(found, sent, rtol=0, atol=1e-12)


def test_one_worker_computes_where_nesterov_does(x64):
    """In Bengio's coordinates, those of optax, the parameters of Nesterov momentum are the look-ahead."""
    order = [0] * 40
    expected, _ = runs.run(gemjax.asynchronous(optax.sgd(0.1, momentum=0.8, nesterov=True)), order)
    zero, _ = runs.run(gemjax.dana_zero(0.1, 0.8), order, views_instead=True)
    np.testing.assert_allclose(zero, expected, rtol=0, atol=1e-13)
    slim, _ = runs.run(gemjax.dana_slim(0.1, 0.8), order)
    np.testing.assert_allclose(slim, expected, rtol=0, atol=1e-15)


def test_at_a_constant_rate_slim_is_the_view_of_zero(x64):
    zero, _ = runs.run(gemjax.dana_zero(0.03, 0.8, N), views_instead=True)
    slim, _ = runs.run(gemjax.dana_slim(0.03, 0.8, N))
    np.testing.assert_allclose(zero, slim, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bridge", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["bridge", "no-bridge"])
def test_where_the_rate_changes_slim_needs_a_correction(x64, bridge):
    change, old, new, gamma = 25, 0.08, 0.008, 0.8
    order, rate = runs.ORDER[:50], lambda count: jnp.where(count < change, old, new)
    zero, _ = runs.run(gemjax.dana_zero(rate, gamma, N), order, views_instead=True)
    tx = gemjax.dana_slim(rate, gamma, N)
    params = jnp.asarray(runs.THETA_0)
    state, views, steps, v, slim = tx.init(params), [runs.THETA_0] * N, [0] * N, np.zeros((N, 9)), []
    update = jax.jit(tx.update)
    for t, i in enumerate(order):
        if t == change and bridge:
            params = params + (old - new) * gamma * v.sum(0)
        g = runs.grad(views[i], i, steps[i])
        v[i] = gamma * v[i] + g
        updates, state = update(jnp.asarray(g), state, params, worker=i)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker=i)
        views[i] = np.asarray(view)
        steps[i] += 1
        slim.append(views[i])
    before = np.abs(zero - np.stack(slim))[:change].max()
    after = np.abs(zero - np.stack(slim))[change:].max()
    assert before < 1e-13
    assert after < 1e-13 if bridge else after > 1e-2


def test_dc_without_compensation_is_zero(x64):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.dana_dc(0.03, 0.7, N, strength=0.0), order)
    expected, _ = runs.run(gemjax.dana_zero(0.03, 0.7, N), order)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_dc_without_momentum_is_dc_asgd(x64):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.dana_dc(0.03, 0.0, N, strength=0.3), order)
    expected, _ = runs.run(gemjax.dc_asgd(0.03, N, strength=0.3), order)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("alias", [gemjax.dana_zero, gemjax.dana_slim], ids=lambda f: f.__name__)
def test_without_momentum_it_is_asgd(x64, alias):
    order = runs.ORDER[:60]
    found, _ = runs.run(alias(0.03, 0.0, N), order)
    expected, _ = runs.run(gemjax.asgd(0.03, N), order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_in_round_robin_only_the_others_gradients_are_not_predicted(x64):
    """As in ASGD, theta - eta gamma v_w less the view of w is -eta times the gradients of the N - 1 others."""
    n, rate, gamma = 4, 0.05, 0.8
    tx = gemjax.dana_zero(rate, gamma, n)
    params = jnp.asarray(runs.THETA_0)
    state, views, v, made = tx.init(params), [params] * n, np.zeros((n, 9)), []
    for t in range(5 * n):
        w = t % n
        if t >= n:
            left = params - rate * gamma * v[w] - views[w]
            np.testing.assert_allclose(left, -rate * np.sum(made[-(n - 1) :], axis=0), rtol=0, atol=1e-14)
        g = runs.grad(np.asarray(views[w]), w, t // n)
        v[w] = gamma * v[w] + g
        made.append(g)
        updates, state = tx.update(jnp.asarray(g), state, params, worker=w)
        params = optax.apply_updates(params, updates)
        views[w], state = gemjax.pull(state, params, worker=w)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:the run has diverged")
def test_the_order_of_stability_on_a_quadratic():
    """With momentum 0.9 and 16 workers a shared momentum diverges first, then one per worker, then DANA's, and ASGD last."""

    def mean_gap(alias, rate, **keywords):
        loss_fn, params, batches = quadratic(dimension=10, condition=100.0, noise=0.1)
        tx = alias(rate, num_workers=16, **keywords)
        result = gemjax.simulate(
            tx, loss_fn, params, batches, arrivals.Gamma(16).trace(3000, seed=0), diagnostics=("gap",)
        )
        return float(np.mean(result.history["gap"][1000:]))

    momentum, diverged = {"momentum": 0.9}, 1.0
    gap = {
        (alias.__name__, rate): mean_gap(alias, rate, **({} if alias is gemjax.asgd else momentum))
        for rate, aliases in {
            0.002: (gemjax.lwp,),
            0.01: (gemjax.asgd, gemjax.dana_zero, gemjax.multi_asgd, gemjax.nag_asgd, gemjax.momentum_asgd, gemjax.lwp),
            0.02: (gemjax.asgd, gemjax.dana_zero, gemjax.multi_asgd),
            0.05: (gemjax.asgd, gemjax.dana_zero),
        }.items()
        for alias in aliases
    }

    def stable(name, rate):
        return bool(gap[name, rate] < diverged)

    assert stable("lwp", 0.002)
    assert not any(stable(name, 0.01) for name in ("nag_asgd", "momentum_asgd", "lwp"))
    assert stable("multi_asgd", 0.01)
    assert not stable("multi_asgd", 0.02)
    assert stable("dana_zero", 0.02)
    assert not stable("dana_zero", 0.05)
    assert stable("asgd", 0.05)
    assert gap["multi_asgd", 0.01] > 3 * gap["dana_zero", 0.01]
    assert 0.5 < gap["dana_zero", 0.01] / gap["asgd", 0.01] < 2.0


def test_without_the_look_ahead_it_is_multi_asgd():
    """The same gradients make the same updates, whatever their views."""
    zero, multi = gemjax.dana_zero(0.1, 0.5, 2), gemjax.multi_asgd(0.1, 0.5, 2)
    params = jnp.zeros(2)
    zero_state, multi_state = zero.init(params), multi.init(params)
    for worker in (0, 1, 1, 0):
        grads = jnp.array([1.0, -3.0]) * (worker + 1)
        found, zero_state = zero.update(grads, zero_state, params, worker=worker)
        expected, multi_state = multi.update(grads, multi_state, params, worker=worker)
        np.testing.assert_array_equal(found, expected)
