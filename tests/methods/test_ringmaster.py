"""Ringmaster and Rennala against their references and their limits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_local as reference
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, schedule

import gemjax
from gemjax.protocol.hooks import Refusals
from gemjax.protocol.slots import SharedRows, is_rows
from gemjax.testing import quadratic


@pytest.mark.parametrize("threshold", [1, 3, 12])
def test_ringmaster_equals_the_reference(x64, threshold):
    expected, applied = reference.ringmaster(THETA_0, grad, ORDER, schedule, threshold)
    assert applied < len(ORDER)
    found, _ = run(gemjax.ringmaster(schedule, NUM_WORKERS, threshold=threshold))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("batch_size", "momentum"), [(1, 0.0), (4, 0.0), (4, 0.6)])
def test_rennala_equals_the_reference(x64, batch_size, momentum):
    expected, counted = reference.rennala(THETA_0, grad, ORDER, schedule, batch_size, momentum)
    assert counted < len(ORDER)
    inner = optax.trace(momentum, nesterov=True) if momentum else None
    found, _ = run(gemjax.rennala(schedule, NUM_WORKERS, batch_size=batch_size, inner=inner))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


ROWS = (
    Row(
        "ringmaster-schedule",
        gemjax.ringmaster,
        0.1,
        {"threshold": lambda t: 2.0 + t / 100},
        variant=True,
        refuses=True,
    ),
)


def test_a_threshold_may_grow_as_in_the_parameter_agnostic_form(x64):
    """R_k = sqrt(k), eta_k = eta / k^(3/4), with k applied commits; a constant schedule is that constant."""
    theta, received, pulled, steps, k, expected = THETA_0, {}, {}, dict.fromkeys(ORDER, 0), 0, []
    for i in ORDER:
        if k - pulled.get(i, 0) < math.sqrt(k + 1):
            theta = theta - 0.3 / (k + 1) ** 0.75 * grad(received.get(i, THETA_0), i, steps[i])
            k += 1
        received[i], pulled[i] = theta, k
        steps[i] += 1
        expected.append(theta)
    assert 20 < k < len(ORDER)
    found, _ = run(
        gemjax.ringmaster(lambda t: 0.3 / (t + 1) ** 0.75, NUM_WORKERS, threshold=lambda t: jnp.sqrt(1.0 + t))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    constant, _ = run(gemjax.ringmaster(0.05, NUM_WORKERS, threshold=3))
    scheduled, _ = run(gemjax.ringmaster(0.05, NUM_WORKERS, threshold=lambda t: 3))
    np.testing.assert_array_equal(scheduled, constant)


def test_a_threshold_that_begins_below_one_is_refused():
    """It would refuse the first commit, and so all of them."""
    with pytest.raises(ValueError, match=r"threshold\(0\)"):
        gemjax.ringmaster(0.1, threshold=lambda t: jnp.sqrt(t))


def test_ringmaster_that_refuses_nothing_is_asgd(x64):
    expected, _ = run(gemjax.asgd(0.05, NUM_WORKERS))
    found, _ = run(gemjax.ringmaster(0.05, NUM_WORKERS, threshold=math.inf))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_rennala_of_one_gradient_is_ringmaster_at_one(x64):
    expected, _ = run(gemjax.ringmaster(0.05, NUM_WORKERS, threshold=1))
    found, _ = run(gemjax.rennala(0.05, NUM_WORKERS, batch_size=1))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_rennala_with_one_worker_accumulates(x64):
    params = expected = jnp.asarray(THETA_0)
    tx = gemjax.rennala(0.05, batch_size=3)
    state = tx.init(params)
    for j in range(0, 12, 3):
        mean = np.mean([grad(expected, 0, j + k) for k in range(3)], axis=0)
        for k in range(3):
            updates, state = tx.update(jnp.asarray(grad(params, 0, j + k)), state, params, worker=0)
            params = params + updates
            _, state = gemjax.pull(state, params, 0)
        expected = expected - 0.05 * mean
        np.testing.assert_allclose(params, expected, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_rennala_of_the_first_workers_is_m_synchronous_sgd(x64):
    """Rounds of 3 of 5 workers: optax's SGD on the mean of the gradients of each round, which refuses nothing."""
    loss_fn, params, batches = quadratic()
    trace = gemjax.arrivals.Barrier(gemjax.arrivals.Exponential(5), quorum=3).trace(30)
    tx = gemjax.rennala(0.1, 5, batch_size=3, inner=optax.trace(0.9, nesterov=True))
    result = gemjax.simulate(tx, loss_fn, params, batches, trace)
    assert int(result.state.dropped) == 0
    plain = optax.sgd(0.1, 0.9, nesterov=True)
    state, rows = plain.init(params), list(zip(trace.worker.tolist(), trace.step.tolist(), strict=True))
    for begin in range(0, 30, 3):
        grads = [jax.grad(loss_fn)(params, batches(*row)) for row in rows[begin : begin + 3]]
        mean = jax.tree.map(lambda *gs: sum(gs) / 3, *grads)
        updates, state = plain.update(mean, state)
        params = optax.apply_updates(params, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), result.params, params)


