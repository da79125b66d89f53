"""Checks of methods, callbacks and options, made before anything is computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, asgd, ones, run, squares

import gemjax
from gemjax.engines.checks import ends_run


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (None, False),
        (False, False),
        (True, True),
        (np.True_, True),
        (jnp.array(False), False),
        (jnp.array(True), True),
        (0, False),
        (1, True),
        (np.float32(0.5), True),
        (np.array(0), False),
        (jnp.float32(0.5), True),
        (jnp.bfloat16(0.0), False),
    ],
)
def test_answers_that_end_a_run(answer, ends):
    assert ends_run(answer) is ends


def test_a_run_that_a_callback_failed_is_not_lost():
    with pytest.raises(TypeError, match="callback returned the str 'stop'") as raised:
        run("devices", callback=lambda progress: "stop", callback_every=2)
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


@dataclasses.dataclass
class Descent:
    """An optimizer of a class that has ==, but no hash."""

    rate: float

    def init(self, params):
        return optax.EmptyState()

    def update(self, updates, state, params=None):
        return optax.tree.scale(-self.rate, updates), state


@pytest.mark.parametrize("local", [None, gemjax.LocalSteps(Descent(0.1), 2)], ids=["gradients", "local steps"])
def test_an_optimizer_without_a_hash_runs(local):
    trace = gemjax.arrivals.RoundRobin(2).trace(6)
    loss, batches = lambda params, batch: jnp.sum((params - batch) ** 2), lambda worker, step: jnp.ones(2)
    run = lambda tx, state=None: (
        gemjax.simulate(tx, loss, jnp.zeros(2), batches, trace, local=local, state=state).params
    )
    np.testing.assert_array_equal(run(Descent(0.1)), run(optax.sgd(0.1)))
    result = gemjax.run_on_devices(Descent(0.1), loss, jnp.zeros(2), batches, 6, local=local, num_workers=2)
    assert len(result.trace) == 6
    assert int(gemjax.initial_state(Descent(0.1), jnp.zeros(2)).commits) == 0


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: gemjax.asynchronous(gemjax.per_worker(tx), 2)])
def test_an_optimizer_may_count_from_a_number_of_python(wrap):
    def update(updates, count, params=None):
        return optax.tree.scale(-0.1 / (1 + count), updates), count + 1

    tx = wrap(optax.GradientTransformation(lambda params: 0, update))
    loss, batches = lambda params, batch: jnp.sum((params - batch) ** 2), lambda worker, step: jnp.ones(2)
    for local in (None, gemjax.LocalSteps(optax.GradientTransformation(lambda params: 0, update), 2)):
        result = gemjax.run_on_devices(tx, loss, jnp.zeros(2), batches, 6, num_workers=2, local=local)
        replay = gemjax.simulate(tx, loss, jnp.zeros(2), batches, result.trace, local=local)
        np.testing.assert_allclose(result.params, replay.params, rtol=1e-6)
