"""The law: the same trace gives the same parameters in every engine.

A run on devices is recorded; the simulator and the plain loop repeat it from the record alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import (
    Abreast,
    Behind,
    assert_close,
    distinct,
    every_method,
    mlp,
    poisoned,
    problem_of,
    samples_of_several_versions,
)

import gemjax
from gemjax.testing import Faults, run_in_python

WORKERS, COMMITS, SEED = 4, 60, 5


def on_devices(make, problem, num_commits=COMMITS, **options):
    """Run without a barrier, also a method that is defined in rounds."""
    options = {"placement": gemjax.place(WORKERS), "policy": gemjax.Policy(quorum=1)} | options
    return gemjax.run_on_devices(
        make(WORKERS),
        problem.loss_fn,
        problem.params,
        problem.batches,
        num_commits,
        model_state=problem.model_state,
        local=getattr(make, "local", None),
        seed=SEED,
        **options,
    )


def in_the_simulator(make, problem, trace, **options):
    options = {"local": getattr(make, "local", None), "model_state": problem.model_state, "seed": SEED} | options
    return gemjax.simulate(make(WORKERS), *problem[:3], trace, **options)


def assert_the_law(result, make, problem, rtol, *, retired=False, refused=False):
    simulated = in_the_simulator(make, problem, result.trace)
    assert_close(result.params, simulated.params, rtol)
    assert_close(result.model_state, simulated.model_state, rtol)
    if not (retired or refused):  # The trace does not have pulls without an applied commit after them.
        assert_close(result.opt_state, simulated.opt_state, rtol)
        assert_close(result.state.view, simulated.state.view, rtol)  # With the local optimizers' states.
    applied = result.history["applied"]
    for name in {"loss", "error"} & simulated.history.keys():
        np.testing.assert_allclose(
            result.history[name][applied], simulated.history[name], rtol=100 * rtol, err_msg=name
        )
    options = {"local": getattr(make, "local", None), "model_state": problem.model_state, "seed": SEED}
    plain = run_in_python(make(WORKERS), *problem[:3], result.trace, **options)
    assert_close(result.params, plain, rtol)


@every_method("gem", only=lambda row: not row.refuses)
def test_the_same_trace_gives_the_same_parameters(make, x64):
    problem = problem_of(make)
    commits = COMMITS if make.converges_stale else 16  # Divergence also amplifies rounding errors.
    result = on_devices(make, problem, commits, gate=Abreast(WORKERS))
    assert len(result.trace) == commits
    assert result.trace.staleness.max() > 0
    assert_the_law(result, make, problem, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("reading", ["code", "algorithm"])
def test_a_worker_that_is_retried_before_any_commit_has_pulled_once(reading, x64):
    """Its second pull is at the same clock and in no row of the trace; for a lone worker this always holds."""
    problem, tx = mlp(jnp.float64), gemjax.gem(0.02, reading=reading)
    with Faults().fail(0, 2) as faults:
        result = gemjax.run_on_devices(tx, *problem[:3], 6, placement=gemjax.place(1), model_state=problem.model_state,
                                       seed=SEED, gate=faults)  # fmt: skip
    assert len(faults.injected) == 1
    simulated = gemjax.simulate(tx, *problem[:3], result.trace, model_state=problem.model_state, seed=SEED)
    assert_close(result.params, simulated.params, rtol=1e-10)


@every_method("gem", only=lambda row: distinct(row) and row.converges_stale and not row.refuses)
def test_it_holds_when_workers_fail_and_gradients_are_not_finite(make, x64):
    """Retried workers pulled late; the only trace of a rejected gradient is a lost step."""
    clean = problem_of(make)
    period = make.local.period if make.local else 1
    problem = poisoned(clean, [(1, 3 * period), (2, 0), (2, 5 * period)])
    with Faults().fail(0, 2).fail(3, 0, times=2).fail(3, 4, times=9) as faults:
        retired = lambda worker, step: worker == 3 and step == 4 and len(faults.injected) == 6
        result = on_devices(make, problem, gate=Abreast(WORKERS, faults, retired))
    assert len(faults.injected) == 6
    assert (~result.history["applied"]).sum() == 3
    assert len(result.trace.events().worker) > COMMITS
    assert_the_law(result, make, clean, rtol=1e-10, retired=True)


def drop_in_front_of_gem(num_workers):
    return gemjax.asynchronous(
        optax.chain(gemjax.rules.drop_stale(8), gemjax.gem(0.05, num_workers=num_workers)), num_workers
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        drop_in_front_of_gem,
        pytest.param(lambda n: gemjax.ringmaster(0.05, n, threshold=8), id="ringmaster", marks=pytest.mark.slow),
        pytest.param(lambda n: gemjax.rennala(0.2, n, batch_size=3), id="rennala", marks=pytest.mark.slow),
        pytest.param(lambda n: gemjax.malenia(0.2, n), id="malenia", marks=pytest.mark.slow),
    ],
)
def test_it_holds_when_the_method_refuses_commits(make, x64):
    """A slow worker's gradients are dropped on devices; the replay needs the record of the others only."""
    problem = mlp(jnp.float64)
    result = on_devices(make, problem, gate=Behind(WORKERS, 3, by=4))
    dropped = result.history["dropped"]
    assert 0 < dropped.sum() == int(result.state.dropped)
    assert not (dropped & result.history["applied"]).any()
    assert len(result.trace) == COMMITS == result.history["applied"].sum()
    assert_the_law(result, make, problem, rtol=1e-10, refused=True)


