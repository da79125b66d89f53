"""A data set of Hugging Face on disk, read by the installed library and, where there is none, by a stand-in."""

import sys
import types

import numpy as np
import pytest
from PIL import Image

from train.common.errors import DataError
from train.task.data import own


@pytest.fixture(autouse=True)
def _anew():
    own.load.cache_clear()


class Label(types.SimpleNamespace):
    """Stand-in of `datasets.ClassLabel`."""


class Rows:
    """Stand-in of `datasets.Dataset`."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: rows[key] for name, rows in self.columns.items()}


@pytest.fixture(params=["installed", "stand-in"])
def saved(request, tmp_path, monkeypatch):
    """Return a function that saves parts of images with their labels, and returns the folder."""
    if request.param == "installed":
        datasets = pytest.importorskip("datasets")
        features = datasets.Features(
            {"id": datasets.Value("int32"), "img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
        )
        of = lambda columns: datasets.Dataset.from_dict(columns, features=features)
    else:
        datasets = types.SimpleNamespace(
            Image=type("Image", (), {}), ClassLabel=Label, DatasetDict=type("Dict", (dict,), {})
        )
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        features = {"id": None, "img": datasets.Image(), "kind": Label(names=["cat", "dog"])}
        of = lambda columns: Rows(columns, features)

    def save(**parts):
        columns = {
            name: {"id": [*range(len(labels))], "img": [picture(label) for label in labels], "kind": labels}
            for name, labels in parts.items()
        }
        found = {name: of(rows) for name, rows in columns.items()}
        whole = datasets.DatasetDict(found) if len(found) > 1 else found["train"]
        if request.param == "installed":
            whole.save_to_disk(str(tmp_path / "set"))
        else:
            (tmp_path / "set").mkdir()
            (tmp_path / "set" / ("dataset_dict.json" if len(found) > 1 else "dataset_info.json")).write_text("{}")
            monkeypatch.setattr(datasets, "load_from_disk", lambda path: whole, raising=False)
        return str(tmp_path / "set")

    return save


def picture(label):
    return Image.new("RGB", (6, 5), (40 * label + 7,) * 3)


def test_images_and_labels_of_both_parts_are_read(saved):
    found = own.load(saved(train=[0, 1, 1], validation=[1], test=[0, 1]))
    assert found.train["image"].shape == (3, 5, 6, 3)
    assert found.train["label"].tolist() == [0, 1, 1]
    np.testing.assert_array_equal(found.train["image"][:, 0, 0, 0], [7, 47, 47])
    assert found.test["label"].tolist() == [0, 1]
    assert "cat, dog" in found.described()


def test_test_rows_are_drawn_of_a_set_without_parts(saved):
    found = own.load(saved(train=[0, 1] * 5), test_share=0.2, image_size=4)
    assert (len(found.train["label"]), len(found.test["label"])) == (8, 2)
    assert found.shape == (4, 4, 3)


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "dataset_info.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"'\.\[datasets\]'"):
        own.load(str(tmp_path))
