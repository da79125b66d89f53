"""A valid convolution, with or without 2x2 max-pooling after it, in three implementations.

`"lax"` is `jax.lax.conv_general_dilated`, which accelerators run best. `"matmul"` is for CPUs,
where XLA's own convolution is many times slower inside `lax.scan` and `lax.fori_loop`. `"patches"` is
the plain way to do the same: for small images it is as fast and compiles in half the time. All take
the same kernel and give the same values and gradients up to rounding.

How `"matmul"` is built, and why:

* The batch is the last axis while it works, so a patch is a stack of shifted slices whose copies
  are contiguous.
* Under pooling the four convolutions that one pooled pixel needs are computed together: the (k+1) x
  (k+1) window at stride 2 holds all of them, and the kernel is laid at its four places in that
  window. This multiplies 1.44 times as much for k = 5, but needs 2.8 times fewer patch values, and
  pooling becomes a maximum over a leading axis.
* The gradient of the maximum goes to the first largest entry, remembered as an index of one byte;
  the gradient of the patches is added slice by slice into one buffer.

Measured as one training step (forward, backward, momentum SGD; batch 64, the network of the GEM
paper) in a compiled loop on two CPU cores, in units of this implementation: 8 for `"lax"`; 1.8-2.5
for patches as slices joined on the channel axis and multiplied by the kernel; 1.4-1.8 for the
batch-last layout alone; 1.2 with the gradient of the patches added up by padding instead of in
place; 2.1 with `jnp.max` in place of the maximum that remembers its index. The matrix products are
what is left: they run at the speed of large ones.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

IMPLEMENTATIONS = ("matmul", "patches", "lax")


def default_implementation() -> str:
    """Return `"matmul"` if JAX's default backend is the CPU, otherwise `"lax"`."""
    return "matmul" if jax.default_backend() == "cpu" else "lax"


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    *,
    pool: bool = False,
    implementation: str | None = None,
) -> jax.Array:
    """Convolve `images` [B, H, W, C] with `kernel` [k, k, C, O], and max-pool 2x2 if `pool` is set.

    `bias` [O] is added. Nothing is padded; pooling drops an odd last row or column.
    `implementation` is one of `IMPLEMENTATIONS`, or `None` for `default_implementation()`; `"matmul"`
    can be differentiated in reverse mode only.
    """
    convolved = {"lax": _convolve_lax, "matmul": _convolve_matmul, "patches": _convolve_patches}
    return convolved[implementation or default_implementation()](images, kernel, bias, pool)


def _convolve_patches(images, kernel, bias, pool):
    size = kernel.shape[0]
    height, width = (extent - size + 1 for extent in images.shape[1:3])
    shifted = [images[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    out = jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])
    return (_max_pool(out) if pool else out) + bias.reshape(1, 1, 1, -1)


def _max_pool(images):
    batch, height, width, channels = images.shape
    images = images[:, : height // 2 * 2, : width // 2 * 2]
    return images.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


def _convolve_lax(images, kernel, bias, pool):
    out = lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return (_max_pool(out) if pool else out) + bias.reshape(1, 1, 1, -1)


def _convolve_matmul(images, kernel, bias, pool):
    out = _convolve_windows(images.transpose(3, 1, 2, 0), kernel, pool)
    return (out + bias.reshape(-1, 1, 1, 1)).transpose(3, 1, 2, 0)


def _convolve_windows(images, kernel, pool):
    size, features = kernel.shape[0], kernel.shape[-1]
    height, width = (extent - size + 1 for extent in images.shape[1:3])
    window, stride, places = size, 1, 1
    if pool:
        height, width = height // 2, width // 2
        window, stride, places = size + 1, 2, 4
        shifts = [((a, 1 - a), (b, 1 - b), (0, 0), (0, 0)) for a in (0, 1) for b in (0, 1)]
        kernel = jnp.stack([jnp.pad(kernel, shift) for shift in shifts], axis=3)
    columns = _patches(images, window, stride, height, width)
    rows = kernel.reshape(columns.shape[0], places * features)
    out = lax.dot_general(rows, columns, (((0,), (0,)), ((), ())))
    out = out.reshape(places, features, height, width, images.shape[3])
    return largest(out, places) if pool else out[0]


def _slices(window, stride, height, width):
    """Yield the index of each shifted slice of an array [C, H, W, B], row by row of a kernel."""
    for row in range(window):
        for column in range(window):
            yield (
                slice(None),
                slice(row, row + stride * (height - 1) + 1, stride),
                slice(column, column + stride * (width - 1) + 1, stride),
            )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _patches(images, window, stride, height, width):
    """Return the values under a window at each place, [window * window * C, height * width * B]."""
    parts = [images[index] for index in _slices(window, stride, height, width)]
    return jnp.concatenate(parts).reshape(window * window * images.shape[0], -1)


def _patches_forward(images, window, stride, height, width):
    return _patches(images, window, stride, height, width), images.shape


def _patches_backward(window, stride, height, width, shape, cotangent):
    parts = cotangent.reshape(window * window, shape[0], height, width, shape[3])
    total = jnp.zeros(shape, cotangent.dtype)
    for part, index in zip(parts, _slices(window, stride, height, width), strict=True):
        total = total.at[index].add(part)
    return (total,)


_patches.defvjp(_patches_forward, _patches_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def largest(values: jax.Array, count: int) -> jax.Array:
    """Return the maximum over the leading axis, of `count` entries; its gradient goes to the first largest one."""
    del count
    return values.max(0)


def _largest_forward(values, count):
    del count
    return values.max(0), jnp.argmax(values, 0).astype(jnp.int8)


def _largest_backward(count, winner, cotangent):
    entry = jnp.arange(count, dtype=jnp.int8).reshape((count,) + (1,) * winner.ndim)
    return (jnp.where(winner[None] == entry, cotangent[None], 0),)


largest.defvjp(_largest_forward, _largest_backward)
