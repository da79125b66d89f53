"""Images with labels in a data set of Hugging Face's `datasets`, saved by `save_to_disk`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from train.common.errors import DataError
from train.task.data.dataset import Dataset
from train.task.data.own import images

MARKS = ("dataset_dict.json", "dataset_info.json")  # Files of a saved set: of one with several parts, and of one part.


def is_saved(folder: Path) -> bool:
    """Return True for a folder that `save_to_disk` has written."""
    return any((folder / name).is_file() for name in MARKS)


def read(folder: Path, test_share: float, image_size: int | None) -> Dataset:
    """Return the images of the part `train` with their labels, and those of `test` or `validation`, if there is one.

    The columns are the first of the kind `Image` and the first of the kind `ClassLabel`.

    Raises:
      DataError: if `datasets` is not installed, or the set has no such part or columns (a ValueError).
    """
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise DataError(f"{folder} is a data set of Hugging Face; pip install -e '.[datasets]' to read it") from None
    found = datasets.load_from_disk(str(folder))
    splits = found if isinstance(found, datasets.DatasetDict) else {"train": found}
    features = next(iter(splits.values())).features
    columns = [_first(features, kind) for kind in (datasets.Image, datasets.ClassLabel)]
    if "train" not in splits or None in columns:
        raise DataError(
            f"{folder} has the parts {', '.join(splits)} and the columns {', '.join(features)}; needed are a part train, and a "
            "column of the kind Image and one of the kind ClassLabel"
        )
    image, label = columns
    chosen = ["train", *(name for name in images.TESTS if name in splits)][:2]
    parts = [
        [
            (lambda rows=splits[part], row=row: rows[row][image], number)
            for row, number in enumerate(splits[part][label])
        ]
        for part in chosen
    ]
    return images.of_images(str(folder), parts, features[label].names, test_share, image_size)


def _first(features: Any, kind: type) -> str | None:
    """Return the first column of a kind."""
    return next((name for name, feature in features.items() if isinstance(feature, kind)), None)
