"""The data sets of the training runs, whole in memory.

A data set of the project's table is prepared in TFDS's folder by its own builder (`train.task.data.builders`), which needs
neither TensorFlow nor the network, and read back. Any other name is that of an image set of TFDS
(`train.task.data.other_sets`).
"""

from __future__ import annotations

import dataclasses
import pkgutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from train.config import networks
from train.config.datasets import DATASETS, PerChannel
from train.task.data import other_sets, prepared


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Rows in memory, in a fixed order: labelled images, or tokens of a text.

    Attributes:
      name: name of the data set.
      train: columns by name, with one leading axis. For images "image" uint8 [n, H, W, C] and "label" int32 [n]. For a text
        "tokens" uint8 [n, L + 1]: L tokens and, shifted by one, the L tokens to predict from them. The last token of a row is
        the first one of the next, so each is predicted once.
      test: the same columns, of rows that are not for training.
      num_classes: number of labels, or of different tokens (256, of bytes).
      mean: normalises images, (image / scale - mean) / std; per channel for colour images.
      std: see `mean`.
      scale: see `mean`.
      validation: as `test`, if the set has a third part; otherwise None.
    """

    name: str
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    mean: PerChannel = 0.0
    std: PerChannel = 1.0
    scale: float = 255.0
    validation: dict[str, np.ndarray] | None = None

    def pooled(self, pool: int) -> Dataset:
        """Return the set with squares of `pool` pixels a side averaged, and the means rounded.

        Raises:
          DataError: if its images cannot be divided into such squares, or if it is a text (a ValueError).
        """
        if pool == 1:
            return self
        parts = {name: getattr(self, name) for name in ("train", "test", "validation")}
        return dataclasses.replace(
            self, **{name: part and part | {"image": _pooled(part["image"], pool)} for name, part in parts.items()}
        )


def checksum(dataset: Dataset) -> str:
    """Return a checksum (CRC-32) of training and test data, to notice others of the same size.

    >>> set_of = lambda pixels: Dataset("one", {"image": np.array(pixels)}, {}, 2)
    >>> checksum(set_of([1, 2])) == checksum(set_of([1, 2])), checksum(set_of([1, 2])) == checksum(set_of([2, 1]))
    (True, False)
    """
    found = 0
    for split in (dataset.train, dataset.test):
        for name in sorted(split):
            found = zlib.crc32(name.encode(), found)
            found = zlib.crc32(np.ascontiguousarray(split[name]).data, found)
    return f"{found:08x}"


class Spec(NamedTuple):
    """Facts about a row, known before the data are prepared; see `train.config.datasets.DatasetFacts`."""

    shape: tuple[int, ...]
    num_classes: int


def load(
    name: str,
    *,
    data_dir: str | None = None,
    manual_dir: str | None = None,
) -> Dataset:
    """Return a data set.

    Args:
      name: one of `DATASETS`, or the name of an image set of TFDS, with its configuration behind a slash if it has several
        ("emnist/letters").
      data_dir: folder in which TFDS keeps prepared sets; TFDS's own default if None.
      manual_dir: folder with the original files, which all of `DATASETS` but "digits" need the first time.

    Raises:
      DataError: if the name is unknown or an original file is a wrong one (a ValueError).
      FileNotFoundError: if original files are needed and missing. Nothing has been written then.
    """
    root = _root(data_dir)
    if facts := DATASETS.get(name):
        splits = prepared.read(builder(name), root, manual_dir)
        if len(facts.shape) == 1:
            splits = {split: {"tokens": rows_of(one["text"], facts.shape[0])} for split, one in splits.items()}
        return Dataset(
            name,
            splits["train"],
            splits["test"],
            facts.classes,
            facts.mean,
            facts.std,
            facts.scale,
            splits.get("validation"),
        )
    train, test, num_classes = other_sets.load(name, root)
    return Dataset(name, train, test, num_classes, *other_sets.mean_and_std(train["image"]))


def lacking(names: Iterable[str], *, data_dir: str | None = None, manual_dir: str | None = None) -> str:
    """Return the errors about original files that :func:`load` would raise for some of `DATASETS`; empty if none."""
    found = (prepared.missing(builder(name), _root(data_dir), manual_dir) for name in dict.fromkeys(names))
    return " ".join(filter(None, found))


def spec(name: str, *, data_dir: str | None = None) -> Spec:
    """Return shape and number of classes of a data set, which need not be prepared.

    Raises:
      DataError: if the name is unknown.
    """
    if facts := DATASETS.get(name):
        return Spec(facts.shape, facts.classes)
    return Spec(*other_sets.spec(name, _root(data_dir)))


def check_name(name: str, data_dir: str | None = None) -> None:
    """Check that there is a data set `name`.

    Raises:
      DataError: if not, with the names that there are.
    """
    if name not in DATASETS:
        other_sets.find(name, _root(data_dir))


def builder(name: str) -> Any:
    """Return the TFDS builder class of one of `DATASETS`."""
    return pkgutil.resolve_name(f"train.task.data.builders.{DATASETS[name].builder}")


def rows_of(text: np.ndarray, length: int) -> np.ndarray:
    """Return tokens [n] cut into rows [rows, length + 1], each of which begins with the last token of the one before.

    Tokens at the end that fill no row are dropped.

    >>> rows_of(np.arange(8), 3)
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """
    count = (len(text) - 1) // length
    return np.lib.stride_tricks.sliding_window_view(text, length + 1)[: count * length : length].copy()


def _pooled(images: np.ndarray, pool: int) -> np.ndarray:
    """Return uint8 images [n, H, W, C] with squares of `pool` pixels averaged; the sums need no memory for all pixels."""
    height, width, channels = networks.pooled(images.shape[1:], pool)
    cut = images.reshape(len(images), height, pool, width, pool, channels)
    means = cut.sum((2, 4), dtype=np.uint32) / pool**2
    return np.rint(means).astype(images.dtype)


def _root(data_dir: str | None) -> Path:
    return Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
