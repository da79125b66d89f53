"""The memory layout of images inside deep networks, and the operations that depend on it.

Accelerators run convolutions best on images [B, H, W, C]; CPUs are fastest on [C, H, W, B], where the values
under a window are a stack of contiguous slices (see `train.task.models.ops.convolution`). A deep network converts
its images once, at its input, so that nothing is transposed between its layers. Rows and columns
are axes 1 and 2 in both. All functions here give the same values and gradients in both up to rounding.

On CPUs, simulations of 16 and 64 workers with the networks of claims and benchmark take 7 to 37 times as long with XLA's own
convolution.
"""

from __future__ import annotations

import enum
import functools

import jax
import jax.numpy as jnp
from jax import lax

from train.task.models.ops.convolution import default_implementation, largest


class ImageLayout(enum.Enum):
    """The order of the axes of images; the value is the axis of channels."""

    CHANNELS_LAST = 3  # [B, H, W, C]
    BATCH_LAST = 0  # [C, H, W, B]

    @classmethod
    def of(cls, implementation: str | None = None) -> ImageLayout:
        """Return the layout for `"lax"` or `"matmul"`; for `None` that of JAX's default backend."""
        if (implementation or default_implementation()) == "lax":
            return cls.CHANNELS_LAST
        return cls.BATCH_LAST


def arrange(images: jax.Array, layout: ImageLayout) -> jax.Array:
    """Return images [B, H, W, C] in `layout`."""
    return images if layout is ImageLayout.CHANNELS_LAST else images.transpose(3, 1, 2, 0)


def correlate(
    images: jax.Array, kernel: jax.Array, layout: ImageLayout, stride: int = 1, padding: int = 0
) -> jax.Array:
    """Return the convolution of `images` in `layout` with `kernel` [k, k, C, O].

    `padding` pixels of zeros are put on every side first, as PyTorch counts them: k // 2 keeps the size at stride 1.
    """
    size = kernel.shape[0]
    if layout is ImageLayout.CHANNELS_LAST:
        return lax.conv_general_dilated(
            images, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    if padding:
        images = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = ((extent - size) // stride + 1 for extent in images.shape[1:3])
    # Shifted rows first and of these shifted columns: 2 k slices instead of k * k, which compile in a fraction of the time.
    rows = jnp.concatenate([images[:, _every(stride, i, height)] for i in range(size)])
    columns = jnp.concatenate([rows[:, :, _every(stride, j, width)] for j in range(size)])
    # The kernel as a matrix [O, k * k * C]: XLA:CPU multiplies faster by this layout.
    rows_of_kernel = kernel.transpose(3, 1, 0, 2).reshape(kernel.shape[3], -1)
    out = rows_of_kernel @ columns.reshape(columns.shape[0], -1)
    return out.reshape(-1, height, width, images.shape[3])


def _every(stride: int, first: int, count: int) -> slice:
    return slice(first, first + stride * (count - 1) + 1, stride)


def per_channel(vector: jax.Array, layout: ImageLayout) -> jax.Array:
    """Return a vector [C] in a shape that broadcasts against images in `layout`."""
    return vector.reshape((1, 1, 1, -1) if layout is ImageLayout.CHANNELS_LAST else (-1, 1, 1, 1))


def pixel_means(images: jax.Array, layout: ImageLayout) -> jax.Array:
    """Return the mean of each channel of each image, [B, C]."""
    means = images.mean((1, 2))
    return means if layout is ImageLayout.CHANNELS_LAST else means.T


def channel_means(images: jax.Array, layout: ImageLayout) -> jax.Array:
    """Return the mean of each channel over all images, [C]."""
    if layout is ImageLayout.CHANNELS_LAST:
        return images.mean((0, 1, 2))
    rows = images.reshape(images.shape[0], -1)
    return rows @ jnp.full(rows.shape[1], 1 / rows.shape[1], rows.dtype)  # XLA:CPU multiplies faster than it adds.


def max_pool(images: jax.Array, size: int, stride: int, padding: int = 0) -> jax.Array:
    """Return the largest value under each window, in either layout; its gradient goes to the first largest one."""
    if padding:
        low = jnp.finfo(images.dtype).min
        images = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=low)
    height, width = ((extent - size) // stride + 1 for extent in images.shape[1:3])
    slices = [
        images[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
        for i in range(size)
        for j in range(size)
    ]
    return largest(jnp.stack(slices), size * size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def standardise(
    images: jax.Array, scale: jax.Array, bias: jax.Array, layout: ImageLayout, epsilon: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `images` with mean `bias` [C] and deviation `scale` [C], and their former means and variances [C].

    No gradient flows through the means and variances that are returned.
    """
    out, (_, mean, _, _), variance = _standardised(images, scale, bias, layout, epsilon)
    return out, mean, variance


def _standardised(images, scale, bias, layout, epsilon):
    mean = channel_means(images, layout)
    centred = images - per_channel(mean, layout)
    variance = channel_means(jnp.square(centred), layout)
    inverse = lax.rsqrt(variance + epsilon)
    out = centred * per_channel(inverse * scale, layout) + per_channel(bias, layout)
    return out, (images, mean, inverse, scale), variance


def _standardise_forward(images, scale, bias, layout, epsilon):
    out, saved, variance = _standardised(images, scale, bias, layout, epsilon)
    return (out, saved[1], variance), saved


def _standardise_backward(layout, epsilon, saved, cotangents):
    del epsilon
    images, mean, inverse, scale = saved
    cotangent, count = cotangents[0], images.size // mean.size
    unit = (images - per_channel(mean, layout)) * per_channel(inverse, layout)
    mean_bias = channel_means(cotangent, layout)
    mean_scale = channel_means(cotangent * unit, layout)
    rest = cotangent - per_channel(mean_bias, layout) - unit * per_channel(mean_scale, layout)
    return rest * per_channel(inverse * scale, layout), mean_scale * count, mean_bias * count


standardise.defvjp(_standardise_forward, _standardise_backward)
