"""Tests of the convolution's two implementations, of the networks, and of their loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.convolution import convolve, default_implementation
from train.models import (
    DigitsCNN,
    GemCNN,
    cross_entropy,
    init_params,
    make_evaluate,
    make_loss,
    normalise,
)

IMPLEMENTATIONS = ("matmul", "lax")


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def raw_batch(seed, size, shape):
    rng = np.random.RandomState(seed)
    return {
        "image": jnp.asarray(rng.randint(0, 256, (size, *shape)), jnp.uint8),
        "label": jnp.asarray(rng.randint(0, 10, size), jnp.int32),
    }


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("shape, size", [((8, 8), 3), ((9, 12), 3), ((7, 6), 2), ((10, 10), 5)])
def test_convolution_is_the_same_in_both_implementations(shape, size, pool):
    keys = jax.random.split(jax.random.key(0), 4)
    images = jax.random.normal(keys[0], (3, *shape, 2))
    kernel = jax.random.normal(keys[1], (size, size, 2, 4))
    bias = jax.random.normal(keys[2], (4,))

    def run(implementation):
        def out(*inputs):
            return convolve(*inputs, pool=pool, implementation=implementation)

        value, pull_back = jax.vjp(out, images, kernel, bias)
        return value, pull_back(jax.random.normal(keys[3], value.shape))

    expected = tuple((extent - size + 1) // (2 if pool else 1) for extent in shape)
    assert run("matmul")[0].shape == (3, *expected, 4)
    for ours, theirs in zip(
        jax.tree.leaves(run("matmul")), jax.tree.leaves(run("lax")), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_convolution_by_hand():
    image = jnp.arange(9.0).reshape(1, 3, 3, 1)
    kernel = jnp.array([[1.0, 0.0], [0.0, 10.0]]).reshape(2, 2, 1, 1)
    for implementation in IMPLEMENTATIONS:
        out = convolve(image, kernel, jnp.array([0.5]), implementation=implementation)
        np.testing.assert_array_equal(out[0, :, :, 0], [[40.5, 51.5], [73.5, 84.5]])
        out = convolve(image, kernel, jnp.array([0.5]), pool=True, implementation=implementation)
        np.testing.assert_array_equal(out[0, :, :, 0], [[84.5]])


def test_convolution_under_vmap():
    images = jax.random.normal(jax.random.key(0), (2, 3, 8, 8, 1))
    kernels = jax.random.normal(jax.random.key(1), (2, 3, 3, 1, 4))

    def gradient(images, kernel):
        def total(kernel):
            out = convolve(images, kernel, jnp.zeros(4), pool=True, implementation="matmul")
            return jnp.sum(out**2)

        return jax.grad(total)(kernel)

    one_by_one = jnp.stack([gradient(i, k) for i, k in zip(images, kernels, strict=True)])
    np.testing.assert_allclose(jax.vmap(gradient)(images, kernels), one_by_one, rtol=1e-4)


def test_platform_chooses_the_implementation(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert default_implementation() == "matmul"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_implementation() == "lax"


def test_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="must be one of .*'fft'"):
        convolve(
            jnp.zeros((1, 4, 4, 1)), jnp.zeros((2, 2, 1, 1)), jnp.zeros(1), implementation="fft"
        )


def test_gem_cnn_has_the_papers_size():
    params = init_params(GemCNN(), jax.random.key(0), (28, 28, 1))
    assert count(params) == 163_790
    assert params["Conv_1"]["kernel"].shape == (5, 5, 10, 20)
    assert params["Dense_0"]["kernel"].shape == (320, 300)


def test_digits_cnn_has_the_documented_size():
    params = init_params(DigitsCNN(), jax.random.key(0), (8, 8, 1))
    assert count(params) == 23_946


def test_initial_values_are_pytorchs_defaults():
    params = init_params(GemCNN(), jax.random.key(1), (28, 28, 1))
    for layer in params.values():
        bound = np.prod(layer["kernel"].shape[:-1]) ** -0.5
        assert jnp.abs(layer["kernel"]).max() <= bound
        assert jnp.abs(layer["kernel"]).max() > 0.95 * bound
        np.testing.assert_allclose(layer["kernel"].std(), bound / 3**0.5, rtol=0.1)
        assert jnp.abs(layer["bias"]).max() <= bound
        assert jnp.abs(layer["bias"]).max() > 0.5 * bound


@pytest.mark.parametrize("network, shape", [(GemCNN, (28, 28, 1)), (DigitsCNN, (8, 8, 1))])
def test_networks_are_the_same_in_both_implementations(network, shape):
    params = init_params(network(), jax.random.key(0), shape)
    batch, key = raw_batch(0, 4, shape), jax.random.key(1)

    def run(implementation):
        loss_fn = make_loss(network(implementation=implementation), 0.3, 0.4, 255.0)
        return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params, {}, batch, key)

    for ours, theirs in zip(
        jax.tree.leaves(run("matmul")), jax.tree.leaves(run("lax")), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_dropout_takes_whole_channels_by_key():
    model = GemCNN(implementation="matmul")
    images = jax.random.normal(jax.random.key(0), (4, 28, 28, 1))
    params = init_params(model, jax.random.key(1), (28, 28, 1))

    def dropped(key):
        _, seen = model.apply(
            {"params": params},
            images,
            train=True,
            rngs={"dropout": key},
            capture_intermediates=True,
            mutable="intermediates",
        )
        return seen["intermediates"]["Dropout_0"]["__call__"][0]

    masked = dropped(jax.random.key(2))
    gone = (masked == 0).all((1, 2))
    assert masked.shape == (4, 4, 4, 20)
    assert 0.3 < gone.mean() < 0.7
    assert ((masked != 0).any((1, 2)) == (masked != 0).all((1, 2))).all()
    np.testing.assert_array_equal(masked, dropped(jax.random.key(2)))
    assert (masked != dropped(jax.random.key(3))).any()


def test_dropout_is_off_outside_training_and_at_rate_zero():
    batch, key = raw_batch(1, 4, (28, 28, 1)), jax.random.key(0)
    params = init_params(GemCNN(), jax.random.key(1), (28, 28, 1))

    def loss(model, train, key):
        return make_loss(model, 0.1, 0.3, 255.0, train=train)(params, {}, batch, key)[0]

    plain = loss(GemCNN(), False, key)
    np.testing.assert_array_equal(plain, loss(GemCNN(dropout=0.0), True, key))
    assert plain != loss(GemCNN(), True, key)


def test_cross_entropy_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    expected = -(np.log(0.25) + np.log(0.8)) / 2
    np.testing.assert_allclose(cross_entropy(logits, jnp.array([1, 2])), expected, rtol=1e-5)


def test_cross_entropy_of_huge_logits_is_finite():
    np.testing.assert_allclose(cross_entropy(jnp.array([[1e4, 0.0]]), jnp.array([1])), 1e4)


def test_normalise():
    out = normalise(jnp.array([0, 255], jnp.uint8), 0.1307, 0.3081, 255.0)
    np.testing.assert_allclose(out, [-0.1307 / 0.3081, (1 - 0.1307) / 0.3081], rtol=1e-5)


def test_loss_hands_the_model_state_through_and_reports_accuracy():
    params = init_params(DigitsCNN(), jax.random.key(0), (8, 8, 1))
    batch = raw_batch(2, 16, (8, 8, 1))
    loss_fn = make_loss(DigitsCNN(), 0.5, 0.25, 255.0)
    loss, (state, metrics) = loss_fn(params, {"seen": 3}, batch, jax.random.key(0))
    images = (batch["image"] / 255.0 - 0.5) / 0.25
    logits = DigitsCNN().apply({"params": params}, images)
    np.testing.assert_allclose(loss, cross_entropy(logits, batch["label"]), rtol=1e-5)
    assert state == {"seen": 3}
    assert metrics["accuracy"] == (logits.argmax(-1) == batch["label"]).mean()


@pytest.mark.parametrize("chunk", [1, 7, 25, 1000])
def test_evaluate_counts_every_image_once(chunk):
    params = init_params(DigitsCNN(), jax.random.key(0), (8, 8, 1))
    batch = raw_batch(3, 25, (8, 8, 1))
    loss_fn = make_loss(DigitsCNN(), 0.3, 0.4, 255.0, train=False)
    expected, (_, metrics) = loss_fn(params, {}, batch, jax.random.key(0))
    evaluate = make_evaluate(DigitsCNN(), 0.3, 0.4, 255.0, chunk=chunk)
    loss, accuracy = evaluate(params, batch["image"], batch["label"])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(accuracy, metrics["accuracy"], rtol=1e-6)


def test_float64_parameters_give_float64_results():
    with jax.enable_x64(True):
        params = init_params(DigitsCNN(), jax.random.key(0), (8, 8, 1))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        batch = raw_batch(4, 4, (8, 8, 1))
        gradients, losses = {}, {}
        for implementation in IMPLEMENTATIONS:
            loss_fn = make_loss(DigitsCNN(implementation=implementation), 0.3, 0.4, 255.0)
            value_and_grad = jax.value_and_grad(loss_fn, has_aux=True)
            (losses[implementation], _), gradients[implementation] = value_and_grad(
                params, {}, batch, jax.random.key(0)
            )
        assert losses["matmul"].dtype == jnp.float64
        ours, theirs = (jax.tree.leaves(gradients[name]) for name in IMPLEMENTATIONS)
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == jnp.float64
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
