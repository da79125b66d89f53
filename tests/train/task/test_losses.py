"""Losses and evaluation: images, text, and networks with statistics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gemjax.protocol.compat import enable_x64
from train.task.losses import cross_entropy, image_rows, make_evaluate, make_loss, normalise, token_rows
from train.task.models import DigitsCNN, GemCNN, init
from train.task.models.layers import BatchNorm
from train.task.models.ops.layout import ImageLayout

# One program per network: Flax otherwise compiles its initialisation operation by operation.
compiled_init = jax.jit(lambda *args: init(*args)[0], static_argnums=(0, 2))
compiled_cross_entropy = jax.jit(cross_entropy)


@functools.cache
def digits_params():
    return compiled_init(DigitsCNN(), jax.random.key(1), (8, 8, 1))


def raw_batch(seed, size, shape):
    rng = np.random.RandomState(seed)
    return {
        "image": jnp.asarray(rng.randint(0, 256, (size, *shape)), jnp.uint8),
        "label": jnp.asarray(rng.randint(0, 10, size), jnp.int32),
    }


@pytest.mark.slow
def test_dropout_is_off_outside_training_and_at_rate_zero():
    batch, key = raw_batch(1, 4, (28, 28, 1)), jax.random.key(0)
    cases = [(0.5, False), (0.0, True), (0.5, True)]

    @jax.jit
    def losses(params):
        models = [GemCNN(dropout=rate, implementation="lax") for rate, _ in cases]
        return [
            image_rows(model, 0.1, 0.3, 255.0)(params, {}, batch, key if train else None)[0].mean()
            for model, (_, train) in zip(models, cases, strict=True)
        ]

    evaluated, rate_zero, trained = losses(compiled_init(GemCNN(), jax.random.key(1), (28, 28, 1)))
    np.testing.assert_allclose(evaluated, rate_zero, rtol=1e-6)
    assert abs(evaluated - trained) > 1e-4


def test_cross_entropy_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    expected = -(np.log(0.25) + np.log(0.8)) / 2
    np.testing.assert_allclose(compiled_cross_entropy(logits, jnp.array([1, 2])), expected, rtol=1e-5)


def test_cross_entropy_of_huge_logits_is_finite():
    np.testing.assert_allclose(compiled_cross_entropy(jnp.array([[1e4, 0.0]]), jnp.array([1])), 1e4)


def test_normalise():
    out = normalise(jnp.array([0, 255], jnp.uint8), 0.1307, 0.3081, 255.0)
    np.testing.assert_allclose(out, [-0.1307 / 0.3081, (1 - 0.1307) / 0.3081], rtol=1e-5)


@pytest.mark.slow
def test_loss_hands_the_model_state_through_and_reports_accuracy():
    params, batch = digits_params(), raw_batch(2, 16, (8, 8, 1))
    loss_fn = jax.jit(make_loss(image_rows(DigitsCNN(), 0.5, 0.25, 255.0)))
    loss, (state, metrics) = loss_fn(params, {"seen": 3}, batch, jax.random.key(0))
    images = (np.asarray(batch["image"]) / np.float32(255) - 0.5) / 0.25
    logits = jax.jit(DigitsCNN().apply)({"params": params}, images)
    np.testing.assert_allclose(loss, compiled_cross_entropy(logits, batch["label"]), rtol=1e-5)
    assert state == {"seen": 3}
    assert metrics["accuracy"] == (logits.argmax(-1) == batch["label"]).mean()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [7, 1000])
def test_evaluate_counts_every_image_once(chunk):
    params = digits_params()
    batch = raw_batch(3, 25, (8, 8, 1))
    rows = image_rows(DigitsCNN(), 0.3, 0.4, 255.0)
    losses, right, _ = jax.jit(lambda params, batch: rows(params, (), batch, None))(params, batch)
    loss, accuracy = make_evaluate(rows, chunk=chunk)(params, (), batch)
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(accuracy, right.mean(), rtol=1e-6)


class WantsFloat64(nn.Module):
    """A model that checks the type of its images while it is traced."""

    @nn.compact
    def __call__(self, images, train=False):
        assert images.dtype == jnp.float64
        bias = self.param("bias", nn.initializers.zeros, (1, 10), jnp.float64)
        return images.reshape(images.shape[0], -1)[:, :10] + bias


@pytest.mark.slow
def test_float64_parameters_see_float64_images():
    with enable_x64(True):
        params, batch = {"bias": jnp.zeros((1, 10), jnp.float64)}, raw_batch(4, 2, (4, 4, 1))
        rows = image_rows(WantsFloat64(), 0.3, 0.4, 255.0)
        loss, _ = make_loss(rows)(params, {}, batch, jax.random.key(0))
        means = make_evaluate(rows)(params, (), batch)
        assert [loss.dtype, *(mean.dtype for mean in means)] == [jnp.float64] * 3


def test_channels_are_normalised_each_by_its_own():
    images = jnp.asarray([[[[0, 100, 200]]]], jnp.uint8)
    out = normalise(images, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0), 200.0)
    np.testing.assert_allclose(out[0, 0, 0], [-0.1, (0.5 - 0.2) / 2, (1 - 0.3) / 4], rtol=1e-5)


@pytest.mark.slow
def test_augmentation_is_drawn_by_key_in_training_alone():
    def augment(images, key):
        return images + jax.random.randint(key, images.shape, 0, 50).astype(jnp.uint8)

    params, batch = digits_params(), raw_batch(5, 4, (8, 8, 1))
    plain, shifted = (image_rows(DigitsCNN(), 0.3, 0.4, 255.0, how) for how in (None, augment))
    evaluated = [jax.jit(lambda rows=rows: rows(params, (), batch, None)[0])() for rows in (plain, shifted)]
    np.testing.assert_array_equal(*evaluated)
    shift = jax.jit(lambda key: shifted(params, (), batch, key)[0])
    trained = [shift(jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(trained[0], trained[1])
    assert (trained[0] != trained[2]).any()
    assert (trained[0] != evaluated[0]).any()


def test_the_loss_of_text_is_that_of_the_next_token():
    class Same(nn.Module):
        """A model that is certain that the next token repeats this one."""

        @nn.compact
        def __call__(self, tokens, train=False):
            self.param("none", nn.initializers.zeros, ())
            return 50.0 * jax.nn.one_hot(tokens, 4)

    batch = {"tokens": jnp.array([[1, 1, 1, 1], [0, 0, 3, 3]], jnp.uint8)}
    rows = token_rows(Same())
    loss, (state, metrics) = jax.jit(make_loss(rows))({"none": jnp.zeros(())}, (), batch, jax.random.key(0))
    np.testing.assert_allclose(loss, 50 / 6, rtol=1e-5)  # One of six is wrong, by 50 nats.
    np.testing.assert_allclose(metrics["accuracy"], 5 / 6, rtol=1e-6)
    assert state == ()
    np.testing.assert_allclose(
        make_evaluate(rows, chunk=1)({"none": jnp.zeros(())}, (), batch), [50 / 6, 5 / 6], rtol=1e-5
    )


class Normalised(nn.Module):
    """The smallest network with statistics."""

    @nn.compact
    def __call__(self, images, train=False):
        x = BatchNorm(ImageLayout.CHANNELS_LAST)(images, train)
        return nn.Dense(10)(x.reshape(len(x), -1))


@pytest.mark.slow
def test_batch_statistics_are_model_state_that_training_moves_and_evaluation_uses():
    params, begun = init(Normalised(), jax.random.key(0), (4, 4, 1))
    batch, rows = raw_batch(6, 8, (4, 4, 1)), image_rows(Normalised(), 0.5, 0.25, 255.0)
    images = np.asarray(batch["image"], np.float64) / 255 * 4 - 2
    loss_fn, evaluate = jax.jit(make_loss(rows)), make_evaluate(rows)
    _, (moved, _) = loss_fn(params, begun, batch, jax.random.key(0))
    assert jax.tree.structure(moved) == jax.tree.structure(begun)
    statistics = moved["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(statistics["mean"], [0.1 * images.mean()], rtol=1e-4)
    np.testing.assert_allclose(statistics["var"], [0.9 + 0.1 * images.var()], rtol=1e-4)
    evaluated = evaluate(params, begun, batch)[0], evaluate(params, moved, batch)[0]
    assert abs(evaluated[0] - evaluated[1]) > 1e-3
    for _ in range(200):
        _, (moved, _) = loss_fn(params, moved, batch, jax.random.key(0))
    trained, _ = loss_fn(params, moved, batch, jax.random.key(0))
    np.testing.assert_allclose(evaluate(params, moved, batch)[0], trained, rtol=1e-4)
