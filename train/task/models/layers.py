"""Layers of deep networks, in either layout of images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from train.task.models.ops.convolution import convolve
from train.task.models.ops.layout import ImageLayout, correlate, per_channel, standardise

DRAWN_AT_ONCE = 2**16
MOST_CALLS = 2**10  # Draws per layer that are traced one by one; more would take minutes.


def he_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Return draws of N(0, 2/fan-in), which keeps the variance of activations before rectified units (He et al. 2015).

    The numbers are drawn by one program for all shapes: XLA:CPU takes more than a second to compile each.
    """
    size, fan_in = math.prod(shape), math.prod(shape[:-1])
    parts = -(-size // DRAWN_AT_ONCE)
    if parts <= MOST_CALLS:
        drawn = jnp.concatenate([_normal(key, part) for part in range(parts)])
    else:
        drawn = jax.lax.map(functools.partial(_normal, key), jnp.arange(parts)).ravel()
    return ((2 / fan_in) ** 0.5 * drawn[:size]).reshape(shape).astype(dtype)


@jax.jit
def _normal(key: jax.Array, part: int) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(key, part), (DRAWN_AT_ONCE,), jnp.float32)


def fan_in_uniform(fan_in: int) -> Callable[..., jax.Array]:
    """Return an initialiser U(-b, b), b = 1/sqrt(fan_in), PyTorch's default for weights and biases."""
    bound = fan_in**-0.5

    def initialise(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise


def dense(inputs: jax.Array, features: int) -> jax.Array:
    """Apply a dense layer with PyTorch's default initial values, inside a compact method."""
    initialise = fan_in_uniform(inputs.shape[-1])
    return nn.Dense(features, kernel_init=initialise, bias_init=initialise)(inputs)


class Conv(nn.Module):
    """A valid square convolution of images [B, H, W, C] with bias, max-pooled 2x2 if `pool` is set.

    For shallow networks: with pooling it is faster than :class:`Convolution`. `implementation` is `"matmul"`, `"lax"`,
    or `None` to choose by platform; the parameters are the same. See `train.task.models.ops.convolution`.
    """

    features: int
    size: int
    pool: bool = False
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        shape = (self.size, self.size, images.shape[-1], self.features)
        initialise = fan_in_uniform(self.size * self.size * images.shape[-1])
        kernel = self.param("kernel", initialise, shape)
        bias = self.param("bias", initialise, (self.features,))
        return convolve(images, kernel, bias, pool=self.pool, implementation=self.implementation)


class Convolution(nn.Module):
    """A square convolution, padded so that it keeps the size of images at stride 1."""

    features: int
    size: int
    layout: ImageLayout
    stride: int = 1

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        channels = images.shape[self.layout.value]
        kernel = self.param("kernel", he_normal, (self.size, self.size, channels, self.features), jnp.float32)
        return correlate(images, kernel, self.layout, self.stride, self.size // 2)


class BatchNorm(nn.Module):
    """Batch normalisation with running statistics in the collection `batch_stats`, as `flax.linen.BatchNorm` has them.

    Unlike that one it knows both layouts, keeps the type of its statistics whatever that of the images is, and has
    one backward pass of its own, which takes CPUs about half the time. The statistics of a batch of B images
    of H x W pixels are over B * H * W values, biased; `momentum` is the part of the running ones that a batch leaves.
    """

    layout: ImageLayout
    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shape = (images.shape[self.layout.value],)
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        running = [
            self.variable("batch_stats", name, make, shape, jnp.float32)
            for name, make in (("mean", jnp.zeros), ("var", jnp.ones))
        ]
        if not train:
            mean, variance = (statistic.value for statistic in running)
            factor = scale * jax.lax.rsqrt(variance + self.epsilon)
            shift = bias - mean * factor
            return images * per_channel(factor, self.layout) + per_channel(shift, self.layout)
        out, *seen = standardise(images, scale, bias, self.layout, self.epsilon)
        if not self.is_initializing():
            for statistic, new in zip(running, seen, strict=True):
                mixed = self.momentum * statistic.value + (1 - self.momentum) * new
                statistic.value = mixed.astype(statistic.value.dtype)
        return out


def widened(channels: int, width: float) -> int:
    """Return `width` times a number of channels, at least one."""
    return max(1, round(channels * width))
