"""The MNIST network of the Gradient Energy Matching paper."""

from __future__ import annotations

import jax
from flax import linen as nn

from train.task.models.layers import Conv, dense


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
        x = nn.relu(dense(x, 300))
        x = nn.relu(dense(x, 200))
        return dense(x, self.num_classes)
