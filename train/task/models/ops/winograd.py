"""Winograd's convolution, batch last: 36 multiplications for a tile of the result.

Kernels of 3x3 make tiles of 4x4 pixels, kernels of 5x5 tiles of 2x2: a quarter and 0.36 of the multiplications of a product
with the values under windows, and a quarter and a ninth of these values.

How it is built, and why:

* Images are transformed along their rows, all at once, then along their columns, for one row of tiles at a time. In one
  go XLA would compute the first sums again for each of the second ones; between them stands a loop, which it does not
  fuse. The result is transformed back in the same two steps.
* The products are one matrix product [O, C] x [C, tiles * B] for each of the 36 transformed pixels.
* The gradient of images is the convolution of the cotangent with the turned kernel; the products of its transformed
  tiles with the transformed images are the gradient of that kernel.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from train.task.models.ops.transforms import SPAN, Matrix, transforms

SIZES = (3, 5)
CHANNELS = 8
"""Fewest channels of images and of results for which it pays."""


def pays(images: jax.Array, kernel: jax.Array, padding: int) -> bool:
    """Return whether `convolve_tiles` is faster than a product with the values under the windows of `images`."""
    size = kernel.shape[0]
    if size not in SIZES or padding >= size or min(kernel.shape[2:]) < CHANNELS or images.dtype.itemsize < 4:
        return False
    height, width = _extents(images, size, padding)
    multiplications = SPAN**2 * _count(height, size) * _count(width, size)
    return 2 * multiplications <= size**2 * height * width


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve_tiles(images: jax.Array, kernel: jax.Array, padding: int) -> jax.Array:
    """Return the convolution [O, H', W', B] of `images` [C, H, W, B] with `kernel` [k, k, C, O].

    `padding` pixels of zeros, fewer than k, are put on every side first; k is one of `SIZES`. It can be
    differentiated in reverse mode only.
    """
    size = kernel.shape[0]
    weights, windows = _kernel_tiles(kernel), _windows(images, size, padding)

    def row(_, windows):
        return None, _row_of_result(weights, _columns_of_windows(windows, size), size, images.shape[3])

    return _result(lax.scan(row, None, windows)[1], size, _extents(images, size, padding))


def _forward(images, kernel, padding):
    return convolve_tiles(images, kernel, padding), (images, kernel)


def _backward(padding, saved, cotangent):
    images, kernel = saved
    size = kernel.shape[0]
    weights = _kernel_tiles(kernel)

    def row(of_weights, rows):
        under, tiles = _columns_of_windows(rows[0], size), _columns_of_tiles(rows[1], size)
        of_weights = of_weights + lax.dot_general(tiles, under, (((2,), (2,)), ((0,), (0,))))
        of_under = lax.dot_general(weights, tiles, (((1,), (1,)), ((0,), (0,))))
        return of_weights, _row_of_images(of_under, size, images.shape[3])

    rows = _windows(images, size, padding), _tiles(cotangent, size)
    of_weights, rows = lax.scan(row, jnp.zeros_like(weights), rows)
    return _images(rows, size, padding, images.shape[1:3]), _kernel_gradient(of_weights, kernel)


convolve_tiles.defvjp(_forward, _backward)


def _windows(images, size, padding):
    """Return the transformed rows under the windows of each row of tiles, [tiles, SPAN, C, W, B]."""
    step, extents = SPAN + 1 - size, _extents(images, size, padding)
    ends = [_count(extent, size) * step + size - 1 for extent in extents]
    return _rows(transforms(size).of_image, _extended(images, padding, ends), step)


def _tiles(images, size):
    """Return the transformed rows of each row of tiles of a result, [tiles, SPAN, O, W, B]."""
    step = SPAN + 1 - size
    ends = [_count(extent, size) * step for extent in images.shape[1:3]]
    return _rows(_transpose(transforms(size).of_result), _extended(images, 0, ends), step)


def _rows(matrix, images, step):
    return _combined(matrix, [part.swapaxes(0, 1) for part in _shifted(images, 1, len(matrix[0]), step)], 1)


def _columns_of_windows(row, size):
    return _columns(transforms(size).of_image, row, SPAN + 1 - size)


def _columns_of_tiles(row, size):
    return _columns(_transpose(transforms(size).of_result), row, SPAN + 1 - size)


def _columns(matrix, row, step):
    """Return one of the rows [SPAN, C, W, B] as matrices [SPAN * SPAN, C, tiles * B]."""
    parts = _shifted(row, 2, len(matrix[0]), step)
    return _combined(matrix, parts, 0).reshape(SPAN * SPAN, row.shape[1], -1)


def _row_of_result(weights, under, size, batch):
    """Return a row of tiles, transformed back along its columns, [SPAN, O, W, B]."""
    products = lax.dot_general(weights, under, (((2,), (1,)), ((0,), (0,))))
    products = products.reshape(SPAN, SPAN, weights.shape[1], -1, batch)
    row = _combined(transforms(size).of_result, list(products), 3)
    return row.reshape(SPAN, weights.shape[1], -1, batch)


def _result(rows, size, extents):
    """Return the rows of tiles [tiles, SPAN, O, W, B] transformed back, as an image of these extents."""
    tiles, _, features, width, batch = rows.shape
    out = _combined(transforms(size).of_result, list(rows.transpose(1, 2, 0, 3, 4)), 2)
    return out.reshape(features, -1, width, batch)[:, : extents[0], : extents[1]]


def _row_of_images(of_under, size, batch):
    """Return the gradient of a row of windows from that of its matrices, [SPAN, C, W, B]."""
    parts = of_under.reshape(SPAN, SPAN, of_under.shape[1], -1, batch)
    return _overlapped(transforms(size).of_image, list(parts), 2, SPAN + 1 - size)


def _images(rows, size, padding, extents):
    """Return the gradient of images of these extents from that of their windows, [tiles, SPAN, C, W, B]."""
    parts = list(rows.transpose(1, 2, 0, 3, 4))
    out = _overlapped(transforms(size).of_image, parts, 1, SPAN + 1 - size)
    return out[:, padding : padding + extents[0], padding : padding + extents[1]]


def _kernel_tiles(kernel):
    """Return a kernel [k, k, C, O] as matrices [SPAN * SPAN, O, C]."""
    pixels = kernel.swapaxes(2, 3).reshape(kernel.shape[0] ** 2, -1)
    return (_both_ways(kernel) @ pixels).reshape(SPAN * SPAN, kernel.shape[3], kernel.shape[2])


def _kernel_gradient(of_weights, kernel):
    """Return the gradient of a kernel from that of its matrices."""
    pixels = _both_ways(kernel).T @ of_weights.reshape(SPAN * SPAN, -1)
    return pixels.reshape(*kernel.shape[:2], *of_weights.shape[1:]).swapaxes(2, 3)


def _both_ways(kernel):
    """Return the matrix [SPAN * SPAN, k * k] of the transforms of a kernel along its columns and its rows."""
    matrix = np.array(transforms(kernel.shape[0]).of_kernel, float)
    # Columns first: so are those of the images.
    return jnp.asarray(np.einsum("ja,ib->jiba", matrix, matrix).reshape(SPAN * SPAN, -1), kernel.dtype)


def _extents(images, size, padding):
    return [extent + 2 * padding + 1 - size for extent in images.shape[1:3]]


def _count(extent, size):
    """Return the number of tiles along an axis."""
    return -(-extent // (SPAN + 1 - size))


def _extended(images, before, ends):
    """Return `images` with zeros around them: `before` of them in front, and as many behind as give the extents `ends`."""
    widths = [(before, end - before - extent) for end, extent in zip(ends, images.shape[1:3], strict=True)]
    return jnp.pad(images, ((0, 0), *widths, (0, 0)))


def _shifted(images, axis, count, step):
    """Return the slices of every `step`-th pixel along an axis that begin at the first `count` pixels, all of one length."""
    length = (images.shape[axis] - count) // step * step + 1
    return [lax.slice_in_dim(images, first, first + length, step, axis) for first in range(count)]


def _transpose(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _weighted(row, parts):
    return sum(float(weight) * part for weight, part in zip(row, parts, strict=True) if weight)


def _combined(matrix: Matrix, parts, axis):
    """Return the sums of `parts` weighted by each row of a matrix, stacked on a new axis."""
    return jnp.stack([_weighted(row, parts) for row in matrix], axis)


def _overlapped(matrix: Matrix, parts, axis, step):
    """Return the transpose of `_shifted` and `_combined`: windows of pixels along an axis, added where they overlap."""
    matrix = _transpose(matrix)
    reach = -(-len(matrix) // step)
    sums = [_weighted(row, parts) for row in matrix]
    pixels = []
    for first in range(step):
        widths = [[(0, 0)] * axis + [(i, reach - 1 - i)] + [(0, 0)] * (sums[0].ndim - axis - 1) for i in range(reach)]
        pixels.append(sum(jnp.pad(part, width) for part, width in zip(sums[first::step], widths)))
    out = jnp.stack(pixels, axis + 1)
    return out.reshape(*out.shape[:axis], -1, *out.shape[axis + 2 :])
