"""Wide residual networks."""

from __future__ import annotations

import jax
from flax import linen as nn

from train.task.models.layers import BatchNorm, Convolution, dense, widened
from train.task.models.ops.layout import Layout, arrange, pixel_means


class WideBlock(nn.Module):
    """Normalisation and rectification before each of two convolutions 3x3; a projection where shapes differ."""

    features: int
    stride: int
    layout: Layout

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        ready = nn.relu(BatchNorm(self.layout)(images, train))
        if self.stride > 1 or images.shape[self.layout.value] != self.features:
            images = Convolution(self.features, 1, self.layout, self.stride)(ready)
        x = Convolution(self.features, 3, self.layout, self.stride)(ready)
        x = nn.relu(BatchNorm(self.layout)(x, train))
        return images + Convolution(self.features, 3, self.layout)(x)


class WideResNet(nn.Module):
    """WRN-depth-k of Zagoruyko and Komodakis (2016, arXiv:1605.07146); WRN-16-4: 2,748,890 parameters for 10 classes.

    A convolution 3x3x16, three stages of (depth - 4) / 6 blocks with 16 k, 32 k and 64 k channels, normalisation, the mean
    over all pixels, a dense layer. No dropout inside blocks.

    Args:
      depth: convolutions, 6 n + 4.
      widening: k.
      num_classes: number of classes.
      width: factor on the number of channels, besides k.
      implementation: `"matmul"` or `"lax"`, by platform if `None`; see `train.task.models.ops.layout`.
    """

    depth: int = 16
    widening: int = 4
    num_classes: int = 10
    width: float = 1.0
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layout = Layout.of(self.implementation)
        x = Convolution(widened(16, self.width), 3, layout)(arrange(images, layout))
        for stage in range(3):
            for block in range((self.depth - 4) // 6):
                features = widened(16 * self.widening * 2**stage, self.width)
                x = WideBlock(features, 2 if stage and not block else 1, layout)(x, train)
        x = nn.relu(BatchNorm(layout)(x, train))
        return dense(pixel_means(x, layout), self.num_classes)
