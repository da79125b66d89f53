"""Tests of the random crops and mirror images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.task.data import augment as module

augment = jax.jit(module.augment, static_argnames=("pad", "flip"))


def coordinates(count=40, height=12, width=11):
    """Return images whose two channels are the row and the column of a pixel, counted from 1."""
    rows, columns = np.meshgrid(np.arange(1, height + 1), np.arange(1, width + 1), indexing="ij")
    return jnp.asarray(np.tile(np.stack([rows, columns], -1).astype(np.float32), (count, 1, 1, 1)))


def moves(images):
    """Return (down, right, mirrored) of augmented `coordinates`, read off a pixel in the middle and its neighbour."""
    images = np.asarray(images, int)
    height, width = np.array(images.shape[1:3]) // 2
    row, column = images[:, height, width].T
    mirrored = images[:, height, width + 1, 1] < column
    where = np.where(mirrored, images.shape[2] - 1 - width, width)
    return row - 1 - height, column - 1 - where, mirrored


def reference(image, down, right, mirrored, pad):
    """Return the window at (down, right) of the zero-padded image, mirrored or not."""
    height, width = image.shape[:2]
    framed = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    window = framed[pad + down : pad + down + height, pad + right : pad + right + width]
    return window[:, ::-1] if mirrored else window


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "pad", "flip"), [(np.uint8, 4, True), (np.float32, 2, False), (jnp.bfloat16, 1, True)]
)
def test_every_image_is_a_crop_among_zeros_mirrored_or_not(dtype, pad, flip):
    key = jax.random.key(3)
    down, right, mirrored = moves(augment(coordinates(), key, pad=pad, flip=flip))
    images = np.random.RandomState(0).randint(0, 256, (40, 12, 11, 3)).astype(dtype)
    out = augment(jnp.asarray(images), key, pad=pad, flip=flip)
    assert out.dtype == dtype
    expected = [reference(*each, pad) for each in zip(images, down, right, mirrored, strict=True)]
    np.testing.assert_array_equal(np.asarray(out), expected)
    assert mirrored.any() == flip


@pytest.mark.slow
def test_double_precision_is_kept(x64):
    images = np.random.RandomState(0).standard_normal((40, 12, 11, 3))
    down, right, mirrored = moves(augment(coordinates(), jax.random.key(0)))
    out = augment(jnp.asarray(images), jax.random.key(0))
    assert out.dtype == np.float64
    expected = [reference(*each, 4) for each in zip(images, down, right, mirrored, strict=True)]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.slow
def test_shifts_and_mirrors_are_uniform_and_independent():
    count, pad = 20_000, 4
    down, right, mirrored = moves(augment(coordinates(count), jax.random.key(1), pad=pad))
    drawn = np.stack([down + pad, right + pad, mirrored]).astype(int)
    times = np.zeros((9, 9, 2))
    np.add.at(times, tuple(drawn), 1)
    expected = count / times.size
    chi_squared = ((times - expected) ** 2 / expected).sum()
    freedom = times.size - 1
    assert abs(chi_squared - freedom) < 4 * np.sqrt(2 * freedom)


def test_a_key_decides_all():
    images = coordinates()
    one, again, other = (np.asarray(augment(images, jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any(axis=(1, 2, 3)).mean() > 0.9


def test_it_is_the_same_compiled_in_a_loop():
    images, keys = coordinates(), jax.random.split(jax.random.key(2), 3)
    _, looped = jax.jit(lambda: jax.lax.scan(lambda carry, key: (carry, augment(images, key)), 0, keys))()
    for out, key in zip(looped, keys, strict=True):
        np.testing.assert_array_equal(out, augment(images, key))


def test_nothing_to_do_gives_the_image_back():
    images = coordinates()
    np.testing.assert_array_equal(augment(images, jax.random.key(0), pad=0, flip=False), images)
