"""Tests of the data sets: preparing, reading back, and wrong files."""

import errno
import gzip
import hashlib
import shutil

import numpy as np
import pytest

from train.common.errors import DataError
from train.config.datasets import DATASETS
from train.task.data import load as data
from train.task.data import prepared as prepared_sets
from train.task.data.builders import mnist
from train.task.data.builders.digits import read_digits, split_indices
from train.task.data.load import load

FILES = tuple(mnist.Mnist.sha256)


def idx(array):
    """Return the bytes of an idx file."""
    magic = 2048 + array.ndim
    header = np.array([magic, *array.shape], ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, monkeypatch):
    """Write four tiny files into `folder` and let the builder expect their SHA-256."""
    rng = np.random.RandomState(0)
    arrays = {
        FILES[0]: rng.randint(0, 256, (23, 28, 28)),
        FILES[1]: rng.randint(0, 10, 23),
        FILES[2]: rng.randint(0, 256, (9, 28, 28)),
        FILES[3]: rng.randint(0, 10, 9),
    }
    folder.mkdir()
    for file, array in arrays.items():
        (folder / file).write_bytes(gzip.compress(idx(array), mtime=0))
    sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in FILES}
    monkeypatch.setattr(mnist.Mnist, "sha256", sums)
    return arrays


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Return a folder in which digits are prepared; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("prepared")
    load("digits", data_dir=str(folder))
    return folder


@pytest.fixture
def own_copy(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "copy")


def test_digits_are_scikit_learns(prepared):
    loaded = load("digits", data_dir=str(prepared))
    assert loaded.train["image"].shape == (1437, 8, 8, 1)
    assert loaded.test["image"].shape == (360, 8, 8, 1)
    images, labels = read_digits()

    def rows(images, labels):
        return sorted((int(label), image.tobytes()) for image, label in zip(images, labels, strict=True))

    both = [np.concatenate([loaded.train[key], loaded.test[key]]) for key in ("image", "label")]
    assert rows(*both) == rows(images, labels)
    for part in (loaded.train, loaded.test):
        assert part["image"].dtype == np.uint8
        assert part["label"].dtype == np.int32
        assert part["image"].max() == 16


def test_digits_are_split_evenly_and_always_the_same_way(prepared):
    loaded = load("digits", data_dir=str(prepared))
    every = np.bincount(np.concatenate([loaded.train["label"], loaded.test["label"]]))
    assert (np.abs(np.bincount(loaded.test["label"]) - every / 5) < 1).all()
    train, test = split_indices(read_digits()[1])
    assert sorted([*train, *test]) == list(range(1797))
    assert list(train[:5]) == [1707, 927, 713, 262, 182]
    assert list(test[:5]) == [1081, 1410, 1239, 458, 438]
    np.testing.assert_array_equal(loaded.train["image"], read_digits()[0][train])


def test_digits_constants_are_those_of_the_training_images(prepared):
    loaded = load("digits", data_dir=str(prepared))
    images = loaded.train["image"] / loaded.scale
    assert loaded.num_classes == 10
    assert loaded.mean == pytest.approx(images.mean(), abs=1e-4)
    assert loaded.std == pytest.approx(images.std(), abs=1e-4)


def test_preparing_is_silent(tmp_path, capfd):
    load("digits", data_dir=str(tmp_path))
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_second_load_reads_what_the_first_prepared(own_copy, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("prepared again")

    monkeypatch.setattr(data.builder("digits"), "download_and_prepare", fail)
    assert len(load("digits", data_dir=str(own_copy)).test["label"]) == 360


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Failed to write split: No space left on device"), OSError(errno.ENOSPC, "No space left on device")],
    ids=["array_record", "tfds"],
)
def test_a_disk_that_is_full_while_a_set_is_prepared_is_named(error, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(prepared_sets, "prepare", fail)
    with pytest.raises(DataError, match=rf"Digits could not be prepared in {tmp_path}: .*No space left on device"):
        load("digits", data_dir=tmp_path)


def test_killed_run_leaves_nothing_that_is_read(tmp_path, monkeypatch):
    builder = data.builder("digits")

    def killed(self, images, labels):
        yield 0, {"image": images[0], "label": int(labels[0])}
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder, "_generate_examples", killed)
        with pytest.raises(KeyboardInterrupt):
            load("digits", data_dir=str(tmp_path))
    leftover = tmp_path / "gemjax_digits" / "incomplete.ABC123_1.0.0"  # as after a SIGKILL
    leftover.mkdir(parents=True)
    (leftover / "dataset_info.json").write_text("{")
    assert len(load("digits", data_dir=str(tmp_path)).train["label"]) == 1437


