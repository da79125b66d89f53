"""The protocol in compiled programs, and in slots that an engine checked out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.simulator.simulations import programs
from protocol.commits_and_pulls import ORDER, PARAMS, equal, gradients, run

import gemjax
from gemjax.protocol import slots
from gemjax.protocol.staleness import recorded_view

# --- Compiled


def commit_and_pull(tx, params, state, t, worker, view):
    updates, state = tx.update(gradients(view, t), state, params, worker=worker)
    params = optax.apply_updates(params, updates)
    view, state = gemjax.pull(state, params, worker)
    return params, state, view


@pytest.mark.parametrize("reading", ["equations", "algorithm"])
def test_scan_equals_the_loop(reading):
    tx = gemjax.gem(0.1, num_workers=3, reading=reading)

    def body(carry, inputs):
        params, state, views = carry
        t, worker = inputs
        view = jax.tree.map(lambda v: v[worker], views)
        params, state, view = commit_and_pull(tx, params, state, t, worker, view)
        return (params, state, jax.tree.map(lambda v, one: v.at[worker].set(one), views, view)), None

    views = jax.tree.map(lambda p: jnp.stack([p] * 3), PARAMS)
    inputs = jnp.arange(len(ORDER)), jnp.array(ORDER)
    (found, state, _), _ = jax.jit(lambda *xs: jax.lax.scan(body, (PARAMS, tx.init(PARAMS), views), xs))(*inputs)
    expected, loop_state, _ = run(tx)
    equal(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(state.pulled_at.value, loop_state.pulled_at.value)


@pytest.mark.slow
def test_vmap_over_seeds_rates_and_workers():
    def final(seed, rate, order):
        tx = gemjax.gem(rate, num_workers=3)
        params = {"x": jax.random.normal(jax.random.key(seed), (4,))}
        state = tx.init(params)
        for t in range(3):
            params, state, _ = commit_and_pull(tx, params, state, t, order[t], params)
        return params["x"], state.pulled_at.value

    seeds, rates = jnp.array([0, 1, 2]), jnp.array([0.1, 0.2, 0.05])
    orders = jnp.array([[0, 1, 2], [2, 2, 0], [1, 0, 1]])
    found, pulled_at = jax.jit(jax.vmap(final))(seeds, rates, orders)
    for i in range(3):
        expected, expected_at = jax.jit(final)(seeds[i], rates[i], orders[i])
        np.testing.assert_allclose(found[i], expected, rtol=1e-5)
        np.testing.assert_array_equal(pulled_at[i], expected_at)


def test_a_pull_without_jit_compiles_its_operations_once():
    state = gemjax.easgd(num_workers=2).init(PARAMS)
    counts = []
    for worker in (0, 1, 0):
        _, state = gemjax.pull(state, PARAMS, worker)
        counts.append(programs())
    assert counts[0] == counts[1] == counts[2]


def test_a_worker_number_of_few_bits_pulls_its_own_row():
    tx = gemjax.asgd(0.1, num_workers=200)
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS, worker=0)
    pulled = jax.vmap(lambda worker: gemjax.pull(state, PARAMS, worker)[1].pulled_at.value)(jnp.array([99], jnp.int8))
    np.testing.assert_array_equal(np.flatnonzero(pulled[0]), [99])


# --- Checked out


@pytest.mark.parametrize(
    "tx",
    [
        gemjax.gem(0.1, num_workers=3),
        gemjax.gem(0.1, num_workers=3, reading="code"),
        gemjax.gem(0.1, num_workers=3, reading="algorithm"),
        gemjax.dynsgd(0.1, num_workers=3),
        gemjax.multi_asgd(0.1, num_workers=3),
        optax.chain(optax.clip(0.5), gemjax.per_worker(optax.adam(0.1), num_workers=3)),
    ],
    ids=["gem", "gem-code", "gem-algorithm", "dynsgd", "multi-asgd", "adam"],
)
def test_a_slot_that_an_engine_checked_out_gives_the_same_bits(tx):
    expected, expected_state, _ = run(tx)
    params, state, views = PARAMS, tx.init(PARAMS), dict.fromkeys(ORDER, PARAMS)
    for t, worker in enumerate(ORDER):
        mine = slots.take(state, worker)
        updates, mine = tx.update(gradients(views[worker], t), mine, params, worker=worker)
        params = optax.apply_updates(params, updates)
        views[worker], mine = gemjax.pull(mine, params, worker=worker)
        state = slots.put(state, mine, worker)
    equal(params, expected)
    equal(state, expected_state)


def test_an_engine_reads_staleness_and_view_from_a_slot():
    tx = optax.chain(gemjax.gem(0.1, num_workers=3))
    params, state, _ = run(tx)
    mine = slots.take(state, 2)  # Pulled at 3 of 6 commits.
    assert int(mine[0].clock - mine[0].pulled_at.value) == 3
    equal(recorded_view(mine, params), state[0].stale_params[2])
    assert recorded_view(slots.take(gemjax.asgd(0.1, 3).init(PARAMS), 2), PARAMS) is None
    masked = optax.masked(gemjax.gem(0.1, num_workers=3), {"a": True, "b": False}).init(PARAMS)
    assert recorded_view(slots.take(masked, 2), PARAMS) is None  # Only a part of the view is kept.
