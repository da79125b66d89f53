"""Tiny Shakespeare from its original file, as a TFDS builder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow_datasets as tfds

from train.task.data.builders.base import Builder

FILE = "input.txt"


class TinyShakespeare(Builder, skip_registration=True):
    """Tiny Shakespeare: 1,115,394 characters of Shakespeare's plays (A. Karpathy, 2015), all of them ASCII.

    Split as TFDS's `tiny_shakespeare` splits it: the first 90 % are for training, the next 5 % for
    validation, the last 5 % for testing. The SHA-256 is that which TFDS registers.
    """

    name = "gemjax_tiny_shakespeare"
    title = "Tiny Shakespeare"
    homepage = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

    @classmethod
    def originals(cls) -> tuple[Iterable[str], str]:
        return [FILE], f"Download {FILE} from {cls.homepage} into a folder and name that folder as manual_dir."

    @classmethod
    def check_originals(cls, folder: Path) -> None:
        cls.check_file(folder / FILE, cls.sha256)

    def _features(self) -> dict[str, tfds.features.FeatureConnector]:
        return {"text": tfds.features.Text()}

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        text = (Path(dl_manager.manual_dir) / FILE).read_bytes()
        return {split: iter([(0, {"text": part})]) for split, part in split_text(text).items()}


def split_text(text: bytes) -> dict[str, bytes]:
    """Return the first 90 % as "train", and the rest halved as "validation" and "test"."""
    end = int(len(text) * 0.9)
    middle = end + int((len(text) - end) * 0.5)
    return {"train": text[:end], "validation": text[end:middle], "test": text[middle:]}
