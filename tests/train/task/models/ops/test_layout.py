"""Both layouts of images: convolutions, pooling and normalisation give the same values and gradients in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gemjax.protocol.compat import enable_x64
from train.task.models.layers import BatchNorm
from train.task.models.ops.layout import ImageLayout, arrange, correlate, max_pool, pixel_means, standardise


def normal(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape)


def back(images, layout):
    """Return images in `layout` as [B, H, W, C]."""
    return images if layout is ImageLayout.CHANNELS_LAST else images.transpose(3, 1, 2, 0)


def compare(function, *inputs, rtol=1e-4, atol=1e-4):
    """Return `function(layout, *inputs)` and its gradients in both layouts, for images [B, H, W, C]."""

    @jax.jit
    def run(*inputs):
        results = []
        for layout in ImageLayout:
            out, pull_back = jax.vjp(lambda *inputs, layout=layout: function(layout, *inputs), *inputs)
            cotangent = jnp.asarray(normal(9, *out.shape), out.dtype)
            results.append((out, *pull_back(cotangent)))
        return results

    for one, other in zip(*run(*inputs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


CASES = [  # Kernel, stride, padding, height, width.
    (1, 1, 0, 6, 5),
    (1, 2, 0, 6, 5),
    (3, 1, 1, 6, 5),
    (3, 2, 1, 6, 7),
    (5, 1, 2, 6, 8),
    (7, 1, 3, 8, 8),
    (7, 2, 3, 8, 8),
    (3, 1, 0, 6, 5),
    (11, 4, 2, 13, 15),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stride", "padding", "height", "width"), CASES)
def test_convolutions_are_the_same_in_both_layouts(size, stride, padding, height, width):
    def convolved(layout, images, kernel):
        return back(correlate(arrange(images, layout), kernel, layout, stride, padding), layout)

    inputs = normal(0, 3, height, width, 2), normal(1, size, size, 2, 4)
    compare(convolved, *(jnp.asarray(array, jnp.float32) for array in inputs), atol=1e-3)


def test_a_convolution_by_hand():
    image = jnp.arange(9.0).reshape(1, 3, 3, 1)
    kernel = jnp.zeros((3, 3, 1, 1)).at[0, 1].set(1.0).at[1, 1].set(10.0)  # The pixel above, and ten times this one.
    expected = [[0, 10, 20], [30, 41, 52], [63, 74, 85]]
    for layout in ImageLayout:
        convolved = jax.jit(lambda layout=layout: back(correlate(arrange(image, layout), kernel, layout, 1, 1), layout))
        out = convolved()
        np.testing.assert_array_equal(out[0, :, :, 0], expected)


def test_a_convolution_under_vmap():
    images, kernels = jnp.asarray(normal(0, 2, 3, 4, 4, 2)), jnp.asarray(normal(1, 2, 3, 3, 2, 3))

    def gradients(images, kernel, layout):
        total = lambda images, kernel: jnp.sum(correlate(arrange(images, layout), kernel, layout, 1, 1) ** 2)
        return jax.grad(total, argnums=(0, 1))(images, kernel)

    ours, theirs = (
        jax.jit(jax.vmap(lambda *inputs, layout=layout: gradients(*inputs, layout)))(images, kernels)
        for layout in (ImageLayout.BATCH_LAST, ImageLayout.CHANNELS_LAST)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (3, 2, 0), (3, 2, 1)])
def test_pooling_takes_the_largest_and_sends_its_gradient_there(size, stride, padding):
    images = jnp.asarray(normal(0, 2, 7, 7, 3), jnp.float32)
    compare(lambda layout, images: back(max_pool(arrange(images, layout), size, stride, padding), layout), images)
    window, pads = (size, size), [(padding, padding)] * 2

    @jax.jit
    def both(images):
        return max_pool(images, size, stride, padding), nn.max_pool(images, window, (stride, stride), pads)

    np.testing.assert_array_equal(*both(images))


@pytest.mark.slow
def test_a_tie_in_a_pool_sends_its_gradient_to_one_place():
    gradient = jax.jit(jax.grad(lambda images: max_pool(images, 2, 2).sum()))(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[1, 0], [0, 0]])


def test_means_of_pixels_come_out_alike():
    images = jnp.asarray(normal(0, 2, 3, 4, 5), jnp.float32)
    compare(lambda layout, images: pixel_means(arrange(images, layout), layout), images)


@pytest.mark.parametrize("layout", ImageLayout)
def test_standardised_images_have_the_mean_and_deviation_asked_for(layout):
    images, scale, bias = 3 + 2 * normal(0, 4, 3, 2, 2), np.array([1.0, 5.0]), np.array([0.0, -1.0])
    arrays = (jnp.asarray(array, jnp.float32) for array in (images, scale, bias))
    images_in, *rest = arrays
    out, mean, variance = standardise(arrange(images_in, layout), *rest, layout, 1e-5)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(variance, images.var((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(back(out, layout).mean((0, 1, 2)), bias, atol=1e-5)
    np.testing.assert_allclose(back(out, layout).std((0, 1, 2)), scale, rtol=1e-4)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("layout", ImageLayout)
def test_batch_normalisation_is_that_of_flax(layout, train):
    """Values, gradients and running statistics."""
    with enable_x64(True):
        images = jnp.asarray(2 + 3 * normal(0, 3, 4, 2, 2))
        params = {"scale": jnp.array([0.5, 2.0]), "bias": jnp.array([1.0, -1.0])}
        statistics = {"mean": jnp.array([0.1, 0.2]), "var": jnp.array([2.0, 3.0])}
        weights = jnp.asarray(normal(1, *images.shape))
        theirs = nn.BatchNorm(momentum=0.9, use_running_average=not train, dtype=jnp.float64, param_dtype=jnp.float64)

        def run(apply, params, images):
            out, changed = apply({"params": params, "batch_stats": statistics}, images)
            return jnp.sum(out * weights), (out, changed)

        def mine(variables, images):
            module = BatchNorm(layout)
            out, changed = module.apply(variables, arrange(images, layout), train, mutable=["batch_stats"])
            return back(out, layout), changed

        ours = lambda *inputs: theirs.apply(*inputs, mutable=["batch_stats"])
        results = [
            jax.jit(jax.value_and_grad(lambda *inputs, apply=apply: run(apply, *inputs), (0, 1), has_aux=True))(
                params, images
            )
            for apply in (mine, ours)
        ]
        for one, other in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_the_type_of_statistics_stays():
    with enable_x64(True):
        variables = {
            "params": {"scale": jnp.ones(2, jnp.float32), "bias": jnp.zeros(2, jnp.float32)},
            "batch_stats": {"mean": jnp.zeros(2, jnp.float32), "var": jnp.ones(2, jnp.float32)},
        }
        images = jnp.asarray(normal(0, 3, 2, 2, 2), jnp.float64)
        _, changed = BatchNorm(ImageLayout.CHANNELS_LAST).apply(variables, images, True, mutable=["batch_stats"])
        assert {leaf.dtype for leaf in jax.tree.leaves(changed)} == {jnp.dtype("float32")}
