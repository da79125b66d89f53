"""Image sets of TFDS without a builder in the project: prepared elsewhere, or here if TensorFlow is installed."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from train.common.errors import DataError, either
from train.config.datasets import DATASETS
from train.task.data import prepared
from train.task.data.dataset import Dataset, mean_and_std

NAME = re.compile(r"[a-z][a-z0-9_]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)?")
TESTS = ("test", "validation")
"""Splits that serve for testing, the best one first."""


def find(name: str, root: Path) -> tfds.core.DatasetBuilder:
    """Return the builder of a set: the newest version prepared in `root`, otherwise the one in TFDS's code.

    Raises:
      DataError: if there is none, with the names that may be meant, or if TFDS cannot make it.
    """
    try:
        if not NAME.fullmatch(name):
            raise tfds.core.DatasetNotFoundError(name)
        return tfds.builder(f"{name}:*.*.*", data_dir=root)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        close = difflib.get_close_matches(name, dict.fromkeys([*DATASETS, *known]))
        meant = f" (did you mean {either(close)}?)" if close else ""
        raise DataError(
            f"there is no data set {name!r}{meant}: choose one of {', '.join(DATASETS)}, the path of a "
            "file or folder, or an image set of TFDS by its name"
        ) from None
    except (ValueError, ImportError) as error:
        raise DataError(f"TFDS cannot make {name}: {str(error).partition(chr(10))[0]}") from error


def load(name: str, root: Path) -> Dataset:
    """Return the images of a set.

    Raises:
      DataError: if it is no set of labelled images of one size.
      FileNotFoundError: if it is not prepared, and TensorFlow, which preparing needs, is not installed.
    """
    builder = find(name, root)
    _, num_classes = shape_and_classes(builder)
    if not builder.is_prepared():
        if not has_tensorflow():
            raise FileNotFoundError(
                f"{name} is not prepared in {root}, and preparing it takes TensorFlow: pip install 'gemjax[tfds]', or "
                f"elsewhere run tfds.builder({name!r}).download_and_prepare(file_format='array_record') and name the "
                "folder it writes to as data_dir"
            )
        prepared.prepare(builder)
    test = next(split for split in TESTS if split in builder.info.splits)
    train, tests = (prepared.read_decoded(builder, split) for split in ("train", test))
    num_classes = num_classes or 1 + int(max(train["label"].max(), tests["label"].max()))
    return Dataset(name, train, tests, num_classes, *mean_and_std(train["image"]))


def shape_and_classes(builder: tfds.core.DatasetBuilder) -> tuple[tuple[int, int, int], int]:
    """Return the shape [H, W, C] of the images of a set and its number of labels; 0 if TFDS does not state it.

    Raises:
      DataError: if it is no set of labelled images of one size.
    """
    features = dict(builder.info.features)
    image, label = features.get("image"), features.get("label")
    shape = getattr(image, "shape", ())
    images = image is not None and image.np_dtype == np.uint8 and len(shape) == 3 and None not in shape
    if not images or label is None or label.shape != () or np.dtype(label.np_dtype).kind not in "biu":
        raise DataError(
            f"{builder.name} has {features}; needed are image, of one size in uint8, and label, an integer from 0 on"
        )
    return shape, getattr(label, "num_classes", None) or 0


def spec(name: str, root: Path) -> tuple[tuple[int, int, int], int]:
    """Return the shape [H, W, C] of the images of a set and its number of labels; 0 if only preparing it would tell.

    Raises:
      DataError: if it is no set of labelled images of one size.
    """
    builder = find(name, root)
    shape, num_classes = shape_and_classes(builder)
    if not num_classes and builder.is_prepared():
        splits = ["train", *(split for split in TESTS if split in builder.info.splits)][:2]
        num_classes = 1 + max(int(prepared.read_labels(builder, split).max()) for split in splits)
    return shape, num_classes


def has_tensorflow() -> bool:
    """Return True if TensorFlow is installed; it is not imported."""
    return importlib.util.find_spec("tensorflow") is not None
