"""Anchors, to which local steps are pulled."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Problem, assert_same_bits
from protocol.local_simulations import run

import gemjax
from gemjax import LocalSteps


def pulled(*strengths, params, update, anchors):
    tx = gemjax.rules.pull_to_anchors(*strengths)
    updates, _ = tx.update(update, tx.init(params), params, anchors=anchors)
    return optax.apply_updates(params, updates)


def test_anchors_pull_in_turn_after_the_step():
    """From 1 to 0 by the step, halfway to 4, a quarter of the way to -2; the order matters."""
    points = (jnp.array([4.0]), jnp.array([-2.0]))
    one = pulled(0.5, 0.25, params=jnp.array([1.0]), update=jnp.array([-1.0]), anchors=points)
    other = pulled(0.25, 0.5, params=jnp.array([1.0]), update=jnp.array([-1.0]), anchors=points[::-1])
    np.testing.assert_array_equal(one, [1.0])
    np.testing.assert_array_equal(other, [1.75])


@pytest.mark.parametrize(("strength", "expected"), [(0.0, -0.5), (1.0, 4.0), (0.5, 1.75)])
def test_the_strength_is_the_fraction_of_the_distance(strength, expected):
    tree = lambda x: {"a": jnp.full((2, 1), x, jnp.bfloat16), "b": jnp.float32(x)}
    found = pulled(strength, params=tree(0.5), update=tree(-1.0), anchors=(tree(4.0),))
    assert_same_bits(found, tree(expected))


@pytest.mark.slow
def test_anchors_are_those_of_the_last_pull():
    """Worker 1 leads at 5 from its first commit on; worker 0 is pulled there only after its next pull."""
    targets = jnp.array([[1.0], [5.0]])
    problem = Problem(lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2), jnp.zeros(1),
                      lambda worker, step: targets[worker])  # fmt: skip
    tx = optax.chain(optax.sgd(1.0), gemjax.rules.pull_to_anchors(0.5))  # To the target, then halfway to the leader.
    trace = gemjax.Trace([1, 1, 0, 0])
    result = run(LocalSteps(tx), problem, trace, tx=gemjax.lsgd(num_workers=2, strength=0.0, window=1, anchors=True))
    positions = optax.tree.get(result.opt_state, "positions")
    # Worker 1: to 5, halfway to 0 is 2.5; then to 5, halfway to itself is 3.75. Its losses: 12.5, 3.125.
    # Worker 0: at the anchor 0 from the start: to 1, halfway is 0.5, its loss 0.5: it leads; then its anchor is itself.
    np.testing.assert_allclose(positions.rows, [[0.75], [3.75]])
