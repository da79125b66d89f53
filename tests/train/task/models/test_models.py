"""The implementations of a pooled convolution, and the networks made of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from gemjax.protocol.compat import enable_x64
from train.common.errors import UsageError
from train.task.losses import image_rows, make_loss
from train.task.models import DigitsCNN, GemCNN, init
from train.task.models.ops.convolution import IMPLEMENTATIONS, convolve, default_implementation


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def shapes(model, image_shape):
    """Return the shapes of the parameters, without values."""
    return jax.eval_shape(lambda key: init(model, key, image_shape)[0], jax.random.key(0))


@functools.cache
def gem_params():
    return init(GemCNN(), jax.random.key(1), (28, 28, 1))[0]


def raw_batch(seed, size, shape):
    rng = np.random.RandomState(seed)
    return {
        "image": jnp.asarray(rng.randint(0, 256, (size, *shape)), jnp.uint8),
        "label": jnp.asarray(rng.randint(0, 10, size), jnp.int32),
    }


def normal(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape)


def convolution_and_gradients(shape, size, pool, dtype):
    """Return the value and the gradients of images, kernel and bias, per implementation."""
    inputs = (normal(0, 3, *shape, 2), normal(1, size, size, 2, 4), normal(2, 4))
    extents = [(extent - size + 1) // (2 if pool else 1) for extent in shape]
    cotangent = jnp.asarray(normal(3, 3, *extents, 4), dtype)

    @jax.jit
    def run(*inputs):
        results = []
        for implementation in IMPLEMENTATIONS:
            out = functools.partial(convolve, pool=pool, implementation=implementation)
            value, pull_back = jax.vjp(out, *inputs)
            results.append((value, *pull_back(cotangent)))
        return results

    return run(*(jnp.asarray(array, dtype) for array in inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "size", "pool"),
    [
        ((6, 7), 3, False),
        ((6, 8), 3, True),
        ((7, 6), 2, True),
        ((9, 9), 3, True),
        ((8, 8), 5, True),
    ],
)
def test_convolution_is_the_same_in_all_implementations(shape, size, pool):
    *ours, theirs = convolution_and_gradients(shape, size, pool, jnp.float32)
    for implementation in ours:
        for one, other in zip(implementation, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_convolution_in_float64():
    with enable_x64(True):
        *ours, theirs = convolution_and_gradients((6, 8), 3, True, jnp.float64)
        for implementation in ours:
            for one, other in zip(implementation, theirs, strict=True):
                assert one.dtype == jnp.float64
                np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_convolution_by_hand(implementation):
    image = jnp.arange(9.0).reshape(1, 3, 3, 1)
    kernel = jnp.array([[1.0, 0.0], [0.0, 10.0]]).reshape(2, 2, 1, 1)
    run = functools.partial(convolve, image, kernel, jnp.array([0.5]))
    out, pooled = jax.jit(lambda: [run(pool=pool, implementation=implementation) for pool in (False, True)])()
    np.testing.assert_array_equal(out[0, :, :, 0], [[40.5, 51.5], [73.5, 84.5]])
    np.testing.assert_array_equal(pooled[0, :, :, 0], [[84.5]])


def test_gradient_of_a_tie_goes_to_one_place():
    def total(images):
        kernel = jnp.ones((1, 1, 1, 1))
        return convolve(images, kernel, jnp.zeros(1), pool=True, implementation="matmul").sum()

    gradient = jax.jit(jax.grad(total))(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[1, 0], [0, 0]])


@pytest.mark.slow
def test_convolution_under_vmap():
    images = jnp.asarray(normal(0, 2, 3, 6, 6, 1), jnp.float32)
    kernels = jnp.asarray(normal(1, 2, 3, 3, 1, 4), jnp.float32)

    def gradients(images, kernel):
        def total(images, kernel):
            out = convolve(images, kernel, jnp.zeros(4), pool=True, implementation="matmul")
            return jnp.sum(out**2)

        return jax.grad(total, argnums=(0, 1))(images, kernel)

    batched = jax.jit(jax.vmap(gradients))(images, kernels)
    alone = jax.jit(lambda *inputs: jax.lax.map(lambda pair: gradients(*pair), inputs))
    for many, one in zip(batched, alone(images, kernels), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-5)


def test_platform_chooses_the_implementation(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert default_implementation() == "matmul"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_implementation() == "lax"


def test_gem_cnn_has_the_papers_size():
    params = shapes(GemCNN(), (28, 28, 1))
    assert count(params) == 163_790
    assert params["Conv_1"]["kernel"].shape == (5, 5, 10, 20)
    assert params["Dense_0"]["kernel"].shape == (320, 300)


def test_digits_cnn_has_the_documented_size():
    params = shapes(DigitsCNN(), (8, 8, 1))
    assert count(params) == 23_946


@pytest.mark.slow
def test_initial_values_are_pytorchs_defaults():
    params = gem_params()
    for layer in params.values():
        bound = np.prod(layer["kernel"].shape[:-1]) ** -0.5
        assert jnp.abs(layer["kernel"]).max() <= bound
        assert jnp.abs(layer["kernel"]).max() > 0.95 * bound
        np.testing.assert_allclose(layer["kernel"].std(), bound / 3**0.5, rtol=0.1)
        assert jnp.abs(layer["bias"]).max() <= bound
        assert jnp.abs(layer["bias"]).max() > 0.5 * bound


@pytest.mark.slow
def test_networks_are_the_same_in_both_implementations():
    batch, key = raw_batch(0, 2, (28, 28, 1)), jax.random.key(1)

    def run(implementation):
        loss_fn = make_loss(image_rows(GemCNN(implementation=implementation), 0.3, 0.4, 255.0))
        return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(gem_params(), {}, batch, key)

    ours, theirs = (jax.tree.leaves(run(name)) for name in ("matmul", "lax"))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_dropout_takes_whole_channels_by_key():
    model, params = GemCNN(implementation="lax"), gem_params()
    images = jnp.asarray(normal(0, 4, 28, 28, 1), jnp.float32)

    @jax.jit
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

    masked = np.asarray(dropped(jax.random.key(2)))
    gone = (masked == 0).all((1, 2))
    assert masked.shape == (4, 4, 4, 20)
    assert 0.3 < gone.mean() < 0.7
    assert ((masked != 0).any((1, 2)) == (masked != 0).all((1, 2))).all()
    np.testing.assert_array_equal(masked, dropped(jax.random.key(2)))
    assert (masked != dropped(jax.random.key(3))).any()


def test_a_network_with_other_variables_is_refused():
    class Cached(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            self.variable("cache", "seen", jnp.zeros, ())
            return linen.Dense(10)(x.reshape(len(x), -1))

    with pytest.raises(
        UsageError, match="the network Cached has variables in cache; the model state of `train` holds batch_st"
    ):
        init(Cached(), jax.random.key(0), (8, 8, 1))
