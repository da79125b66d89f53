"""MNIST and Fashion-MNIST from their four original files, as TFDS builders."""

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from train.task.data.builders.base import Builder


class Mnist(Builder, skip_registration=True):
    """MNIST: 60,000 + 10,000 handwritten digits, 28x28 pixels (LeCun, Cortes, Burges).

    TFDS's own builder needs TensorFlow and downloads the files. This one reads the same four files from a folder that the user
    names (`manual_dir`), if they have the SHA-256 that TFDS registers.
    """

    name = "gemjax_mnist"
    title = "MNIST"
    homepage = "https://storage.googleapis.com/cvdf-datasets/mnist/"
    sha256: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }

    @classmethod
    def originals(cls) -> tuple[Iterable[str], str]:
        files = ", ".join(cls.sha256)
        return cls.sha256, f"Download {files} from {cls.homepage} into one folder and name that folder as manual_dir."

    @classmethod
    def check_originals(cls, folder: Path) -> None:
        for file, digest in cls.sha256.items():
            cls.check_file(folder / file, digest)

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        folder = Path(dl_manager.manual_dir)
        return {
            "train": self._generate_examples(*read_part(folder, "train")),
            "test": self._generate_examples(*read_part(folder, "t10k")),
        }


class FashionMnist(Mnist, skip_registration=True):
    """Fashion-MNIST: 60,000 + 10,000 images of clothes in MNIST's format (Zalando Research)."""

    name = "gemjax_fashion_mnist"
    title = "Fashion-MNIST"
    homepage = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    sha256: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    }


def read_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [n, 28, 28, 1] and labels uint8 [n] of one part, `"train"` or `"t10k"`."""
    images, labels = (read_idx(folder / f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    return images[..., None], labels


def read_idx(file: Path) -> np.ndarray:
    """Return the array of unsigned bytes in a gzipped idx file.

    The format: a big-endian magic number, whose last byte is the number of axes, the length of each axis, the bytes.
    """
    content = gzip.decompress(file.read_bytes())
    header = 4 * (1 + content[3])
    return np.frombuffer(content, np.uint8, offset=header).reshape(np.frombuffer(content[4:header], ">i4"))
