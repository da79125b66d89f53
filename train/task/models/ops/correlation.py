"""Convolutions with padding and stride, in the layouts of `train.task.models.ops.layout`.

Channels last they are `jax.lax.conv_general_dilated`. Batch last they are products of the kernel and the values
under its windows. Where the size of images is kept, these are made for a few rows at a time: for all rows they
would be nine times the images with a kernel of 3x3 and travel through main memory, for a few they stay in the
cache. Both gradients of such a convolution are products with the values under the windows of the cotangent,
which are made just once for them.

Measured as value and both gradients of a convolution 3x3 in a compiled loop on one CPU core, batch 128, in
GFLOP/s at 32x32x16 and at 8x8x64 (the core multiplies large matrices at 89; PyTorch 2.13 reached 62 and 80):
25 and 62 like this; 16 and 38 with all rows at once; 24 and 40 with the kernel contracted over its rows
instead of its columns; 13 and 39 with channels last and joined slices; 12 and 23 as a sum of nine products.
XLA's own convolution did not reach 1 there.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from train.task.models.ops import winograd
from train.task.models.ops.layout import Layout

CACHE = 2**21
"""Most bytes of the values under the windows of the rows in one product."""


def correlate(images: jax.Array, kernel: jax.Array, layout: Layout, stride: int = 1, padding: int = 0) -> jax.Array:
    """Return the convolution of `images` in `layout` with `kernel` [k, k, C, O].

    `padding` pixels of zeros are put on every side first, as PyTorch counts them: k // 2 keeps the size
    at stride 1. Batch last, it can be differentiated in reverse mode only.
    """
    size = kernel.shape[0]
    if layout is Layout.CHANNELS_LAST:
        return lax.conv_general_dilated(
            images, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    if stride == 1 and winograd.pays(images, kernel, padding):
        return winograd.convolve_tiles(images, kernel, padding)
    if stride == 1 and 2 * padding == size - 1 and size > 1:
        return _correlate_same(images, kernel)
    if padding:
        images = _pad(images, padding)
    height, width = ((extent - size) // stride + 1 for extent in images.shape[1:3])
    # Shifted rows first and of these shifted columns: 2 k slices instead of k * k, which compile in a fraction of the time.
    rows = jnp.concatenate([images[:, _every(stride, i, height)] for i in range(size)])
    columns = jnp.concatenate([rows[:, :, _every(stride, j, width)] for j in range(size)])
    out = _rows_of(kernel.swapaxes(0, 1)) @ columns.reshape(columns.shape[0], -1)
    return out.reshape(-1, height, width, images.shape[3])


def _every(stride: int, first: int, count: int) -> slice:
    return slice(first, first + stride * (count - 1) + 1, stride)


def _pad(images, padding):
    return jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def _rows_of(kernel):
    """Return a kernel [k, k, C, O] as a matrix [O, k * k * C]; XLA:CPU multiplies faster by this layout."""
    return kernel.transpose(3, 0, 1, 2).reshape(kernel.shape[3], -1)


@jax.custom_vjp
def _correlate_same(images, kernel):
    """Return the convolution, batch last, with an odd kernel that keeps the size of `images`."""
    rows = _rows_at_once(images, kernel.shape[0])
    columns, weights = _columns(images, kernel.shape[0], rows), _rows_of(kernel)
    out = jnp.zeros((kernel.shape[3], *images.shape[1:]), images.dtype)
    return lax.fori_loop(0, images.shape[1] // rows, lambda i, out: _put(out, weights @ columns(i), i, rows), out)


def _correlate_same_forward(images, kernel):
    return _correlate_same(images, kernel), (images, kernel)


def _correlate_same_backward(saved, cotangent):
    images, kernel = saved
    size, channels, features = kernel.shape[0], kernel.shape[2], kernel.shape[3]
    rows = _rows_at_once(cotangent, size)
    columns, weights = _columns(cotangent, size, rows), _rows_of(kernel[::-1, ::-1].swapaxes(2, 3))

    def body(i, gradients):
        of_images, of_kernel = gradients
        under = columns(i)
        part = lax.dynamic_slice_in_dim(images, i * rows, rows, 1).reshape(channels, -1)
        of_kernel = of_kernel + lax.dot_general(under, part, (((1,), (1,)), ((), ())))
        return _put(of_images, weights @ under, i, rows), of_kernel

    zeros = jnp.zeros_like(images), jnp.zeros((size * size * features, channels), kernel.dtype)
    of_images, of_kernel = lax.fori_loop(0, images.shape[1] // rows, body, zeros)
    of_kernel = of_kernel.reshape(size, size, features, channels).swapaxes(2, 3)
    return of_images, of_kernel[::-1, ::-1]


_correlate_same.defvjp(_correlate_same_forward, _correlate_same_backward)


def _rows_at_once(images, size):
    """Return the number of rows of `images` [C, H, W, B], at least one, whose values under windows fit into the cache."""
    channels, height, width, batch = images.shape
    fitting = CACHE // (size * size * channels * width * batch * images.dtype.itemsize)
    return max(rows for rows in range(1, height + 1) if height % rows == 0 and rows <= max(1, fitting))


def _columns(images, size, rows):
    """Return a function of i: the values under the windows of the i-th block of rows, [size * size * C, rows * W * B]."""
    padded, width = _pad(images, size // 2), images.shape[2]

    def columns(i):
        block = lax.dynamic_slice_in_dim(padded, i * rows, rows + size - 1, 1)
        parts = [block[:, a : a + rows, b : b + width] for a in range(size) for b in range(size)]
        return jnp.concatenate(parts).reshape(size * size * images.shape[0], -1)

    return columns


def _put(images, block, i, rows):
    """Return `images` with the i-th block of rows replaced."""
    return lax.dynamic_update_slice_in_dim(images, block.reshape(images.shape[0], rows, *images.shape[2:]), i * rows, 1)
