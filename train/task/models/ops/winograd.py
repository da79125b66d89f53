"""Winograd's convolution, batch last: 36 multiplications for each tile of the result.

Kernels of 3x3 make tiles of 4x4 pixels, kernels of 5x5 tiles of 2x2: a quarter and 0.36 of the multiplications of a product
with the values under windows, and a quarter and 0.36 of these values. The window of a tile has 6x6 pixels; those of
neighbouring tiles overlap.

How it is built, and why:

* Images are transformed along their rows, all at once, then along their columns, for one row of tiles at a time: what
  such a row needs stays in the cache, and XLA, which fuses nothing across the border of a loop, computes the first sums
  once instead of for each of the second ones. The result is transformed back in the same two steps.
* The products are one matrix product [O, C] x [C, tiles * B] for each of the 36 transformed pixels.
* The backward pass is the transpose of each step. As a convolution of the cotangent with the turned kernel, which needs no
  sum of overlapping windows, it has more tiles where nothing is padded: 36 instead of 16 in the second layer of CNN7,
  whose two passes then took 1.9 times as long.

Time of the forward and backward pass of whole networks at batch 64, in units of PyTorch 2.13's, by
`OMP_NUM_THREADS=1 taskset -c 1 python -m train bench network`: 0.79 for CNN7, 0.89 for ResNet-20, 0.92 for ResNet-8 of half
the width. XLA divides the work over threads less well: on two cores CNN7 takes 1.18 to 1.35 (1.31 with products of the
values under windows). ResNet-20 takes 9 s to compile instead of 6 s. At 32x32x16 and batch 512 the forward pass alone took
1.4 times as long with all rows of tiles at once.

Errors of rounding are relative to the largest value under the window of a tile, and an infinity makes its whole tile NaN. The
gradient of ResNet-20 at batch 128 takes 451 MB instead of 307 MB.
"""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from train.task.models.ops.transforms import SPAN, Matrix, transforms

CHANNELS = {3: 4, 5: 16}
"""Fewest channels, of images and of results, for which it pays, for each size of kernels.

With a kernel of 5x5 from 10 channels to 20 it takes as long as windows alone, but 1.3 to 1.6 times as long under `vmap`.
"""


def pays(images: jax.Array, kernel: jax.Array, padding: int = 0) -> bool:
    """Return whether `convolve_tiles` is faster than a product with the values under the windows of `images`."""
    size = kernel.shape[0]
    if size not in CHANNELS or min(kernel.shape[2:]) < CHANNELS[size] or padding >= size or images.dtype.itemsize < 4:
        return False
    height, width = _extents(images, size, padding)
    if min(height, width, images.shape[3]) < 1:
        return False
    return 2 * SPAN**2 * _count(height, size) * _count(width, size) <= size**2 * height * width


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve_tiles(images: jax.Array, kernel: jax.Array, padding: int = 0) -> jax.Array:
    """Return the convolution [O, H', W', B] of `images` [C, H, W, B] with `kernel` [k, k, C, O].

    `padding` pixels of zeros, fewer than k, are put on every side first; k is 3 or 5. It can be
    differentiated in reverse mode only.
    """
    size, batch = kernel.shape[0], images.shape[3]
    of_image, _, of_result = transforms(size)
    weights = _transformed_kernel(kernel)

    def row(_, windows):
        products = _apart(weights @ _columns(of_image, windows, size), batch)
        return None, _side_by_side(_combined(of_result, products), 2)

    rows = lax.scan(row, None, _windows(images, size, padding))[1]
    height, width = _extents(images, size, padding)
    return _side_by_side(_combined(of_result, _by_rows(rows)), 1)[:, :height, :width]


def _forward(images, kernel, padding):
    return convolve_tiles(images, kernel, padding), (images, kernel)


def _backward(padding, saved, cotangent):
    images, kernel = saved
    size, (_, height, width, batch) = kernel.shape[0], images.shape
    of_image, _, of_result = transforms(size)
    weights = _transformed_kernel(kernel)

    def row(of_weights, rows):
        windows, tiles = _columns(of_image, rows[0], size), _columns(_transpose(of_result), rows[1], size)
        of_windows = _apart(weights.swapaxes(1, 2) @ tiles, batch)
        of_row = _overlapped(_combined(_transpose(of_image), of_windows), 2, size)
        return of_weights + tiles @ windows.swapaxes(1, 2), of_row

    rows = _windows(images, size, padding), _tiles(cotangent, size)
    of_weights, rows = lax.scan(row, jnp.zeros_like(weights), rows)
    of_images = _overlapped(_combined(_transpose(of_image), _by_rows(rows)), 1, size)
    return of_images[:, padding : padding + height, padding : padding + width], _kernel_gradient(of_weights, kernel)


