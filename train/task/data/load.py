"""The data sets of the training runs, whole in memory.

A data set of the project's table is prepared in TFDS's folder by its own builder (`train.task.data.builders`), which needs
neither TensorFlow nor the network, and read back. The path of a file or folder is that of data of one's own
(`train.task.data.own`). Any other name is that of an image set of TFDS. TFDS is imported only for data that need it, because
that takes seconds.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from train.config.datasets import DATASETS, is_own
from train.config.networks import pooled
from train.task.data import own
from train.task.data.dataset import Dataset, checksum, rows_of

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
    pool: int = 1,
) -> Dataset:
    """Return a data set.

    Args:
      name: one of `DATASETS`; the absolute path of a file or folder of one's own; or the name of an image set of TFDS, with
        its configuration behind a slash if it has several ("emnist/letters").
      data_dir: folder in which TFDS keeps prepared sets; TFDS's own default if None.
      manual_dir: folder with the original files, which all of `DATASETS` but "digits" need the first time.
      test_share: share of one's own rows that are for testing, if the files have no test part.
      image_size: side to which images in a folder of one's own are brought; see :func:`train.task.data.own.load`.
      pool: pixels a side of the squares that are averaged.

    Raises:
      DataError: if the name is unknown, a file is a wrong one, or images have no such squares (a ValueError).
      FileNotFoundError: if original files are needed and missing. Nothing has been written then.
    """
    if is_own(name):
        return own.load(name, test_share, image_size).pooled(pool)
    from train.task.data import prepared

    root, facts = _root(data_dir), DATASETS.get(name)
    if facts is None:
        return prepared.load_other(name, root).pooled(pool)
    splits = prepared.read(builder(name), root, manual_dir)
    if len(facts.shape) == 1:
        splits = {split: {"tokens": rows_of(one["text"], facts.shape[0])} for split, one in splits.items()}
    found = Dataset(name, splits["train"], splits["test"], facts.classes, facts.mean, facts.std, facts.scale)
    return found.pooled(pool)


def lacking(names: Iterable[str], *, data_dir: str | None = None, manual_dir: str | None = None) -> str:
    """Return the errors about original files that :func:`load` would raise for some of `DATASETS`; empty if none."""
    from train.task.data import prepared

    found = (prepared.missing(builder(name), _root(data_dir), manual_dir) for name in dict.fromkeys(names))
    return " ".join(filter(None, found))


def spec(name: str, *, data_dir: str | None = None, pool: int = 1, **own_files: Any) -> Spec:
    """Return shape and number of classes of a data set, which need not be prepared; the arguments are those of :func:`load`.

    Raises:
      DataError: if the name is unknown, or images have no such squares as `pool` asks for (a ValueError).
    """
    if is_own(name):
        found = load(name, **own_files)
        shape, classes = found.shape, found.num_classes
    elif facts := DATASETS.get(name):
        shape, classes = facts.shape, facts.classes
    else:
        from train.task.data import prepared

        shape, classes = prepared.spec_of_other(name, _root(data_dir))
    return Spec(pooled(shape, pool), classes)


def check_name(name: str, data_dir: str | None = None) -> None:
    """Check that there is a data set `name`.

    Raises:
      DataError: if not, with the names that there are.
    """
    if name not in DATASETS and not is_own(name):
        from train.task.data import prepared

        prepared.find(name, _root(data_dir))


def builder(name: str) -> Any:
    """Return the TFDS builder class of one of `DATASETS`."""
    return pkgutil.resolve_name(f"train.task.data.builders.{DATASETS[name].builder}")


def _root(data_dir: str | None) -> Path:
    from tensorflow_datasets.core.constants import DATA_DIR

    return Path(data_dir or DATA_DIR).expanduser()
