"""Tests of CIFAR-10 and CIFAR-100 from archives of the original form, and of the lossy CIFAR-10."""

import hashlib
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from train.common.errors import DataError
from train.task.data import load as data
from train.task.data import pack_cifar10_jpeg
from train.task.data.builders import cifar10_jpeg
from train.task.data.builders.cifar import PIXELS, Cifar10, Cifar100
from train.task.data.builders.cifar10_jpeg import Cifar10Jpeg
from train.task.data.load import load

BUILDERS = {"cifar10": Cifar10, "cifar100": Cifar100}


def records(builder, count, seed):
    """Return images, labels, and their bytes in the original format: labels, then red, green and blue planes."""
    rng = np.random.RandomState(seed)
    images = rng.randint(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    labels = rng.randint(0, builder.facts().classes, count).astype(np.uint8)
    coarse = [np.full(count, 19, np.uint8)] * (builder.labels - 1)
    planes = images.transpose(0, 3, 1, 2).reshape(count, PIXELS)
    return images, labels, np.column_stack([*coarse, labels, planes]).tobytes()


def write_archive(builder, file):
    """Write an archive of few images and return those of each split."""
    written = {}
    with tarfile.open(file, "w:gz") as tar:
        for seed, (split, names) in enumerate(builder.files.items()):
            parts = [records(builder, 7, 10 * seed + number) for number in range(len(names))]
            written[split] = tuple(np.concatenate([part[index] for part in parts]) for index in (0, 1))
            for name, (_, _, content) in zip(names, parts, strict=True):
                entry = tarfile.TarInfo(f"{builder.folder}/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return written


def expect(builder, file, monkeypatch):
    """Let the builder expect this archive."""
    content = file.read_bytes()
    monkeypatch.setattr(builder, "sha256", hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(("name", "builder"), BUILDERS.items())
def test_images_come_back_as_they_were_written(name, builder, tmp_path, monkeypatch):
    file = tmp_path / builder.archive
    written = write_archive(builder, file)
    expect(builder, file, monkeypatch)
    loaded = load(name, data_dir=str(tmp_path / "data"), manual_dir=str(tmp_path))
    file.unlink()  # Not needed a second time.
    for found in (loaded, load(name, data_dir=str(tmp_path / "data"))):
        for split, (images, labels) in written.items():
            columns = getattr(found, split)
            np.testing.assert_array_equal(columns["image"], images)
            np.testing.assert_array_equal(columns["label"], labels)
            assert columns["image"].dtype == np.uint8
    assert loaded.num_classes == builder.facts().classes
    assert len(loaded.mean) == len(loaded.std) == 3
    assert len(loaded.train["label"]) == 7 * len(builder.files["train"])


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar10_jpeg", "tiny_shakespeare"])
def test_without_the_original_nothing_is_tried_or_written(name, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("TFDS was asked to prepare it")

    builder = data.builder(name)
    monkeypatch.setattr(builder, "download_and_prepare", fail)
    file = getattr(builder, "archive", None) or {"cifar10_jpeg": "cifar10_jpeg75.npz"}.get(name, "input.txt")
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    np.savez(wrong / "other.npz", other_labels=np.zeros(3))
    (wrong / "other.npz").rename(wrong / file)
    cases = [
        (None, FileNotFoundError, "no manual_dir is given"),
        (tmp_path / "nowhere", FileNotFoundError, "there is no folder .*nowhere"),
        (tmp_path, FileNotFoundError, f"lacks {file}\\."),
        (wrong, ValueError, f"{file} "),
    ]
    for folder, error, match in cases:
        with pytest.raises(error, match=match) as raised:
            load(name, data_dir=str(tmp_path / "data"), manual_dir=folder and str(folder))
        assert f"{file}" in str(raised.value)
        assert "into a folder" in str(raised.value)
        assert "manual_dir" in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_another_archive_is_refused(tmp_path):
    file = tmp_path / Cifar10.archive
    write_archive(Cifar10, file)
    with pytest.raises(ValueError, match=r"is not CIFAR-10's file: its SHA-256 differs\. Download"):
        load("cifar10", data_dir=str(tmp_path / "data"), manual_dir=str(tmp_path))


def test_registered_archives_are_those_of_tfds():
    import tensorflow_datasets as tfds

    for name, builder in BUILDERS.items():
        url, _, *rest = (tfds.core.utils.tfds_path() / "url_checksums" / f"{name}.txt").read_text().split()
        assert [url, *rest] == [builder.homepage + builder.archive, builder.sha256, builder.archive]


def write_jpegs(file):
    """Write a packed file of few smooth images; return its arrays and the images as Pillow decodes them."""
    arrays, decoded, header = {}, {}, b""
    for split, count in (("train", 5), ("test", 3)):
        bodies, images = [], []
        for index in range(count):
            image = np.full((32, 32, 3), 40 * index, np.uint8)
            image[:16, :, index % 3] += 50
            content = io.BytesIO()
            Image.fromarray(image).save(content, "jpeg", quality=75)
            images.append(np.asarray(Image.open(content)))
            content = content.getvalue()
            header = content[:623]  # The length of all tables, which are the same at one quality.
            bodies.append(content[623:-2])
        ends = np.cumsum([len(body) for body in bodies])
        arrays[f"{split}_body"] = np.frombuffer(b"".join(bodies), np.uint8)
        arrays[f"{split}_offsets"] = np.array([0, *ends], np.uint32)
        arrays[f"{split}_labels"] = np.arange(count, dtype=np.uint8)
        decoded[split] = np.array(images)
    arrays["header"] = np.frombuffer(header, np.uint8)
    np.savez(file, **arrays)
    return arrays, decoded


def test_packed_jpegs_come_back_decoded(tmp_path, monkeypatch):
    arrays, decoded = write_jpegs(tmp_path / cifar10_jpeg.FILE)
    monkeypatch.setattr(Cifar10Jpeg, "sha256", cifar10_jpeg.digest(arrays))
    loaded = load("cifar10_jpeg", data_dir=str(tmp_path / "data"), manual_dir=str(tmp_path))
    for split in ("train", "test"):
        np.testing.assert_array_equal(getattr(loaded, split)["image"], decoded[split])
        np.testing.assert_array_equal(getattr(loaded, split)["label"], arrays[f"{split}_labels"])
    assert "lossy" in Cifar10Jpeg(data_dir=tmp_path / "data").info.description


def test_what_counts_of_packed_jpegs_is_their_content(tmp_path):
    arrays, _ = write_jpegs(tmp_path / cifar10_jpeg.FILE)
    np.savez_compressed(tmp_path / "again.npz", **{name: arrays[name] for name in sorted(arrays)})
    digest = cifar10_jpeg.digest(arrays)
    assert cifar10_jpeg.digest(cifar10_jpeg.read(tmp_path / "again.npz")) == digest
    for name in arrays:
        other = arrays[name].copy()
        other[-1] ^= 1
        assert cifar10_jpeg.digest({**arrays, name: other}) != digest


def test_other_packed_jpegs_are_refused(tmp_path):
    write_jpegs(tmp_path / cifar10_jpeg.FILE)
    with pytest.raises(ValueError, match=r"the SHA-256 of its arrays differs\. Put cifar10_jpeg75\.npz"):
        load("cifar10_jpeg", data_dir=str(tmp_path / "data"), manual_dir=str(tmp_path))


def unpack(arrays, folder):
    """Write the packed images as files into a folder per class, and return their labels by split."""
    labels = {split: arrays[f"{split}_labels"] for split in ("train", "test")}
    for split, own in labels.items():
        for name in pack_cifar10_jpeg.CLASSES:
            (folder / split / name).mkdir(parents=True)
        bounds = arrays[f"{split}_offsets"]
        for index, (label, begin, end) in enumerate(zip(own, bounds, bounds[1:], strict=False)):
            content = arrays["header"].tobytes() + arrays[f"{split}_body"][begin:end].tobytes()
            file = folder / split / pack_cifar10_jpeg.CLASSES[label] / f"{index:04d}.jpg"
            file.write_bytes(content + cifar10_jpeg.END_OF_IMAGE)
    return labels


def test_the_lossy_set_is_packed_from_labels_and_files(tmp_path, monkeypatch):
    arrays, _ = write_jpegs(tmp_path / "first.npz")
    arrays["train_labels"] = np.array([3, 9, 3, 0, 9], np.uint8)
    labels = unpack(arrays, tmp_path / "images")
    packed = pack_cifar10_jpeg.pack(labels, tmp_path / "images")
    assert cifar10_jpeg.digest(packed) == cifar10_jpeg.digest(arrays)

    monkeypatch.setattr(Cifar10, "read", lambda archive: {split: (None, own) for split, own in labels.items()})
    monkeypatch.setattr(Cifar10, "check_file", lambda *_: None)
    command = [tmp_path / "archive", tmp_path / "images", tmp_path / cifar10_jpeg.FILE]
    with pytest.raises(DataError, match="has other images than the commit"):
        pack_cifar10_jpeg.main(*command)
    monkeypatch.setattr(Cifar10Jpeg, "sha256", cifar10_jpeg.digest(arrays))
    pack_cifar10_jpeg.main(*command)
    assert cifar10_jpeg.digest(cifar10_jpeg.read(tmp_path / cifar10_jpeg.FILE)) == Cifar10Jpeg.sha256
