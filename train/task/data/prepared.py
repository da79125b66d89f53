"""Prepared data sets: made once with TFDS, read whole into memory.

Sets of TFDS that have no builder in the project are prepared elsewhere, or here if TensorFlow is installed. TFDS
writes into a temporary folder and renames it at the end, so a killed run leaves nothing that later runs would read.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from train.common.errors import DataError, either
from train.config.datasets import DATASETS
from train.task.data.dataset import Columns, Dataset, mean_and_std

READ_AT_ONCE = 4096
"""Records per read."""
NAME = re.compile(r"[a-z][a-z0-9_]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)?")
TESTS = ("test", "validation")
"""Splits that serve for testing, the best one first."""


def read(builder_class: Any, root: Path, manual_dir: str | None) -> dict[str, Columns]:
    """Return training and test rows of one of the project's sets, which is prepared in `root` if it is not there yet.

    Args:
      builder_class: one of `train.task.data.builders`.
      root: folder in which TFDS keeps prepared sets.
      manual_dir: folder with the original files, needed if the set is not prepared yet.

    Raises:
      FileNotFoundError: if the original files are needed and missing. Nothing has been written then.
      DataError: if they are wrong, and nothing has been written; or if the set cannot be written.
    """
    folder = root / builder_class.name / str(builder_class.VERSION)
    if not folder.exists():
        try:
            builder_class.check_sources(manual_dir)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error} Or give as data_dir a folder with the prepared set; {root.absolute()} has none."
            ) from None
        try:
            prepare(builder_class(data_dir=root), manual_dir)
        except (OSError, RuntimeError) as error:  # RuntimeError: array_record found the disk full.
            if not folder.exists():  # Otherwise another process has prepared the same set meanwhile.
                reason = str(error).partition("\n")[0]
                raise DataError(
                    f"{builder_class.title} could not be prepared in {root}: {reason}; make room there, or name another "
                    "folder as data_dir"
                ) from error
    builder = builder_class(data_dir=root)
    read_split = read_text if "text" in builder.info.features else read_images
    return {split: read_split(builder, split) for split in ("train", "test")}


def missing(builder_class: Any, root: Path, manual_dir: str | None) -> str:
    """Return the error about original files that :func:`read` would raise; empty if none."""
    if (root / builder_class.name / str(builder_class.VERSION)).exists():
        return ""
    try:
        builder_class.check_sources(manual_dir)
    except (FileNotFoundError, DataError) as error:
        return str(error)
    return ""


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


def load_other(name: str, root: Path) -> Dataset:
    """Return the images of a set without a builder in the project.

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
        prepare(builder)
    test = next(split for split in TESTS if split in builder.info.splits)
    train, tests = (read_decoded(builder, split) for split in ("train", test))
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


def spec_of_other(name: str, root: Path) -> tuple[tuple[int, int, int], int]:
    """Return shape [H, W, C] and number of labels of a set without a builder here, 0 if only preparing it would tell.

    Raises:
      DataError: if it is no set of labelled images of one size.
    """
    builder = find(name, root)
    shape, num_classes = shape_and_classes(builder)
    if not num_classes and builder.is_prepared():
        splits = ["train", *(split for split in TESTS if split in builder.info.splits)][:2]
        num_classes = 1 + max(int(read_labels(builder, split).max()) for split in splits)
    return shape, num_classes


def has_tensorflow() -> bool:
    """Return True if TensorFlow is installed; it is not imported."""
    return importlib.util.find_spec("tensorflow") is not None


def prepare(builder: tfds.core.DatasetBuilder, manual_dir: str | None = None) -> None:
    """Prepare a set, silently, in a file format with random access."""
    originals = None if manual_dir is None else Path(manual_dir).expanduser()
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(
            file_format="array_record", download_config=tfds.download.DownloadConfig(manual_dir=originals)
        )


def read_images(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    """Return one split of the project's labelled images: "image" uint8 [n, H, W, C] and "label" int32 [n].

    The records are parsed here because TFDS's decoding, one record at a time, takes about five times as long.
    """
    columns = _empty(builder, split)
    shape = columns["image"].shape[1:]
    for index, record in _records(builder, split):
        columns["image"][index] = np.frombuffer(record["image"].bytes_list.value[0], np.uint8).reshape(shape)
        columns["label"][index] = record["label"].int64_list.value[0]
    return columns


def read_text(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    """Return one split of a set of texts, joined: "text" uint8 [bytes]."""
    texts = [record["text"].bytes_list.value[0] for _, record in _records(builder, split)]
    return {"text": np.frombuffer(b"".join(texts), np.uint8)}


def read_decoded(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    """Return one split of any set with "image" and "label", decoded by TFDS from any encoding of images."""
    others = set(builder.info.features) - {"image", "label"}
    source = builder.as_data_source(split, decoders=dict.fromkeys(others, tfds.decode.SkipDecoding()))
    columns = _empty(builder, split)
    for index, example in enumerate(source):
        columns["image"][index], columns["label"][index] = example["image"], _label(builder, split, index, example)
    return columns


def read_labels(builder: tfds.core.DatasetBuilder, split: str) -> np.ndarray:
    """Return the labels of one split of any set with "label", int32 [n]; nothing else is decoded."""
    others = set(builder.info.features) - {"label"}
    source = builder.as_data_source(split, decoders=dict.fromkeys(others, tfds.decode.SkipDecoding()))
    return np.array([_label(builder, split, index, example) for index, example in enumerate(source)], np.int32)


def _label(builder: tfds.core.DatasetBuilder, split: str, index: int, example: Any) -> int:
    label = int(example["label"])
    if not 0 <= label < (getattr(builder.info.features["label"], "num_classes", None) or 2**31 - 1):
        raise DataError(
            f"{builder.name} has the label {label} in example {index} of its split {split}; needed are numbers of classes, "
            "from 0 on (TFDS writes -1 where there is none)"
        )
    return label


def _empty(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    count = builder.info.splits[split].num_examples
    shape = builder.info.features["image"].shape
    return {"image": np.empty((count, *shape), np.uint8), "label": np.empty(count, np.int32)}


def _records(builder: tfds.core.DatasetBuilder, split: str) -> Iterator[tuple[int, Any]]:
    """Yield the parsed features of every record of a split, with its number."""
    example: Any = tf_example_pb2
    records = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
    for start in range(0, len(records), READ_AT_ONCE):
        block = range(start, min(start + READ_AT_ONCE, len(records)))
        for index, record in zip(block, records.__getitems__(list(block)), strict=True):
            yield index, example.Example.FromString(record).features.feature
