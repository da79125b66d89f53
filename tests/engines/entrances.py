"""Entrances of the library: a small problem, and every function that takes a method and parameters."""

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


def run(engine, loss_fn=squares, params=PARAMS, tx=None, batches=ones, **options):
    method = asgd() if tx is None else tx
    if engine == "simulate":
        return gemjax.simulate(method, loss_fn, params, batches, TRACE, **options)
    if engine == "devices":
        return gemjax.run_on_devices(method, loss_fn, params, batches, 4, **options)
    if engine == "initial_state":
        return gemjax.initial_state(method, params, **options)
    if engine == "memory_of":
        return gemjax.memory_of(method, params, **options)
    make = asgd if tx is None else lambda rate: tx
    return gemjax.sweep(make, loss_fn, params, batches, TRACE, {"rate": [0.1]}, **options)


def with_metrics(metrics):
    """Return a loss in the long form that returns ``metrics``."""
    return lambda params, model_state, batch, key: (squares(params, batch), (model_state, metrics))


every_engine = pytest.mark.parametrize("engine", ["simulate", "devices", "sweep"])
