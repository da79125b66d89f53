"""Tiny Shakespeare from its original file, as a TFDS builder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import tensorflow_datasets as tfds

from train.common.errors import DataError
from train.task.data.builders import originals

FILE = "input.txt"


class TinyShakespeare(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Tiny Shakespeare: 1,115,394 characters of Shakespeare's plays (A. Karpathy, 2015), all of them ASCII.

    Split as TFDS's `tiny_shakespeare` splits it: the first 90 % are for training, the next 5 % for
    validation, the last 5 % for testing. Size and SHA-256 are those that TFDS registers.
    """

    name = "gemjax_tiny_shakespeare"
    title = "Tiny Shakespeare"
    homepage = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
    size = 1_115_394
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Put {FILE} into the folder."

    @classmethod
    def check_sources(cls, manual_dir: str | None) -> None:
        """Raise, in one message with the mend, unless `manual_dir` holds the text."""
        mend = f"Download {FILE} from {cls.homepage} into a folder and name that folder as manual_dir."
        folder = originals.find(cls.title, [FILE], manual_dir, mend)
        try:
            originals.check(cls.title, folder / FILE, cls.size, cls.sha256)
        except ValueError as error:
            raise DataError(f"{error}. {mend}") from None

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            homepage=self.homepage,
            disable_shuffling=True,
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        )

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        text = (Path(dl_manager.manual_dir) / FILE).read_bytes()
        return {split: self._generate_examples(part) for split, part in split_text(text).items()}

    def _generate_examples(self, text: bytes) -> Iterator:
        yield 0, {"text": text}


def split_text(text: bytes) -> dict[str, bytes]:
    """The first 90 % as "train", and the rest halved into "validation" and "test"."""
    end = int(len(text) * 0.9)
    middle = end + int((len(text) - end) * 0.5)
    return {"train": text[:end], "validation": text[end:middle], "test": text[middle:]}