@pytest.mark.slow
def test_it_holds_for_samples_of_several_versions(x64):
    problem, make = samples_of_several_versions(), lambda n: gemjax.asgd(0.05, num_workers=n)
    result = on_devices(make, problem, num_commits=30, gate=Abreast(WORKERS))
    assert_the_law(result, make, problem, rtol=1e-10)
    plain = lambda worker, step: (
        problem.batches(worker, step) | {"version": jnp.zeros(8, int)}
    )  # All weights are equal.
    other = in_the_simulator(make, problem._replace(batches=plain), result.trace)
    assert np.abs(other.params["w"] - result.params["w"]).max() > 1e-4


@pytest.mark.slow
def test_it_holds_in_single_precision():
    """Rounding differs between compiled programs and accumulates; after 60 commits it is within 1e-4."""
    problem, make = mlp(), lambda n: gemjax.gem(0.05, num_workers=n)
    assert_the_law(on_devices(make, problem, gate=Abreast(WORKERS)), make, problem, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("average", [pytest.param(False, marks=pytest.mark.slow), True], ids=["latest", "average"])
def test_it_holds_for_the_model_state(average, x64):
    problem, make = mlp(jnp.float64), lambda n: gemjax.asgd(0.05, num_workers=n)
    result = on_devices(make, problem, num_commits=30, average_model_state=average, gate=Abreast(WORKERS))
    simulated = in_the_simulator(make, problem, result.trace, average_model_state=average)
    assert_close(result.model_state, simulated.model_state, rtol=1e-10)
    assert_close(result.params, simulated.params, rtol=1e-10)
    other = in_the_simulator(make, problem, result.trace, average_model_state=not average)
    assert not np.allclose(jax.device_get(result.model_state["mean"]), other.model_state["mean"], rtol=1e-3)


@pytest.mark.slow
def test_it_holds_around_transformations_that_do_not_step_every_time(x64):
    """The engine counts all arrivals, and the method every third."""
    problem = mlp(jnp.float64)

    def make(num_workers):
        tx = optax.MultiSteps(gemjax.gem(0.05, num_workers=num_workers), every_k_schedule=3)
        return optax.GradientTransformationExtraArgs(tx.init, tx.update)

    result = on_devices(make, problem, gate=Abreast(WORKERS))
    simulated = in_the_simulator(make, problem, result.trace)
    assert_close(result.params, simulated.params, 1e-10)
    np.testing.assert_array_equal(simulated.history["pulled_at"], result.trace.pulled_at)


@pytest.mark.slow
def test_another_trace_gives_other_parameters(x64):
    """Otherwise the law would hold trivially."""
    problem, make = mlp(jnp.float64), lambda n: gemjax.asgd(0.05, num_workers=n)
    traces = [gemjax.arrivals.Gamma(WORKERS).trace(20, seed) for seed in (0, 1)]
    first, second = (in_the_simulator(make, problem, trace).params for trace in traces)
    assert np.abs(first["in"]["w"] - second["in"]["w"]).max() > 1e-5


@pytest.mark.slow
def test_parameters_of_a_weak_type_have_one_precision_all_along():
    """``jnp.asarray(0.5)`` yields to bfloat16, and a number that a program returned does not."""

    def loss_fn(params, model_state, batch, key):
        error = (params["scale"] * model_state * params["w"] - batch).astype(jnp.float32)
        return jnp.mean(error**2), (model_state, {})

    params = {"w": jnp.ones(3, jnp.bfloat16), "scale": jnp.asarray(0.5)}
    batches = lambda worker, step: jnp.array([1.0, 2.0, 3.0], jnp.bfloat16) + step.astype(jnp.bfloat16) * 0.01
    tx, trace = gemjax.asgd(0.05, num_workers=2), gemjax.arrivals.Gamma(2).trace(30, seed=0)
    run = lambda **options: gemjax.simulate(tx, loss_fn, params, batches, trace, model_state=1.0, **options).params[
        "scale"
    ]
    assert float(run()) == float(run(callback_every=1)) == float(run(stops=[10], callback=lambda progress: None))
    found = gemjax.run_on_devices(tx, loss_fn, params, batches, 30, model_state=1.0)
    again = gemjax.simulate(tx, loss_fn, params, batches, found.trace, model_state=1.0)
    assert_close(found.params["scale"], again.params["scale"], rtol=1e-4)
