import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import reference_outer, runs

import gemjax

N = runs.NUM_WORKERS
BLOCKS = slice(0, 3), slice(3, 9)  # The leaves of ``runs.tree``.
RENAMED = {"keep_above": "c_ok", "shrink": "k_s", "max_shrink": "beta_max", "turn": "k_d", "caution": "kappa"}
EAGER = {"keep_above": 0.6, "shrink": 3.0, "max_shrink": 0.8, "turn": 2.0, "caution": 0.5}


def _reference(weight=None, **keywords):
    renamed = {RENAMED[key]: value for key, value in keywords.items()}
    rho = 1 / np.sqrt(N) if weight is None else weight
    return reference_outer.heloco(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, 0.7, BLOCKS, rho, **renamed)


@pytest.mark.parametrize("keywords", [{}, {"weight": 0.8, **EAGER}], ids=["defaults", "eager"])
def test_agrees_with_the_paper(x64, keywords):
    found, _ = runs.run(gemjax.heloco(runs.schedule, 0.7, N, **keywords))
    expected, _, cases = _reference(**keywords)
    assert min(cases[case] for case in ("keep", "shrink", "rotate")) > 20
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_views_agree_with_the_paper(x64):
    found, _ = runs.run(gemjax.heloco(runs.schedule, 0.7, N), views_instead=True)
    _, sent, _ = _reference()
    np.testing.assert_allclose(found, sent, rtol=0, atol=1e-12)


def _aligned(displacement, mean, **keywords):
    """Return the aligned ``displacement`` for the mean ``mean``."""
    tx = gemjax.rules.align_with_momentum(1.0, 0.5, **keywords)
    state = tx.init(displacement)
    state = state._replace(ahead=state.ahead._replace(velocity=mean))
    updates, new = tx.update(displacement, state)
    return jax.tree.map(lambda u, m: u - 0.5 * m, updates, new.ahead.velocity)


def test_a_displacement_along_the_momentum_is_kept():
    mean, displacement = jnp.array([2.0, 0.0]), jnp.array([0.3, 1.0])  # At a cosine of 0.287.
    np.testing.assert_allclose(_aligned(displacement, mean), displacement, rtol=1e-6)
    assert not np.allclose(_aligned(displacement, mean, keep_above=0.3), displacement, rtol=1e-2)


def test_a_displacement_at_right_angles_is_turned_and_keeps_its_length():
    found = _aligned(jnp.array([0.0, 4.0]), jnp.array([2.0, 0.0]), caution=3.0)
    way = 4 / (4 + 3 * 2)
    np.testing.assert_allclose(jnp.linalg.norm(found), 4.0, rtol=1e-6)
    np.testing.assert_allclose(found[0] / found[1], way / (1 - way), rtol=1e-6)


def test_it_is_turned_no_further_than_the_momentum():
    found = _aligned(jnp.array([0.0, 4.0]), jnp.array([2.0, 0.0]), turn=100.0)
    np.testing.assert_allclose(found, [4.0, 0.0], atol=1e-6)


def test_only_the_opposing_component_shrinks():
    mean, displacement = jnp.array([2.0, 0.0]), jnp.array([-3.0, 4.0])
    part = 0.5 * 0.6 * 5 / (5 + 3 * 2)
    np.testing.assert_allclose(_aligned(displacement, mean), [-3.0 * (1 - part), 4.0], rtol=1e-6)
    np.testing.assert_allclose(_aligned(displacement, mean, shrink=100.0), [-1.5, 4.0], rtol=1e-6)
    np.testing.assert_allclose(_aligned(displacement, mean, shrink=100.0, max_shrink=1.0), [0.0, 4.0], atol=1e-6)


def test_each_tensor_is_aligned_by_itself():
    displacement = {"a": jnp.array([1.0, 0.0]), "b": jnp.array([[-1.0], [0.0]])}
    found = _aligned(displacement, {"a": jnp.array([1.0, 0.0]), "b": jnp.array([[1.0], [0.0]])})
    np.testing.assert_allclose(found["a"], displacement["a"], rtol=1e-6)
    np.testing.assert_allclose(found["b"], displacement["b"] * (1 - 0.5 / 4), rtol=1e-6)


def test_if_all_displacements_are_kept_it_is_momentum_lookahead():
    """The same displacements make the same updates, whatever their views."""
    ours = gemjax.heloco(0.1, 0.7, 2, keep_above=-1.0, weight=1.0)
    theirs = gemjax.momentum_lookahead(0.1, 0.7, 2)
    params = jnp.zeros(3)
    state, theirs_state = ours.init(params), theirs.init(params)
    for t in range(6):
        displacement = jnp.asarray(np.random.default_rng(t).normal(size=3), jnp.float32) * (-1) ** t
        updates, state = ours.update(displacement, state, params, worker=t % 2)
        expected, theirs_state = theirs.update(displacement, theirs_state, params, worker=t % 2)
        np.testing.assert_array_equal(updates, expected)


def test_a_displacement_counts_one_over_the_root_of_the_workers():
    def first(**keywords):
        tx = gemjax.heloco(1.0, 0.0, **keywords)
        return tx.update(jnp.ones(1), tx.init(jnp.zeros(1)), jnp.zeros(1), worker=0)[0].item()

    assert first() == -1.0
    assert first(num_workers=4) == -0.5
    assert first(num_workers=4, weight=0.25) == -0.25


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_nothing_of_length_zero_is_compared(dtype, eps):
    """No NaN occurs at the first commit or for a displacement of zero, even in intermediate values."""
    tx = gemjax.heloco(0.5, 0.5, 2, eps=eps)
    params = {"a": jnp.ones(3, dtype), "empty": jnp.zeros((0, 2), dtype)}
    state = tx.init(params)
    for displacement in (0.0, 1.0, 0.0, -1.0):
        commit = jax.tree.map(lambda p, d=displacement: d * jnp.ones_like(p), params)
        with jax.debug_nans(True):
            updates, state = tx.update(commit, state, params, worker=0)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker=0)
        assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((updates, view)))
    assert params["a"].dtype == dtype


def test_in_half_precision_lengths_do_not_overflow():
    """In float16 the square of 300 is infinite, and so is the sum of 70,000 ones."""
    mean, displacement = jnp.full(70_000, 300.0, jnp.float16), jnp.full(70_000, -300.0, jnp.float16)
    np.testing.assert_allclose(_aligned(displacement, mean)[:3], -300.0 * (1 - 0.5 / 4), rtol=1e-2)
