"""Residual networks: the thin ones for CIFAR, and ResNet-50 for ImageNet."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from train.task.models.layers import BatchNorm, Convolution, dense, widened
from train.task.models.ops.layout import ImageLayout, arrange, max_pool, pixel_means


class BasicBlock(nn.Module):
    """Two convolutions 3x3, with the images, or every second pixel of them and empty channels, added to the result."""

    features: int
    stride: int
    layout: ImageLayout

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        x = Convolution(self.features, 3, self.layout, self.stride)(images)
        x = nn.relu(BatchNorm(self.layout)(x, train))
        x = BatchNorm(self.layout)(Convolution(self.features, 3, self.layout)(x), train)
        return nn.relu(x + _shortcut(images, self.features, self.stride, self.layout))


def _shortcut(images: jax.Array, features: int, stride: int, layout: ImageLayout) -> jax.Array:
    """Return the shortcut of He et al., option A, without parameters: new channels are zero, half of them in front."""
    missing = features - images.shape[layout.value]
    widths = [(0, 0)] * 4
    widths[layout.value] = (missing // 2, missing - missing // 2)
    return jnp.pad(images[:, ::stride, ::stride], widths)


class CifarResNet(nn.Module):
    """The residual networks for CIFAR of He et al. (2016, arXiv:1512.03385, section 4.2); of depth 20: 269,722 parameters.

    A convolution 3x3x16, three stages of (depth - 2) / 6 blocks with 16, 32 and 64 channels at full, half and quarter
    size, the mean over all pixels, a dense layer. Shortcuts are the paper's option A, without parameters, as the
    paper has them on CIFAR (0.27 million) and as LSGD's experiments have them; projections, which other programs
    call by the same name, make 272,474.

    Args:
      depth: layers with weights, 6 n + 2.
      num_classes: number of classes.
      width: factor on the number of channels.
      implementation: `"matmul"` or `"lax"`, by platform if `None`; see `train.task.models.ops.layout`.
    """

    depth: int = 20
    num_classes: int = 10
    width: float = 1.0
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layout = ImageLayout.of(self.implementation)
        channels = widened(16, self.width)
        x = Convolution(channels, 3, layout)(arrange(images, layout))
        x = nn.relu(BatchNorm(layout)(x, train))
        for stage in range(3):
            for block in range((self.depth - 2) // 6):
                stride = 2 if stage and not block else 1
                x = BasicBlock(channels * 2**stage, stride, layout)(x, train)
        return dense(pixel_means(x, layout), self.num_classes)


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1 to four times the channels; the shortcut is projected where shapes differ."""

    features: int
    stride: int
    layout: ImageLayout

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        wide = 4 * self.features
        x = nn.relu(BatchNorm(self.layout)(Convolution(self.features, 1, self.layout)(images), train))
        x = Convolution(self.features, 3, self.layout, self.stride)(x)
        x = nn.relu(BatchNorm(self.layout)(x, train))
        x = BatchNorm(self.layout)(Convolution(wide, 1, self.layout)(x), train)
        if self.stride > 1 or images.shape[self.layout.value] != wide:
            images = Convolution(wide, 1, self.layout, self.stride)(images)
            images = BatchNorm(self.layout)(images, train)
        return nn.relu(x + images)


class ResNet50(nn.Module):
    """ResNet-50 of He et al. (2016, arXiv:1512.03385, table 1): 25,557,032 parameters for 1000 classes.

    Stages of 3, 4, 6 and 3 bottlenecks. The stride of a stage is in its first convolution 3x3, not in the 1x1 before it:
    the form of Goyal et al. (2017, arXiv:1706.02677), by which DANA's experiments train.

    Args:
      num_classes: number of classes.
      width: factor on the number of channels.
      blocks: bottlenecks a stage.
      implementation: `"matmul"` or `"lax"`, by platform if `None`; see `train.task.models.ops.layout`.
    """

    num_classes: int = 1000
    width: float = 1.0
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layout = ImageLayout.of(self.implementation)
        channels = widened(64, self.width)
        x = Convolution(channels, 7, layout, stride=2)(arrange(images, layout))
        x = max_pool(nn.relu(BatchNorm(layout)(x, train)), 3, 2, padding=1)
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                stride = 2 if stage and not block else 1
                x = Bottleneck(channels * 2**stage, stride, layout)(x, train)
        return dense(pixel_means(x, layout), self.num_classes)
