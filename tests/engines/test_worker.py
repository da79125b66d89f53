"""Checks for finite numbers, which workers compute."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gemjax.engines.worker import all_finite, sound_or_unchanged

DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)
SHAPES = ((), (1,), (7,), (300, 20), (5, 4, 3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_are_finite(dtype):
    largest = [sign * jnp.full(shape, jnp.finfo(dtype).max, dtype) for shape in SHAPES for sign in (1, -1)]
    assert jax.jit(all_finite)(largest)
    assert all_finite(largest)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_number_that_is_not_finite_is_found_anywhere(dtype):
    find = jax.jit(all_finite)
    for shape, bad in itertools.product(SHAPES, (np.nan, np.inf, -np.inf)):
        size = int(np.prod(shape))
        for place in {0, size // 2, size - 1}:
            array = np.full(size, jnp.finfo(dtype).max, dtype)
            array[place] = bad
            assert not find([jnp.zeros(3), jnp.asarray(array.reshape(shape))]), (shape, bad, place)


def test_infinities_do_not_cancel():
    assert not jax.jit(all_finite)([jnp.array([[jnp.inf], [-jnp.inf]])])


def test_nothing_is_finite():
    assert all_finite([])
    assert all_finite([jnp.zeros((0, 3)), jnp.zeros((3, 0)), jnp.array([2**31 - 1])])


def test_many_at_once():
    arrays = jnp.ones((4, 3, 2)).at[2, 1, 0].set(jnp.nan)
    np.testing.assert_array_equal(jax.vmap(all_finite)([arrays]), [True, True, False, True])


def test_every_platform_has_a_check():
    lowered = jax.jit(all_finite).trace([jnp.ones((8, 4))])
    assert "dot_general" in lowered.lower(lowering_platforms=("cpu",)).as_text()
    for platform in ("cuda", "tpu"):
        text = lowered.lower(lowering_platforms=(platform,)).as_text()
        assert "dot_general" not in text
        assert "is_finite" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_sound", [lambda before, after: all_finite(after), lambda *trees: sound_or_unchanged(*trees, trees[0])]
)
def test_a_program_grows_as_the_number_of_its_arrays(is_sound):
    """XLA:CPU would compute a sum of all checks anew for each array that depends on it."""

    def commit(params):
        after = {name: array - 0.1 * jnp.cos(array) for name, array in params.items()}
        return jax.tree.map(functools.partial(jnp.where, is_sound(params, after)), after, params)

    lengths = []
    for count in (30, 60):
        program = jax.jit(commit).lower({str(index): jnp.ones((3, 2)) for index in range(count)}).compile()
        lengths.append(len(program.as_text().splitlines()))
    assert lengths[1] < 2.5 * lengths[0]
