"""Answers of callbacks, warnings before a run, advice of messages that is followed, and parameters on wrong devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, asgd, ones, run, squares

import gemjax


def test_a_run_that_a_callback_failed_is_not_lost():
    with pytest.raises(ZeroDivisionError) as raised:
        run("devices", callback=lambda progress: 1 / 0, callback_every=2)
    assert len(raised.value.result.trace) >= 2


def test_commits_that_are_made_already_are_warned_of():
    first = run("devices")
    message = r"has made 4 commits already, so num_commits=3, .* asks for no more; give num_commits=7 for 3 more"
    with pytest.warns(gemjax.RunWarning, match=message) as seen:
        again = gemjax.run_on_devices(asgd(), squares, PARAMS, ones, 3, state=first)
    assert (len(again.trace), seen[0].filename) == (4, __file__)


@pytest.mark.parametrize("tx", [gemjax.asgd(0.1), optax.sgd(0.1)], ids=["method", "plain"])
def test_one_worker_for_many_devices_is_warned_of(tx):
    with pytest.warns(
        gemjax.RunWarning, match="for one worker, so nothing is asynchronous although there are 9"
    ) as seen:
        gemjax.run_on_devices(tx, squares, PARAMS, ones, 0)
    assert seen[0].filename == __file__
    gemjax.run_on_devices(tx, squares, PARAMS, ones, 0, num_workers=1)  # As intended.


SAM = optax.contrib.sam(optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_sam_is_no_local_optimizer(num_workers):
    """With an odd period some commits would end at its second point."""
    local = gemjax.LocalSteps(optax.GradientTransformation(SAM.init, SAM.update), 2)
    with pytest.raises(TypeError, match="sam"):
        gemjax.initial_state(gemjax.downpour(num_workers=num_workers), PARAMS, local=local)


def test_sam_is_a_loss_at_a_second_point():
    """The advice of the message; a commit is both steps of SAM on one batch."""
    params, state, update = PARAMS, SAM.init(PARAMS), jax.jit(SAM.update)
    for step in range(8):
        updates, state = update(jax.grad(squares)(params, ones(0, 2 + step // 2)), state, params)
        params = optax.apply_updates(params, updates)

    def at_second_point(params, batch):
        gradient = jax.grad(squares)(params, batch)
        return squares(params + jax.lax.stop_gradient(0.05 * gradient / optax.tree.norm(gradient)), batch)

    trace = gemjax.Trace(worker=np.zeros(4, int))
    found = gemjax.simulate(
        gemjax.asgd(0.1), at_second_point, PARAMS, lambda worker, step: ones(worker, 2 + step), trace
    )
    np.testing.assert_allclose(found.params, params, rtol=1e-5)


def test_lookahead_is_downpour_with_local_steps():
    """The advice of the message: slow parameters follow the last of five fast ones by half."""
    trace = gemjax.Trace(worker=np.zeros(4, int))
    batches = lambda worker, step: jnp.cos(step + jnp.arange(4.0))
    found = gemjax.simulate(
        gemjax.downpour(0.5), squares, PARAMS, batches, trace, local=gemjax.LocalSteps(optax.adam(0.1), 5)
    )
    tx = optax.lookahead(optax.adam(0.1), 5, 0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(20):
        updates, state = update(jax.grad(squares)(params.fast, batches(0, step)), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(found.params, params.slow, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_complex_parameters_can_be_given_as_two_real_arrays(engine):
    loss_fn = lambda params, batch: jnp.sum(jnp.abs(jax.lax.complex(*params) - (batch + 1j * batch)) ** 2)
    params = jnp.zeros(4), jnp.zeros(4)
    assert run(engine, loss_fn, params, gemjax.gem(0.1, num_workers=2)).params[1].any()
