"""What a configuration trains: colour images, text, and the seeds of both."""

import dataclasses
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import data, networks
from train.config import Config
from train.task import make_task


def dataset(kind, **columns):
    return types.SimpleNamespace(
        name=kind, train=columns, test={name: column[:6] for name, column in columns.items()}, num_classes=10,
        mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), scale=255.0,
    )  # fmt: skip


@pytest.fixture
def colours(monkeypatch):
    rng = np.random.RandomState(0)
    images, labels = rng.randint(0, 256, (20, 8, 8, 3)).astype(np.uint8), rng.randint(0, 10, 20).astype(np.int32)
    monkeypatch.setattr(data, "load", lambda name, **folders: dataset(name, image=images, label=labels))
    monkeypatch.setitem(networks.SHAPES, "digits", (8, 8, 3))
    return Config(model="resnet20", depth=8, width=0.25, batch_size=4, workers=2, epochs=1.0)


def test_a_network_with_statistics_on_colour_images(colours):
    task = make_task(colours)
    assert task.num_commits == 10
    assert task.params["Convolution_0"]["kernel"].shape == (3, 3, 3, 4)
    assert "batch_stats" in task.model_state
    batch = {name: jnp.asarray(column[:4]) for name, column in task.batches.data.items()}
    loss_fn = lambda *state: task.loss_fn(*state, batch, jax.random.key(0))
    shapes = jax.eval_shape(loss_fn, task.params, task.model_state)
    assert shapes[0].shape == ()
    assert jax.tree.map(jnp.shape, shapes[1][0]) == jax.tree.map(jnp.shape, task.model_state)
    other = task.params_of(7)
    assert (other["Convolution_0"]["kernel"] != task.params["Convolution_0"]["kernel"]).any()


@pytest.mark.parametrize(("model", "pad"), [("resnet20", 4), ("cnn7", 2)])
def test_images_are_shifted_as_far_as_the_network_sees(colours, monkeypatch, model, pad):
    seen = []
    fake = types.ModuleType("train.augment")
    fake.augment = lambda images, key, *, pad=4, flip=True: seen.append((pad, flip)) or images
    monkeypatch.setitem(sys.modules, "train.augment", fake)
    rng = np.random.RandomState(0)
    columns = {"image": rng.randint(0, 256, (8, 32, 32, 3)).astype(np.uint8), "label": np.zeros(8, np.int32)}
    monkeypatch.setattr(data, "load", lambda name, **folders: dataset(name, **columns))
    monkeypatch.setitem(networks.SHAPES, "digits", (32, 32, 3))
    depth = 8 if model == "resnet20" else None
    task = make_task(dataclasses.replace(colours, model=model, width=0.1, depth=depth, augment=True))
    batch = {name: jnp.asarray(column) for name, column in task.batches.data.items()}
    jax.eval_shape(lambda params: task.loss_fn(params, task.model_state, batch, jax.random.key(0)), task.params)
    assert seen == [(pad, True)]


def test_text_is_trained_with_a_transformer(monkeypatch):
    tokens = np.random.RandomState(0).randint(0, 10, (12, 9)).astype(np.uint8)
    monkeypatch.setattr(data, "load", lambda name, **folders: dataset(name, tokens=tokens))
    monkeypatch.setitem(networks.SHAPES, "digits", (8,))
    task = make_task(Config(depth=1, width=0.25, batch_size=3, workers=2, epochs=1.0))
    assert task.model_state == ()
    assert task.params["Embed_0"]["embedding"].shape == (10, 32)
    assert task.num_commits == 8
    loss, accuracy = task.evaluate(task.params)
    assert loss == pytest.approx(np.log(10), abs=0.1)  # Nothing is known yet.
    assert 0 <= accuracy <= 1
    assert task.train_loss(task.params) == pytest.approx(loss, rel=1e-5)  # The first training rows are the test rows.


def test_a_network_that_does_not_fit_what_was_read_is_refused(colours, monkeypatch):
    monkeypatch.setitem(networks.SHAPES, "digits", (32, 32, 3))
    with pytest.raises(ValueError, match="cnn7 takes images of at least 28x28 pixels; digits has images of 8x8"):
        make_task(dataclasses.replace(colours, model="cnn7", depth=None))
