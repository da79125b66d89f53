import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference, runs

import gemjax
from gemjax.protocol.diagnostics import Observer

N = runs.NUM_WORKERS
VARIANTS = {"constant": {"strength": 0.5}, "adaptive": {"strength": 0.7, "decay": 0.9}}


@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_paper(x64, variant):
    found, _ = runs.run(gemjax.dc_asgd(runs.schedule, N, variant=variant, **VARIANTS[variant]))
    expected = reference.dc_asgd(
        runs.THETA_0,
        runs.grad,
        runs.ORDER,
        runs.schedule,
        VARIANTS[variant]["strength"],
        VARIANTS[variant].get("decay"),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    plain = reference.asgd(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule)
    assert np.abs(found - plain).max() > 1e-2  # The compensation is not empty.


def test_the_strengths_that_the_authors_used_are_the_defaults():
    for variant, strength in (("constant", 0.04), ("adaptive", 2.0)):
        tx = gemjax.rules.compensate_delay(variant=variant, decay=0.0, eps=0.0)
        updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1), stale_params=jnp.zeros(1), staleness=1)
        assert updates.item() == pytest.approx(1.0 + strength)


@pytest.mark.parametrize("variant", VARIANTS)
def test_at_strength_zero_it_is_asgd(x64, variant):
    order = runs.ORDER[:60]
    found, _ = runs.run(gemjax.dc_asgd(0.1, N, variant=variant, strength=0.0), order)
    expected, _ = runs.run(gemjax.asgd(0.1, N), order)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_worker_is_sgd(variant):
    ours, theirs = gemjax.dc_asgd(0.1, variant=variant), optax.sgd(0.1)
    params = jnp.array([1.0, -3.0])
    state, theirs_state = ours.init(params), theirs.init(params)
    for _ in range(3):
        updates, state = ours.update(params, state, params)
        expected, theirs_state = theirs.update(params, theirs_state, params)
        np.testing.assert_array_equal(updates, expected)
        params = optax.apply_updates(params, updates)


def test_each_worker_is_compared_with_its_own_view():
    """One previous value for all workers, as in MXNet, would compensate for the last commit only."""
    tx = gemjax.dc_asgd(1.0, num_workers=3, strength=0.5)
    params = jnp.zeros(1)
    state, found = tx.init(params), []
    for worker in (0, 1, 2):  # All three workers pulled 0.
        updates, state = tx.update(jnp.ones(1), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, worker=worker)
        found.append(updates.item())
    # 1 + 0.5 * (theta - 0): theta is 0, -1, -1.5.
    np.testing.assert_allclose(found, [-1.0, -0.5, -0.25])


@pytest.mark.parametrize(("dtype", "eps"), [("float16", 1e-7), ("float32", 0.0), ("bfloat16", 0.0)])
def test_a_gradient_of_zero_moves_nothing(dtype, eps):
    tx = gemjax.dc_asgd(0.5, num_workers=2, variant="adaptive", eps=eps)
    params = jnp.ones(2, dtype)
    state = tx.init(params)
    for worker in (0, 1):
        updates, state = tx.update(jnp.array([1.0, 0.0], dtype), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
    assert bool(jnp.all(jnp.isfinite(updates)))
    assert params[1] == 1.0


@pytest.mark.parametrize(("variant", "strength"), [("constant", 1e-3), ("adaptive", 0.3)])
def test_a_large_gradient_is_compensated_in_half_precision_too(variant, strength):
    """300 squared is infinite in float16."""
    found = {}
    for dtype in ("float16", "float32"):
        tx = gemjax.dc_asgd(1e-3, num_workers=2, variant=variant, strength=strength)
        params = jnp.ones(1, dtype)
        state = tx.init(params)
        for worker in (0, 1):
            updates, state = tx.update(jnp.full(1, 300.0, dtype), state, params, worker=worker)
            params = optax.apply_updates(params, updates)
        found[dtype] = updates.item()
    assert found["float32"] > -0.28  # Uncompensated: -0.3.
    assert found["float16"] == pytest.approx(found["float32"], rel=1e-2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_size_of_the_compensation_can_be_observed(variant):
    """At this distance the compensation is half the gradient."""
    tx = gemjax.dc_asgd(1.0, num_workers=2, variant=variant, strength=0.5, decay=0.0, eps=0.0)
    gradient, params = jnp.array([3.0, 4.0]), jnp.zeros(2)
    travelled = {"constant": 1.0 / gradient, "adaptive": jnp.ones(2)}[variant]
    state = tx.init(params)
    for moved, grads, size in ((0.0, gradient, 0.0), (1.0, gradient, 0.5), (1.0, 0.0 * gradient, 0.0)):
        observer = Observer({"compensation"})
        tx.update(grads, state, params + moved * travelled, worker=0, observe=observer)
        assert observer.collected()["compensation"].item() == pytest.approx(size)
