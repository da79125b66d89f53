"""AlexNet for ImageNet."""

from __future__ import annotations

import jax
from flax import linen as nn

from train.task.models.layers import Convolution, dense, widened
from train.task.models.ops.layout import Layout, arrange, flatten, max_pool


class AlexNet(nn.Module):
    """AlexNet in the form of Krizhevsky (2014, arXiv:1404.5997, "one weird trick"): 61,100,840 parameters at 224x224x3.

    This is the single-tower form that PyTorch's torchvision has, without local response normalisation; not the one of
    2012 with two towers (60 million). Needs an rng named `"dropout"` where `train` is true.

    Args:
      num_classes: number of classes.
      width: factor on the number of channels and units.
      dropout: rate before each hidden dense layer, in [0, 1).
      implementation: `"matmul"` or `"lax"`, by platform if `None`; see `train.task.models.ops.layout`.
    """

    num_classes: int = 1000
    width: float = 1.0
    dropout: float = 0.5
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layout = Layout.of(self.implementation)

        def convolved(x, channels, size, **options):
            return nn.relu(Convolution(widened(channels, self.width), size, layout, use_bias=True, **options)(x))

        x = max_pool(convolved(arrange(images, layout), 64, 11, stride=4, padding=2), 3, 2)
        x = max_pool(convolved(x, 192, 5), 3, 2)
        x = convolved(x, 384, 3)
        x = convolved(x, 256, 3)
        x = max_pool(convolved(x, 256, 3), 3, 2)
        x = flatten(x, layout)
        for _ in range(2):
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
            x = nn.relu(dense(x, widened(4096, self.width)))
        return dense(x, self.num_classes)
