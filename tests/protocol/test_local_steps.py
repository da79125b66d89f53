"""Local steps: commits, arguments of members, and compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Problem, assert_close
from engines.simulator.simulations import programs
from protocol.local_simulations import LATE, QUADRATIC, SGD, TURNS, pairs, periods, run

import gemjax
from gemjax import LocalSteps
from gemjax.protocol.local_steps import displacements

# --- Methods for gradients


@pytest.mark.slow
def test_a_method_for_gradients_may_have_local_steps():
    """It takes the displacement for a gradient."""
    asgd = gemjax.asgd(0.05, num_workers=4)
    with pytest.warns(gemjax.RunWarning, match="learning_rate=0.05"):
        found = run(LocalSteps(optax.sgd(1.0)), tx=asgd)
    assert_close(found.params, run(None, tx=asgd).params, rtol=1e-5)


# --- Arguments of members


RECEIVED = ["received_losses", "received_length", "received_local_steps", "received_value"]


def receiving(num_workers):
    """Return DOWNPOUR with reports of the arguments of its members; losses are weighted by their places, from 1 on."""

    def update_fn(updates, state, params=None, *, observe, local_losses, local_steps, value, **extra_args):
        observe("received_losses", lambda: jnp.sum(local_losses * jnp.arange(1, len(local_losses) + 1)))
        observe("received_length", lambda: len(local_losses))
        observe("received_local_steps", lambda: local_steps)
        observe("received_value", lambda: value)
        return updates, state

    spy = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    return gemjax.asynchronous(optax.chain(displacements(), spy, optax.scale(-1.0)), num_workers)


def counting(dtype=jnp.float32):
    """Return a problem with known losses and metrics per (worker, local step), whose model state counts steps."""

    def loss_fn(params, model_state, batch, key):
        metrics = {"batch": batch, "odd": batch % 2 == 1, "before": model_state, "half": batch.astype(dtype) / 2}
        return 0.0 * jnp.sum(params) + batch.astype(dtype), (model_state + 1, metrics)

    return Problem(loss_fn, jnp.zeros(2, dtype), lambda worker, step: 100 * worker + step, jnp.int32(0))


@periods
def test_loss_and_metrics_are_means_over_the_local_steps(period):
    result = run(LocalSteps(SGD, period), counting(), TURNS, tx=receiving(3), diagnostics=RECEIVED)
    history, longest = result.history, LocalSteps(SGD, period).longest
    central, pulled = 0, [0, 0, 0]
    for row, used in enumerate(pairs(period)):
        values = np.array([100 * worker + step for worker, step in used])
        np.testing.assert_allclose(history["loss"][row], values.mean(), rtol=1e-6)
        np.testing.assert_allclose(history["received_value"][row], values.mean(), rtol=1e-6)
        np.testing.assert_allclose(history["batch"][row], values.mean(), rtol=1e-6)
        np.testing.assert_allclose(history["half"][row], values.mean() / 2, rtol=1e-6)
        np.testing.assert_allclose(history["odd"][row], (values % 2).mean(), rtol=1e-6)
        worker = used[0][0]  # The model state continues through the local steps, from the pulled one.
        np.testing.assert_allclose(history["before"][row], pulled[worker] + (len(used) - 1) / 2, rtol=1e-6)
        central = pulled[worker] = pulled[worker] + len(used)
        padded = np.concatenate([values, np.zeros(longest - len(used))])
        np.testing.assert_array_equal(history["received_losses"][row], np.sum(padded * np.arange(1, longest + 1)))
        assert history["received_length"][row] == longest
        assert history["received_local_steps"][row] == len(used)
    assert int(result.model_state) == central
    assert history["received_local_steps"].dtype == np.int32


def test_one_gradient_is_reported_as_one_local_step():
    plain = optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), lambda u, s, p=None, *, observe, local_losses, local_steps, **_: (
            [observe("losses", lambda: local_losses.sum()), observe("steps", lambda: local_steps * local_losses.size)] and u, s
        ),
    )  # fmt: skip
    result = run(None, QUADRATIC, tx=optax.chain(plain, optax.sgd(0.1)), diagnostics=["losses", "steps"])
    np.testing.assert_array_equal(result.history["losses"], result.history["loss"])
    np.testing.assert_array_equal(result.history["steps"], np.ones(len(LATE)))


def test_half_precision_loses_no_step():
    """In bfloat16 300 and 1001 do not exist, and a sum of ones stops at 256."""

    def loss_fn(params, model_state, batch, key):
        one = jnp.ones((), jnp.bfloat16)
        return 0 * jnp.sum(params) + one, (model_state, {"one": one, "many": jnp.int32(1001)})

    problem = Problem(loss_fn, jnp.zeros(2, jnp.bfloat16), lambda worker, step: step)
    result = run(LocalSteps(SGD, (301, 300)), problem, gemjax.Trace([0, 1]), tx=receiving(2), diagnostics=RECEIVED)
    np.testing.assert_array_equal(result.history["received_local_steps"], [301, 300])
    for name in ("loss", "one"):
        np.testing.assert_array_equal(result.history[name], [1, 1])
    np.testing.assert_array_equal(result.history["many"], [1001, 1001])


@pytest.mark.slow
def test_the_local_optimizer_receives_each_steps_loss():
    """A local optimizer may depend on it; here every update is the loss."""

    def update_fn(updates, state, params=None, *, value, anchors, **_):
        assert anchors == ()
        return jnp.full_like(params, value), state

    tx = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    result = run(LocalSteps(tx, 3), counting(), gemjax.Trace([0, 1, 1]))
    np.testing.assert_array_equal(result.params, np.full(2, (0 + 1 + 2) + (100 + 101 + 102) + (103 + 104 + 105)))


def test_an_optimizer_may_begin_with_infinities():
    """Its best loss is infinite until it has received enough losses; a commit that made nothing infinite is applied."""
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, accumulation_size=5))
    result = run(LocalSteps(tx, 2))
    assert result.history["applied"].all()
    assert np.isinf(optax.tree.get(tx.init(QUADRATIC.params), "best_value"))
    assert np.isfinite(optax.tree.get(result.state.view.value.local, "best_value")).all()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_local_optimizer_that_is_not_finite_is_restored(bad):
    """Its displacement is finite, but the next one would not be."""

    def update_fn(updates, state, params=None, **_):
        return updates, jnp.where(params[0] < -2.5, bad, state)

    tx = optax.chain(optax.GradientTransformation(lambda params: jnp.float32(0), update_fn), optax.sgd(1.0))
    problem = Problem(lambda params, batch: jnp.sum(params), jnp.zeros(1), lambda worker, step: step)
    result = run(LocalSteps(tx, 2), problem, gemjax.Trace([0, 0, 0]))
    np.testing.assert_array_equal(result.history["applied"], [True, False, False])
    np.testing.assert_array_equal(jax.tree.leaves(result.state.view.value.local), [[0.0]])


# --- Compiled programs


def test_the_updates_of_a_local_optimizer_may_be_coarser_than_its_parameters():
    """They are added in the precision of the parameters."""
    halve = lambda u, s, params=None: (jax.tree.map(lambda x: (-0.5 * x).astype(jnp.bfloat16), u), s)
    local = LocalSteps(optax.GradientTransformation(lambda params: (), halve), 2)
    problem = Problem(lambda p, b: jnp.sum(p * b), jnp.zeros(3), lambda worker, step: 1.0)
    np.testing.assert_array_equal(run(local, problem, gemjax.Trace([0, 1])).params, [-2.0] * 3)


def test_local_steps_of_the_same_optimizer_find_the_compiled_program():
    tx, sgd = gemjax.downpour(num_workers=4), optax.sgd(0.1)
    run(LocalSteps(sgd, [3, 2, 1, 3]), QUADRATIC, tx=tx)
    before = programs()
    run(LocalSteps(sgd, np.array([3, 2, 1, 3])), QUADRATIC, tx=tx)
    assert programs() == before
    other = run(LocalSteps(sgd, [1, 3, 3, 2]), QUADRATIC, tx=tx)  # Periods are arguments of the program.
    assert programs() == before
    assert_close(other.params, run(LocalSteps(optax.sgd(0.1), [1, 3, 3, 2]), QUADRATIC, tx=tx).params, rtol=1e-6)


def test_a_schedule_of_progress_keeps_dtypes():
    tx = gemjax.rules.scale_by_progress(optax.linear_schedule(1.0, 0.0, 10), 3, 3)
    updates = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.float16)}
    scaled, _ = tx.update(updates, tx.init(()), commits=jnp.int32(5), local_step=jnp.int32(1))
    assert [leaf.dtype for leaf in scaled.values()] == [jnp.bfloat16, jnp.float16]
    np.testing.assert_allclose(scaled["b"], 0.4, rtol=1e-3)  # After 5 + 1 of 10 steps.


@pytest.mark.parametrize("workers", [3, 7, 41])
def test_a_schedule_of_progress_is_exact_after_whole_rounds(workers):
    """Compiled, where a division by 41 is a product with its rounded inverse; the drop of a step decay would come late."""
    tx = gemjax.rules.scale_by_progress(optax.piecewise_constant_schedule(1.0, {30: 0.5}), 10, workers)
    scaled = jax.jit(lambda commits: tx.update(jnp.float32(1.0), (), commits=commits, local_step=jnp.int32(0))[0])
    assert [float(scaled(jnp.int32(3 * workers + late))) for late in (-1, 0)] == [1.0, 0.5]


def test_longer_periods_than_the_mean_do_not_run_ahead():
    tx = gemjax.rules.scale_by_progress(lambda step: step, 2.5, 4)
    scaled = [
        float(tx.update(jnp.float32(1.0), (), commits=jnp.int32(8), local_step=jnp.int32(step))[0]) for step in range(5)
    ]
    assert scaled == [5.0, 6.0, 7.0, 7.5, 7.5]
