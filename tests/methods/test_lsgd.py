"""LSGD against its reference in both forms and against its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from methods import reference_local as reference
from methods.runs import THETA_0, grad, loss, run_locally

import gemjax

WORKERS = 4
ORDER = np.random.default_rng(5).choice(WORKERS, size=200, p=[0.4, 0.3, 0.2, 0.1]).tolist()
TRACE = gemjax.Trace(ORDER, num_workers=WORKERS)


def lsgd(**keywords):
    return gemjax.lsgd(num_workers=WORKERS, **keywords)


def positions(result):
    """Return the view of each worker, ``[N, 9]``."""
    views = result.opt_state.stale_params.value
    return np.stack([ravel_pytree(jax.tree.map(lambda x, w=w: x[w], views))[0] for w in range(WORKERS)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keywords", "names"),
    [
        ({"strength": 0.3, "window": 6}, {"c1": 0.3, "avg_size": 6}),
        (
            {"strength": 0.2, "groups": 2, "global_strength": 0.4, "global_period": 3},
            {"c1": 0.2, "n": 2, "c2": 0.4, "period": 3},
        ),
    ],
    ids=["one leader", "groups"],
)
def test_equals_the_reference(x64, keywords, names):
    led, history, workers = reference.lsgd(THETA_0, grad, loss, ORDER, eta=0.03, tau=4, p=WORKERS, **names)
    local = gemjax.LocalSteps(optax.sgd(0.03), 4)
    found, result = run_locally(lsgd(**keywords), local, TRACE, diagnostics=["leader"])
    np.testing.assert_array_equal(result.history["leader"], led)
    np.testing.assert_allclose(found, history, rtol=0, atol=1e-12)
    np.testing.assert_allclose(positions(result), np.stack([worker.x for worker in workers]), rtol=0, atol=1e-12)
    for exchange, expected in (("before", [w.last for w in workers]), ("after", [w.x for w in workers])):
        average = ravel_pytree(gemjax.rules.average_position(result.opt_state, exchange=exchange))[0]
        np.testing.assert_allclose(average, np.mean(expected, axis=0), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(  # The default.
        ravel_pytree(gemjax.rules.average_position(result.opt_state))[0],
        ravel_pytree(gemjax.rules.average_position(result.opt_state, exchange="before"))[0],
    )
    assert len(set(led.tolist())) == WORKERS  # Otherwise the leader never changes and the test is empty.


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "period"), [(1, 1), (2, 1), (2, 3)])
def test_the_proximal_extension_equals_the_reference(x64, groups, period):
    """Run with Nesterov's momentum, as in the extension's experiments."""
    prox = (0.05, 0.02)[:groups]
    names = {"c1": 0.1} if groups == 1 else {"c1": 0.1, "c2": 0.1, "n": 2, "period": period}
    expected = reference.lsgd(
        THETA_0, grad, loss, ORDER[:60], eta=0.01, tau=3, p=WORKERS, m=0.9, nesterov=True, prox=prox, **names
    )
    tx = optax.chain(optax.sgd(0.01, momentum=0.9, nesterov=True), gemjax.rules.pull_to_anchors(*prox))
    method = lsgd(groups=groups, global_period=period, anchors=True)
    found, result = run_locally(method, gemjax.LocalSteps(tx, 3), TRACE.first(60), diagnostics=["leader"])
    np.testing.assert_array_equal(result.history["leader"], expected[0])
    np.testing.assert_allclose(found, expected[1], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_in_step_it_is_the_collective_exchange(x64, groups):
    """Workers of unequal speeds meet at a barrier; none pulls before all have committed."""
    model = gemjax.arrivals.Gamma(WORKERS, machine_variation=0.6)
    trace, taken = gemjax.arrivals.SemiSynchronous(model, period=5).trace(12, seed=1)
    assert len({sum(row) for row in taken}) > 1
    keywords = {} if groups == 1 else {"groups": 2, "global_strength": 0.3, "global_period": 2}
    names = {} if groups == 1 else {"n": 2, "c2": 0.3, "period": 2}
    expected, leader = reference.lsgd_in_step(THETA_0, grad, loss, taken, eta=0.03, c1=0.2, **names)
    local = gemjax.LocalSteps(optax.sgd(0.03), taken)
    _, result = run_locally(lsgd(strength=0.2, **keywords), local, trace, diagnostics=["leader"])
    assert result.history["leader"][-1] == leader
    np.testing.assert_allclose(pulled_by_all(result), expected, rtol=0, atol=1e-12)


def pulled_by_all(result):
    """Return the positions after the last meeting, ``[N, 9]``; a trace ends before the workers pull there."""
    views = [gemjax.pull(result.opt_state, result.params, worker)[0] for worker in range(WORKERS)]
    return np.stack([ravel_pytree(view)[0] for view in views])


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 2])
def test_in_step_the_proximal_extension_is_that_of_the_authors_program(x64, period):
    """All workers store the same global leader, and only at a global exchange."""
    trace, taken = gemjax.arrivals.SemiSynchronous(gemjax.arrivals.Gamma(WORKERS), period=3).trace(7, seed=1)
    names = {"c1": 0.2, "c2": 0.3, "n": 2, "period": period, "prox": (0.05, 0.02)}
    expected, _ = reference.lsgd_in_step(THETA_0, grad, loss, taken, eta=0.03, **names)
    local = gemjax.LocalSteps(optax.chain(optax.sgd(0.03), gemjax.rules.pull_to_anchors(0.05, 0.02)), taken)
    method = lsgd(strength=0.2, groups=2, global_strength=0.3, global_period=period, anchors=True)
    np.testing.assert_allclose(pulled_by_all(run_locally(method, local, trace)[1]), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_without_group_pulls_groups_make_no_difference(x64):
    """With equal periods the authors' program switches the group pull off and has one leader for all."""
    methods = (
        (lsgd(strength=0.3, anchors=True), (0.1,)),
        (lsgd(strength=0.0, groups=2, global_strength=0.3, anchors=True), (0.1, 0.0)),
    )
    (one, result), (two, with_groups) = (
        run_locally(
            method, gemjax.LocalSteps(optax.chain(optax.sgd(0.03), gemjax.rules.pull_to_anchors(*prox)), 2), TRACE
        )
        for method, prox in methods
    )
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-14)
    np.testing.assert_allclose(positions(with_groups), positions(result), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_the_global_anchor_changes_at_global_pulls_only():
    """Worker 0 pulls globally at every second of its exchanges, whatever the others do."""
    params, tx = jnp.zeros(1), lsgd(strength=0.0, groups=2, global_period=2, anchors=True)
    state, sent = tx.init(params), []
    for worker, value in ((0, 0.9), (2, 0.5), (0, 0.8), (3, 0.4), (0, 0.7), (0, 0.6)):
        moved = jnp.array([-10 * value])
        updates, state = tx.update(moved, state, params, worker=worker, value=jnp.array(value))
        params = params + updates
        _, state = gemjax.pull(state, params, worker)
        sent.append(optax.tree.get(state, "target")[0].item())
    assert sent == [0.0, 0.0, 5.0, 5.0, 5.0, 4.0]
    np.testing.assert_array_equal(optax.tree.get(state, "target").value[1:], 0.0)


@pytest.mark.slow
def test_at_strength_zero_workers_are_independent(x64):
    """The central variable is the best of them, and each is plain SGD."""
    found, result = run_locally(lsgd(strength=0.0), gemjax.LocalSteps(optax.sgd(0.05), 3), TRACE)
    alone = []
    for worker in range(WORKERS):
        x = THETA_0
        for j in range(3 * ORDER.count(worker)):
            x = x - 0.05 * grad(x, worker, j)
        alone.append(x)
    np.testing.assert_allclose(positions(result), np.stack(alone), rtol=0, atol=1e-12)
    assert min(np.abs(found[-1] - x).max() for x in alone) < 1e-12


@pytest.mark.slow
def test_the_leader_is_not_pulled(x64):
    params, tx = jnp.zeros(2), lsgd(strength=0.7)
    state = tx.init(params)
    for worker, value in ((0, 0.5), (1, 0.2), (2, 0.9)):
        updates, state = tx.update(-jnp.ones(2) * (worker + 1), state, params, worker=worker, value=jnp.array(value))
        params = params + updates
    np.testing.assert_array_equal(params, [2.0, 2.0])
    view, _ = gemjax.pull(state, params, 1)
    np.testing.assert_array_equal(view, params)
    view, _ = gemjax.pull(state, params, 2)
    np.testing.assert_allclose(view, 3.0 - 0.7 * (3.0 - jnp.full(2, 2.0)))


@pytest.mark.slow
def test_at_strength_one_workers_continue_from_the_leader(x64):
    found, result = run_locally(lsgd(strength=1.0), gemjax.LocalSteps(optax.sgd(0.03), 2), TRACE)
    np.testing.assert_allclose(positions(result)[ORDER[-1]], found[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_with_one_worker_it_is_its_local_optimizer(x64):
    found, _ = run_locally(gemjax.lsgd(), gemjax.LocalSteps(optax.sgd(0.05), 2), gemjax.Trace([0] * 20))
    x = THETA_0
    for j in range(40):
        x = x - 0.05 * grad(x, 0, j)
    np.testing.assert_allclose(found[-1], x, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_rejected_displacement_leaves_no_trace(x64):
    """One is the first of its worker, one is in the middle; leaders, positions and losses are those of a run without them."""
    local = gemjax.LocalSteps(optax.sgd(0.05))
    full = gemjax.Trace([0, 1, 3, 2, 1, 0, 3, 3, 2, 0], num_workers=WORKERS)
    late = gemjax.Trace(
        [0, 1, 2, 0, 3, 3, 2, 0], [0, 0, 0, 1, 2, 5, 3, 4], [0, 0, 0, 1, 1, 2, 1, 2], num_workers=WORKERS
    )

    def loss_fn(params, batch):
        bad, batch = batch
        return jnp.where(bad, jnp.nan, 1.0) * jnp.sum((params - batch) ** 2)

    def batches(worker, step, spoilt=((3, 0), (1, 1))):
        bad = sum((worker == w) & (step == s) for w, s in spoilt) > 0
        return bad, jnp.sin(worker + 3.0 * step)

    runs = [
        gemjax.simulate(lsgd(strength=0.5), loss_fn, jnp.ones(2), batches, trace, local=local, diagnostics=["leader"])
        for trace in (full, late)
    ]
    applied = runs[0].history["applied"]
    assert (~applied).sum() == 2
    np.testing.assert_array_equal(runs[0].history["leader"][applied], runs[1].history["leader"])
    following = [optax.tree.get(run.opt_state, "following") for run in runs]
    np.testing.assert_allclose(following[0].losses, following[1].losses, rtol=1e-12)
    np.testing.assert_allclose(following[0].positions.rows, following[1].positions.rows, rtol=1e-12)
    returned = [0, 2, 3]  # Worker 1 pulled once more and made no further commit.
    np.testing.assert_allclose(positions(runs[0])[returned], positions(runs[1])[returned], rtol=1e-12)


@pytest.mark.slow
def test_the_leader_of_a_group_without_a_commit_is_at_the_central_variable(x64):
    params, tx = jnp.zeros(1), lsgd(strength=0.5, groups=2, global_strength=0.0)
    updates, state = tx.update(jnp.array([-8.0]), tx.init(params), params, worker=0, value=jnp.array(0.1))
    for worker in (2, 3):
        view, _ = gemjax.pull(state, params + updates, worker)
        np.testing.assert_array_equal(view, [8.0])


@pytest.mark.slow
def test_an_exchange_moves_the_average_towards_the_leader(x64):
    """With one group and all workers at the same meeting, by the strength."""
    trace, taken = gemjax.arrivals.SemiSynchronous(gemjax.arrivals.Gamma(WORKERS), period=3).trace(4, seed=1)
    _, result = run_locally(lsgd(strength=0.3), gemjax.LocalSteps(optax.sgd(0.03), taken), trace)
    state = result.opt_state
    for worker in range(WORKERS):
        _, state = gemjax.pull(state, result.params, worker)
    before, after = (gemjax.rules.average_position(state, exchange=exchange) for exchange in ("before", "after"))
    expected = jax.tree.map(lambda x, leader: 0.7 * x + 0.3 * leader, before, result.params)
    for found, wanted in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strength", [0.0, 0.25])
def test_a_worker_may_pull_again_before_its_first_commit(strength):
    """It begins at the central variable and is pulled to the leader of its own group."""
    params, tx = jnp.zeros(1), lsgd(strength=strength, groups=2, global_strength=0.0)
    state = tx.init(params)
    for worker, moved in ((0, -1.0), (2, -8.0)):  # The leader of group 0 is at 1, that of group 1 at 8.
        updates, state = tx.update(jnp.array([moved]), state, params, worker=worker, value=jnp.array(0.1))
        params = params + updates
    view, _ = gemjax.pull(state, params, worker=3)
    np.testing.assert_allclose(view, [1.0 + 7.0 * strength])
