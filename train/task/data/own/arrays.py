"""Arrays in an `.npz` file: features or images, with labels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from train.common.errors import DataError
from train.task.data.dataset import Columns, Dataset, mean_and_std
from train.task.data.own.split import split

NAMES = (("x", "y"), ("image", "label"))
KINDS = "[n, features], [n, height, width] or [n, height, width, channels]"


def read(path: Path, test_share: float) -> Dataset:
    """Return the arrays `x` and `y`, or `image` and `label`, of a file, and `x_test` and `y_test` if it has them.

    Labels may be any integers or strings; they are numbered in sorted order.

    Raises:
      DataError: if the file has no such arrays (a ValueError).
    """
    try:
        with np.load(path) as file:
            found = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as the arrays of numpy.savez: {error}") from error
    names = next((pair for pair in NAMES if set(pair) <= found.keys()), None)
    if names is None:
        raise DataError(f"{path} has the arrays {', '.join(found)}; needed are x and y, or image and label")
    tests = tuple(f"{name}_test" for name in names)
    train = _rows(path, found, names)
    if set(tests) <= found.keys():
        test, note = _rows(path, found, tests), ""
    else:
        train, test, note = split(train, test_share)
    kinds = [f"{part['image'].dtype}{list(part['image'].shape[1:])}" for part in (train, test)]
    if kinds[0] != kinds[1]:
        raise DataError(f"{path} has rows of {kinds[0]} in {names[0]}, but of {kinds[1]} in {tests[0]}")
    classes = np.unique(np.concatenate([train["label"], test["label"]]))
    for part in (train, test):
        part["label"] = np.searchsorted(classes, part["label"]).astype(np.int32)
    scale = 255.0 if train["image"].dtype == np.uint8 else 1.0
    return Dataset(str(path), train, test, len(classes), *mean_and_std(train["image"]), scale=scale, note=note)


def _rows(path: Path, found: dict[str, np.ndarray], names: tuple[str, ...]) -> Columns:
    """Return the two arrays as rows: features become the channels of one pixel."""
    x, y = (found[name] for name in names)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "buif":
        raise DataError(f"{names[0]} of {path} must be numbers of the shape {KINDS}; it is {x.dtype}{list(x.shape)}")
    if y.shape != x.shape[:1] or y.dtype.kind not in "buiUS":
        raise DataError(
            f"{names[1]} of {path} must be a class per row of {names[0]}, [{len(x)}], as integers or strings; it is "
            f"{y.dtype}{list(y.shape)}"
        )
    x = x[:, None, None] if x.ndim == 2 else x[..., None] if x.ndim == 3 else x
    return {"image": x if x.dtype == np.uint8 and x.shape[1:3] != (1, 1) else x.astype(np.float32), "label": y}
