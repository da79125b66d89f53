"""Batches for the workers of a cluster: small data are sent, large ones are read on each host."""

import pickle
import types

import numpy as np
import pytest

from train.common.errors import DataError
from train.task.data import load as data
from train.task.data import on_each_host

WORKERS, STEPS = np.array([0, 1, 1]), np.array([0, 0, 5])


@pytest.fixture
def digits(tmp_path_factory):
    folder = str(tmp_path_factory.getbasetemp() / "data")
    return data.load("digits", data_dir=folder), folder


def test_small_data_are_sent_with_the_batches(digits):
    dataset, folder = digits
    there = pickle.loads(pickle.dumps(on_each_host.epochs(dataset, 32, 7, folder)))
    np.testing.assert_array_equal(there.data["image"], dataset.train["image"])


def test_large_data_are_not_sent_but_read_from_the_same_folder(digits, monkeypatch):
    dataset, folder = digits
    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)
    here = on_each_host.epochs(dataset, 32, 7, folder)
    sent = pickle.dumps(here)
    assert len(sent) < 1000
    there = pickle.loads(sent)
    for name, column in dataset.train.items():
        np.testing.assert_array_equal(there.data[name], column)
    np.testing.assert_array_equal(there.select(WORKERS, STEPS), here.select(WORKERS, STEPS))


def test_images_that_were_pooled_are_pooled_on_each_host(digits, monkeypatch):
    """A network that averages over all pixels would take either."""
    dataset, folder = digits
    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)
    pooled = dataset.pooled(2)
    there = pickle.loads(pickle.dumps(on_each_host.epochs(pooled, 32, 7, folder, pool=2)))
    np.testing.assert_array_equal(there.data["image"], pooled.train["image"])
    with pytest.raises(DataError, match=r"1437, 8, 8, 1\].*, but the driver has .*1437, 4, 4, 1\]"):
        pickle.loads(pickle.dumps(on_each_host.epochs(pooled, 32, 7, folder)))


def test_a_relative_folder_is_sent_as_an_absolute_path(digits, monkeypatch, tmp_path):
    dataset, folder = digits
    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)
    monkeypatch.chdir(folder)
    sent = pickle.dumps(on_each_host.epochs(dataset, 32, 7, "."))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        data, "load", lambda name, data_dir, manual_dir: pytest.fail(data_dir) if data_dir != folder else dataset
    )
    assert pickle.loads(sent).num_rows == len(dataset.train["image"])


def test_a_host_without_the_data_is_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)
    columns = {"image": np.zeros((40, 28, 28, 1), np.uint8), "label": np.zeros(40, np.int32)}
    mnist = types.SimpleNamespace(name="mnist", train=columns)
    sent = pickle.dumps(on_each_host.epochs(mnist, 32, 0, str(tmp_path)))
    monkeypatch.setattr("socket.gethostname", lambda: "host-3")
    with pytest.raises(DataError, match=r"^host-3 cannot read mnist: MNIST is not prepared yet") as error:
        pickle.loads(sent)
    assert f"prepare mnist in the same --data-dir ({tmp_path}) on every host of the cluster" in str(error.value)
    assert str(error.value).isprintable()


def test_other_data_under_the_same_name_are_refused(digits, monkeypatch):
    dataset, folder = digits
    monkeypatch.setattr(on_each_host, "LARGEST_SENT", 0)
    fewer = types.SimpleNamespace(name="digits", train={name: column[:100] for name, column in dataset.train.items()})
    sent = pickle.dumps(on_each_host.epochs(fewer, 32, 0, folder))
    with pytest.raises(
        DataError,
        match=r"has digits as .*uint8\[1437, .*, but the driver has .*uint8\[100, .*; prepare digits in the same",
    ):
        pickle.loads(sent)
