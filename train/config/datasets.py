"""The data sets of the command line: facts about each, one row per data set.

A new data set needs its builder in `train/task/data/builders` and a row here. Image sets of TFDS and data of one's own need
neither.
"""

import dataclasses
import os
from pathlib import Path

PerChannel = float | tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """Facts about a data set.

    Mean and standard deviation are those of the training images: of CIFAR-10 and CIFAR-100 as they are commonly published, of
    the other sets as measured.

    Args:
      builder: module and class of its builder in `train.task.data.builders`.
      rows: number of training rows.
      classes: number of labels, or of different tokens.
      shape: shape of a network's input per row: [H, W, C] for an image, [L] for a text of L tokens.
      mean: normalises images, (image / scale - mean) / std; per channel for colour images.
      std: see `mean`.
      scale: see `mean`.
    """

    builder: str
    rows: int
    classes: int
    shape: tuple[int, ...]
    mean: PerChannel = 0.0
    std: PerChannel = 1.0
    scale: float = 255.0


DATASETS = {
    "digits": DatasetFacts("digits:Digits", 1437, 10, (8, 8, 1), 0.3054, 0.3759, 16.0),
    "mnist": DatasetFacts("mnist:Mnist", 60_000, 10, (28, 28, 1), 0.1307, 0.3081),
    "fashion_mnist": DatasetFacts("mnist:FashionMnist", 60_000, 10, (28, 28, 1), 0.2860, 0.3530),
    "cifar10": DatasetFacts(
        "cifar:Cifar10", 50_000, 10, (32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": DatasetFacts(
        "cifar:Cifar100", 50_000, 100, (32, 32, 3), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
    "cifar10_jpeg": DatasetFacts(
        "cifar10_jpeg:Cifar10Jpeg", 50_000, 10, (32, 32, 3), (0.4913, 0.4821, 0.4465), (0.2452, 0.2428, 0.2606)
    ),
    "tiny_shakespeare": DatasetFacts("tiny_shakespeare:TinyShakespeare", 7_842, 256, (128,), scale=1.0),
}


def resolved(name: str) -> str:
    """Return the name of a data set; of a file or folder that exists, the absolute path, which holds in any working folder."""
    path = os.path.abspath(os.path.expanduser(name))
    return path if name and name not in DATASETS and os.path.exists(path) else name


def is_own(name: str) -> bool:
    """Return True if a resolved name is the path of a file or folder of one's own."""
    return os.path.isabs(name) and os.path.exists(name)


def label(name: str) -> str:
    """Return the name of a data set as a part of a file name.

    >>> label("emnist/letters"), label("/home/me/photos.npz")
    ('emnist-letters', 'photos')
    """
    return Path(name).stem if os.path.isabs(name) else name.replace("/", "-")
