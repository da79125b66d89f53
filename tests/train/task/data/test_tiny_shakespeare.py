"""Tests of text as rows of tokens, and of Tiny Shakespeare."""

import hashlib

import numpy as np
import pytest

from train.task.data import load as data
from train.task.data.builders.tiny_shakespeare import FILE, TinyShakespeare, split_text

TEXT = bytes(np.random.RandomState(0).randint(0, 256, 10_000).astype(np.uint8))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a text that the builder expects and prepares in `folder / "data"`."""
    (tmp_path / FILE).write_bytes(TEXT)
    monkeypatch.setattr(TinyShakespeare, "sha256", hashlib.sha256(TEXT).hexdigest())
    return tmp_path


def load(folder):
    return data.load("tiny_shakespeare", data_dir=str(folder / "data"), manual_dir=str(folder))


def test_rows_are_the_text_and_each_token_is_predicted_once(folder):
    loaded = load(folder)
    (folder / FILE).unlink()
    parts = {"train": TEXT[:9000], "validation": TEXT[9000:9500], "test": TEXT[9500:]}
    for text, again in zip(parts.values(), split_text(TEXT).values(), strict=True):
        assert text == again
    for name in ("train", "test"):
        text, rows = parts[name], getattr(loaded, name)["tokens"]
        assert rows.dtype == np.uint8
        assert rows.shape == ((len(text) - 1) // 128, 129)
        assert text.startswith(rows[:, :-1].tobytes())
        assert text[1:].startswith(rows[:, 1:].tobytes())
        assert len(text) - 1 - rows[:, 1:].size < 128
    assert loaded.num_classes == 256


def test_another_text_is_refused(folder):
    (folder / FILE).write_bytes(TEXT[::-1])
    with pytest.raises(ValueError, match=r"is not Tiny Shakespeare's file: its SHA-256 differs\. Download input\.txt"):
        load(folder)
    assert not (folder / "data").exists()


def test_the_registered_text_and_its_split_are_those_of_tfds():
    import tensorflow_datasets as tfds

    registered = tfds.core.utils.tfds_path() / "datasets" / "tiny_shakespeare" / "checksums.tsv"
    url, size, *rest = registered.read_text().split()
    assert [url, *rest] == [TinyShakespeare.homepage + FILE, TinyShakespeare.sha256, FILE]
    lengths = {split: len(text) for split, text in split_text(bytes(int(size))).items()}
    assert lengths == {"train": 1_003_854, "validation": 55_770, "test": 55_770}