def test_the_default_threshold_is_the_number_of_workers(x64):
    expected, _ = run(gemjax.ringmaster(0.05, NUM_WORKERS, threshold=NUM_WORKERS))
    found, _ = run(gemjax.ringmaster(0.05, NUM_WORKERS))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2])
def test_there_is_always_progress(batch_size):
    """While all commits are refused, the clock stops, so that further commits are not stale."""
    loss_fn, params, batches = quadratic()
    trace = gemjax.arrivals.Gamma(16, machine_variation=0.6).trace(400)
    for tx in (gemjax.ringmaster(0.1, 16, threshold=1), gemjax.rennala(0.1, 16, batch_size=batch_size)):
        result = gemjax.simulate(tx, loss_fn, params, batches, trace)
        applied = result.history["applied"]
        assert applied[-100:].any()
        assert int(result.state.commits) == applied.sum() == int(result.opt_state.clock)
        assert int(result.state.dropped) == result.history["dropped"].sum() == (~applied).sum() > 0


def test_a_refused_commit_changes_no_memory(x64):
    """Memory behind the refusal: shared moments, moments per worker, the view, the clock of another wrapper."""
    members = (optax.scale_by_adam(), gemjax.per_worker(optax.trace(0.9)), gemjax.rules.compensate_delay(1.0))
    inner = gemjax.asynchronous(gemjax.rules.scale_by_staleness(), 2)
    tx = gemjax.asynchronous(optax.chain(*members, inner, gemjax.rules.drop_stale(2), optax.scale(-0.1)), 2)
    params = jnp.ones(3)
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params, worker=0)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, 0)
    updates, after = tx.update(10 * params, state, params, worker=1)
    np.testing.assert_array_equal(updates, jnp.zeros(3))
    assert int(after.clock) == 2
    count = after.inner_state[4].refusals.count
    assert int(count) == 1
    put_back = after._replace(inner_state=(*after.inner_state[:4], state.inner_state[4], *after.inner_state[5:]))
    jax.tree.map(np.testing.assert_array_equal, put_back, state)
    _, again = gemjax.pull(after, params, 1)
    updates, again = tx.update(params, again, params, worker=1)
    assert int(again.clock) == 3
    assert bool(jnp.all(updates != 0))


def writes_its_row(calls):
    """Return a member that writes its gradient into the row of its worker."""

    def update(updates, state, params=None, *, worker, **extra_args):
        calls.append(worker)
        return updates, state.write(worker, updates)

    return optax.GradientTransformationExtraArgs(lambda params: SharedRows.of(params, 2), update)


REFUSING = {
    "behind": lambda rows: gemjax.asynchronous(optax.chain(rows, gemjax.rules.drop_stale(2)), 2),
    "in front": lambda rows: gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(2), rows), 2),
    "masked": lambda rows: gemjax.asynchronous(optax.chain(rows, optax.masked(gemjax.rules.drop_stale(2), True)), 2),
    "per worker": lambda rows: gemjax.asynchronous(optax.chain(rows, gemjax.per_worker(gemjax.rules.drop_stale(2))), 2),
    "inside": lambda rows: gemjax.asynchronous(optax.chain(rows, gemjax.ringmaster(1.0, 2, threshold=2)), 2),
    "outside": lambda rows: gemjax.asynchronous(
        optax.chain(gemjax.rules.drop_stale(2), gemjax.asynchronous(rows, 2)), 2
    ),
    "array": lambda rows: gemjax.asynchronous(optax.chain(rows, gemjax.rules.drop_stale(np.int32(2))), 2),
    "injected": lambda rows: gemjax.asynchronous(
        optax.chain(rows, optax.inject_hyperparams(gemjax.rules.drop_stale)(threshold=2)), 2
    ),
}


