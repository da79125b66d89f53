"""The base of the builders: original files, checked in a folder that the user names, and the form of a record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from train.common.errors import DataError
from train.config.datasets import DATASETS, DatasetFacts


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Images of one size with an integer label each, as raw bytes, from original files. Abstract.

    A subclass has a `name` (that of its row in `DATASETS` behind "gemjax_"), a `title`, a `homepage`, a docstring that
    describes the data, and `_split_generators`. One that needs original files also has `originals` and `check_originals`.
    """

    title: ClassVar[str]
    homepage: ClassVar[str]
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put the original files, as they are, into one folder."

    @classmethod
    def facts(cls) -> DatasetFacts:
        """Return the row of the set in `DATASETS`."""
        return DATASETS[cls.name.removeprefix("gemjax_")]

    @classmethod
    def originals(cls) -> tuple[Iterable[str], str]:
        """Return the names of the original files, and one or two sentences on how to get them."""
        return (), ""

    @classmethod
    def check_originals(cls, folder: Path) -> None:
        """Raise a `ValueError` unless the original files in `folder` are right."""

    @classmethod
    def check_sources(cls, manual_dir: str | None) -> None:
        """Check that the set can be prepared from `manual_dir`.

        Raises:
          FileNotFoundError: if an original file is missing or no folder is given; the message ends with the remedy.
          DataError: if an original file is a wrong one; likewise.
        """
        files, remedy = cls.originals()
        if not files:
            return
        if manual_dir is None:
            raise FileNotFoundError(f"{cls.title} is not prepared yet and no manual_dir is given. {remedy}")
        folder = Path(manual_dir).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(f"{cls.title}: there is no folder {folder}. {remedy}")
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise FileNotFoundError(f"{cls.title}: {folder} lacks {', '.join(missing)}. {remedy}")
        try:
            cls.check_originals(folder)
        except ValueError as error:
            raise DataError(f"{error}. {remedy}") from None

    @classmethod
    def check_file(cls, file: Path, sha256: str) -> None:
        """Check that a file has the registered SHA-256.

        Raises:
          DataError: if it is another or an incomplete file.
        """
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
                raise DataError(f"{file} is not {cls.title}'s file: its SHA-256 differs")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            homepage=self.homepage,
            disable_shuffling=True,
            features=tfds.features.FeaturesDict(self._features()),
        )

    def _features(self) -> dict[str, tfds.features.FeatureConnector]:
        pixels = tfds.features.Tensor(shape=self.facts().shape, dtype=np.uint8, encoding=tfds.features.Encoding.BYTES)
        return {"image": pixels, "label": tfds.features.Tensor(shape=(), dtype=np.int64)}

    def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Iterator:
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield index, {"image": image, "label": int(label)}
