"""The testing tools, checked against numbers computed by hand, because other tests rely on them."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import assert_close

import gemjax
from gemjax.testing import Faults, InjectedFaultError, quadratic, run_in_python


def test_a_planned_failure_raises_as_often_as_planned():
    with Faults().fail(worker=1, step=2, times=2) as faults:
        faults(1, 1)
        faults(0, 2)
        for _ in range(2):
            with pytest.raises(InjectedFaultError, match="injected at worker 1, step 2"):
                faults(1, 2)
        faults(1, 2)
    assert faults.injected == [("fail", 1, 2), ("fail", 1, 2)]


def test_the_same_faults_are_injected_in_each_block():
    faults = Faults().slow(0, 0.05, 1, 1).fail(1, 2).poison(2, 0).hang(3, 0)
    faults.let_go(3, 0)
    for _ in range(2):
        with faults:
            began = time.perf_counter()
            faults(0, 1)
            assert time.perf_counter() - began >= 0.05
            with pytest.raises(InjectedFaultError):
                faults(1, 2)
            assert faults(1, 2) is None
            assert np.isnan(faults(2, 0)(np.ones(1)))
            assert faults(2, 0) is None
            hangs = threading.Thread(target=faults, args=(3, 0))
            hangs.start()
            faults.let_go(3, 0)
            hangs.join(10)
            assert not hangs.is_alive()
            with pytest.raises(InjectedFaultError):
                faults.fail(1, 2)(1, 2)  # Planned anew.
    injected = [one for one in faults.injected if one[0] != "hang"]
    assert len(injected) == 8
    with pytest.raises(KeyError):
        faults.let_go(9, 9)  # It hangs nowhere.
    faults.let_go(3, 0)
    with faults:
        hangs = threading.Thread(target=faults, args=(3, 0), daemon=True)
        hangs.start()
        hangs.join(10)
        assert not hangs.is_alive()
    assert faults.injected[-1] == injected[-1]  # It did not hang.


def test_a_hung_worker_is_released_at_the_end():
    reached, done = threading.Event(), threading.Event()

    class Watched(Faults):
        def __call__(self, worker, step):
            reached.set()
            super().__call__(worker, step)
            done.set()

    with Watched().hang(worker=0, step=0) as faults:
        thread = threading.Thread(target=faults, args=(0, 0))
        thread.start()
        assert reached.wait(10)
        assert not done.is_set()
    thread.join(10)
    assert done.is_set()
    assert faults.injected == [("hang", 0, 0)]


def test_the_reference_loop_against_numbers_by_hand():
    """Two workers on loss(θ) = θ²/2 with rate 1/2: the gradient is the view."""
    trace = gemjax.Trace(worker=[0, 1, 1, 0])
    params = run_in_python(
        gemjax.asgd(0.5, num_workers=2), lambda p, b: 0.5 * p**2, jnp.float32(16.0), lambda w, s: 0, trace
    )
    # 16 - 8 = 8 (worker 0 at 16); 8 - 8 = 0 (worker 1 at 16); 0 - 0 (worker 1 at 0); 0 - 4 (worker 0 at 8).
    assert float(params) == -4.0


def test_the_reference_loop_pulls_late():
    """Worker 1 pulls at clock 1, so it computes at 8."""
    trace = gemjax.Trace(worker=[0, 1], pulled_at=[0, 1])
    params = run_in_python(
        gemjax.asgd(0.5, num_workers=2), lambda p, b: 0.5 * p**2, jnp.float32(16.0), lambda w, s: 0, trace
    )
    assert float(params) == 4.0


def test_the_reference_loop_passes_model_state_and_keys():
    seen = []

    def loss_fn(params, model_state, batch, key):
        jax.debug.callback(
            lambda *values: seen.append(tuple(map(int, values))), model_state, *batch, jax.random.bits(key)
        )
        return jnp.sum(params), (model_state + 1, {})

    trace = gemjax.Trace(worker=[1, 0, 1], step=[0, 3, 5])
    run_in_python(
        gemjax.asgd(0.1, num_workers=2),
        loss_fn,
        jnp.zeros(2),
        lambda w, s: (w, s),
        trace,
        model_state=jnp.int32(7),
        seed=11,
    )
    jax.effects_barrier()

    def bits(worker, step):
        return int(jax.random.bits(jax.random.fold_in(jax.random.fold_in(jax.random.key(11), worker), step)))

    # Worker 1 commits 7 + 1; worker 0 still holds 7; worker 1 pulled 8.
    assert seen == [(7, 1, 0, bits(1, 0)), (7, 0, 3, bits(0, 3)), (8, 1, 5, bits(1, 5))]


@pytest.mark.parametrize("local", [None, pytest.param(gemjax.LocalSteps(optax.sgd(0.5), 3), marks=pytest.mark.nightly)])
def test_the_reference_loop_tells_a_rule_what_engines_tell(local):
    """The update is made of what the rule is told: the loss, the losses of local steps and their number."""

    def update_fn(updates, state, params=None, *, value, local_losses, local_steps, **extra_args):
        factor = 1.0 + value + jnp.sum(local_losses) / local_steps
        return jax.tree.map(lambda u: -0.1 * factor * u, updates), state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    tx = gemjax.asynchronous(optax.chain(gemjax.rules.displacements(), rule) if local else rule, 2)
    problem = tx, *quadratic(2), gemjax.arrivals.Gamma(2).trace(6)
    found, expected = run_in_python(*problem, local=local), gemjax.simulate(*problem, local=local).params
    assert_close(found, expected, rtol=1e-5)


def test_a_plain_optax_optimizer_runs_unchanged():
    """With one worker, the reference loop is the loop that every optax user writes."""
    loss_fn, params, batches = quadratic(3)
    tx = optax.adam(0.1)
    result = run_in_python(tx, loss_fn, params, batches, gemjax.arrivals.RoundRobin(1).trace(15))
    state = tx.init(params)
    for step in range(15):
        grads = jax.grad(loss_fn)(params, batches(0, step))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(result["x"], params["x"], rtol=1e-6)


@pytest.mark.slow
def test_the_quadratic_has_the_documented_curvature_and_noise():
    loss_fn, params, batches = quadratic(dimension=5, condition=100.0, noise=0.5, seed=3)
    hessian = jax.hessian(loss_fn)(params, jnp.zeros(5))["x"]["x"]
    curvature = np.diag(hessian)
    np.testing.assert_allclose(hessian, np.diag(curvature))
    np.testing.assert_allclose(curvature.max() / curvature.min(), 100.0, rtol=1e-5)
    np.testing.assert_array_equal(jax.grad(loss_fn)({"x": jnp.zeros(5)}, jnp.zeros(5))["x"], np.zeros(5))
    noise = np.stack([batches(worker, step) for worker in range(4) for step in range(40)])
    np.testing.assert_allclose(noise.std(), 0.5, rtol=0.1)
    np.testing.assert_array_equal(batches(1, 2), quadratic(5, 100.0, 0.5, 3)[2](1, 2))
    assert not np.array_equal(batches(1, 2), batches(2, 1))


def test_a_slow_worker_takes_longer_for_the_planned_steps_alone():
    """The others do not wait for it; leaving the context ends its waiting."""
    done = []
    with Faults().slow(worker=1, seconds=60.0, first=1, last=2) as faults:
        for at in ((0, 1), (1, 0), (1, 3)):
            faults(*at)
        slow = threading.Thread(target=lambda: (faults(1, 1), done.append(True)))
        slow.start()
        faults(0, 2)
        assert not done
    slow.join(30)
    assert done
    assert faults.injected == [("slow", 1, 1)]


def test_a_poisoned_gradient_is_rejected_once():
    with Faults().poison(worker=0, step=2).poison(worker=2, step=0) as faults:
        result = run_with(faults, policy=gemjax.Policy(max_staleness=4))  # So that no worker runs far ahead.
    assert int(result.state.rejected) == 2
    assert sorted(faults.injected) == [("poison", 0, 2), ("poison", 2, 0)]
    assert 2 not in result.trace.step[result.trace.worker == 0]
    assert 3 in result.trace.step[result.trace.worker == 0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(result.params)))


def run_with(faults, **options):
    options = {"gate": faults, **options}
    loss_fn, params, batches = quadratic()
    tx = gemjax.asgd(0.05, num_workers=3)
    result = gemjax.run_on_devices(tx, loss_fn, params, batches, 80, num_workers=3, **options)
    replay = gemjax.simulate(tx, loss_fn, params, batches, result.trace)
    np.testing.assert_allclose(jax.device_get(result.params)["x"], replay.params["x"], rtol=1e-3, atol=1e-5)
    return result
