"""What the builders of labelled images share: the form of a record, and how records are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds


class LabelledImages(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Images of one size and an integer label each, as raw bytes; derive from it.

    A subclass has a `name`, `title`, `shape` [H, W, C], `homepage`, a docstring that says what the
    data are, `check_sources`, and `_split_generators`.
    """

    title: ClassVar[str]
    shape: ClassVar[tuple[int, int, int]]
    homepage: ClassVar[str]
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}

    @classmethod
    def check_sources(cls, manual_dir: str | None) -> None:
        """Raise, in one message with the mend, unless the set can be prepared from `manual_dir`."""
        raise NotImplementedError

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            homepage=self.homepage,
            disable_shuffling=True,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(
                        shape=self.shape, dtype=np.uint8, encoding=tfds.features.Encoding.BYTES
                    ),
                    "label": tfds.features.Tensor(shape=(), dtype=np.int64),
                }
            ),
        )

    def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Iterator:
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield index, {"image": image, "label": int(label)}
