"""VGG networks with batch normalisation."""

from __future__ import annotations

import jax
from flax import linen as nn

from train.task.models.layers import BatchNorm, Convolution, dense, widened
from train.task.models.ops.layout import Layout, arrange, flatten, max_pool

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage of VGG16."""


class VGG16(nn.Module):
    """VGG16 of Simonyan and Zisserman (2015, arXiv:1409.1556, column D) in its CIFAR form: 14,728,266 parameters.

    Thirteen convolutions 3x3 with bias, each normalised and rectified, a max-pooling 2x2 behind each of the five stages,
    and one dense layer on what is left, 1x1x512 of 32x32. That head is the usual one on CIFAR; LSGD's experiments have two
    hidden layers of 512 before it, with dropout: `hidden=(512, 512), dropout=0.5`, 15,253,578 parameters.

    Args:
      num_classes: number of classes.
      width: factor on the number of channels and hidden units.
      hidden: units of dense layers before the last one.
      dropout: rate before each of them, in [0, 1); above 0 it needs an rng named `"dropout"` where `train` is true.
      implementation: `"matmul"` or `"lax"`, by platform if `None`; see `train.task.models.ops.layout`.
    """

    num_classes: int = 10
    width: float = 1.0
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layout = Layout.of(self.implementation)
        x = arrange(images, layout)
        for channels, count in STAGES:
            for _ in range(count):
                x = Convolution(widened(channels, self.width), 3, layout, use_bias=True)(x)
                x = nn.relu(BatchNorm(layout)(x, train))
            x = max_pool(x, 2, 2)
        x = flatten(x, layout)
        for units in self.hidden:
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
            x = nn.relu(dense(x, widened(units, self.width)))
        return dense(x, self.num_classes)
