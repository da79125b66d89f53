"""Data of one's own: arrays, folders of images, texts, and files that are none of these."""

import numpy as np
import pytest
from PIL import ExifTags, Image

from train.cli import main
from train.common.errors import DataError
from train.config.config import Config
from train.config.datasets import label
from train.task.data import load as data
from train.task.data import own


@pytest.fixture(autouse=True)
def _anew():
    own.load.cache_clear()  # Tests write other content under the same name.


def arrays(path, **columns):
    np.savez(path / "rows.npz", **columns)
    return str(path / "rows.npz")


def picture(path, size=(6, 5), mode="RGB", value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)


def test_features_are_the_channels_of_one_pixel_and_are_normalised_one_by_one(tmp_path):
    x = np.random.default_rng(0).normal([5, -1, 0], [1, 10, 0.1], (50, 3))
    found = data.load(arrays(tmp_path, x=x, y=np.arange(50) % 4 + 7))
    assert found.train["image"].shape == (40, 1, 1, 3)
    assert found.test["image"].shape == (10, 1, 1, 3)
    assert found.num_classes == 4
    assert sorted(set(found.train["label"].tolist() + found.test["label"].tolist())) == [0, 1, 2, 3]
    normal = (found.train["image"] - found.mean) / found.std
    np.testing.assert_allclose(normal.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(normal.std((0, 1, 2)), 1, atol=1e-5)
    rows = np.concatenate([found.train["image"], found.test["image"]])[:, 0, 0]
    np.testing.assert_array_equal(np.sort(rows, 0), np.sort(x.astype(np.float32), 0))
    assert found.described().startswith(
        "40 training and 10 test rows of 3 features, 4 classes; test rows drawn at random"
    )


def test_a_test_part_is_taken_as_it_is_and_labels_may_be_words(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 7), np.uint8)
    path = arrays(tmp_path, image=images, label=list("cabcabcab"), image_test=images[:2], label_test=["a", "c"])
    found = data.load(path)
    assert (found.shape, found.scale, found.num_classes) == ((8, 7, 1), 255.0, 3)
    np.testing.assert_array_equal(found.train["image"][..., 0], images)
    assert found.train["label"].tolist() == [2, 0, 1] * 3
    assert found.test["label"].tolist() == [0, 2]
    assert found.described() == "9 training and 2 test images of 8x7x1, 3 classes"


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"a": [1]}, "a; needed are x and y"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(3, int)}, r"y of .* a class per row of x, \[4\].*int64\[3\]"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4)}, r"float64\[4\]"),
        ({"x": np.zeros(4), "y": np.zeros(4, int)}, r"x of .* float64\[4\]"),
        (
            {"x": np.zeros((4, 2)), "y": [0] * 4, "x_test": np.zeros((2, 3)), "y_test": [0] * 2},
            r"\[1, 1, 3\] in x_test",
        ),
    ],
    ids=["names", "lengths", "numbers", "flat", "test"],
)
def test_arrays_that_are_no_rows_and_classes_are_refused_in_one_sentence(tmp_path, columns, found):
    with pytest.raises(DataError, match=found):
        data.load(arrays(tmp_path, **columns))


def test_a_folder_per_class_gives_images_and_names(tmp_path):
    for number in range(5):
        picture(tmp_path / "dogs" / f"{number}.png", value=200)
        picture(tmp_path / "cats" / f"{number}.jpg", value=10)
    (tmp_path / "dogs" / ".DS_Store").write_text("not an image")
    found = data.load(str(tmp_path), test_share=0.3)
    assert (found.shape, found.num_classes, len(found.test["label"])) == ((5, 6, 3), 2, 3)
    for part in (found.train, found.test):
        np.testing.assert_array_equal(part["image"].mean((1, 2, 3)) > 100, part["label"] == 1)
    assert "(cats, dogs); test rows drawn at random (--test-share 0.3)" in found.described()


