"""A folder of images, with a folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from train.common.errors import DataError
from train.task.data.dataset import Columns, Dataset, mean_and_std
from train.task.data.own.split import split

MIXED_SIZE = 32  # Side of images of different sizes, in pixels.
TESTS = ("test", "val", "valid", "validation")  # Names of the folder of a test part, the best one first.
SHOWN = 10  # Classes that are named.


def read(folder: Path, test_share: float, image_size: int | None) -> Dataset:
    """Return the images `folder/CLASS/*`, or `folder/train/CLASS/*` and `folder/test/CLASS/*`.

    They are grey if all of them are, otherwise in colour. An image that has another size than the rest is cut to a square and
    scaled.

    Raises:
      DataError: if there are no images, or a file is none (a ValueError).
    """
    roots = [folder]
    if any(path.is_dir() for path in folder.glob("train/*")):  # Otherwise "train" may be a class, as "car" is.
        roots = [folder / "train", *(folder / name for name in TESTS if (folder / name).is_dir())][:2]
    files = [sorted(path for path in root.glob("*/*") if _is_shown(path)) for root in roots]
    every = [path for part in files for path in part]
    classes = sorted({path.parent.name for path in every})
    if len(classes) < 2:
        raise DataError(
            f"{folder} must have a folder of images per class; it has {len(every)} files in {len(classes)} folders"
        )
    kinds = {_size_and_mode(path) for path in every}
    sizes, grey = {size for size, _ in kinds}, all(mode in ("1", "L") for _, mode in kinds)
    side = image_size or MIXED_SIZE
    size = (side, side) if image_size or len(sizes) > 1 else next(iter(sizes))
    note = "" if sizes == {size} else f"; cut to squares and scaled (--image-size {side})"
    train, *tests = (_rows(part, classes, size, "L" if grey else "RGB") for part in files)
    train, test, drawn = split(train, test_share) if not tests else (train, tests[0], "")
    named = ", ".join(classes[:SHOWN]) + (", …" if len(classes) > SHOWN else "")
    note = f" ({named}){note}{drawn}"
    return Dataset(str(folder), train, test, len(classes), *mean_and_std(train["image"]), note=note)


def _is_shown(path: Path) -> bool:
    """Return True for a file that no program hides, as macOS does with `.DS_Store`."""
    return path.is_file() and not path.name.startswith(".") and not path.parent.name.startswith(".")


def _size_and_mode(path: Path) -> tuple[tuple[int, int], str]:
    try:
        with Image.open(path) as image:
            return image.size, image.mode
    except UnidentifiedImageError:
        raise DataError(f"{path} is not an image that Pillow reads; move it out of the folder of its class") from None


def _rows(files: list[Path], classes: list[str], size: tuple[int, int], mode: str) -> Columns:
    images = np.empty((len(files), size[1], size[0], 1 if mode == "L" else 3), np.uint8)
    for row, path in enumerate(files):
        with Image.open(path) as image:
            pixels = ImageOps.exif_transpose(image).convert(mode)
            images[row] = np.asarray(pixels if pixels.size == size else ImageOps.fit(pixels, size)).reshape(
                images.shape[1:]
            )
    labels = np.array([classes.index(path.parent.name) for path in files], np.int32)
    return {"image": images, "label": labels}
