"""The protocol of staleness: the clock, the arguments of members, and the views that are kept."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from protocol.commits_and_pulls import ORDER, PARAMS, equal, spy

import gemjax
from gemjax.protocol.staleness import is_asynchronous

# --- State and arguments of members


def test_the_clock_counts_commits_and_pulls_are_dated():
    tx = gemjax.asgd(0.1, num_workers=3)
    state = tx.init(PARAMS)
    assert int(state.clock) == 0
    np.testing.assert_array_equal(state.pulled_at.value, [0, 0, 0])
    for worker in (0, 2):
        _, state = tx.update(PARAMS, state, PARAMS, worker=worker)
    np.testing.assert_array_equal(state.pulled_at.value, [0, 0, 0])  # A commit is no pull,
    _, state = gemjax.pull(state, PARAMS, worker=2)
    assert int(state.clock) == 2  # and a pull no commit.
    np.testing.assert_array_equal(state.pulled_at.value, [0, 0, 2])
    assert int(state.pulled_at[2]) == 2
    assert state.clock.dtype == state.pulled_at.value.dtype == jnp.int32


def test_members_receive_worker_staleness_and_stale_params():
    seen = []
    tx = gemjax.asynchronous(optax.chain(optax.clip(1.0), spy(seen, reads=True)), num_workers=3)
    params, state = {"x": jnp.zeros(2)}, None
    state, views, pulled_at = tx.init(params), [params] * 3, [0] * 3
    for t, worker in enumerate(ORDER):
        _, state = tx.update(params, state, params, worker=worker, value=t)
        received = seen[-1]
        assert (int(received["worker"]), int(received["staleness"]), received["value"]) == (
            worker,
            t - pulled_at[worker],
            t,
        )
        assert received["staleness"].dtype == jnp.int32
        equal(received["stale_params"], views[worker])
        params = {"x": params["x"] + 1.0}
        views[worker], state = gemjax.pull(state, params, worker=worker)
        pulled_at[worker] = t + 1
    assert {int(received["staleness"]) for received in seen} >= {0, 1, 3}


def test_of_two_pulls_the_last_one_counts():
    tx = gemjax.gem(0.1, num_workers=2)
    state = tx.init(PARAMS)
    later = jax.tree.map(lambda p: p + 1.0, PARAMS)
    for worker, params in ((0, PARAMS), (1, PARAMS)):
        _, state = tx.update(PARAMS, state, PARAMS, worker=worker)
        _, state = gemjax.pull(state, params, worker=0)
    _, state = gemjax.pull(state, later, worker=0)
    assert int(state.pulled_at[0]) == 2
    equal(state.stale_params[0], later)
    equal(state.stale_params[1], PARAMS)


@pytest.mark.parametrize(
    ("inner", "kept"),
    [
        (optax.sgd(0.1), False),
        (gemjax.rules.scale_by_staleness(), False),
        (gemjax.per_worker(optax.trace(0.9)), False),
        (gemjax.rules.match_energy(reading="code"), False),  # It keeps a position of its own.
        (gemjax.rules.match_energy(), True),
        (optax.chain(optax.clip(1.0), optax.chain(gemjax.rules.match_energy())), True),
        (optax.masked(gemjax.rules.match_energy(), {"a": True, "b": False}), True),
    ],
)
def test_stale_params_are_kept_only_if_a_member_reads_them(inner, kept):
    state = gemjax.asynchronous(inner, num_workers=4).init(PARAMS)
    assert (state.stale_params is not None) == kept
    if kept:
        assert state.stale_params.value["a"].shape == (4, 2)


def test_the_view_is_the_parameters_themselves():
    for tx in (gemjax.asgd(0.1, 2), gemjax.gem(0.1, num_workers=2), optax.sgd(0.1)):
        view, _ = gemjax.pull(tx.init(PARAMS), PARAMS, worker=1)
        assert view is PARAMS


def test_a_member_may_shift_the_view_and_the_shifted_one_is_recorded():
    elsewhere = jax.tree.map(lambda p: p + 10.0, PARAMS)
    tx = gemjax.asynchronous(spy([], reads=True, view=elsewhere), num_workers=2)
    view, state = gemjax.pull(tx.init(PARAMS), PARAMS, worker=1)
    equal(view, elsewhere)
    equal(state.stale_params[1], elsewhere)
    equal(state.stale_params[0], PARAMS)


def test_pull_of_a_state_without_the_protocol_changes_nothing():
    tx = optax.adam(0.1)
    state = tx.init(PARAMS)
    view, after = gemjax.pull(state, PARAMS, worker=5)
    assert view is PARAMS
    equal(after, state)
    assert not is_asynchronous(state)
    assert is_asynchronous(optax.chain(gemjax.asgd(0.1)).init(PARAMS))


@pytest.mark.parametrize("reading", ["code", "algorithm"])
def test_a_pull_without_a_commit_forgets_the_point_set_aside(reading):
    """After a rejected gradient the worker computes at, and measures from, the central variable, once that has moved."""
    tx = gemjax.gem(0.1, num_workers=2, reading=reading)
    state, later = tx.init(PARAMS), jax.tree.map(lambda p: p + 1.0, PARAMS)
    _, state = tx.update(PARAMS, state, later, worker=0)  # Sets `later` aside.
    for _ in range(2):  # Without a commit in between, a trace records one of the two.
        view, state = gemjax.pull(state, PARAMS, worker=0)
        equal(view, later if reading == "algorithm" else PARAMS)
        equal(state.inner_state[1].stale_point[0].params, later)
    _, state = tx.update(PARAMS, state, PARAMS, worker=1)
    view, state = gemjax.pull(state, PARAMS, worker=0)
    equal(view, PARAMS)
    equal(state.inner_state[1].stale_point[0].params, PARAMS)


# --- One worker


@pytest.mark.parametrize("pulls", [False, True], ids=["without-pulls", "with-pulls"])
def test_without_worker_it_is_an_ordinary_optimizer(pulls):
    tx, ordinary = gemjax.gem(0.1, momentum=0.0), optax.sgd(0.1)
    params = expected = PARAMS
    state, ordinary_state = tx.init(params), ordinary.init(params)
    for _ in range(3):
        if pulls:
            view, state = gemjax.pull(state, params)
            assert view is params
        updates, state = tx.update(params, state, params)
        params = optax.apply_updates(params, updates)
        updates, ordinary_state = ordinary.update(expected, ordinary_state, expected)
        expected = optax.apply_updates(expected, updates)
    equal(params, expected, rtol=1e-6)


def test_without_worker_nothing_is_stale():
    seen = []
    tx = gemjax.asynchronous(spy(seen, reads=True))
    state = tx.init(PARAMS)
    later = jax.tree.map(lambda p: p + 1.0, PARAMS)
    for params in (PARAMS, later):
        _, state = tx.update(PARAMS, state, params)
        assert int(seen[-1]["staleness"]) == 0
        equal(seen[-1]["stale_params"], params)
    # After a pull since the last commit, the gradient counts as computed at the view, wherever the parameters are now.
    _, state = gemjax.pull(state, PARAMS)
    _, state = tx.update(PARAMS, state, later)
    equal(seen[-1]["stale_params"], PARAMS)


def test_a_worker_that_is_named_is_stale_until_it_pulls():
    seen = []
    tx = gemjax.asynchronous(spy(seen, reads=True))
    state = tx.init(PARAMS)
    for t in range(3):
        _, state = tx.update(PARAMS, state, jax.tree.map(lambda p: p + 1.0, PARAMS), worker=0)
        assert int(seen[-1]["staleness"]) == t
        equal(seen[-1]["stale_params"], PARAMS)


def test_params_may_be_missing_where_no_member_reads_them():
    tx = gemjax.dynsgd(0.1, num_workers=2)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), worker=0)
    equal(updates, jax.tree.map(lambda p: -0.1 * p, PARAMS), rtol=1e-6)
