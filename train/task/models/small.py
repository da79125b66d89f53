"""Small networks for features and images, at which many commits per second can be simulated on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from train.task.models.layers import BatchNorm, Conv, Convolution, dense, widened
from train.task.models.ops.convolution import default_implementation
from train.task.models.ops.layout import ImageLayout, arrange, max_pool, pixel_means


class MLP(nn.Module):
    """Two dense layers of 128 units with a ReLU each and one of the classes, for rows of features and small images."""

    num_classes: int = 10
    width: float = 1.0

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        del train  # The same network in training and in evaluation.
        x = images.reshape(images.shape[0], -1)
        for _ in range(2):
            x = nn.relu(dense(x, widened(128, self.width)))
        return dense(x, self.num_classes)


class DigitsCNN(nn.Module):
    """A small network for 8x8x1 digits: 23,946 parameters.

    One pixel of zeros around the image, convolution 3x3x16, ReLU, convolution 3x3x32, max-pool,
    ReLU, then dense layers of 64 and 10.
    """

    num_classes: int = 10
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        del train  # The same network in training and in evaluation.
        small = "patches" if default_implementation() == "matmul" else "lax"
        implementation = self.implementation or small
        x = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = nn.relu(Conv(16, 3, implementation=implementation)(x))
        x = nn.relu(Conv(32, 3, pool=True, implementation=implementation)(x))
        x = nn.relu(dense(x.reshape(x.shape[0], -1), 64))
        return dense(x, self.num_classes)


class PooledCNN(nn.Module):
    """A network without batch normalisation; for images of 16x16x3: 40,602 parameters.

    Two convolutions 3x3 of 16 and 32 channels without padding, each with a max-pooling 2x2 and a ReLU, then dense layers of 64
    and 10.

    Args:
      num_classes: number of classes.
      width: factor on the number of channels and units.
      implementation: of convolutions; see `train.task.models.ops.convolution`.
    """

    num_classes: int = 10
    width: float = 1.0
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        del train  # The same network in training and in evaluation.
        x = images
        for channels in (16, 32):
            x = nn.relu(Conv(widened(channels, self.width), 3, pool=True, implementation=self.implementation)(x))
        x = nn.relu(dense(x.reshape(x.shape[0], -1), widened(64, self.width)))
        return dense(x, self.num_classes)


class BatchNormCNN(nn.Module):
    """A network with batch normalisation: 24,154 parameters for 10 classes of colour images.

    Three convolutions 3x3 of 16, 32 and 64 channels, each with batch normalisation, a ReLU and, but for the last, a max-pooling
    2x2; then the mean over all pixels and a dense layer.

    Args:
      num_classes: number of classes.
      width: factor on the number of channels.
      implementation: `"matmul"` or `"lax"`, by platform if `None`; see `train.task.models.ops.layout`.
    """

    num_classes: int = 10
    width: float = 1.0
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layout = ImageLayout.of(self.implementation)
        x = arrange(images, layout)
        for channels in (16, 32, 64):
            x = Convolution(widened(channels, self.width), 3, layout)(x)
            x = nn.relu(BatchNorm(layout)(x, train))
            x = max_pool(x, 2, 2) if channels < 64 else x
        return dense(pixel_means(x, layout), self.num_classes)
