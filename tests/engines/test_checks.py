"""Arguments that stand in the wrong place, and losses that return something else, are answered before anything runs."""

import jax.numpy as jnp
import pytest

import gemjax

PARAMS = jnp.ones(4)

TRACE = gemjax.arrivals.RoundRobin(2).trace(4)
PER_SEED = gemjax.PerSeed(lambda seed: PARAMS)


def squares(params, batch):
    return jnp.sum((params - batch) ** 2)


def ones(worker, step):
    return jnp.ones(4) * step


def asgd(rate=0.1):
    return gemjax.asgd(rate, num_workers=2)


def run(engine, loss_fn=squares, params=PARAMS, **options):
    if engine == "simulate":
        return gemjax.simulate(asgd(), loss_fn, params, ones, TRACE, **options)
    if engine == "devices":
        return gemjax.run_on_devices(asgd(), loss_fn, params, ones, 4, num_workers=2, **options)
    return gemjax.sweep(asgd, loss_fn, params, ones, TRACE, {"rate": [0.1]}, **options)


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
