"""The simulator: equal to a plain loop, with rejections reported."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Problem, assert_close, assert_same_bits, distinct, every_method, mlp, poisoned, without
from engines.simulator.simulations import LATE, MLP, QUADRATIC, asgd, gem, run

import gemjax
from gemjax.testing import run_in_python

# --- Equality with the plain loop


@every_method("gem", only=lambda row: not row.refuses, each_kind=True)
def test_equals_the_plain_loop(make, x64):
    """Float64, with late pulls, model state and keys."""
    problem = mlp(jnp.float64)
    result = run(problem, make, LATE, seed=3)
    plain = run_in_python(make(4), *problem[:3], LATE, model_state=problem.model_state, local=make.local, seed=3)
    assert_close(result.params, plain, rtol=1e-10)
    assert result.trace == LATE
    for name in ("worker", "step", "time", "staleness", "pulled_at"):
        np.testing.assert_array_equal(result.history[name], getattr(LATE, name), err_msg=name)
    assert result.history["applied"].all()


def test_one_worker_is_sequential_training():
    """Without staleness it is the usual loop with optax."""
    loss_fn, params, batches = QUADRATIC[:3]
    result = run(QUADRATIC, lambda n: optax.sgd(0.1, momentum=0.9), gemjax.arrivals.RoundRobin(1).trace(20))
    tx = optax.sgd(0.1, momentum=0.9)
    state = tx.init(params)
    losses = []
    for step in range(20):
        loss, grads = jax.value_and_grad(loss_fn)(params, batches(0, step))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    assert_close(result.params, params, rtol=1e-5)
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "tx",
    [optax.adam(0.05), pytest.param(optax.chain(optax.clip(1.0), optax.sgd(0.05)), marks=pytest.mark.slow)],
    ids=["adam", "chain"],
)
def test_plain_optax_optimizers_are_wrapped(tx):
    result = run(QUADRATIC, lambda n: tx, LATE)
    wrapped = run(QUADRATIC, lambda n: gemjax.asynchronous(tx, n), LATE)
    assert_same_bits(result.params, wrapped.params)
    np.testing.assert_array_equal(result.history["staleness"], LATE.staleness)


def test_an_empty_trace_changes_nothing():
    result = run(MLP, gem, gemjax.Trace([], num_workers=3))
    assert_same_bits(result.params, MLP.params)
    assert_same_bits(result.model_state, MLP.model_state)
    assert result.history == {}
    assert not result.stopped


# --- Rejections


@pytest.mark.slow
@every_method("gem", only=lambda row: distinct(row) and not row.refuses, each_kind=True)
@pytest.mark.parametrize("kind", ["loss", pytest.param("gradient", marks=pytest.mark.slow)])
def test_a_commit_that_is_not_finite_does_not_happen(make, kind, x64):
    problem, rows = mlp(jnp.float64), [3, 9, 10]
    trace = gemjax.arrivals.Gamma(4).trace(24, seed=2)
    period = make.local.period if make.local else 1
    at = [(int(trace.worker[t]), period * int(trace.step[t])) for t in rows]
    result = run(poisoned(problem, at, kind), make, trace)
    assert int(result.state.rejected) == 3
    np.testing.assert_array_equal(np.flatnonzero(~result.history["applied"]), rows)
    if kind == "loss":
        assert np.isnan(result.history["loss"][rows]).all()
    else:
        assert np.isfinite(result.history["loss"]).all()
    missing = run(problem, make, without(trace, rows))
    assert_close(result.params, missing.params, rtol=1e-10)
    assert_close(result.model_state, missing.model_state, rtol=1e-10)
    applied = result.history["applied"]
    for name in ("staleness", "pulled_at"):
        np.testing.assert_array_equal(result.history[name][applied], missing.history[name], err_msg=name)


def test_a_model_state_that_is_not_finite_is_rejected():
    def loss_fn(params, model_state, batch, key):
        bad = jnp.where(batch, jnp.inf, 1.0)
        return jnp.sum(params**2), (model_state + bad, {})

    trace = gemjax.arrivals.RoundRobin(2).trace(6)
    problem = Problem(loss_fn, jnp.ones(2), lambda worker, step: (worker == 1) & (step == 0), jnp.float32(0))
    result = run(problem, asgd, trace)
    assert int(result.state.rejected) == 1
    assert np.isfinite(result.model_state)


def test_when_all_commits_are_rejected_the_run_fails_with_the_last_ones():
    later = QUADRATIC._replace(batches=lambda worker, step: jnp.full(4, jnp.where(step < 3, 1.0, jnp.nan)))
    with pytest.raises(
        gemjax.RunFailedError, match=r"last \d+ commits were all rejected .*worker \d step \d+: loss nan.*learning rate"
    ):
        run(later, gem, gemjax.arrivals.Gamma(3).trace(40))
    problem = QUADRATIC._replace(batches=lambda worker, step: jnp.full(4, jnp.nan))
    with pytest.raises(gemjax.RunFailedError, match="the last 4 commits were all rejected") as failure:
        run(problem, gem, gemjax.arrivals.Gamma(3).trace(4))
    assert int(failure.value.result.state.rejected) == 4


def test_a_run_that_never_applied_a_commit_says_that_its_beginning_may_not_be_finite():
    problem = QUADRATIC._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, QUADRATIC.params))
    said = "no commit was ever applied. Check that the initial params and model_state, the loss and the data are finite"
    with pytest.raises(gemjax.RunFailedError, match=said):
        run(problem, gem, gemjax.arrivals.Gamma(3).trace(40))


def test_rejections_that_end_do_not_fail_the_run():
    """One worker is rejected at every step, and the others continue."""
    trace = gemjax.arrivals.RoundRobin(3).trace(90)
    problem = poisoned(QUADRATIC, [(1, step) for step in range(30)])
    result = run(problem, asgd, trace, callback_every=10)
    assert int(result.state.rejected) == 30
    assert np.isfinite(result.params["x"]).all()
    assert float(jnp.abs(result.params["x"][0])) < 0.5


# --- Model state and keys


def counting(policy_average):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"] ** 2), (model_state + batch, {"seen": model_state})

    batches = lambda worker, step: 10.0**worker
    trace = gemjax.Trace([0, 1, 1, 0])
    problem = Problem(loss_fn, {"x": jnp.ones(2)}, batches, jnp.float32(0))
    return run(problem, asgd, trace, average_model_state=policy_average)


def test_the_latest_model_state_replaces_the_central_one():
    result = counting(False)
    # Worker 0: 0 -> 1; worker 1: 0 -> 10; worker 1 at 10 -> 20; worker 0, which holds 1 -> 2.
    np.testing.assert_array_equal(result.history["seen"], [0, 0, 10, 1])
    assert float(result.model_state) == 2


def test_the_averaged_model_state_moves_by_one_nth():
    result = counting(True)
    # 0 -> 0.5; worker 1 sends 10: 0.5 -> 5.25; sends 15.25: -> 10.25; worker 0, which holds 0.5, sends 1.5: -> 5.875.
    np.testing.assert_array_equal(result.history["seen"], [0, 0, 5.25, 0.5])
    assert float(result.model_state) == 5.875


def test_keys_depend_on_seed_worker_and_step_alone():
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"]), (model_state, {"u": jax.random.uniform(key)})

    trace = gemjax.Trace([1, 0, 1, 0], step=[0, 2, 5, 6])
    result = run(QUADRATIC._replace(loss_fn=loss_fn), asgd, trace, seed=9)
    keys = [
        jax.random.fold_in(jax.random.fold_in(jax.random.key(9), w), s) for w, s in [(1, 0), (0, 2), (1, 5), (0, 6)]
    ]
    np.testing.assert_array_equal(result.history["u"], [jax.random.uniform(key) for key in keys])


# --- Arrays


def test_params_are_not_donated():
    params = {"x": jnp.ones(4)}
    run(QUADRATIC._replace(params=params), gem, LATE)
    np.testing.assert_array_equal(params["x"], np.ones(4))


def test_bfloat16_stays_bfloat16():
    loss_fn, _, batches = QUADRATIC[:3]
    problem = Problem(loss_fn, {"x": jnp.ones(4, jnp.bfloat16)}, lambda w, s: batches(w, s).astype(jnp.bfloat16))
    result = run(problem, gem, LATE)
    assert result.params["x"].dtype == jnp.bfloat16
    assert result.opt_state.stale_params.value["x"].dtype == jnp.bfloat16
    assert float(jnp.abs(result.params["x"][0])) < 1
