"""Data of one's own, by the path of a file or a folder."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from train.task.data.dataset import Dataset
from train.task.data.own import arrays, hugging_face, images, text

TEST_SHARE = 0.2


@functools.lru_cache(1)  # A dry run asks for the shapes and then for the rows.
def load(path: str, test_share: float = TEST_SHARE, image_size: int | None = None) -> Dataset:
    """Return the data in a file or a folder.

    Args:
      path: an `.npz` file of arrays, another file, which is read as a text, a data set of Hugging Face saved on disk, or a
        folder with a folder of images per class.
      test_share: share of the rows, in (0, 1), that are for testing, if the files have no test part.
      image_size: side to which images in a folder are brought, in pixels; by default their own if all are of one size.

    Raises:
      DataError: if there is nothing of that kind; one sentence with the file (a ValueError).
    """
    if os.path.isdir(path):
        reader = hugging_face if hugging_face.is_saved(Path(path)) else images
        return reader.read(Path(path), test_share, image_size)
    return (arrays if path.endswith(".npz") else text).read(Path(path), test_share)
