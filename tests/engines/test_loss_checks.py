"""Checks of loss functions, their metrics and their model states."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, TRACE, asgd, every_engine, run, squares, with_metrics
from flax import nnx

import gemjax
from gemjax.engines.loss import checked_loss


@every_engine
def test_a_loss_and_parameters_that_are_swapped(engine):
    with pytest.raises(TypeError, match=r"loss_fn is of type dict and params is a function: swap the two"):
        run(engine, {"w": jnp.zeros(2)}, squares)


@every_engine
@pytest.mark.parametrize(
    ("loss_fn", "found"),
    [
        (
            lambda params, batch: (jnp.sum(params**2), {"error": 0.0}),
            r"one number, got \(array, dict\); for metrics use",
        ),
        (lambda params, batch: {"loss": jnp.sum(params**2)}, "one number, got dict; for metrics use"),
        (lambda params, batch: None, "one number, got NoneType; for metrics use"),
        (lambda params, model_state, batch, key: jnp.sum(params**2), r"\(model_state, metrics\)\), got an array"),
        (lambda params, model_state, batch, key: (jnp.sum(params**2), {}), r"got \(array, dict\)"),
    ],
)
def test_a_loss_that_returns_something_else(engine, loss_fn, found):
    with pytest.raises(TypeError, match=found):
        run(engine, loss_fn)


@every_engine
@pytest.mark.parametrize(
    ("loss_fn", "found"),
    [
        (jax.grad(squares), r"loss_fn returned a gradient, as jax\.grad\(loss\) does; give the loss itself"),
        (jax.value_and_grad(squares), r"returned \(loss, gradient\), as jax\.value_and_grad\(loss\) does"),
        (jax.grad(with_metrics(0.0), has_aux=True), r"loss_fn returned a gradient, as jax\.grad\(loss\) does"),
        (
            jax.value_and_grad(with_metrics(0.0), has_aux=True),
            r"\(loss, gradient\), as jax\.value_and_grad\(loss\) does",
        ),
    ],
    ids=["grad", "value_and_grad", "grad of a long one", "value_and_grad of a long one"],
)
def test_a_differentiated_loss(engine, loss_fn, found):
    with pytest.raises(TypeError, match=found):
        run(engine, loss_fn)


@every_engine
def test_a_loss_without_a_mean_may_have_the_shape_of_the_parameters(engine):
    message = r"the loss has shape \(4,\), a scalar was expected; take its mean, unless loss_fn returned a gradient"
    with pytest.raises(TypeError, match=message):
        run(engine, lambda params, batch: (params - batch) ** 2)


@every_engine
@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda params, batch: (params["w"] - batch) ** 2,
        lambda params, model_state, batch, key: ((params["w"] - batch) ** 2, (model_state, {})),
    ],
    ids=["short", "long"],
)
def test_a_loss_without_a_mean(engine, loss_fn):
    with pytest.raises(ValueError, match=r"the loss has shape \(4,\), a scalar was expected; take its mean(\n|$)"):
        run(engine, loss_fn, {"w": PARAMS})


@every_engine
@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (
            jnp.zeros((4, 3)),
            r"the metric 'logits' of loss_fn has the shape \[4, 3\], but every metric must be one number",
        ),
        ({"mean": 0.0}, "the metric 'logits' of loss_fn is of type dict; every metric must be one number"),
        ("high", "the metric 'logits' of loss_fn is the str 'high'; every"),
        (jax.random.key(0), "the metric 'logits' of loss_fn is a random key; every"),
    ],
)
def test_a_metric_that_is_no_number(engine, metric, found):
    with pytest.raises((TypeError, ValueError), match=found):
        run(engine, with_metrics({"logits": metric}))


@every_engine
def test_metrics_that_are_no_dict(engine):
    with pytest.raises(TypeError, match=r"the metrics of loss_fn are an array of shape \[\]; return a dict of numbers"):
        run(engine, with_metrics(jnp.float32(0.5)))


@every_engine
def test_metrics_may_be_of_a_class_derived_from_dict(engine):
    """JAX takes such an object for one leaf."""

    class Metrics(dict):
        pass

    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params**2), (model_state, Metrics(size=jnp.max(params)))

    assert np.isfinite(run(engine, loss_fn, PARAMS).history["size"]).all()


@every_engine
@pytest.mark.parametrize("local", [None, gemjax.LocalSteps(optax.sgd(0.1), 2)], ids=["gradients", "local steps"])
def test_metrics_may_be_numbers_of_python(engine, local):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params**2), (model_state, {"tokens": 8, "share": 0.5, "is_whole": True})

    history = run(engine, loss_fn, PARAMS, tx=asgd(1.0), local=local).history
    last = [np.ravel(history[name])[-1] for name in ("tokens", "share", "is_whole")]
    np.testing.assert_array_equal(last, [8, 0.5, 1])


@every_engine
def test_a_model_state_may_be_set_to_a_number_of_python(engine):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params**2), ({"initialised": True, "since": 0}, {})

    model_state = {"initialised": jnp.array(False), "since": jnp.int32(4)}
    found = run(engine, loss_fn, PARAMS, model_state=model_state)
    state = found.model_state if engine != "sweep" else found.state.model_state
    np.testing.assert_array_equal(np.ravel(state["initialised"]), True)
    np.testing.assert_array_equal(np.ravel(state["since"]), 0)


@every_engine
def test_a_leaf_of_the_model_state_that_is_no_array(engine):
    with pytest.raises(
        TypeError, match=r"model_state at \['mode'\] is the str 'train', but model_state may have arrays"
    ):
        run(engine, model_state={"mode": "train"})


@every_engine
@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (
            {"batch_stats": {"mean": jnp.zeros(4)}},
            r"the tree PyTreeDef.*, expected PyTreeDef.*; return a tree like the one given",
        ),
        (
            {"mean": jnp.zeros(3)},
            r"\['mean'\] is float32\[3\], expected float32\[4\]; return the same shapes and dtypes",
        ),
        ({"mean": jnp.zeros(4, int)}, r"\['mean'\] is int32\[4\], expected float32\[4\]"),
    ],
    ids=["tree", "shape", "dtype"],
)
def test_another_model_state_than_was_given(engine, returned, found):
    loss_fn = lambda params, model_state, batch, key: (squares(params, batch), (returned, {}))
    with pytest.raises(ValueError, match=f"loss_fn returned another model state than it was given: {found}"):
        run(engine, loss_fn, model_state={"mean": jnp.zeros(4)})


def with_statistics(params, model_state, batch, key):
    return squares(params, batch["x"]) + model_state["mean"], (model_state, {})


def test_a_forgotten_model_state_is_named():
    batches = lambda worker, step: {"x": jnp.ones(4) * step}
    given = asgd(), with_statistics, PARAMS, batches, TRACE
    first = gemjax.simulate(*given, model_state={"mean": jnp.zeros([])})
    message = (
        r"model or number of workers; arrays that differ: 2, the first is \"model_state\['mean'\]\": found "
        r"float32\[\], expected none; give model_state= as the run had it$"
    )
    with pytest.raises(ValueError, match=message):
        gemjax.simulate(*given, state=first)
    with pytest.raises(ValueError, match=r"'params': found float32\[4\], expected float32\[3\]; give the method with"):
        gemjax.simulate(
            asgd(), with_statistics, jnp.ones(3), batches, TRACE, state=first.state, model_state={"mean": jnp.zeros([])}
        )
    with pytest.raises(TypeError) as raised:  # () has no entry "mean".
        gemjax.simulate(*given)
    assert raised.value.__notes__[:2] == [
        "loss_fn was called with a batch of ['x'] float32[4]",
        "the run was given no model_state=",
    ]


def make_net():
    """Return the structure, the parameters and the other variables of a network with batch normalisation and dropout."""
    net = nnx.Sequential(nnx.BatchNorm(4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    return nnx.split(net, nnx.Param, ...)


@every_engine
def test_a_forgotten_model_state_of_a_network_of_nnx_is_the_first_cause_named(engine):
    graphdef, params, _ = make_net()

    def long(params, model_state, batch, key):
        net = nnx.merge(graphdef, params, model_state)
        return jnp.mean(net(batch[None])), (nnx.split(net, nnx.Param, ...)[2], {})

    short = lambda params, batch: jnp.mean(nnx.merge(graphdef, params)(batch[None]))
    for loss_fn in (long, short):
        with pytest.raises(ValueError, match=r"^the run was given no model_state=, .*expected \d+ leaves, but got \d+"):
            run(engine, loss_fn, params)


def test_a_model_state_that_only_the_loss_makes_is_named():
    made = lambda params, model_state, batch, key: (squares(params, batch), ({"mean": jnp.zeros(4)}, {}))
    for given in ((), {}):
        with pytest.raises(ValueError, match=r"^the run was given no model_state=, but loss_fn returned another"):
            run("simulate", made, model_state=given)


def test_an_error_of_the_loss_names_the_batch():
    with pytest.raises(TypeError) as raised:
        run("simulate", lambda params, batch: squares(params, batch["x"]))
    assert raised.value.__notes__[:1] == ["loss_fn was called with a batch of float32[4]"]


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_loss_may_be_a_float(engine):
    result = run(engine, loss_fn=lambda params, batch: 1.5)
    np.testing.assert_array_equal(result.params, PARAMS)
    np.testing.assert_array_equal(result.history["loss"], 1.5)


def test_a_loss_that_needs_an_argument_by_name_is_refused():
    with pytest.raises(
        TypeError, match=r"loss_fn needs weight by name, which engines do not give; use functools.partial"
    ):
        checked_loss(lambda params, batch, *, weight: 0.0)
    checked_loss(lambda params, batch, *, weight=1.0: 0.0)


def test_names_of_metrics_are_text():
    """JAX could not sort them."""
    loss = checked_loss(lambda params, model_state, batch, key: (jnp.float32(0), (model_state, {"c": 1.0, 1: 2.0})))
    with pytest.raises(TypeError, match="the metrics of loss_fn have a name that is no text, 1; names are columns"):
        loss(jnp.zeros(3), (), None, None)


@pytest.mark.parametrize(
    "shapes", [jax.ShapeDtypeStruct((3,), jnp.float32), {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}]
)
def test_shapes_are_no_parameters_to_begin_with(shapes):
    trace = gemjax.arrivals.RoundRobin(2).trace(2)
    with pytest.raises(TypeError, match=r"of shape float32\[3\] of type .*ShapeDtypeStruct|must hold numbers"):
        gemjax.simulate(gemjax.asgd(0.1, 2), lambda params, batch: 0.0, shapes, lambda worker, step: 0.0, trace)
