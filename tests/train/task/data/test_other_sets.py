"""Tests of image sets of TFDS without a builder in the project."""

import io

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from train import cli
from train.common.errors import DataError
from train.config.config import Config
from train.run.folder import RunFolder
from train.sweep.folder import SweepFolder
from train.sweep.grid import Grid
from train.task import task
from train.task.data import load as data
from train.task.data import prepared

pytestmark = pytest.mark.filterwarnings("default:.*OpenCV")


class Photographs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Few PNGs under the name of a set of TFDS, as TensorFlow prepares it."""

    name = "beans"
    VERSION = tfds.core.Version("0.1.0")
    splits = ("train", "validation", "test")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(6, 5, 3)),
            "label": tfds.features.ClassLabel(num_classes=4),
            "note": tfds.features.Text(),
        }
    )

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=self.features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in self.splits}

    def _generate_examples(self, split):
        for index, image in enumerate(pixels(split)):
            content = io.BytesIO()
            Image.fromarray(image).save(content, "png")
            content.seek(0)
            yield index, {"image": content, "label": index % 3, "note": "nothing"}


def pixels(split):
    rng = np.random.RandomState(len(split))
    return rng.randint(0, 256, (len(split), 6, 5, 3)).astype(np.uint8)


def prepare(folder, monkeypatch=None, **changed):
    for name, value in changed.items():
        monkeypatch.setattr(Photographs, name, value)
    prepared.prepare(Photographs(data_dir=folder))
    return str(folder)


def test_a_set_prepared_elsewhere_is_read(tmp_path):
    folder = prepare(tmp_path)
    loaded = data.load("beans", data_dir=folder)
    for split in ("train", "test"):
        columns = getattr(loaded, split)
        np.testing.assert_array_equal(columns["image"], pixels(split))
        np.testing.assert_array_equal(columns["label"], np.arange(len(split)) % 3)
        assert sorted(columns) == ["image", "label"]
        assert columns["label"].dtype == np.int32
    images = pixels("train") / 255
    np.testing.assert_allclose(loaded.mean, images.mean((0, 1, 2)))
    np.testing.assert_allclose(loaded.std, images.std((0, 1, 2)))
    assert (loaded.num_classes, loaded.scale) == (4, 255.0)
    assert data.spec("beans", data_dir=folder) == data.Spec((6, 5, 3), 4)


def test_a_name_that_only_the_folder_knows_and_a_newer_version_are_found(tmp_path, monkeypatch):
    for version in ("0.9.0", "0.10.0"):
        folder = prepare(tmp_path, monkeypatch, name="own_photographs", VERSION=tfds.core.Version(version))
    assert str(prepared.find("own_photographs", tmp_path).version) == "0.10.0"
    data.check_name("own_photographs", data_dir=folder)
    with pytest.raises(ValueError, match="there is no data set 'own_photographs'"):
        data.check_name("own_photographs", data_dir=str(tmp_path / "elsewhere"))


def test_validation_serves_where_there_is_no_test(tmp_path, monkeypatch):
    folder = prepare(tmp_path, monkeypatch, splits=("train", "validation"))
    np.testing.assert_array_equal(data.load("beans", data_dir=folder).test["image"], pixels("validation"))


def labelled(monkeypatch, folder, kind, label):
    """Prepare a set whose labels are of a kind of TFDS; `label(index)` is one."""
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(6, 5, 3)), "label": kind})

    def examples(self, split):
        for index, image in enumerate(pixels(split)):
            content = io.BytesIO()
            Image.fromarray(image).save(content, "png")
            content.seek(0)
            yield index, {"image": content, "label": label(index)}

    return prepare(folder, monkeypatch, features=features, _generate_examples=examples)


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        (tfds.features.Scalar(np.float32), lambda index: index / 3, ".*label.*; needed are image"),
        (tfds.features.Text(), lambda index: "cat", ".*label.*; needed are image"),
        (tfds.features.Scalar(np.int64), lambda index: index - 1, "the label -1 in example 0 of its split train"),
        (tfds.features.Scalar(np.int64), lambda index: index + 2**32, "the label 4294967296 in example 0 of its split"),
        (
            tfds.features.ClassLabel(num_classes=3),
            lambda index: -1,
            r"the label -1 .*TFDS writes -1 where there is none",
        ),
    ],
    ids=["fractions", "text", "negative", "wide", "none"],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, monkeypatch, kind, label, message):
    """They were rounded, or counted from the end."""
    folder = labelled(monkeypatch, tmp_path, kind, label)
    with pytest.raises(DataError, match=f"^beans has {message}"):
        data.load("beans", data_dir=folder)


def test_classes_that_tfds_does_not_count_are_counted(tmp_path, monkeypatch):
    folder = labelled(monkeypatch, tmp_path, tfds.features.Scalar(np.int64), lambda index: index % 3)
    assert data.spec("beans", data_dir=folder) == data.Spec((6, 5, 3), 3)
    assert data.load("beans", data_dir=folder).num_classes == 3


@pytest.mark.parametrize("flag", ["width", "dropout"])
def test_a_flag_that_the_network_of_a_set_does_not_have_is_refused(tmp_path, monkeypatch, flag):
    """It was ignored, as the network is known only when the set has been found."""
    folder = prepare(tmp_path, monkeypatch)
    config = Config(dataset="beans", data_dir=folder, engine="simulate", **{flag: 0.25})
    for make in (task.parameter_shapes, task.make_task):
        with pytest.raises(DataError, match=f"--{flag} acts only with --model .*; the model is digits_cnn"):
            make(config)


def test_a_set_that_is_not_prepared_is_refused_at_once_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "has_tensorflow", lambda: False)
    monkeypatch.setattr(prepared, "prepare", lambda builder: pytest.fail("TFDS was asked to prepare it"))
    with pytest.raises(FileNotFoundError, match=r"takes TensorFlow: pip install 'gemjax\[tfds\]', or .* as data_dir"):
        data.load("emnist/letters", data_dir=str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()
    assert data.spec("emnist/letters", data_dir=str(tmp_path)) == data.Spec((28, 28, 1), 37)


def test_with_tensorflow_tfds_prepares_the_set(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "has_tensorflow", lambda: True)
    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: Photographs(data_dir=data_dir))
    np.testing.assert_array_equal(data.load("beans", data_dir=str(tmp_path)).test["image"], pixels("test"))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("imagenet2012", "needed are image, of one size"),
        ("imdb_reviews", "imdb_reviews has .*text.*; needed are image, of one size"),
        ("emnist/nothing", "TFDS cannot make emnist/nothing: "),
    ],
)
def test_sets_of_another_form_are_refused_before_anything_is_prepared(name, match, tmp_path):
    for ask in (data.spec, data.load):
        with pytest.raises(ValueError, match=match) as raised:
            ask(name, data_dir=str(tmp_path))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["../beans", "/absent", "beans/../..", "", "Beans", "tiny shakespeare"])
def test_names_that_are_no_names_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="there is no data set"):
        data.load(name, data_dir=str(tmp_path))


@pytest.mark.parametrize("argv", [["--dataset", "cifra10"], ["sweep", "--dataset", "cifra10"]])
def test_the_command_line_answers_an_unknown_name_with_near_ones(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    out, error = capsys.readouterr()
    assert "there is no data set 'cifra10' (did you mean cifar10, cifar100 or" in error
    assert error.count("\n") == 1
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_a_configuration_of_a_set_makes_one_folder_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.fresh(Config(dataset="emnist/letters"))
    assert folder.path.parent.name == "runs"
    assert SweepFolder.of(Grid(dataset="emnist/letters")).path.parent.name == "runs"
