"""Prepared data sets: made once with TFDS, read whole into memory.

TFDS writes into a temporary folder and renames it at the end, so a run that is killed leaves nothing
that later runs would read; a prepared set that turns out to be damaged is prepared anew.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from train.common.errors import DataError

READ_AT_ONCE = 4096
"""How many records one read asks for."""

DAMAGE = (RuntimeError, OSError, ValueError, KeyError, IndexError, ParseError, DecodeError)
"""What TFDS, array_record and protobuf raise when a prepared set is not whole."""

Columns = dict[str, np.ndarray]
Reader = Callable[[tfds.core.DatasetBuilder, str], Columns]


def read(builder_class: Any, root: Path, manual_dir: str | None, reader: Reader) -> dict[str, Columns]:
    """Every split of a set of the project's, prepared in `root` before or now.

    Args:
      builder_class: one of `train.task.data.builders`.
      root: the folder in which TFDS keeps prepared sets.
      manual_dir: the folder with the original files, needed where the set is not prepared yet.
      reader: what reads one split of it.

    Raises:
      FileNotFoundError: the original files are needed and not there. Nothing has been written then.
      DataError: they are not what they should be. Nothing has been written then.
    """
    folder = root / builder_class.name / str(builder_class.VERSION)
    if folder.exists():
        try:
            return _read_splits(builder_class(data_dir=root), reader)
        except DAMAGE:
            pass
    builder_class.check_sources(manual_dir)
    if folder.exists():
        shutil.rmtree(folder)
    try:
        prepare(builder_class(data_dir=root), manual_dir)
    except OSError:
        if not folder.exists():  # Otherwise another process has prepared the same set meanwhile.
            raise
    return _read_splits(builder_class(data_dir=root), reader)


def missing(builder_class: Any, root: Path, manual_dir: str | None) -> str:
    """What :func:`read` would raise about the original files, unless the set is there; empty if nothing is missing."""
    if (root / builder_class.name / str(builder_class.VERSION)).exists():
        return ""
    try:
        builder_class.check_sources(manual_dir)
    except (FileNotFoundError, DataError) as error:
        return str(error)
    return ""


def prepare(builder: tfds.core.DatasetBuilder, manual_dir: str | None = None) -> None:
    """Prepare a set, silently, in a form whose records can be read in any order."""
    originals = None if manual_dir is None else Path(manual_dir).expanduser()
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(
            file_format="array_record", download_config=tfds.download.DownloadConfig(manual_dir=originals)
        )


def _read_splits(builder: tfds.core.DatasetBuilder, reader: Reader) -> dict[str, Columns]:
    if not {"train", "test"} <= set(builder.info.splits):
        raise DataError(f"{builder.data_dir}: there are no splits train and test")
    return {split: reader(builder, split) for split in builder.info.splits}


def read_images(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    """One split of a set of :class:`LabelledImages`: "image" uint8 [n, H, W, C] and "label" int32 [n].

    The records are parsed here: TFDS's own decoding of one record at a time takes about five times
    as long.
    """
    shape = builder.info.features["image"].shape
    images = np.empty((_count(builder, split), int(np.prod(shape))), np.uint8)
    labels = np.empty(len(images), np.int32)
    for index, record in _records(builder, split):
        images[index] = np.frombuffer(record["image"].bytes_list.value[0], np.uint8)
        labels[index] = record["label"].int64_list.value[0]
    return {"image": images.reshape(-1, *shape), "label": labels}


def read_text(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    """One split of a set of texts, joined: "text" uint8 [bytes]."""
    texts = [record["text"].bytes_list.value[0] for _, record in _records(builder, split)]
    return {"text": np.frombuffer(b"".join(texts), np.uint8)}


def read_decoded(builder: tfds.core.DatasetBuilder, split: str) -> Columns:
    """One split of any set with "image" and "label", decoded by TFDS, however its images are stored."""
    others = set(builder.info.features) - {"image", "label"}
    source = builder.as_data_source(split, decoders=dict.fromkeys(others, tfds.decode.SkipDecoding()))
    images = np.empty((_count(builder, split), *builder.info.features["image"].shape), np.uint8)
    labels = np.empty(len(images), np.int32)
    for index, example in enumerate(source):
        images[index], labels[index] = example["image"], example["label"]
    return {"image": images, "label": labels}


def _count(builder: tfds.core.DatasetBuilder, split: str) -> int:
    return builder.info.splits[split].num_examples


def _records(builder: tfds.core.DatasetBuilder, split: str) -> Iterator[tuple[int, Any]]:
    """The features of every record of a split, parsed and numbered."""
    example: Any = tf_example_pb2
    records = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
    if len(records) != _count(builder, split):
        raise DataError(f"{builder.data_dir}: the split {split} has {len(records)} records")
    for start in range(0, len(records), READ_AT_ONCE):
        block = range(start, min(start + READ_AT_ONCE, len(records)))
        for index, record in zip(block, records.__getitems__(list(block)), strict=True):
            yield index, example.Example.FromString(record).features.feature
