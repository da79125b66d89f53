"""The data sets of the training runs: prepared once through TFDS, then read whole into memory.

`load` prepares a set in TFDS's folder with one of the project's builders (`train.builders`), which
need neither TensorFlow nor the network, and reads it back. TFDS writes into a temporary folder and
renames it at the end, so a run that is killed leaves nothing that later runs would read; a prepared
set that turns out to be damaged is prepared anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from train.builders.digits import Digits
from train.builders.mnist import FashionMnist, Mnist

READ_AT_ONCE = 4096
"""How many records one read asks for."""

DAMAGE = (RuntimeError, OSError, ValueError, KeyError, IndexError, ParseError, DecodeError)
"""What TFDS, array_record and protobuf raise when a prepared set is not whole."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images and labels in memory, and what normalises them: (image / scale - mean) / std.

    `train` and `test` map "image" to uint8 [n, H, W, C] and "label" to int32 [n], in a fixed order.
    """

    name: str
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    mean: float
    std: float
    scale: float


@dataclasses.dataclass(frozen=True)
class _Source:
    """A data set's builder and constants; mean and std are those of the training images."""

    builder: Any
    mean: float
    std: float
    scale: float
    num_classes: int = 10


SOURCES = {
    "digits": _Source(Digits, mean=0.3054, std=0.3759, scale=16.0),
    "mnist": _Source(Mnist, mean=0.1307, std=0.3081, scale=255.0),
    "fashion_mnist": _Source(FashionMnist, mean=0.2860, std=0.3530, scale=255.0),
}


def load(name: str, *, data_dir: str | None = None, manual_dir: str | None = None) -> Dataset:
    """The data set `name`: "digits", "mnist" or "fashion_mnist".

    Args:
      name: which data set.
      data_dir: the folder in which TFDS keeps prepared sets; TFDS's own default where None.
      manual_dir: the folder with the original files; "mnist" and "fashion_mnist" need it the
        first time.

    Raises:
      ValueError: an unknown name, or an original file that is not what it should be.
      FileNotFoundError: the original files are needed and not there. Nothing has been written then.
    """
    if name not in SOURCES:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(SOURCES)}")
    source = SOURCES[name]
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    folder = root / source.builder.name / str(source.builder.VERSION)
    splits = _read_prepared(source, root) if folder.exists() else None
    if splits is None:
        _prepare(source, root, folder, manual_dir)
        splits = _read_splits(source.builder(data_dir=root))
    return Dataset(
        name=name,
        train=splits["train"],
        test=splits["test"],
        num_classes=source.num_classes,
        mean=source.mean,
        std=source.std,
        scale=source.scale,
    )


def image_shape(name: str) -> tuple[int, int, int]:
    """Height, width and channels of the images of a set, which need not be there."""
    return SOURCES[name].builder().info.features["image"].shape


def _read_prepared(source: _Source, root: Path) -> dict[str, dict[str, np.ndarray]] | None:
    """The splits of a set prepared earlier, or None if it is damaged."""
    try:
        return _read_splits(source.builder(data_dir=root))
    except DAMAGE:
        return None


def _prepare(source: _Source, root: Path, folder: Path, manual_dir: str | None) -> None:
    """Prepare a set, silently, in place of a damaged one if there is one."""
    source.builder.check_sources(manual_dir)
    if folder.exists():
        shutil.rmtree(folder)
    originals = None if manual_dir is None else Path(manual_dir).expanduser()
    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            source.builder(data_dir=root).download_and_prepare(
                file_format="array_record",
                download_config=tfds.download.DownloadConfig(manual_dir=originals),
            )
    except OSError:
        if not folder.exists():  # otherwise another process has prepared the same set meanwhile
            raise


def _read_splits(builder: tfds.core.DatasetBuilder) -> dict[str, dict[str, np.ndarray]]:
    """Every split of a prepared set as arrays."""
    return {split: _read_split(builder, split) for split in ("train", "test")}


def _read_split(builder: tfds.core.DatasetBuilder, split: str) -> dict[str, np.ndarray]:
    """One split as arrays, in the order of its records.

    The records are parsed here: TFDS's own decoding of one record at a time takes about five times
    as long.
    """
    example: Any = tf_example_pb2
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    records = builder.as_data_source(split, deserialize_method=raw)
    count, shape = len(records), builder.info.features["image"].shape
    if count != builder.info.splits[split].num_examples:
        raise ValueError(f"{builder.data_dir}: the split {split} has {count} records")
    images = np.empty((count, int(np.prod(shape))), np.uint8)
    labels = np.empty(count, np.int32)
    for start in range(0, count, READ_AT_ONCE):
        block = range(start, min(start + READ_AT_ONCE, count))
        for index, record in zip(block, records.__getitems__(list(block)), strict=True):
            feature = example.Example.FromString(record).features.feature
            images[index] = np.frombuffer(feature["image"].bytes_list.value[0], np.uint8)
            labels[index] = feature["label"].int64_list.value[0]
    return {"image": images.reshape(count, *shape), "label": labels}
