"""What the claims on CIFAR-10 have in common: ResNet-20 as DANA's paper trains it, less of it for CPUs, digits for tests.

Epochs count the data of all workers together, as in the papers: more workers make no more commits, and less each.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from train.config.config import Config, Method

CIFAR10 = Config(dataset="cifar10", engine="simulate", model="resnet20", batch_size=128, augment=True)
CPU = Config(
    dataset="cifar10_jpeg", engine="simulate", model="resnet20", depth=8, width=0.5, batch_size=64, augment=True
)
CPU_NETWORK = "ResNet-8 at half width on CIFAR-10 (JPEG q75), batches of 64"
DIGITS = Config(dataset="digits", engine="simulate", batch_size=32)
GUESS = 0.1  # The accuracy of guessing among ten classes; what has failed counts as it.


def shared(base: Config, method: Method, workers: int, epochs: float, **changes: Any) -> Config:
    """`base` with so many workers, which share `epochs` epochs of data."""
    return dataclasses.replace(base, method=method, workers=workers, epochs=epochs / workers, **changes)


def percent(values: Sequence[float], form: str = ".2f") -> str:
    """Fractions as percentages in one line.

    >>> percent([0.5, 0.25, float("nan")])
    '50.00 / 25.00 / failed %'
    """
    return " / ".join("failed" if math.isnan(value) else f"{100 * value:{form}}" for value in values) + " %"
