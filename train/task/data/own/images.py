"""A folder of images, with a folder per class."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from train.common.errors import DataError
from train.task.data.dataset import Columns, Dataset, mean_and_std
from train.task.data.own.split import split

MIXED_SIZE = 32  # Side of images of different sizes, in pixels.
TESTS = ("test", "val", "valid", "validation")  # Names of the folder of a test part, the best one first.
SHOWN = 10  # Classes that are named.
Labelled = tuple[Callable[[], Image.Image], int]  # A function that opens an image, and the number of its class.


def read(folder: Path, test_share: float, image_size: int | None) -> Dataset:
    """Return the images `folder/CLASS/*`, or `folder/train/CLASS/*` and `folder/test/CLASS/*`.

    They are grey if all of them are, otherwise in colour. If their sizes differ, or `image_size` is given, all are cut to
    squares and scaled.

    Raises:
      DataError: if there are no images (a ValueError).
      OSError: if Pillow cannot read a file; with its name.
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
    parts = [
        [(functools.partial(Image.open, path), classes.index(path.parent.name)) for path in part] for part in files
    ]
    return of_images(str(folder), parts, classes, test_share, image_size)


def of_images(
    name: str, parts: Sequence[Sequence[Labelled]], classes: Sequence[str], test_share: float, image_size: int | None
) -> Dataset:
    """Return the dataset of a training part and, if given, a test part."""
    kinds = {_size_and_mode(image) for part in parts for image, _ in part}
    sizes, grey = {size for size, _ in kinds}, all(mode in ("1", "L") for _, mode in kinds)
    side = image_size or MIXED_SIZE
    size = (side, side) if image_size or len(sizes) > 1 else next(iter(sizes))
    note = "" if sizes == {size} else f"; cut to squares and scaled (--image-size {side})"
    train, *tests = (_rows(part, size, "L" if grey else "RGB") for part in parts)
    train, test, drawn = split(train, test_share) if not tests else (train, tests[0], "")
    named = ", ".join(classes[:SHOWN]) + (", …" if len(classes) > SHOWN else "")
    note = f" ({named}){note}{drawn}"
    return Dataset(name, train, test, len(classes), *mean_and_std(train["image"]), note=note)


def _is_shown(path: Path) -> bool:
    """Return True for a file that no program hides, as macOS does with `.DS_Store`."""
    return path.is_file() and not path.name.startswith(".") and not path.parent.name.startswith(".")


def _size_and_mode(image: Callable[[], Image.Image]) -> tuple[tuple[int, int], str]:
    with image() as opened:
        turned = opened.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)  # Stored on its side.
        return opened.size[::-1] if turned else opened.size, opened.mode


def _rows(part: Sequence[Labelled], size: tuple[int, int], mode: str) -> Columns:
    images = np.empty((len(part), size[1], size[0], 1 if mode == "L" else 3), np.uint8)
    for row, (image, _) in enumerate(part):
        with image() as opened:
            pixels = ImageOps.exif_transpose(opened).convert(mode)
            images[row] = np.asarray(pixels if pixels.size == size else ImageOps.fit(pixels, size)).reshape(
                images.shape[1:]
            )
    return {"image": images, "label": np.array([label for _, label in part], np.int32)}
