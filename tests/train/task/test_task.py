"""Tasks of configurations: colour images, text, and the seeds of both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.config.config import Config
from train.config.datasets import DATASETS
from train.task import task
from train.task.data import load as data
from train.task.task import make_task, parameter_shapes


def dataset(kind, **columns):
    test = {name: column[:6] for name, column in columns.items()}
    return data.Dataset(kind, columns, test, 10, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


def shaped(monkeypatch, shape):
    """Give rows of digits another shape."""
    monkeypatch.setitem(DATASETS, "digits", dataclasses.replace(DATASETS["digits"], shape=shape))


@pytest.fixture
def colours(monkeypatch):
    rng = np.random.RandomState(0)
    images, labels = rng.randint(0, 256, (20, 8, 8, 3)).astype(np.uint8), rng.randint(0, 10, 20).astype(np.int32)
    monkeypatch.setattr(data, "load", lambda name, **folders: dataset(name, image=images, label=labels))
    shaped(monkeypatch, (8, 8, 3))
    return Config(model="resnet20", depth=8, width=0.25, batch_size=4, workers=2, epochs=1.0)


@pytest.mark.slow
def test_a_network_with_statistics_on_colour_images(colours):
    made = make_task(colours)
    assert made.num_commits == 10
    assert made.params["Convolution_0"]["kernel"].shape == (3, 3, 3, 4)
    assert "batch_stats" in made.model_state
    batch = {name: jnp.asarray(column[:4]) for name, column in made.batches.data.items()}
    loss_fn = lambda *state: made.loss_fn(*state, batch, jax.random.key(0))
    shapes = jax.eval_shape(loss_fn, made.params, made.model_state)
    assert shapes[0].shape == ()
    assert jax.tree.map(jnp.shape, shapes[1][0]) == jax.tree.map(jnp.shape, made.model_state)
    other = made.params_of(7)
    assert (other["Convolution_0"]["kernel"] != made.params["Convolution_0"]["kernel"]).any()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "pad"), [("resnet20", 4), pytest.param("cnn7", 2, marks=pytest.mark.slow)])
def test_images_are_shifted_as_far_as_the_network_sees(colours, monkeypatch, model, pad):
    seen = []
    monkeypatch.setattr(task, "augment", lambda images, key, pad: seen.append(pad) or images)
    rng = np.random.RandomState(0)
    columns = {"image": rng.randint(0, 256, (8, 32, 32, 3)).astype(np.uint8), "label": np.zeros(8, np.int32)}
    monkeypatch.setattr(data, "load", lambda name, **folders: dataset(name, **columns))
    shaped(monkeypatch, (32, 32, 3))
    depth = 8 if model == "resnet20" else None
    made = make_task(dataclasses.replace(colours, model=model, width=0.1, depth=depth, augment=True))
    batch = {name: jnp.asarray(column) for name, column in made.batches.data.items()}
    jax.eval_shape(lambda params: made.loss_fn(params, made.model_state, batch, jax.random.key(0)), made.params)
    assert seen == [pad]


@pytest.mark.slow
def test_text_is_trained_with_a_transformer(monkeypatch):
    tokens = np.random.RandomState(0).randint(0, 10, (12, 9)).astype(np.uint8)
    monkeypatch.setattr(data, "load", lambda name, **folders: dataset(name, tokens=tokens))
    shaped(monkeypatch, (8,))
    made = make_task(Config(depth=1, width=0.25, batch_size=3, workers=2, epochs=1.0))
    assert made.model_state == ()
    assert made.params["Embed_0"]["embedding"].shape == (10, 32)
    assert made.num_commits == 8
    loss, accuracy = made.evaluate(made.params)
    assert loss == pytest.approx(np.log(10), abs=0.1)  # Nothing is known yet.
    assert 0 <= accuracy <= 1
    assert made.train_loss(made.params) == pytest.approx(loss, rel=1e-5)  # The first training rows are the test rows.


def test_a_network_that_does_not_fit_what_was_read_is_refused(colours, monkeypatch):
    shaped(monkeypatch, (32, 32, 3))
    with pytest.raises(ValueError, match="cnn7 takes images of at least 28x28 pixels; digits has images of 8x8"):
        make_task(dataclasses.replace(colours, model="cnn7", depth=None))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("cifar100", 275_572), ("tiny_shakespeare", 1_246_848)])
def test_parameters_are_known_before_the_data_are_there(name, count):
    shapes = parameter_shapes(Config(dataset=name))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count