@pytest.mark.parametrize("place", REFUSING)
def test_a_refused_commit_writes_no_shared_row(place):
    """The place of the rule that refuses does not matter, and the members run once per commit."""
    tx, params = REFUSING[place](writes_its_row(calls := [])), jnp.zeros(1)
    state = tx.init(params)
    for number, (worker, written) in enumerate([(0, [1.0, 0.0]), (0, [2.0, 0.0]), (1, [2.0, 0.0])]):
        updates, state = tx.update(jnp.full(1, number + 1.0), state, params, worker=worker)
        (shared,) = (node for node in jax.tree.leaves(state, is_leaf=is_rows) if is_rows(node))
        np.testing.assert_array_equal(shared.rows[:, 0], written)
        assert shared.replaced is None
    assert len(calls) == 3
    np.testing.assert_array_equal(updates, [0.0])
    assert int(state.clock) == 2
    (refusals,) = (node for node in jax.tree.leaves(state, is_leaf=is_refusals) if is_refusals(node))
    assert jnp.sum(refusals.count) == 1


def is_refusals(node):
    return isinstance(node, Refusals)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_injected_threshold_may_be_changed(compiled):
    """The new threshold takes effect at the next commit."""
    injected = optax.inject_hyperparams(gemjax.ringmaster, static_args=("num_workers",))
    tx = injected(1.0, num_workers=2, threshold=1)
    update, state, moved = jax.jit(tx.update) if compiled else tx.update, tx.init(jnp.zeros(1)), []
    for threshold in (1, 1, 3, 3, 3, 3):  # Of a worker that has never pulled.
        state.hyperparams["threshold"] = jnp.asarray(threshold, state.hyperparams["threshold"].dtype)
        updates, state = update(jnp.ones(1), state, worker=1)
        moved.append(bool(updates[0]))
        if len(moved) == 3:
            _, state = gemjax.pull(state, jnp.zeros(1), worker=1)
    assert moved == [True, False, True, True, True, True]
    assert int(optax.tree.get(state, "refusals").count) == 1


def test_a_scheduled_threshold_is_that_of_its_commit():
    """The commit at clock 2 is the first with the threshold 3."""
    schedule = lambda count: jnp.where(count < 2, 1, 3)
    tx = optax.inject_hyperparams(gemjax.ringmaster, static_args=("num_workers",))(
        1.0, num_workers=2, threshold=schedule
    )
    state, moved = tx.init(jnp.zeros(1)), []
    for worker in (0, 1, 0, 1):
        updates, state = tx.update(jnp.ones(1), state, worker=worker)
        moved.append(bool(updates[0]))
    assert moved == [True, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [math.inf, jnp.int32(1000)], ids=["number", "array"])
@pytest.mark.parametrize("engine", [gemjax.simulate, gemjax.run_on_devices])
def test_a_result_continues_with_another_threshold(engine, threshold):
    ends = [gemjax.arrivals.RoundRobin(4).trace(n) if engine is gemjax.simulate else n for n in (30, 60)]
    first = engine(gemjax.ringmaster(0.05, 4, threshold=2), *quadratic(), ends[0])
    second = engine(gemjax.ringmaster(0.05, 4, threshold=threshold), *quadratic(), ends[1], state=first)
    assert second.state.commits > first.state.commits
    assert second.state.dropped == first.state.dropped
    with pytest.raises(ValueError, match=r"is of another method, .* the first is 'its containers'"):
        engine(other_containers(), *quadratic(), ends[1], state=first)


def other_containers():
    """Return ``ringmaster`` with a list in place of the tuple of a chain."""
    inner = optax.chain(gemjax.rules.drop_stale(2), optax.scale(-0.05))
    return gemjax.asynchronous(
        optax.GradientTransformationExtraArgs(lambda params: [*inner.init(params)], inner.update), 4
    )


@pytest.mark.parametrize("thresholds", [(1, 9), (9, 1), (1, 1)])
def test_one_member_that_refuses_is_enough(thresholds):
    tx = gemjax.asynchronous(optax.chain(*map(gemjax.rules.drop_stale, thresholds), optax.scale(-1.0)), 2)
    state = tx.init(jnp.zeros(1))
    for worker, moved in ((0, -1.0), (1, 0.0)):  # The commit of worker 1 is one commit late.
        updates, state = tx.update(jnp.ones(1), state, worker=worker)
        np.testing.assert_array_equal(updates, [moved])
    assert int(state.clock) == 1
    counts = [member.refusals.count for member in state.inner_state[:2]]
    np.testing.assert_array_equal(counts, [threshold == 1 for threshold in thresholds])