def test_images_of_several_sizes_are_scaled_and_parts_on_disk_are_kept(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png", (40, 20), "L", 9)
    picture(tmp_path / "train" / "b" / "1.png", (20, 40), "L", 8)
    picture(tmp_path / "val" / "b" / "2.png", (50, 50), "L", 7)
    found = data.load(str(tmp_path))
    assert found.shape == (32, 32, 1)
    assert [part["image"].mean((1, 2, 3)).tolist() for part in (found.train, found.test)] == [[9, 8], [7]]
    assert data.load(str(tmp_path), image_size=16).shape == (16, 16, 1)


def test_images_have_the_size_that_they_have_upright(tmp_path):
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6  # Stored on its side.
    stored = Image.fromarray(np.repeat(np.arange(0, 180, 3, np.uint8)[None], 20, 0))
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            stored.save(tmp_path / name / f"{number}.png", exif=turned)
    stored.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "b" / "upright.png")
    found = data.load(str(tmp_path))
    assert found.shape == (60, 20, 1)
    for part in (found.train, found.test):
        assert (part["image"] == np.arange(0, 180, 3)[:, None, None]).all()
    assert "scaled" not in found.described()


def test_a_class_may_be_called_train(tmp_path):
    for name in ("car", "train"):
        picture(tmp_path / name / "1.png")
        picture(tmp_path / name / "2.png")
    assert data.load(str(tmp_path)).num_classes == 2


def test_a_folder_without_classes_and_a_file_that_is_no_image_are_named(tmp_path):
    picture(tmp_path / "only" / "1.png")
    with pytest.raises(DataError, match="1 files in 1 folders"):
        data.load(str(tmp_path))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "notes.txt").write_text("no image")
    own.load.cache_clear()
    with pytest.raises(OSError, match=r"cannot identify image file .*notes\.txt"):
        data.load(str(tmp_path))


def test_a_text_is_its_characters_and_another_file_its_bytes(tmp_path):
    text = "Grüße, 世界! " * 100
    (tmp_path / "text.md").write_text(text, encoding="utf-8")
    (tmp_path / "program").write_bytes(bytes([255, 254, 3, 4]) * 200)
    found, binary = data.load(str(tmp_path / "text.md")), data.load(str(tmp_path / "program"))
    assert found.num_classes == len(set(text))
    tokens = np.concatenate([found.train["tokens"][:, :-1].ravel(), found.test["tokens"][:, :-1].ravel()])
    assert "".join(sorted(set(text))[token] for token in tokens) == text[: len(tokens)]
    assert (found.shape, binary.shape, binary.num_classes) == ((128,), (128,), 256)
    assert binary.train["tokens"][0, :4].tolist() == [255, 254, 3, 4]
    assert "10 different characters; the last rows are for testing" in found.described()
    (tmp_path / "short").write_text("too short")
    with pytest.raises(DataError, match="9 characters; training needs at least 257"):
        data.load(str(tmp_path / "short"))


def test_a_path_is_absolute_in_a_configuration_and_names_no_folder_of_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("abc" * 200)
    config = Config(dataset="corpus.txt")
    assert config.dataset == str(tmp_path / "corpus.txt")
    assert label(config.dataset) == "corpus"
    with pytest.raises(ValueError, match="--test-share acts only with a file or folder"):
        Config(dataset="digits", test_share=0.5)


@pytest.mark.slow
def test_the_command_line_trains_on_a_file_and_says_what_it_found(tmp_path, capfd):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    path = arrays(tmp_path, x=rng.normal(y[:, None] * 4.0, 1.0, (400, 5)), y=y)
    flags = ["--engine", "simulate", "--epochs", "4", "--batch-size", "20", "--out", str(tmp_path / "run")]
    assert main(["--dataset", path, *flags]) == 0
    out = capfd.readouterr().out
    assert "320 training and 80 test rows of 5 features, 2 classes" in " ".join(out.split())
    assert float(out.split("test accuracy ")[1].split()[0]) > 95
    assert main(["--dataset", str(tmp_path / "absent.npz")]) == 2
    assert "there is no data set" in capfd.readouterr().err
