"""The small handwritten digits that scikit-learn ships, as a TFDS builder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from train.task.data.builders.base import Builder

TEST_EVERY = 5
"""Every fifth image of a class is a test image."""


class Digits(Builder, skip_registration=True):
    """1,797 real handwritten digits of 8x8 pixels, values 0 to 16; 1,437 train, 360 test.

    The images come with scikit-learn (`sklearn.datasets.load_digits`). They are the test part of
    "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998; UCI Machine
    Learning Repository, CC BY 4.0). scikit-learn names no split, so this builder makes one: the
    images are shuffled with a fixed seed and sorted by label, and every fifth one is a test image.
    Each label thus has the same share in both parts to within one image, and the split is the same
    everywhere. Both parts hold images of the same writers.
    """

    name = "gemjax_digits"
    title = "Digits"
    homepage = "https://archive.ics.uci.edu/dataset/80"

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        images, labels = read_digits()
        train, test = split_indices(labels)
        return {
            "train": self._generate_examples(images[train], labels[train]),
            "test": self._generate_examples(images[test], labels[test]),
        }


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits in its order: images uint8 [1797, 8, 8, 1], labels int64 [1797]."""
    from sklearn.datasets import load_digits  # Needed for preparing only.

    bunch: Any = load_digits()
    return bunch.images.astype(np.uint8)[..., None], bunch.target.astype(np.int64)


def split_indices(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the training and of the test images, each in a fixed random order."""
    shuffled = np.random.RandomState(0).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_test = np.zeros(len(labels), bool)
    is_test[by_label[::TEST_EVERY]] = True
    return shuffled[~is_test[shuffled]], shuffled[is_test[shuffled]]
