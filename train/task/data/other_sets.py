"""Image sets of TFDS for which the project has no builder: prepared elsewhere, or here where TensorFlow is installed."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from train.common.errors import DataError
from train.task.data import prepared

NAME = re.compile(r"[a-z][a-z0-9_]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)?")
TESTS = ("test", "validation")
"""The splits that serve for testing, the best one first."""


def check_name(name: str, root: Path, built_in: tuple[str, ...]) -> None:
    """Raise unless TFDS knows a set `name`, or one of that name is prepared in `root`.

    Raises:
      DataError: says which sets there are, and those that may be meant.
    """
    known = tfds.list_builders(with_community_datasets=False)
    if NAME.fullmatch(name) and (name.split("/")[0] in known or _newest(name, root)):
        return
    close = difflib.get_close_matches(name, dict.fromkeys([*built_in, *known]))
    meant = f" (did you mean {' or '.join(close)}?)" if close else ""
    raise DataError(
        f"there is no data set {name!r}{meant}: choose one of {', '.join(built_in)}, or an image set of TFDS by its name"
    )


def find(name: str, root: Path) -> tfds.core.DatasetBuilder:
    """The builder of a set: as it is prepared in `root`, otherwise TFDS's own, which knows what it will be.

    Raises:
      DataError: if TFDS cannot make that.
    """
    if folder := _newest(name, root):
        return tfds.builder_from_directory(folder)
    try:
        return tfds.builder(name, data_dir=root)
    except (ValueError, ImportError, tfds.core.DatasetNotFoundError) as error:
        configs = ", ".join(tfds.builder_cls(name.split("/")[0]).builder_configs)
        which = f" (it has the configurations {configs})" if configs else ""
        raise DataError(f"TFDS cannot make {name}{which}: {str(error).partition(chr(10))[0]}") from error


def load(name: str, root: Path) -> tuple[prepared.Columns, prepared.Columns, int]:
    """Training images, test images, and the number of classes of a set.

    Raises:
      DataError: if it is no set of labelled images of one size, or in a form that cannot be read.
      FileNotFoundError: if it is not prepared and TensorFlow, which would do that, not installed.
    """
    builder = find(name, root)
    _, num_classes = shape_and_classes(builder)
    if _newest(name, root) is None:
        if not has_tensorflow():
            raise FileNotFoundError(
                f"{name} is not prepared in {root}, and preparing it takes TensorFlow: pip install 'gemjax[tfds]', or "
                f"elsewhere run tfds.builder({name!r}).download_and_prepare(file_format='array_record') and name the "
                "folder it writes to as data_dir"
            )
        prepared.prepare(builder)
        builder = find(name, root)
    test = next((split for split in TESTS if split in builder.info.splits), None)
    if "train" not in builder.info.splits or test is None:
        raise DataError(f"{name} has the splits {', '.join(builder.info.splits)}; wanted are train and test")
    try:
        train, tests = (prepared.read_decoded(builder, split) for split in ("train", test))
    except NotImplementedError:
        raise DataError(
            f"{builder.data_dir} is prepared as {builder.info.file_format.value}, which is read from begin to end only; "
            "prepare it with download_and_prepare(file_format='array_record')"
        ) from None
    return train, tests, num_classes or 1 + int(max(train["label"].max(), tests["label"].max()))


def shape_and_classes(builder: tfds.core.DatasetBuilder) -> tuple[tuple[int, int, int], int]:
    """Of the images of a set [H, W, C], and how many labels there are; 0 if TFDS does not say.

    Raises:
      DataError: if it is no set of labelled images of one size.
    """
    features = builder.info.features
    if not {"image", "label"} <= set(features):
        raise DataError(f"{builder.name} has {', '.join(features)}; wanted are image and label")
    image, label = features["image"], features["label"]
    if image.np_dtype != np.uint8 or label.shape != ():
        raise DataError(
            f"{builder.name} has images of {image.np_dtype} and labels of shape {label.shape}; wanted are uint8 and ()"
        )
    shape = image.shape
    if len(shape) != 3 or None in shape:
        raise DataError(f"{builder.name} has images of the shape {shape}; wanted is one size for all")
    return shape, getattr(label, "num_classes", None) or 0


def mean_and_std(images: np.ndarray) -> tuple[float | tuple[float, ...], float | tuple[float, ...]]:
    """Mean and standard deviation of images uint8 [n, H, W, C] over 255; of each channel, where there are several.

    >>> mean_and_std(np.array([0, 255, 0, 255], np.uint8).reshape(1, 2, 2, 1))
    (0.5, 0.5)
    """
    values = np.arange(256) / 255
    channels = images.reshape(-1, images.shape[-1]).T
    shares = [np.bincount(channel, minlength=256) / channel.size for channel in channels]
    means = tuple(float(share @ values) for share in shares)
    stds = tuple(float(np.sqrt(share @ (values - mean) ** 2)) or 1.0 for share, mean in zip(shares, means, strict=True))
    return (means, stds) if len(means) > 1 else (means[0], stds[0])


def has_tensorflow() -> bool:
    """Whether TensorFlow is installed; it is not imported."""
    return importlib.util.find_spec("tensorflow") is not None


def _newest(name: str, root: Path) -> Path | None:
    """The folder of the newest version of a set that is prepared in `root`."""
    versions = [
        folder.parent
        for folder in (root / name).glob("*/dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", folder.parent.name)
    ]
    return max(versions, key=lambda folder: tuple(map(int, folder.name.split("."))), default=None)
