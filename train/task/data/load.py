"""The data sets of the training runs, whole in memory.

`load` prepares a set in TFDS's folder with one of the project's builders (`train.task.data.builders`), which
need neither TensorFlow nor the network, and reads it back. Any other name is taken for an image set
of TFDS's own (`train.task.data.other_sets`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from train.common.errors import DataError
from train.task.data import other_sets, prepared
from train.task.data.builders.cifar import Cifar10, Cifar100
from train.task.data.builders.cifar10_jpeg import Cifar10Jpeg
from train.task.data.builders.digits import Digits
from train.task.data.builders.mnist import FashionMnist, Mnist
from train.task.data.builders.tiny_shakespeare import TinyShakespeare

SEQUENCE_LENGTH = 128
"""Tokens that a row of text predicts, by default."""

PerChannel = float | tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Rows in memory, in a fixed order: labelled images, or tokens of a text.

    Attributes:
      name: which data set.
      train: columns by name, with one leading axis. Of images "image" uint8 [n, H, W, C] and "label"
        int32 [n]. Of a text "tokens" uint8 [n, L + 1]: L tokens and, one further on, the L to predict
        from them; the last token of a row is the first one of the next, so each is predicted once.
      test: the same, of rows that are not for training.
      num_classes: how many labels, or different tokens (256, of bytes), there are.
      mean: normalises images, (image / scale - mean) / std; of colour images one number a channel.
      std: see `mean`.
      scale: see `mean`.
      validation: as `test`, of sets that have a third part; otherwise None.
    """

    name: str
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    mean: PerChannel = 0.0
    std: PerChannel = 1.0
    scale: float = 1.0
    validation: dict[str, np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a row is, known before the data are there.

    Attributes:
      column: "image" or "tokens", as in `Dataset`.
      shape: what a network is given of a row: [H, W, C] of an image, [L] of tokens (the columns have one more).
      num_classes: as in `Dataset`.
    """

    column: str
    shape: tuple[int, ...]
    num_classes: int


@dataclasses.dataclass(frozen=True)
class _Images:
    """A builder of labelled images, and their constants.

    Mean and std are those of the training images: of CIFAR-10 and CIFAR-100 as they are commonly published, of the other sets
    as measured.
    """

    builder: Any
    mean: PerChannel
    std: PerChannel
    scale: float = 255.0
    num_classes: int = 10

    def spec(self, length: int) -> Spec:
        del length
        return Spec("image", self.builder.shape, self.num_classes)

    def load(self, name: str, root: Path, manual_dir: str | None, length: int) -> Dataset:
        del length
        splits = prepared.read(self.builder, root, manual_dir, prepared.read_images)
        return Dataset(
            name, splits["train"], splits["test"], self.num_classes, mean=self.mean, std=self.std, scale=self.scale
        )


@dataclasses.dataclass(frozen=True)
class _Text:
    """A builder of a text, whose tokens are its bytes."""

    builder: Any
    num_classes: int = 256

    def spec(self, length: int) -> Spec:
        return Spec("tokens", (length,), self.num_classes)

    def load(self, name: str, root: Path, manual_dir: str | None, length: int) -> Dataset:
        splits = prepared.read(self.builder, root, manual_dir, prepared.read_text)
        rows = {split: {"tokens": rows_of(columns["text"], length)} for split, columns in splits.items()}
        return Dataset(name, rows["train"], rows["test"], self.num_classes, validation=rows.get("validation"))


SOURCES = {
    "digits": _Images(Digits, mean=0.3054, std=0.3759, scale=16.0),
    "mnist": _Images(Mnist, mean=0.1307, std=0.3081),
    "fashion_mnist": _Images(FashionMnist, mean=0.2860, std=0.3530),
    "cifar10": _Images(Cifar10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": _Images(Cifar100, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), num_classes=100),
    "cifar10_jpeg": _Images(Cifar10Jpeg, mean=(0.4913, 0.4821, 0.4465), std=(0.2452, 0.2428, 0.2606)),
    "tiny_shakespeare": _Text(TinyShakespeare),
}


def load(
    name: str,
    *,
    data_dir: str | None = None,
    manual_dir: str | None = None,
    sequence_length: int = SEQUENCE_LENGTH,
) -> Dataset:
    """The data set `name`.

    Args:
      name: one of `SOURCES`, or the name of an image set of TFDS, with its configuration behind a
        slash where it has several ("emnist/letters").
      data_dir: the folder in which TFDS keeps prepared sets; TFDS's own default where None.
      manual_dir: the folder with the original files; all of `SOURCES` but "digits" need it the
        first time.
      sequence_length: tokens that a row of text predicts, at least 1; images have none.

    Raises:
      DataError: an unknown name, or an original file that is not what it should be (a ValueError).
      FileNotFoundError: the original files are needed and not there. Nothing has been written then.
    """
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    if name in SOURCES:
        return SOURCES[name].load(name, root, manual_dir, sequence_length)
    check_name(name, data_dir=data_dir)
    columns, test, num_classes = other_sets.load(name, root)
    mean, std = other_sets.mean_and_std(columns["image"])
    return Dataset(name, columns, test, num_classes, mean=mean, std=std, scale=255.0)


def missing(name: str, *, data_dir: str | None = None, manual_dir: str | None = None) -> str:
    """What :func:`load` would find missing of one of `SOURCES`, in a line; empty if nothing."""
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    return prepared.missing(SOURCES[name].builder, root, manual_dir)


def spec(name: str, *, data_dir: str | None = None, sequence_length: int = SEQUENCE_LENGTH) -> Spec:
    """What a row of `name` is; the data need not be there.

    Raises:
      DataError: an unknown name.
    """
    if name in SOURCES:
        return SOURCES[name].spec(sequence_length)
    check_name(name, data_dir=data_dir)
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    return Spec("image", *other_sets.shape_and_classes(other_sets.find(name, root)))


def image_shape(name: str, *, data_dir: str | None = None) -> tuple[int, int, int]:
    """Height, width and channels of the images of a set, which need not be there.

    Raises:
      DataError: a set of text, or an unknown name.
    """
    found = spec(name, data_dir=data_dir)
    if found.column != "image":
        raise DataError(f"{name} has no images, but {found.column}")
    height, width, channels = found.shape
    return height, width, channels


def check_name(name: str, *, data_dir: str | None = None) -> None:
    """Raise `DataError`, with what is possible, unless there is a data set `name`."""
    if name not in SOURCES:
        other_sets.check_name(name, Path(data_dir or tfds.core.constants.DATA_DIR).expanduser(), tuple(SOURCES))


def rows_of(text: np.ndarray, length: int) -> np.ndarray:
    """Tokens [n] cut into rows [rows, length + 1], each of which begins with the last token of the one before.

    What is left at the end and fills no row is dropped.

    >>> rows_of(np.arange(8), 3)
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """
    count = (len(text) - 1) // length if length >= 1 else 0
    if count < 1:
        raise DataError(f"sequence_length must be in 1 … {len(text) - 1}, the tokens of a part less one; got {length}")
    return np.stack([text[row * length : (row + 1) * length + 1] for row in range(count)])
