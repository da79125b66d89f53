"""A data set in memory."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np

from train.config import networks
from train.config.datasets import PerChannel

Columns = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Rows in memory, in a fixed order: labelled images, or tokens of a text.

    Attributes:
      name: name of the data set.
      train: columns by name, with one leading axis. For images "image" uint8 [n, H, W, C] and "label" int32 [n]; rows of F
        features are images of one pixel with F channels, float32 [n, 1, 1, F]. For a text
        "tokens" uint8 or uint16 [n, L + 1]: L tokens and, shifted by one, the L tokens to predict from them. The last token
        of a row is the first one of the next, so each is predicted once.
      test: the same columns, of rows that are not for training.
      num_classes: number of labels, or of different tokens (256, of bytes).
      mean: normalises images, (image / scale - mean) / std; per channel for colour images.
      std: see `mean`.
      scale: see `mean`.
      note: how files of a user's own were read, for the line that describes the set.
    """

    name: str
    train: Columns
    test: Columns
    num_classes: int
    mean: PerChannel = 0.0
    std: PerChannel = 1.0
    scale: float = 255.0
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a network's input per row: [H, W, C] for an image, [L] for a text of L tokens."""
        if "tokens" in self.train:
            return (self.train["tokens"].shape[1] - 1,)
        return self.train["image"].shape[1:]

    def described(self) -> str:
        """Return in one line what the set holds: rows, shape and classes.

        >>> rows = lambda count: {"image": np.zeros((count, 28, 28, 1)), "label": np.zeros(count)}
        >>> Dataset("mnist", rows(60_000), rows(10_000), 10).described()
        '60,000 training and 10,000 test images of 28x28x1, 10 classes'
        """
        counts = [f"{len(next(iter(part.values()))):,}" for part in (self.train, self.test)]
        rows = f"{counts[0]} training and {counts[1]} test"
        if len(self.shape) == 1:
            return f"{rows} rows of {self.shape[0]} tokens, {self.num_classes} different{self.note}"
        is_image = self.shape[:2] != (1, 1)
        kind = f"images of {'x'.join(map(str, self.shape))}" if is_image else f"rows of {self.shape[2]} features"
        return f"{rows} {kind}, {self.num_classes} classes{self.note}"

    def pooled(self, pool: int) -> Dataset:
        """Return the set with squares of `pool` pixels a side averaged, and the means rounded.

        Raises:
          DataError: if its images cannot be divided into such squares, or if it is a text (a ValueError).
        """
        if pool == 1:
            return self
        train, test = (part | {"image": _pooled(part["image"], pool)} for part in (self.train, self.test))
        return dataclasses.replace(self, train=train, test=test)


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


def rows_of(text: np.ndarray, length: int) -> np.ndarray:
    """Return tokens [n] cut into rows [rows, length + 1], each of which begins with the last token of the one before.

    Tokens at the end that fill no row are dropped.

    >>> rows_of(np.arange(8), 3)
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """
    count = (len(text) - 1) // length
    return np.lib.stride_tricks.sliding_window_view(text, length + 1)[: count * length : length].copy()


def mean_and_std(images: np.ndarray) -> tuple[PerChannel, PerChannel]:
    """Return mean and standard deviation of images [n, H, W, C], those of uint8 over 255; per channel if there are several.

    >>> mean_and_std(np.array([0, 255, 0, 255], np.uint8).reshape(1, 2, 2, 1))
    (0.5, 0.5)
    >>> mean_and_std(np.array([[1.0, 7.0], [3.0, 7.0]]))  # A constant feature is not divided by 0.
    ((2.0, 7.0), (1.0, 1.0))
    """
    channels = images.reshape(-1, images.shape[-1]).T
    if images.dtype == np.uint8:
        values = np.arange(256) / 255
        shares = [np.bincount(channel, minlength=256) / channel.size for channel in channels]
        means = [float(share @ values) for share in shares]
        squares = [float(share @ (values - mean) ** 2) for share, mean in zip(shares, means, strict=True)]
    else:
        means = [float(channel.mean(dtype=np.float64)) for channel in channels]
        squares = [float(np.square(channel - mean).mean()) for channel, mean in zip(channels, means, strict=True)]
    stds = [square**0.5 or 1.0 for square in squares]
    return (tuple(means), tuple(stds)) if len(means) > 1 else (means[0], stds[0])


def _pooled(images: np.ndarray, pool: int) -> np.ndarray:
    """Return uint8 images [n, H, W, C] with squares of `pool` pixels averaged; the sums need no memory for all pixels."""
    height, width, channels = networks.pooled(images.shape[1:], pool)
    cut = images.reshape(len(images), height, pool, width, pool, channels)
    means = cut.sum((2, 4), dtype=np.uint32) / pool**2
    return np.rint(means).astype(images.dtype)