convolve_tiles.defvjp(_forward, _backward)


def _transformed_kernel(kernel):
    """Return a kernel [k, k, C, O] as matrices [SPAN * SPAN, O, C]."""
    pixels = kernel.swapaxes(2, 3).reshape(kernel.shape[0] ** 2, -1)
    return (_both_ways(kernel) @ pixels).reshape(SPAN * SPAN, kernel.shape[3], kernel.shape[2])


def _kernel_gradient(of_weights, kernel):
    """Return the gradient of a kernel from that of its matrices."""
    pixels = _both_ways(kernel).T @ of_weights.reshape(SPAN * SPAN, -1)
    return pixels.reshape(*kernel.shape[:2], *of_weights.shape[1:]).swapaxes(2, 3)


def _both_ways(kernel):
    """Return the matrix [SPAN * SPAN, k * k] that transforms a kernel, columns before rows as `_columns` has them."""
    matrix = np.array(transforms(kernel.shape[0]).of_kernel, float)
    both = np.einsum("jc,ir->jirc", matrix, matrix)
    return jnp.asarray(both.reshape(SPAN * SPAN, -1), kernel.dtype)


def _windows(images, size, padding):
    """Return the windows of each row of tiles, transformed along their rows, [tiles, SPAN, C, W, B]."""
    ends = [_count(extent, size) * _step(size) + size - 1 for extent in _extents(images, size, padding)]
    parts = _shifted(_extended(images, padding, ends), 1, SPAN, size)
    return jnp.stack(_combined(transforms(size).of_image, [part.swapaxes(0, 1) for part in parts]), 1)


def _tiles(images, size):
    """Return the tiles of a result, transformed along their rows likewise."""
    ends = [_count(extent, size) * _step(size) for extent in images.shape[1:3]]
    parts = _shifted(_extended(images, 0, ends), 1, _step(size), size)
    return jnp.stack(_combined(_transpose(transforms(size).of_result), [part.swapaxes(0, 1) for part in parts]), 1)


def _columns(matrix, row, size):
    """Return a row of windows or tiles, [SPAN, C, W, B], transformed along its columns, as [SPAN * SPAN, C, tiles * B]."""
    parts = _combined(matrix, _shifted(row, 2, len(matrix[0]), size))
    return jnp.stack(parts).reshape(SPAN * SPAN, row.shape[1], -1)


def _apart(products, batch):
    """Return the inverse of the shape of `_columns`, one part [SPAN, C, tiles, B] for each transformed column."""
    return list(products.reshape(SPAN, SPAN, products.shape[1], -1, batch))


def _by_rows(rows):
    """Return rows [tiles, SPAN, C, W, B] as one part [C, tiles, W, B] for each transformed row."""
    return list(rows.transpose(1, 2, 0, 3, 4))


def _step(size):
    """Return the pixels of a tile along an axis."""
    return SPAN + 1 - size


def _count(extent, size):
    """Return the number of tiles along an axis."""
    return -(-extent // _step(size))


def _extents(images, size, padding):
    return [extent + 2 * padding + 1 - size for extent in images.shape[1:3]]


def _extended(images, before, ends):
    """Return `images` with zeros around them: `before` in front, and as many behind as give the extents `ends`."""
    widths = [(before, end - before - extent) for end, extent in zip(ends, images.shape[1:3], strict=True)]
    return jnp.pad(images, ((0, 0), *widths, (0, 0)))


def _shifted(images, axis, count, size):
    """Return the first `count` pixels of each window or tile along an axis, as one slice for each."""
    step = _step(size)
    length = (images.shape[axis] - count) // step * step + 1
    return [lax.slice_in_dim(images, first, first + length, step, axis) for first in range(count)]


def _side_by_side(pixels, axis):
    """Return tiles as an image from their first, second, … pixels along an axis."""
    out = jnp.stack(pixels, axis + 1)
    return out.reshape(*out.shape[:axis], -1, *out.shape[axis + 2 :])


def _overlapped(pixels, axis, size):
    """Return windows as an image, as `_side_by_side` does for tiles, added up where they overlap."""
    step = _step(size)
    reach = -(-SPAN // step)
    ends = [[(i, reach - 1 - i) if n == axis else (0, 0) for n in range(pixels[0].ndim)] for i in range(reach)]
    added = [[jnp.pad(*pair) for pair in zip(pixels[first::step], ends, strict=False)] for first in range(step)]
    return _side_by_side([_sum(parts) for parts in added], axis)


def _combined(matrix: Matrix, parts):
    """Return the sums of `parts` weighted by each row of a matrix."""
    return [_sum([float(w) * part for w, part in zip(row, parts, strict=True) if w]) for row in matrix]


def _sum(parts):
    return functools.reduce(operator.add, parts)


def _transpose(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))
