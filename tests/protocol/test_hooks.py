"""Nodes of a state that are called at each pull."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.protocol import slots
from gemjax.protocol.hooks import LookAhead, Position, Refusals
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import pull_with_anchors

PARAMS = jnp.array([1.0, -2.0])


class Doubling(NamedTuple):
    """Node that counts pulls, adds the central variable to the view and sends the earlier view as an anchor."""

    pulls: Any

    def on_pull(self, params, view, moved):
        return Doubling(self.pulls + 1), view + params, (view,)


def member(node):
    """Return a member whose state is one node, per worker or shared."""
    return optax.GradientTransformationExtraArgs(lambda params: node, lambda u, state, params=None, **_: (u, state))


def doubling(num_workers=2):
    return gemjax.asynchronous(member(Slots(Doubling(jnp.int32(0)))), num_workers)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("checked_out", [False, True])
def test_a_second_pull_at_the_same_clock_leaves_the_node(compiled, checked_out):
    """A trace records one of the two. Both return the same view."""
    tx = doubling()
    pull, state, counts = jax.jit(gemjax.pull) if compiled else gemjax.pull, tx.init(PARAMS), []
    for commits in (False, True, False, False, True, True, False):
        if commits:
            _, state = tx.update(PARAMS, state, PARAMS, worker=0)
        if checked_out:
            view, mine = pull(slots.take(state, 1), PARAMS, 1)
            state = slots.put(state, mine, 1)
        else:
            view, state = pull(state, PARAMS, 1)
        np.testing.assert_array_equal(view, 2 * PARAMS)
        counts.append(int(state.inner_state[1].pulls))
    assert counts == [0, 1, 1, 1, 2, 3, 3]
    assert int(state.inner_state[0].pulls) == 0


ARRANGED = {
    "side by side": lambda: optax.chain(doubling(), doubling()),
    "in one": lambda: gemjax.asynchronous(optax.chain(*[member(Slots(Doubling(jnp.int32(0))))] * 2), 2),
    "one inside": lambda: gemjax.asynchronous(optax.chain(member(Slots(Doubling(jnp.int32(0)))), doubling()), 2),
    "one inside, first": lambda: gemjax.asynchronous(optax.chain(doubling(), member(Slots(Doubling(jnp.int32(0))))), 2),
    "injected": lambda: optax.inject_hyperparams(lambda unused: optax.chain(doubling(), doubling()))(unused=1.0),
}


@pytest.mark.parametrize("arranged", ARRANGED)
def test_nodes_are_called_in_order_and_each_sees_the_central_variable(arranged):
    tx = ARRANGED[arranged]()
    state = tx.init(PARAMS)
    for _ in range(2):  # The second time, a commit has moved every clock.
        view, after, anchors = pull_with_anchors(state, PARAMS, 1)
        np.testing.assert_array_equal(view, 3 * PARAMS)
        np.testing.assert_array_equal(anchors, [PARAMS, 2 * PARAMS])
        assert jax.tree.structure(after) == jax.tree.structure(state)
        _, state = tx.update(PARAMS, after, PARAMS, worker=0)
    counts = [leaf for path, leaf in jax.tree.leaves_with_path(after) if "pulls" in jax.tree_util.keystr(path)]
    np.testing.assert_array_equal(counts, [[0, 1]] * 2)


def test_every_wrapper_records_the_view_of_all_nodes():
    """A wrapper may call its own nodes before others change the view."""
    reads = member(gemjax.rules.ReadsStaleParams())
    first = gemjax.asynchronous(optax.chain(reads, member(Slots(Doubling(jnp.int32(0))))), 2)
    inside = gemjax.asynchronous(optax.chain(reads, doubling()), 2)
    tx = optax.chain(first, gemjax.asynchronous(optax.chain(inside, doubling()), 2))
    view, state = gemjax.pull(tx.init(PARAMS), PARAMS, 1)
    np.testing.assert_array_equal(view, 4 * PARAMS)
    for wrapper in state:
        np.testing.assert_array_equal(wrapper.stale_params[1], view)
        np.testing.assert_array_equal(wrapper.stale_params[0], PARAMS)


def test_the_nodes_of_the_library():
    assert Position(PARAMS).on_pull(0 * PARAMS, 0 * PARAMS, True) == (Position(PARAMS), PARAMS, ())
    node = LookAhead(PARAMS, jnp.float32(-0.5))
    kept, view, anchors = node.on_pull(0 * PARAMS, PARAMS, True)
    assert kept is node
    assert anchors == ()
    np.testing.assert_array_equal(view, 1.5 * PARAMS)
    np.testing.assert_allclose(node.length(), 0.5 * np.sqrt(2.5))


def counting_in_update():
    """Return a member that refuses commits by raising its count."""
    update = lambda updates, node, params=None, *, staleness, **_: (updates, Refusals(node.count + (staleness >= 2)))
    return optax.GradientTransformationExtraArgs(lambda params: Refusals(jnp.int32(0)), update)


def test_a_rule_may_raise_its_count_in_update():
    tx = gemjax.asynchronous(optax.chain(counting_in_update(), optax.trace(0.9), optax.sgd(0.1)), 2)
    state = before = tx.init(PARAMS)
    for worker in (0, 0, 1):
        before = state
        updates, state = tx.update(PARAMS, state, PARAMS, worker=worker)
    np.testing.assert_array_equal(updates, 0 * PARAMS)
    assert int(state.clock) == 2
    assert int(state.inner_state[0].count) == 1
    np.testing.assert_array_equal(state.inner_state[1].trace, before.inner_state[1].trace)
