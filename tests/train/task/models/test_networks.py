"""The networks of the papers: sizes, names, flags, and equal results in both layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gemjax.protocol.compat import enable_x64
from train.config import networks
from train.config.config import Common
from train.config.networks import NETWORKS, check_network, fitting
from train.task.losses import image_rows, make_loss, token_rows
from train.task.models import CNN7, CifarResNet, ResNet50, Transformer, build, init, layers
from train.task.models.layers import he_normal
from train.task.models.transformer import rotate


def count(model, shape, dtype=jnp.float32):
    """Return the numbers of parameters and of model state, without computing any."""
    shapes = jax.eval_shape(lambda key: init(model, key, shape, dtype), jax.random.key(0))
    return tuple(sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in shapes)


@pytest.mark.parametrize(
    ("model", "side", "parameters", "normalised"),
    [
        # The layers of the paper, arXiv:1412.6651 section 5.1: 4,864 + 204,928 + 73,792 + 65,792 + 2,570.
        (CNN7(), 28, 351_946, 0),
        # 0.27 million, arXiv:1512.03385 table 6; shortcuts without parameters, 689 normalised channels and their statistics.
        (CifarResNet(), 32, 269_722, 16 + 3 * 2 * (16 + 32 + 64)),
        # 0.46 million in the same table.
        pytest.param(CifarResNet(depth=32), 32, 464_154, None, marks=pytest.mark.slow),
        # That of torchvision's documentation.
        pytest.param(ResNet50(), 224, 25_557_032, 26_560, marks=pytest.mark.slow),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "num_classes") else "",
)
def test_networks_have_the_sizes_of_the_literature(model, side, parameters, normalised):
    found, statistics = count(model, (side, side, 3))
    assert found == parameters
    assert normalised is None or statistics == 2 * normalised


@pytest.mark.parametrize(("width", "parameters"), [(1, 1_246_848), (2, 4_852_992), (4, 19_143_168)])
def test_the_transformer_has_the_documented_sizes(width, parameters):
    units, depth = 128 * width, 6
    assert parameters == depth * (12 * units**2 + 2 * units) + units + 2 * 256 * units
    assert count(Transformer(width=width), (16,), jnp.int32) == (parameters, 0)


@pytest.mark.slow
@pytest.mark.parametrize("model", [CifarResNet, CNN7])
def test_half_the_width_is_about_a_quarter_of_the_parameters(model):
    whole, half = (count(model(width=width), (32, 32, 3))[0] for width in (1.0, 0.5))
    assert 0.2 < half / whole < 0.3


def test_a_large_layer_is_drawn_in_a_loop_with_the_same_numbers(monkeypatch):
    called = he_normal(jax.random.key(0), (300, 500))
    monkeypatch.setattr(layers, "MOST_CALLS", 1)
    np.testing.assert_array_equal(he_normal(jax.random.key(0), (300, 500)), called)


def test_initial_kernels_have_hes_variance_and_go_by_the_key():
    kernels = [he_normal(jax.random.key(seed), (3, 3, 64, 128)) for seed in (0, 0, 1)]
    np.testing.assert_allclose(kernels[0].std(), (2 / (9 * 64)) ** 0.5, rtol=0.01)
    np.testing.assert_allclose(kernels[0].mean(), 0, atol=1e-3)
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0] != kernels[2]).any()
    drawn = np.unique(kernels[0])  # More than are drawn at once: no part repeats another.
    assert len(drawn) > 0.9 * kernels[0].size > 0.9 * layers.DRAWN_AT_ONCE


def raw_batch(size, side):
    rng = np.random.RandomState(0)
    return {
        "image": jnp.asarray(rng.randint(0, 256, (size, side, side, 3)), jnp.uint8),
        "label": jnp.asarray(rng.randint(0, 10, size), jnp.int32),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "side"),
    [
        (lambda name: CifarResNet(depth=8, width=0.25, implementation=name), 8),
        (lambda name: ResNet50(width=0.05, blocks=(1, 1), num_classes=10, implementation=name), 32),
        (lambda name: CNN7(width=0.05, implementation=name), 30),
    ],
    ids=["resnet", "resnet50", "cnn7"],
)
def test_networks_are_the_same_in_both_layouts(model, side):
    with enable_x64(True):
        begun = init(model("lax"), jax.random.key(0), (side, side, 3))
        params, model_state = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), begun)
        batch, key = raw_batch(4, side), jax.random.key(1)

        def run(name):
            loss_fn = make_loss(image_rows(model(name), (0.4, 0.5, 0.6), 0.25, 255.0))
            return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params, model_state, batch, key)

        ours, theirs = (jax.tree.leaves(run(name)) for name in ("matmul", "lax"))
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == jnp.float64
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_a_residual_network_learns_inside_a_compiled_loop():
    model = CifarResNet(depth=8, width=0.5)
    params, model_state = init(model, jax.random.key(0), (8, 8, 3))
    loss_fn = make_loss(image_rows(model, 0.5, 0.25, 255.0))
    batch = raw_batch(32, 8)

    @jax.jit
    def run(params, model_state):
        def step(carry, i):
            params, model_state = carry
            (loss, (model_state, _)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(
                params, model_state, batch, jax.random.fold_in(jax.random.key(0), i)
            )
            return (jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), model_state), loss

        return jax.lax.scan(step, (params, model_state), jnp.arange(60))[1]

    losses = run(params, model_state)
    assert losses[0] > 2
    assert losses[-1] < 0.3


@pytest.mark.slow
def test_cnn7_sees_the_middle_of_larger_images():
    images = jnp.asarray(np.random.RandomState(0).standard_normal((2, 32, 32, 3)), jnp.float32)
    model = CNN7(width=0.05, implementation="lax")
    params = init(model, jax.random.key(0), (28, 28, 3))[0]
    apply = jax.jit(lambda images: model.apply({"params": params}, images))
    np.testing.assert_array_equal(apply(images), apply(images[:, 2:30, 2:30]))


@pytest.mark.slow
def test_the_transformer_does_not_look_ahead():
    model = Transformer(vocabulary=7, depth=2, width=0.25, units_a_head=8)
    params = init(model, jax.random.key(0), (6,), jnp.int32)[0]
    apply = jax.jit(lambda tokens: model.apply({"params": params}, tokens))
    tokens = jnp.array([[1, 2, 3, 4, 5, 6]])
    before, after = apply(tokens), apply(tokens.at[0, 4].set(0))
    np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=1e-5, atol=1e-6)
    assert (jnp.abs(before[:, 4:] - after[:, 4:]).max(-1) > 1e-4).all()


@pytest.mark.slow
def test_the_transformer_learns_a_pattern_that_needs_the_past():
    """In 0 1 1 0 1 1 … the token after a 1 depends on the one before it."""
    model = Transformer(vocabulary=2, depth=1, width=0.25, units_a_head=16)
    params = init(model, jax.random.key(0), (17,), jnp.int32)[0]
    rows = jnp.stack([jnp.arange(shift, shift + 18) % 3 != 0 for shift in range(3)]).astype(jnp.uint8)
    loss_fn = make_loss(token_rows(model))

    @jax.jit
    def run(params):
        def step(params, _):
            gradient = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, _), gradients = gradient(params, (), {"tokens": rows}, jax.random.key(0))
            return jax.tree.map(lambda p, g: p - 0.2 * g, params, gradients), loss  # 0.5 is chaotic.

        return jax.lax.scan(step, params, None, length=300)[1]

    assert run(params)[-1] < 0.1  # The first tokens of rows are not all predictable: 0.02 nats per token.


def test_rotary_positions_leave_products_to_the_distance():
    rng = np.random.RandomState(0)
    query, key = (jnp.asarray(np.tile(rng.standard_normal((1, 1, 1, 8)), (1, 6, 1, 1)), jnp.float32) for _ in range(2))
    query, key = np.asarray(rotate(query))[0, :, 0], np.asarray(rotate(key))[0, :, 0]
    products = query @ key.T
    for distance in range(1, 5):
        diagonal = np.diagonal(products, -distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-5)
    assert np.abs(np.diff(products[:, 0])).max() > 1e-2
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), np.linalg.norm(query[0]), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (32, 32, 3), (224, 224, 3), (128,)])
def test_networks_that_fit_can_be_made(shape):
    assert networks.own(shape) in fitting(shape)
    for name in fitting(shape):
        dtype = jnp.int32 if len(shape) == 1 else jnp.float32
        assert count(build(name, 10), shape, dtype)[0] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETWORKS if NETWORKS[name].side])
def test_no_network_takes_images_below_its_least_size(name):
    side = NETWORKS[name].side
    logits = lambda side: jax.eval_shape(
        lambda key: build(name, 10).init_with_output(key, jnp.zeros((1, side, side, 3)))[0],
        jax.random.key(0),
    )
    assert logits(side).shape == (1, 10)


def test_flags_reach_the_network():
    model = build("resnet20", 100, width=0.5, depth=8)
    assert (model.width, model.depth, model.num_classes) == (0.5, 8, 100)
    assert build(networks.own((28, 28, 1)), 10, dropout=0.25).dropout == 0.25
    assert build(networks.own((64,)), 65, depth=2).vocabulary == 65


DIGITS, COLOURS, WORDS = ("digits", (8, 8, 1)), ("colours", (32, 32, 3)), ("words", (64,))


@pytest.mark.parametrize(
    ("model", "of", "flags", "message"),
    [
        ("cnn7", DIGITS, {}, "--model cnn7 .*, which mlp, digits_cnn, batchnorm_cnn or resnet20 takes"),
        ("resnet20", WORDS, {}, "--model resnet20 .*, which transformer takes"),
        ("transformer", DIGITS, {}, "--model transformer takes text"),
        ("resnet20", COLOURS, {"dropout": 0.1}, "--dropout acts only with --model gem_cnn or cnn7"),
        ("gem_cnn", COLOURS, {"width": 2.0}, "--width acts only with --model"),
        ("cnn7", COLOURS, {"depth": 16}, "--depth acts only with --model resnet20 or transformer"),
        ("resnet20", COLOURS, {"depth": 21}, "--depth of resnet20 must be 6 n . 2 with n of at least 1; got 21"),
        ("auto", WORDS, {"depth": 0}, "--depth of transformer must be at least 1; got 0"),
        ("auto", WORDS, {"augment": True}, "--augment is for images"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_with_those_that_do(model, of, flags, message):
    with pytest.raises(ValueError, match=message):
        check_network(Common(model=model, dataset=of[0], **flags), of[1])


def test_nothing_is_refused_before_the_shape_is_known():
    check_network(Common(model="auto", dataset="unheard_of"), None)
    check_network(Common(model="resnet20", dataset="unheard_of", depth=8, augment=True, width=2.0), None)
