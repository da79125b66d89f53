"""CIFAR-10 and CIFAR-100 from their original binary archives, as TFDS builders."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from train.task.data.builders.base import Builder

PIXELS = 3 * 32 * 32


class Cifar10(Builder, skip_registration=True):
    """CIFAR-10: 50,000 + 10,000 colour photographs of 32x32 pixels in 10 classes (Krizhevsky, 2009).

    This is the binary one of the three forms of the original archive; the Python one consists of pickles, which can run code
    when they are read. The SHA-256 is that which TFDS registers. The files are read from the archive without unpacking it to
    the disk.
    """

    name = "gemjax_cifar10"
    title = "CIFAR-10"
    homepage = "https://www.cs.toronto.edu/~kriz/"
    archive = "cifar-10-binary.tar.gz"
    sha256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    folder = "cifar-10-batches-bin"
    files: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("test_batch.bin",),
    }
    labels = 1

    @classmethod
    def originals(cls) -> tuple[Iterable[str], str]:
        return [cls.archive], (
            f"Download {cls.archive} from {cls.homepage} into a folder, as it is, and name that folder as manual_dir "
            "(the archive with -python in its name will not do: it holds pickles)."
        )

    @classmethod
    def check_originals(cls, folder: Path) -> None:
        cls.check_file(folder / cls.archive, cls.sha256)

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        splits = self.read(Path(dl_manager.manual_dir) / self.archive)
        return {split: self._generate_examples(*arrays) for split, arrays in splits.items()}

    @classmethod
    def read(cls, archive: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return images uint8 [n, 32, 32, 3] and labels uint8 [n] of "train" and "test"."""
        with tarfile.open(archive, "r:gz") as tar:
            return {split: cls._read_files(tar, files) for split, files in cls.files.items()}

    @classmethod
    def _read_files(cls, tar: tarfile.TarFile, files: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        contents = [tar.extractfile(f"{cls.folder}/{file}") for file in files]
        values = np.frombuffer(b"".join(content.read() for content in contents if content is not None), np.uint8)
        records = values.reshape(-1, cls.labels + PIXELS)
        labels = records[:, cls.labels - 1]  # The last label is the finest.
        return records[:, cls.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


class Cifar100(Cifar10, skip_registration=True):
    """CIFAR-100: 50,000 + 10,000 colour photographs of 32x32 pixels in 100 classes (Krizhevsky, 2009).

    The labels are the fine ones, without the 20 coarse classes. From the binary archive, as CIFAR-10.
    """

    name = "gemjax_cifar100"
    title = "CIFAR-100"
    archive = "cifar-100-binary.tar.gz"
    sha256 = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
    folder = "cifar-100-binary"
    files: ClassVar[dict[str, tuple[str, ...]]] = {"train": ("train.bin",), "test": ("test.bin",)}
    labels = 2
