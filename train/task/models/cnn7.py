"""The seven-layer network of the EASGD paper, which LSGD's experiments use too."""

from __future__ import annotations

import jax
from flax import linen as nn

from train.task.models.layers import Conv, dense, widened

SIDE = 28
"""Height and width of the part of an image that the network takes, in pixels."""


class CNN7(nn.Module):
    """The CIFAR network of Zhang, Choromanska and LeCun (2015, arXiv:1412.6651): 351,946 parameters for 10 classes.

    In their notation (3,28) C(64,24) P(64,12) C(128,8) P(128,4) C(64,2) D(256,1) S(10): convolutions 5x5, 5x5 and
    3x3 without padding, two max-poolings 2x2, a dense layer of 256, dropout of rate 0.5 and a softmax. Of images
    larger than 28x28 it sees the middle: behind a random shift by up to 2 pixels (`augment(pad=2)`) that is the
    paper's random crop out of 32x32, in evaluation its centre crop. A ReLU follows the dense layer, too. Needs
    an rng named `"dropout"` where `train` is true.

    Args:
      dropout: rate of the dropout behind the dense layer, in [0, 1).
      num_classes: number of classes.
      width: factor on the number of channels and units.
      implementation: of convolutions; see `train.task.models.ops.convolution`.
    """

    dropout: float = 0.5
    num_classes: int = 10
    width: float = 1.0
    implementation: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        top, left = ((extent - SIDE) // 2 for extent in images.shape[1:3])
        x = images[:, top : top + SIDE, left : left + SIDE]
        x = nn.relu(Conv(widened(64, self.width), 5, pool=True, implementation=self.implementation)(x))
        x = nn.relu(Conv(widened(128, self.width), 5, pool=True, implementation=self.implementation)(x))
        x = nn.relu(Conv(widened(64, self.width), 3, implementation=self.implementation)(x))
        x = nn.relu(dense(x.reshape(x.shape[0], -1), widened(256, self.width)))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return dense(x, self.num_classes)
