"""Golden numbers of HeLoCo, of the plain outer Nesterov beside it and of weighted means of displacements.

Source: https://github.com/aaasif-isu/panofabric-engine, ``panoengine/decentralized/heloco.py`` at 4abd170 and
``tests/decoupled_heloco/test_heloco.py``, ``test_diloco.py``, ``test_merging.py`` at cbaa444 and df2e1f9.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax


@pytest.mark.parametrize(
    ("displacement", "momentum", "golden"),
    [
        ([-1.0, 0.0], [1.0, 0.0], [-0.875, 0.0]),
        ([1.0, 0.0], [-1.0, 0.0], [0.875, 0.0]),
        ([0.0, 1.0], [1.0, 0.0], np.array([0.25, 0.75]) / np.hypot(0.25, 0.75)),
        ([3.0, 1.0], [1.0, 0.0], [3.0, 1.0]),
    ],
    ids=["against", "against, mirrored", "at right angles", "along"],
)
def test_correction_of_a_block(displacement, momentum, golden):
    atom = gemjax.rules.align_with_momentum(1.0, 0.0)  # Without momentum the output is the corrected displacement.
    state = atom.init(jnp.zeros(2))
    state = state._replace(ahead=state.ahead._replace(velocity=jnp.array(momentum)))
    corrected, _ = atom.update(jnp.array(displacement), state)
    np.testing.assert_allclose(corrected, golden, rtol=1e-6, atol=1e-7)


def _scalars(tx, displacements):
    """Return the central variable, the view and the momentum after each displacement; the variable starts at 1."""
    params = jnp.ones([])
    state, found = tx.init(params), []
    for displacement in displacements:
        updates, state = tx.update(jnp.full([], displacement), state, params, worker=0)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, 0)
        found.append((float(params), float(view), float(optax.tree.get(state, "velocity"))))
    return np.array(found)


@pytest.mark.slow
def test_two_scalar_steps(x64):
    found = _scalars(gemjax.heloco(1.0, 0.9, 1), [0.1, 0.1])
    np.testing.assert_allclose(found, [[0.891, 0.882, 0.01], [0.7739, 0.7568, 0.019]], rtol=1e-12)


def _merged(displacements, steps, tokens=None, merge="radial"):
    """Return the merge of a quorum, with the same local step counts as the program."""
    tx = gemjax.asynchronous(
        gemjax.rules.merge_quorum(optax.identity(), len(steps), merge=merge, tokens=tokens), len(steps)
    )
    params = jnp.zeros(np.shape(displacements[0]))
    state, updates = tx.init(params), None
    for worker, (displacement, count) in enumerate(zip(displacements, steps, strict=True)):
        updates, state = tx.update(jnp.asarray(displacement), state, params, worker=worker, local_steps=count)
    return np.asarray(updates)


@pytest.mark.slow
def test_weights_are_tokens_squared_per_step(x64):
    """16 tokens in 2 steps and 80 in 5; one-hot displacements show the weights."""
    found = _merged(np.eye(2), [2, 5], [8.0, 16.0], "mean")
    np.testing.assert_allclose(found, [1 / 11, 10 / 11], rtol=1e-12)
    # Equal tokens per step: weights by tokens.
    np.testing.assert_allclose(_merged(np.eye(2), [2, 5], merge="mean"), [16 / 56, 40 / 56], rtol=1e-12)


@pytest.mark.slow
def test_a_radial_merge_keeps_the_weighted_radius(x64):
    direction = np.array([0.25, 0.75])
    found = _merged([[2.0, 0.0], [0.0, 4.0]], [1, 3])
    np.testing.assert_allclose(found, 3.5 * direction / np.linalg.norm(direction), rtol=1e-12)
    for opposing in ([[2.0, 0.0], [-2.0, 0.0]], np.zeros((2, 2))):
        np.testing.assert_array_equal(_merged(opposing, [1, 1]), 0.0)
    np.testing.assert_allclose(_merged([[2.0, 0.0]], [1]), [2.0, 0.0], rtol=1e-12)


@pytest.mark.slow
def test_the_syncer_merges_each_tensor(x64):
    """8 and 16 tokens in one step each weigh 0.2 and 0.8."""
    mean = np.array([0.2, 0.8])
    options = {"buffer_size": 2, "tokens": [8.0, 16.0], "fragments": 1}
    for merge, expected in (("mean", mean), ("radial", mean / np.linalg.norm(mean))):
        tx, params = gemjax.decoupled_diloco(1.0, 0.0, 2, merge=merge, **options), jnp.zeros(2)
        state = tx.init(params)
        for worker, displacement in enumerate(np.eye(2)):
            updates, state = tx.update(jnp.asarray(displacement), state, params, worker=worker, local_steps=1)
        np.testing.assert_allclose(-updates, expected, rtol=1e-12)


def test_a_quorum_weighted_by_tokens_then_heloco(x64):
    """8 and 24 tokens, displacements 0.1 and 0.3: their mean is 0.25."""
    rule = gemjax.rules.merge_quorum(gemjax.rules.align_with_momentum(1.0, 0.9), 2, merge="mean")
    tx = gemjax.asynchronous(optax.chain(rule, optax.scale(-1.0)), 2)
    params = jnp.ones([])
    state = tx.init(params)
    for worker, (displacement, steps) in enumerate([(0.1, 1), (0.3, 3)]):
        updates, state = tx.update(jnp.full([], displacement), state, params, worker=worker, local_steps=steps)
        params = optax.apply_updates(params, updates)
    view, _ = gemjax.pull(state, params, 0)
    np.testing.assert_allclose([params, view], [0.7275, 0.705], rtol=1e-12)


@pytest.mark.slow
def test_a_quorum_of_two_of_three_learners(x64):
    """10 and 30 tokens: one Nesterov step by 0.25 leads from 1 to 0.525, which the third learner pulls, too."""
    tx = gemjax.decoupled_diloco(1.0, 0.9, 3, buffer_size=2, merge="mean", tokens=[10.0, 10.0, 10.0], fragments=1)
    params = jnp.ones(4)
    state = tx.init(params)
    for worker, displacement, steps in ((0, 0.1, 1), (1, 0.3, 3)):
        updates, state = tx.update(jnp.full(4, displacement), state, params, worker=worker, local_steps=steps)
        params = optax.apply_updates(params, updates)
    for learner in range(3):
        view, state = gemjax.pull(state, params, learner)
        np.testing.assert_allclose(view, 0.525, rtol=1e-12)


def test_plain_outer_nesterov(x64):
    found = _scalars(gemjax.delayed_nesterov(1.0, 0.9, 1, buffer_size=1), [0.1, 0.1])
    np.testing.assert_allclose(found[:, [0, 2]], [[0.81, 0.1], [0.539, 0.19]], rtol=1e-12)
