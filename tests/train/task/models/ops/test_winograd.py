"""Winograd's convolution against JAX's own: values, both gradients, and the choice of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gemjax.protocol.compat import enable_x64
from train.task.models.ops import winograd
from train.task.models.ops.convolution import convolve
from train.task.models.ops.correlation import correlate
from train.task.models.ops.layout import ImageLayout
from train.task.models.ops.winograd import convolve_tiles, pays


def normal(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape)


def direct(images, kernel, padding):
    layouts = ("CHWN", "HWIO", "CHWN")
    return lax.conv_general_dilated(images, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=layouts)


@functools.partial(jax.jit, static_argnums=(0, 4))
def with_gradients(convolution, images, kernel, cotangent, padding):
    out, pull_back = jax.vjp(lambda *inputs: convolution(*inputs, padding), images, kernel)
    return out, *pull_back(cotangent)


def inputs(size, padding, height, width, channels=3, features=4, batch=2):
    extents = [extent + 2 * padding + 1 - size for extent in (height, width)]
    return (
        normal(0, channels, height, width, batch),
        normal(1, size, size, channels, features),
        normal(2, features, *extents, batch),
    )


CASES = [  # Kernel, padding, height, width.
    (3, 1, 8, 12),
    (3, 1, 7, 5),
    (3, 0, 6, 9),
    (3, 2, 1, 2),
    (5, 0, 12, 12),
    (5, 2, 5, 7),
    (5, 4, 3, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "padding", "height", "width"), CASES)
def test_tiles_make_the_convolution_and_its_gradients(size, padding, height, width):
    with enable_x64(True):
        arrays = [jnp.asarray(array) for array in inputs(size, padding, height, width)]
        ours, theirs = (with_gradients(way, *arrays, padding) for way in (convolve_tiles, direct))
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == jnp.float64
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


def relative(found, exact):
    """Return the root of the mean square error in units of the exact values."""
    return np.sqrt(np.mean((np.asarray(found, np.float64) - exact) ** 2) / np.mean(np.square(exact)))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "padding", "bounds"), [(3, 1, (6, 6, 8)), (5, 0, (6, 6, 12))])
def test_single_precision_loses_little(size, padding, bounds):
    """Errors in units of those of the product with the values under windows, which are measured, not assumed."""
    arrays = inputs(size, padding, 12, 12, 32, 32, 8)
    with enable_x64(True):
        exact = with_gradients(direct, *(jnp.asarray(array) for array in arrays), padding)
        exact = [np.asarray(array) for array in exact]
    single = [jnp.asarray(array, jnp.float32) for array in arrays]
    ours = with_gradients(convolve_tiles, *single, padding)
    plain = with_gradients(under_windows, *single, padding)
    for one, other, value, bound in zip(ours, plain, exact, bounds, strict=True):
        assert relative(one, value) < bound * relative(other, value)


def under_windows(images, kernel, padding):
    size = kernel.shape[0]
    images = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = (extent + 1 - size for extent in images.shape[1:3])
    columns = jnp.stack([images[:, i : i + height, j : j + width] for i in range(size) for j in range(size)])
    rows = kernel.reshape(-1, kernel.shape[3]).T
    return (rows @ columns.reshape(rows.shape[1], -1)).reshape(-1, height, width, images.shape[3])


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 5])
def test_tiles_under_vmap_and_in_a_loop(size):
    arrays = [inputs(size, 1, 6, 7), inputs(size, 1, 6, 7)]
    arrays[1] = [2 * array + 1 for array in arrays[1]]
    stacked = [jnp.asarray(np.stack(pair), jnp.float32) for pair in zip(*arrays, strict=True)]
    one = lambda images, kernel, cotangent: with_gradients(convolve_tiles, images, kernel, cotangent, 1)
    other = lambda images, kernel, cotangent: with_gradients(direct, images, kernel, cotangent, 1)
    expected = jax.jit(jax.vmap(other))(*stacked)
    for found in (
        jax.jit(jax.vmap(one))(*stacked),
        jax.jit(lambda *arrays: lax.map(lambda row: one(*row), arrays))(*stacked),
    ):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("side", "size", "channels", "padding", "expected"),
    [
        (32, 3, 16, 1, True),
        (32, 3, 3, 1, False),  # Few channels.
        (4, 3, 64, 1, True),
        (5, 3, 64, 1, False),  # Four tiles for little more than one.
        (2, 3, 64, 1, False),
        (12, 5, 64, 0, True),
        (12, 5, 10, 0, False),
        (8, 7, 64, 3, False),  # No tile of 6x6 pixels holds the windows of a kernel of 7x7 pixels.
        (8, 1, 64, 0, False),
        (8, 3, 64, 3, False),  # More padding than the window.
    ],
)
def test_tiles_are_chosen_where_they_pay(side, size, channels, padding, expected):
    images, kernel = shaped(channels, side, side, 2), shaped(size, size, channels, 64)
    assert pays(images, kernel, padding) == expected
    assert not pays(images, shaped(size, size, channels, 2), padding)
    assert not pays(shaped(channels, side, side, 2, dtype=jnp.bfloat16), kernel, padding)


@pytest.mark.parametrize(("stride", "expected"), [(1, 1), (2, 0)])
def test_correlations_take_tiles_at_stride_1(stride, expected, monkeypatch):
    assert calls(monkeypatch, lambda x, k: correlate(x, k, ImageLayout.BATCH_LAST, stride, 1), (8, 8, 8, 2)) == expected


@pytest.mark.parametrize("pool", [False, True])
def test_convolutions_take_tiles(pool, monkeypatch):
    run = lambda x, k: convolve(x, k, jnp.zeros(8), pool=pool, implementation="matmul")
    assert calls(monkeypatch, run, (2, 8, 8, 8)) == 1


def calls(monkeypatch, run, shape):
    """Return how many times a convolution of 8 channels calls `convolve_tiles`."""
    seen = []
    original = winograd.convolve_tiles
    monkeypatch.setattr(winograd, "convolve_tiles", lambda *inputs: seen.append(1) or original(*inputs))
    jax.eval_shape(run, shaped(*shape), shaped(3, 3, 8, 8))
    return len(seen)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "pool", "shape"), [(5, True, (12, 12)), (3, True, (9, 11)), (3, False, (6, 10))])
def test_pooled_tiles_are_pooled_convolutions(size, pool, shape):
    images, kernel, bias = normal(0, 2, *shape, 16), normal(1, size, size, 16, 17), normal(2, 17)
    with enable_x64(True):
        arrays = [jnp.asarray(array) for array in (images, kernel, bias)]
        assert pays(shaped(16, *shape, 2), arrays[1])

        @functools.partial(jax.jit, static_argnums=0)
        def run(implementation, *arrays):
            total = lambda *arrays: jnp.sum(convolve(*arrays, pool=pool, implementation=implementation) ** 2)
            return jax.value_and_grad(total, argnums=(0, 1, 2))(*arrays)

        ours, theirs = (jax.tree.leaves(run(name, *arrays)) for name in ("matmul", "lax"))
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 8, 8, 8), (2, 2, 8, 8)], ids=["no images", "smaller than the kernel"])
def test_nothing_is_convolved_to_nothing(shape):
    kernel = jnp.ones((3, 3, 8, 8))
    found = [convolve(jnp.ones(shape), kernel, jnp.zeros(8), implementation=name).shape for name in ("matmul", "lax")]
    assert found[0] == found[1]
