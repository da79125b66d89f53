"""Arguments that stand in the wrong place, and losses that return something else, are answered before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

import gemjax
from gemjax.engines.checks import ends_run

PARAMS = jnp.ones(4)

TRACE = gemjax.arrivals.RoundRobin(2).trace(4)
PER_SEED = gemjax.PerSeed(lambda seed: PARAMS)


def squares(params, batch):
    return jnp.sum((params - batch) ** 2)


def ones(worker, step):
    return jnp.ones(4) * step


def asgd(rate=0.1):
    return gemjax.asgd(rate, num_workers=2)


def run(engine, loss_fn=squares, params=PARAMS, tx=None, **options):
    method = asgd() if tx is None else tx
    if engine == "simulate":
        return gemjax.simulate(method, loss_fn, params, ones, TRACE, **options)
    if engine == "devices":
        return gemjax.run_on_devices(method, loss_fn, params, ones, 4, **options)
    if engine == "initial_state":
        return gemjax.initial_state(method, params, **options)
    if engine == "memory_of":
        return gemjax.memory_of(method, params, **options)
    make = asgd if tx is None else lambda rate: tx
    return gemjax.sweep(make, loss_fn, params, ones, TRACE, {"rate": [0.1]}, **options)


def with_metrics(metrics):
    """A loss in the long form that returns ``metrics``."""
    return lambda params, model_state, batch, key: (squares(params, batch), (model_state, metrics))


every_engine = pytest.mark.parametrize("engine", ["simulate", "devices", "sweep"])


@every_engine
def test_loss_and_parameters_in_each_others_places(engine):
    with pytest.raises(TypeError, match=r"loss_fn is of type dict and params a function: change their places"):
        run(engine, {"w": jnp.zeros(2)}, squares)


@every_engine
def test_per_seed_where_it_may_not_stand(engine):
    with pytest.raises(
        TypeError, match=r"model_state is a gemjax\.PerSeed, which may stand for params, batches and trace"
    ):
        run(engine, model_state=PER_SEED)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_per_seed_is_for_sweeps(engine):
    with pytest.raises(TypeError, match=r"params is a gemjax\.PerSeed, .* of gemjax\.sweep only"):
        run(engine, params=PER_SEED)


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
@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (
            jnp.zeros((4, 3)),
            r"the metric 'logits' of loss_fn has the shape \[4, 3\], but every metric must be one number",
        ),
        ({"mean": 0.0}, "the metric 'logits' of loss_fn is of type dict; every metric must be one number"),
        ("high", "the metric 'logits' of loss_fn is the str 'high'; every"),
    ],
)
def test_a_metric_that_is_no_number(engine, metric, found):
    with pytest.raises((TypeError, ValueError), match=found):
        run(engine, with_metrics({"logits": metric}))


@every_engine
def test_metrics_that_are_no_dict(engine):
    with pytest.raises(TypeError, match=r"the metrics of loss_fn are an array of shape \[\]; return a dict of numbers"):
        run(engine, with_metrics(jnp.float32(0.5)))


EVERY_ENTRANCE = pytest.mark.parametrize("engine", ["simulate", "devices", "sweep", "initial_state", "memory_of"])


@EVERY_ENTRANCE
@pytest.mark.parametrize(
    ("tx", "found"),
    [
        ("gem", r"tx is the str 'gem', but engines take an optax transformation; give one, such as gemjax\.gem\("),
        (gemjax.gem, r"tx is the function gem, which is not called; give gem\(learning_rate, …\), what it returns"),
        (optax.GradientTransformation, "tx is the function GradientTransformation, which is not called"),
        (0.1, "tx is the float 0.1, but engines take"),
    ],
)
def test_a_method_that_is_none(engine, tx, found):
    with pytest.raises(TypeError, match=found):
        run(engine, tx=tx)


def test_a_sweep_of_what_cannot_be_called():
    with pytest.raises(
        TypeError, match=r"make is of type GradientTransformationExtraArgs, but a sweep takes a function"
    ):
        gemjax.sweep(asgd(), squares, PARAMS, ones, TRACE, {"rate": [0.1]})


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(x)


TRAIN_STATE = TrainState.create(apply_fn=Net().apply, params={"w": PARAMS}, tx=optax.sgd(0.1))


@EVERY_ENTRANCE
@pytest.mark.parametrize(
    ("params", "found"),
    [
        (Net(), r"params is the module Net, which holds no parameters; give those that its init returns"),
        (
            nnx.Linear(2, 1, rngs=nnx.Rngs(0)),
            r"params is the Flax NNX module Linear; give its parameters, .* nnx\.split\(",
        ),
        (TRAIN_STATE, r"params is a TrainState; give its \.params"),
        (
            {"a": [PARAMS, "resnet"]},
            r"params at \['a'\]\[1\] is the str 'resnet', but params may hold arrays only; keep it",
        ),
        ({"w": PARAMS, "act": jnp.tanh}, r"params at \['act'\] is a function, but params may hold arrays only"),
        ({"w": np.array(["a"])}, r"params at \['w'\] is an array of shape \[1\], but params may hold arrays only"),
        (
            nnx.split(nnx.Dropout(0.1, rngs=nnx.Rngs(0)))[1],
            r"is .*, but only floats can be trained; keep integers and keys",
        ),
    ],
    ids=["linen", "nnx", "train-state", "string", "function", "strings", "keys"],
)
def test_parameters_that_are_no_arrays(engine, params, found):
    with pytest.raises((TypeError, ValueError), match=found):
        run(engine, params=params)


@every_engine
def test_a_leaf_of_the_model_state_that_is_no_array(engine):
    with pytest.raises(
        TypeError, match=r"model_state at \['mode'\] is the str 'train', but model_state may hold arrays"
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


@every_engine
@pytest.mark.parametrize("answer", [jnp.zeros(3), jnp.float32(0.5), 1, "stop"], ids=["array", "number", "int", "str"])
def test_a_callback_that_returns_something_else(engine, answer):
    with pytest.raises(
        TypeError, match=r"callback returned .*; return True to end the run, and False or None to go on"
    ):
        run(engine, callback=lambda *progress: answer)


@pytest.mark.parametrize(
    ("answer", "ends"),
    [(None, False), (False, False), (True, True), (np.True_, True), (jnp.array(False), False), (jnp.array(True), True)],
)
def test_what_ends_a_run(answer, ends):
    assert ends_run(answer) is ends


def test_a_run_that_a_callback_failed_is_not_lost():
    with pytest.raises(TypeError, match="callback returned the int 3") as raised:
        run("devices", callback=lambda progress: 3, callback_every=2)
    assert len(raised.value.result.trace) >= 2
