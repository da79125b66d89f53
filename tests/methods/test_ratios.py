"""Ratios to older policies, the proximal policy and the effective sample size."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.rules import effective_sample_size, importance_weights, proximal_log_probs

LOG_RATIO = np.log(np.array([[0.5, 3.0, 1.5, 9.0], [1.0, 1.2, 1.0, 1.0]]))
MASK = np.array([[True, True, True, False], [True] * 4])


def test_ratios_at_each_level():
    sequence, geometric = 0.5 * 3 * 1.5, (0.5 * 3 * 1.5) ** (1 / 3)
    expected = {
        "token": [[0.5, 2.0, 1.5, 0], [1, 1.2, 1, 1]],
        "sequence": [[2.0] * 3 + [0], [1.2] * 4],
        "geometric": [[geometric] * 3 + [0], [1.2**0.25] * 4],
    }
    for level, weights in expected.items():
        np.testing.assert_allclose(importance_weights(LOG_RATIO, MASK, level=level), weights, rtol=1e-6)
    wide = importance_weights(LOG_RATIO, MASK, level="sequence", high=10.0)
    np.testing.assert_allclose(wide[0], [sequence] * 3 + [0], rtol=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_masked_ratios_are_those_within_the_bounds_and_otherwise_0(level):
    bounds = {"level": level, "low": 0.8, "high": 1.4}
    whole = np.asarray(importance_weights(LOG_RATIO, MASK, level=level, high=1e6))
    inside = MASK & (whole >= 0.8) & (whole <= 1.4)
    assert inside.any()
    assert not inside.all()
    masked = importance_weights(LOG_RATIO, MASK, outside="mask", **bounds)
    np.testing.assert_allclose(masked, np.where(inside, whole, 0), rtol=1e-6)
    truncated = importance_weights(LOG_RATIO, MASK, **bounds)
    np.testing.assert_allclose(truncated, np.where(MASK, np.clip(whole, 0.8, 1.4), 0), rtol=1e-6)


def test_no_gradient_passes_and_no_ratio_overflows():
    huge = jnp.array([300.0, -300.0, 0.0])
    assert np.isfinite(importance_weights(huge, level="sequence")).all()
    np.testing.assert_allclose(importance_weights(huge), [2.0, 0.0, 1.0], atol=1e-7)
    for weigh in (lambda x: importance_weights(x).sum(), lambda x: proximal_log_probs(0 * x, x, jnp.zeros(3), 4).sum()):
        np.testing.assert_array_equal(jax.grad(weigh)(huge), 0.0)


def test_the_proximal_policy_lies_between_behaviour_and_the_present_one():
    old, new, versions = np.log([0.2, 0.4, 0.1]), np.log([0.5, 0.1, 0.3]), np.array([0, 3, 8])
    for kind in ("loglinear", "linear"):
        found = np.asarray(proximal_log_probs(old, new, versions, 9, kind))
        alpha = (8 - versions) / (9 - versions)
        linear = np.log((1 - alpha) * np.exp(old) + alpha * np.exp(new))
        np.testing.assert_allclose(found, old + alpha * (new - old) if kind == "loglinear" else linear, rtol=1e-6)


def test_the_effective_sample_size():
    np.testing.assert_allclose(effective_sample_size(jnp.array([1.0, 1.0, 2.0])), 16 / 18, rtol=1e-6)
    np.testing.assert_allclose(effective_sample_size(1e30 * jnp.ones(5)), 1.0, rtol=1e-6)
    np.testing.assert_allclose(effective_sample_size(jnp.array([0.0, 7.0, 0.0, 0.0])), 0.25, rtol=1e-6)
    assert effective_sample_size(jnp.zeros(3)) == 0.0


def scaled(num_workers):
    part = gemjax.rules.scale_by_effective_sample_size(base=0.5)
    return gemjax.asynchronous(optax.chain(part, scale_by_learning_rate(0.1)), num_workers)


def loss_fn(params, model_state, batch, key):
    loss = jnp.mean(batch["w"] * (batch["x"] - params) ** 2)
    return loss, (model_state, {"effective_sample_size": effective_sample_size(batch["w"])})


def batches(worker, step):
    w = 1.0 + jnp.abs(jnp.sin(jnp.arange(6.0) * (worker + 1) + step)) * step
    return {"w": w, "x": jnp.cos(jnp.arange(6.0) + worker)}


def test_engines_hand_the_metric_of_the_loss_to_the_rule(x64):
    trace, x, views = gemjax.arrivals.Gamma(2).trace(20), 0.0, {0: 0.0, 1: 0.0}
    for worker, step in zip(trace.worker, trace.step, strict=True):
        batch = jax.tree.map(np.asarray, batches(worker, step))
        size = batch["w"].sum() ** 2 / (6 * (batch["w"] ** 2).sum())
        g = np.mean(2 * batch["w"] * (views[worker] - batch["x"]))
        x = views[worker] = x - 0.1 * np.sqrt(size / 0.5) * g
    result = gemjax.simulate(scaled(2), loss_fn, jnp.array(0.0), batches, trace, diagnostics=["learning_rate"])
    np.testing.assert_allclose(result.params, x, rtol=1e-10)
    rates = 0.1 * np.sqrt(result.history["effective_sample_size"] / 0.5)
    np.testing.assert_allclose(result.history["learning_rate"], rates, rtol=1e-10)


@pytest.mark.slow
def test_the_law_holds_for_it(x64):
    result = gemjax.run_on_devices(scaled(2), loss_fn, jnp.array(0.0), batches, 30, placement=gemjax.place(2))
    again = gemjax.simulate(scaled(2), loss_fn, jnp.array(0.0), batches, result.trace)
    np.testing.assert_allclose(result.params, again.params, rtol=1e-10)
    plain = gemjax.testing.run_in_python(scaled(2), loss_fn, jnp.array(0.0), batches, result.trace)
    np.testing.assert_allclose(result.params, plain, rtol=1e-10)


def test_a_commit_without_the_metric_is_an_error():
    tx = scaled(1)
    with pytest.raises(KeyError, match="effective_sample_size"):
        tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1))