def test_mnist_comes_back_as_it_was_written(tmp_path, monkeypatch):
    arrays = write_mnist(tmp_path / "raw", monkeypatch)
    loaded = load("mnist", data_dir=str(tmp_path / "data"), manual_dir=str(tmp_path / "raw"))
    np.testing.assert_array_equal(loaded.train["image"][..., 0], arrays[FILES[0]])
    np.testing.assert_array_equal(loaded.train["label"], arrays[FILES[1]])
    np.testing.assert_array_equal(loaded.test["image"][..., 0], arrays[FILES[2]])
    np.testing.assert_array_equal(loaded.test["label"], arrays[FILES[3]])
    assert (loaded.mean, loaded.std, loaded.scale) == (0.1307, 0.3081, 255.0)
    shutil.rmtree(tmp_path / "raw")  # not needed a second time
    again = load("mnist", data_dir=str(tmp_path / "data"))
    np.testing.assert_array_equal(again.train["image"], loaded.train["image"])


def refused(tmp_path, error, match, manual_dir):
    """Check that `load` raises with a remedy and writes nothing."""
    with pytest.raises(error, match=match) as raised:
        load("mnist", data_dir=str(tmp_path / "data"), manual_dir=manual_dir)
    assert "Download train-images-idx3-ubyte.gz" in str(raised.value)
    assert "manual_dir" in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_mnist_without_a_folder(tmp_path):
    refused(tmp_path, FileNotFoundError, "no manual_dir is given", None)
    refused(tmp_path, FileNotFoundError, "there is no folder .*nowhere", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("file", FILES)
def test_mnist_with_a_file_missing(tmp_path, monkeypatch, file):
    write_mnist(tmp_path / "raw", monkeypatch)
    (tmp_path / "raw" / file).unlink()
    refused(tmp_path, FileNotFoundError, f"raw lacks {file}\\.", str(tmp_path / "raw"))


def test_mnist_with_another_sets_files(tmp_path, monkeypatch):
    write_mnist(tmp_path / "raw", monkeypatch)
    sums = {**mnist.Mnist.sha256, FILES[2]: "0" * 64}
    monkeypatch.setattr(mnist.Mnist, "sha256", sums)
    refused(tmp_path, ValueError, f"{FILES[2]} is not MNIST's file", str(tmp_path / "raw"))


def test_checksums_are_those_that_tfds_registers():
    import tensorflow_datasets as tfds

    folder = tfds.core.utils.tfds_path() / "url_checksums"
    for builder, name in ((mnist.Mnist, "mnist"), (mnist.FashionMnist, "fashion_mnist")):
        lines = [line.split() for line in (folder / f"{name}.txt").read_text().splitlines()]
        assert {line[0]: line[2] for line in lines} == {
            builder.homepage + file: digest for file, digest in builder.sha256.items()
        }


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_is_known_without_its_data(name):
    facts = DATASETS[name]
    assert data.builder(name).name == f"gemjax_{name}"
    assert data.spec(name) == (facts.shape, facts.classes)


def test_a_row_has_the_facts_of_the_data(prepared):
    digits, facts = load("digits", data_dir=str(prepared)), DATASETS["digits"]
    assert digits.train["image"].shape == (facts.rows, *facts.shape)
    assert digits.num_classes == facts.classes == 1 + digits.test["label"].max()


@pytest.mark.parametrize("ask", [load, data.spec, data.check_name])
def test_unknown_name_is_refused_with_the_possible_ones(ask, tmp_path):
    with pytest.raises(ValueError, match=r"'cifar' \(did you mean cifar10, cifar100 or ") as raised:
        ask("cifar", data_dir=str(tmp_path))
    assert f"choose one of {', '.join(DATASETS)}, the path of a file or folder, or an image set of TFDS" in str(
        raised.value
    )
    assert "\n" not in str(raised.value)


def test_squares_of_pixels_are_averaged_in_every_part():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    columns = {"image": images, "label": np.arange(2, dtype=np.int32)}
    found = data.Dataset("pretended", columns, {name: column[:1] for name, column in columns.items()}, 10).pooled(2)
    assert found.train["image"].shape == (2, 2, 2, 3)
    assert found.train["image"].dtype == np.uint8
    np.testing.assert_array_equal(found.train["image"][0, 0, 0], np.rint(images[0, :2, :2].mean((0, 1))))
    np.testing.assert_array_equal(found.test["image"], found.train["image"][:1])
    np.testing.assert_array_equal(found.train["label"], columns["label"])
    with pytest.raises(ValueError, match="--pool must divide the sides of images; got 3"):
        data.Dataset("pretended", columns, columns, 10).pooled(3)
    text = {"tokens": np.zeros((2, 5), np.uint8)}
    assert data.Dataset("words", text, text, 256).pooled(1).train is text
