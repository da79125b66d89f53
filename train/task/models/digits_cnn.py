"""A network for scikit-learn's digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from train.task.models.layers import Conv, dense
from train.task.models.ops.convolution import default_implementation


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
        x = nn.relu(dense(x.reshape(x.shape[0], -1), 64))
        return dense(x, self.num_classes)
