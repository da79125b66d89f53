"""The data sets of the training runs, whole in memory.

A data set of the project's table is prepared in TFDS's folder by its own builder (`train.task.data.builders`), which needs
neither TensorFlow nor the network, and read back. The path of a file or folder is that of data of one's own
(`train.task.data.own`). Any other name is that of an image set of TFDS (`train.task.data.other_sets`). TFDS is imported
only for data that need it, because that takes seconds.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from train.config.datasets import DATASETS, is_own
from train.task.data import own
from train.task.data.dataset import Dataset, checksum, mean_and_std, rows_of

__all__ = ["Dataset", "Spec", "builder", "check_name", "checksum", "lacking", "load", "rows_of", "spec"]


class Spec(NamedTuple):
    """Facts about a row, known before the data are prepared; see `train.config.datasets.DatasetFacts`."""

    shape: tuple[int, ...]
    num_classes: int


def load(
    name: str,
    *,
    data_dir: str | None = None,
    manual_dir: str | None = None,
    test_share: float = own.TEST_SHARE,
    image_size: int | None = None,
) -> Dataset:
    """Return a data set.

    Args:
      name: one of `DATASETS`; the absolute path of a file or folder of one's own; or the name of an image set of TFDS, with
        its configuration behind a slash if it has several ("emnist/letters").
      data_dir: folder in which TFDS keeps prepared sets; TFDS's own default if None.
      manual_dir: folder with the original files, which all of `DATASETS` but "digits" need the first time.
      test_share: share of one's own rows that are for testing, if the files have no test part.
      image_size: side to which images in a folder of one's own are brought; see :func:`train.task.data.own.load`.

    Raises:
      DataError: if the name is unknown or a file is a wrong one (a ValueError).
      FileNotFoundError: if original files are needed and missing. Nothing has been written then.
    """
    if is_own(name):
        return own.load(name, test_share, image_size)
    from train.task.data import other_sets, prepared

    root = _root(data_dir)
    if facts := DATASETS.get(name):
        splits = prepared.read(builder(name), root, manual_dir)
        if len(facts.shape) == 1:
            splits = {split: {"tokens": rows_of(one["text"], facts.shape[0])} for split, one in splits.items()}
        return Dataset(name, splits["train"], splits["test"], facts.classes, facts.mean, facts.std, facts.scale)
    train, test, num_classes = other_sets.load(name, root)
    return Dataset(name, train, test, num_classes, *mean_and_std(train["image"]))


def lacking(names: Iterable[str], *, data_dir: str | None = None, manual_dir: str | None = None) -> str:
    """Return the errors about original files that :func:`load` would raise for some of `DATASETS`; empty if none."""
    from train.task.data import prepared

    found = (prepared.missing(builder(name), _root(data_dir), manual_dir) for name in dict.fromkeys(names))
    return " ".join(filter(None, found))


def spec(name: str, *, data_dir: str | None = None, **own_files: Any) -> Spec:
    """Return shape and number of classes of a data set, which need not be prepared; the arguments are those of :func:`load`.

    Raises:
      DataError: if the name is unknown.
    """
    if facts := DATASETS.get(name):
        return Spec(facts.shape, facts.classes)
    if is_own(name):
        found = load(name, **own_files)
        return Spec(found.shape, found.num_classes)
    from train.task.data import other_sets

    return Spec(*other_sets.spec(name, _root(data_dir)))


def check_name(name: str, data_dir: str | None = None) -> None:
    """Check that there is a data set `name`.

    Raises:
      DataError: if not, with the names that there are.
    """
    if name not in DATASETS and not is_own(name):
        from train.task.data import other_sets

        other_sets.find(name, _root(data_dir))


def builder(name: str) -> Any:
    """Return the TFDS builder class of one of `DATASETS`."""
    return pkgutil.resolve_name(f"train.task.data.builders.{DATASETS[name].builder}")


def _root(data_dir: str | None) -> Path:
    from tensorflow_datasets.core.constants import DATA_DIR

    return Path(data_dir or DATA_DIR).expanduser()
