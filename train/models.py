"""Networks for images, their loss and their evaluation.

The networks are Flax Linen modules: Linen's `init` and `apply` are pure functions over a pytree of
parameters, which is what the library's engines take. They expect images that are already floating
point and normalised, [B, H, W, C]; `make_loss` and `make_evaluate` normalise raw `uint8` images on
the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from train.convolution import convolve, default_implementation

Params = Any
PerChannel = float | tuple[float, ...]
Metrics = dict[str, jax.Array]
Loss = Callable[[Params, Any, Mapping[str, jax.Array], jax.Array], tuple[jax.Array, tuple[Any, Metrics]]]
Evaluate = Callable[[Params, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def fan_in_uniform(fan_in: int) -> Callable[..., jax.Array]:
    """U(-b, b), b = 1/sqrt(fan_in): PyTorch's default for weights and biases alike."""
    bound = fan_in**-0.5

    def initialise(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise


class Conv(nn.Module):
    """A valid square convolution with bias, max-pooled 2x2 where `pool` is set.

    `implementation` is `"matmul"`, `"lax"`, or `None` to choose by platform; the parameters are the
    same. See `train.convolution`.
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


def _dense(inputs: jax.Array, features: int) -> jax.Array:
    """A dense layer with PyTorch's default initial values, for use inside a compact method."""
    initialise = fan_in_uniform(inputs.shape[-1])
    return nn.Dense(features, kernel_init=initialise, bias_init=initialise)(inputs)


class GemCNN(nn.Module):
    """The MNIST network of the Gradient Energy Matching paper: 163,790 parameters at 28x28x1.

    Convolution 5x5x10, max-pool, ReLU, convolution 5x5x20, dropout of whole channels, max-pool,
    ReLU, then dense layers of 300, 200 and 10. Dropout is applied after the second pooling here: a
    channel is multiplied by a constant that is not negative, so the two commute. It needs an rng
    named `"dropout"` where `train` is true and the rate is not 0.
    """

    dropout: float = 0.5
    num_classes: int = 10
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        x = nn.relu(Conv(10, 5, pool=True, implementation=self.implementation)(images))
        x = Conv(20, 5, pool=True, implementation=self.implementation)(x)
        x = nn.Dropout(self.dropout, broadcast_dims=(1, 2), deterministic=not train)(x)
        x = nn.relu(x).reshape(x.shape[0], -1)
        x = nn.relu(_dense(x, 300))
        x = nn.relu(_dense(x, 200))
        return _dense(x, self.num_classes)


class DigitsCNN(nn.Module):
    """A small network for 8x8x1 digits: 23,946 parameters.

    One pixel of zeros around the image, convolution 3x3x16, ReLU, convolution 3x3x32, max-pool,
    ReLU, then dense layers of 64 and 10.
    """

    num_classes: int = 10
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        del train  # the same network in training and in evaluation
        small = "patches" if default_implementation() == "matmul" else "lax"
        implementation = self.implementation or small
        x = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = nn.relu(Conv(16, 3, implementation=implementation)(x))
        x = nn.relu(Conv(32, 3, pool=True, implementation=implementation)(x))
        x = nn.relu(_dense(x.reshape(x.shape[0], -1), 64))
        return _dense(x, self.num_classes)


def init_params(model: nn.Module, key: jax.Array, image_shape: tuple[int, int, int]) -> Params:
    """Initial parameters of `model` for images of shape [H, W, C]."""
    image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)

    @jax.jit
    def init(key):
        return model.lazy_init(key, image)["params"]  # the forward pass is traced, not compiled

    return init(key)


def normalise(
    images: jax.Array, mean: PerChannel, std: PerChannel, scale: float, dtype: Any = jnp.float32
) -> jax.Array:
    """Raw images as floating point: (images / scale - mean) / std, with one mean and std for all or one a channel."""
    alongside = (1,) * (images.ndim - 1) + (-1,)
    offset = jnp.asarray(np.multiply(mean, scale), dtype).reshape(alongside)
    factor = jnp.asarray(1.0 / np.multiply(scale, std), dtype).reshape(alongside)
    return (images.astype(dtype) - offset) * factor


def cross_entropy_each(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The cross-entropy of each row of `logits` [B, classes] against integer `labels` [B]."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of `logits` [B, classes] against integer `labels` [B]."""
    return cross_entropy_each(logits, labels).mean()


def make_loss(model: nn.Module, mean: PerChannel, std: PerChannel, scale: float, train: bool = True) -> Loss:
    """The loss of `model` on a batch of raw images, as the engines call it.

    The result is `loss_fn(params, model_state, batch, key) -> (loss, (model_state, metrics))` with
    `batch` = {"image": uint8 [B, H, W, C], "label": int [B]} and metrics {"accuracy"}.
    `model_state` is handed through; `key` draws the dropout masks.
    """

    def loss_fn(params, model_state, batch, key):
        images = normalise(batch["image"], mean, std, scale, _dtype_of(params))
        rngs = {"dropout": key} if train else None
        logits: Any = model.apply({"params": params}, images, train=train, rngs=rngs)
        accuracy = (logits.argmax(-1) == batch["label"]).mean(dtype=logits.dtype)
        return cross_entropy(logits, batch["label"]), (model_state, {"accuracy": accuracy})

    return loss_fn


def make_evaluate(model: nn.Module, mean: PerChannel, std: PerChannel, scale: float, chunk: int = 1000) -> Evaluate:
    """A compiled `evaluate(params, images, labels) -> (mean loss, accuracy)` on raw images.

    The set is worked through `chunk` images at a time, so that memory does not grow with it; the
    last chunk is padded and its padding not counted. Nothing is dropped out.
    """

    @jax.jit
    def evaluate(params, images, labels):
        count, dtype = images.shape[0], _dtype_of(params)
        size = min(chunk, count)
        pad = -count % size
        images = jnp.pad(images, ((0, pad), (0, 0), (0, 0), (0, 0)))
        labels = jnp.pad(labels, (0, pad))
        counted = jnp.arange(count + pad) < count

        def totals(part):
            image, label, real = part
            logits: Any = model.apply({"params": params}, normalise(image, mean, std, scale, dtype))
            loss = jnp.where(real, cross_entropy_each(logits, label), 0)
            return loss.sum(), jnp.sum(real & (logits.argmax(-1) == label))

        parts = [array.reshape(-1, size, *array.shape[1:]) for array in (images, labels, counted)]
        losses, correct = lax.map(totals, tuple(parts))
        return losses.sum() / count, correct.sum() / jnp.asarray(count, dtype)

    return evaluate


def _dtype_of(params: Params) -> Any:
    """The type that the parameters share, so that float64 parameters see float64 images."""
    return jnp.result_type(*jax.tree.leaves(params))
