"""Settings of the claims on CIFAR-10: ResNet-20 as in DANA's paper, smaller networks for CPUs, digits for tests.

Epochs count the data of all workers together, as in the papers: with more workers each one makes fewer commits.
"""

import dataclasses
import math
from collections.abc import Sequence

from train.config.config import Config

CIFAR10 = Config(dataset="cifar10", engine="simulate", model="resnet20", batch_size=128, augment=True)
SMALL = Config(
    dataset="cifar10_jpeg", engine="simulate", model="batchnorm_cnn", pool=2, batch_size=32, cluster="homogeneous"
)
SMALL_NETWORK = "three convolutions with batch normalisation on CIFAR-10 (JPEG q75) averaged to 16x16, batches of 32"
TINY = dataclasses.replace(SMALL, pool=4)
TINY_NETWORK = "three convolutions with batch normalisation on CIFAR-10 (JPEG q75) averaged to 8x8, batches of 32"
POOLED = dataclasses.replace(SMALL, model="pooled_cnn")
POOLED_NETWORK = "two pooled convolutions without normalisation on CIFAR-10 (JPEG q75) averaged to 16x16, batches of 32"
SMALL_COMMITS = 50_000 // 32  # Commits per epoch of data.
DIGITS = Config(dataset="digits", engine="simulate", batch_size=32)
GUESS = 0.1  # The accuracy of guessing among ten classes, which also counts for a failed run.


def percent(values: Sequence[float], form: str = ".2f") -> str:
    """Return fractions as percentages in one line.

    >>> percent([0.5, 0.25, float("nan")])
    '50.00 / 25.00 / failed %'
    """
    return " / ".join("failed" if math.isnan(value) else f"{100 * value:{form}}" for value in values) + " %"
