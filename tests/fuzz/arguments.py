"""Wrong arguments: every public function with a valid call, and values that do not belong there."""

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from methods.rows import METHODS

import gemjax
from gemjax import arrivals

PARAMS = {"x": jnp.ones(3)}
ROWS = np.arange(12.0, dtype=np.float32)


def loss_fn(params, batch):
    """Return a quadratic loss."""
    return jnp.sum(jnp.square(params["x"] - batch))


def batches(worker, step):
    """Return a batch that depends on both."""
    return jnp.float32(worker + step)


# Values by name; none is right for every argument, and most are wrong for most.
VALUES: dict[str, Any] = {
    "None": None, "True": True, "-1": -1, "0": 0, "1": 1, "2": 2, "3": 3, "2**40": 2**40, "0.5": 0.5, "2.5": 2.5,
    "-0.1": -0.1, "nan": float("nan"), "inf": float("inf"), "1e30": 1e30, "1j": 1j, "text": "x", "no text": "",
    "bytes": b"x", "list": [1, 2], "floats": [0.5, 0.5], "texts": ["x", "y"], "nothing": [], "nested": [[1], [2, 3]],
    "dict": {"a": 1}, "set": {1, 2}, "range": range(3), "object": object(), "function": lambda *_: 0.1,
    "int64": np.int64(2), "float32": np.float32(0.5), "array": np.array(2),
    "vector": np.array([1, 0]), "matrix": np.ones((2, 2)), "strings": np.array(["x"]), "jax": jnp.array(0.5),
    "jax vector": jnp.arange(3), "tx": optax.sgd(0.1), "trace": arrivals.RoundRobin(2).trace(4),
}  # fmt: skip


def _methods() -> dict[str, tuple[Callable, dict[str, Any]]]:
    """Return each method with all of its arguments."""
    found = {}
    for row in METHODS:
        given = {name: one.default for name, one in inspect.signature(row.alias).parameters.items()}
        if row.alias.__module__.startswith("gemjax."):
            found[row.name] = (row.alias, given | {"learning_rate": 0.1, "num_workers": 2, **row.keywords})
    return found


RUN = {"tx": gemjax.gem(0.1, 0.9, 2), "loss_fn": loss_fn, "params": PARAMS, "batches": batches}
# Functions that make a part of a run, by name, each with valid arguments.
MAKERS: dict[str, tuple[Callable, dict[str, Any]]] = _methods() | {
    "Policy": (gemjax.Policy, {"max_staleness": None, "quorum": 2, "grace": 0.1, "deadline": 1.0, "retries": 2}),
    "Members": (gemjax.Members, {"num_workers": 4, "absent": [1]}),
    "LocalSteps": (gemjax.LocalSteps, {"tx": optax.sgd(0.1), "period": 2}),
    "Trace": (
        gemjax.Trace,
        {"worker": [0, 1], "pulled_at": None, "step": None, "time": None, "num_workers": None, "draw": None},
    ),
    "RoundRobin": (arrivals.RoundRobin, {"num_workers": 2}),
    "ConstantSpeeds": (arrivals.ConstantSpeeds, {"speeds": [1.0, 2.0]}),
    "Gamma": (arrivals.Gamma, {"num_workers": 2, "batch_variation": 0.1, "machine_variation": 0.0, "mean": 1.0}),
    "Exponential": (arrivals.Exponential, {"num_workers": 2, "mean": 1.0}),
    "LogNormal": (arrivals.LogNormal, {"num_workers": 2, "variation": 0.5, "mean": 1.0}),
    "Pareto": (arrivals.Pareto, {"num_workers": 2, "shape": 2.5, "mean": 1.0}),
    "Scaled": (arrivals.Scaled, {"model": arrivals.Gamma(2), "speeds": [1.0, 2.0]}),
    "Delayed": (arrivals.Delayed, {"model": arrivals.Gamma(2), "up": 0.1, "down": 0.1}),
    "Queue": (arrivals.Queue, {"model": arrivals.Gamma(2), "service": 0.1}),
    "Barrier": (arrivals.Barrier, {"model": arrivals.Gamma(2)}),
    "Incidents": (arrivals.Incidents, {"model": arrivals.Gamma(2), "incidents": [arrivals.Leaves(1, 2.0)]}),
    "Leaves": (lambda **one: arrivals.Incidents(arrivals.Gamma(2), [arrivals.Leaves(**one)]), {"worker": 1, "at": 2.0}),
    "Slows": (
        lambda **one: arrivals.Incidents(arrivals.Gamma(2), [arrivals.Slows(**one)]),
        {"worker": 1, "at": 2.0, "factor": 2.0},
    ),
    "SemiSynchronous": (arrivals.SemiSynchronous, {"model": arrivals.Gamma(2), "period": 2}),
    "meetings": (arrivals.SemiSynchronous(arrivals.Gamma(2), 2).trace, {"num_meetings": 2, "seed": 0}),
    "trace": (arrivals.Gamma(2).trace, {"num_commits": 4, "seed": 0}),
    "speed_up": (arrivals.speed_up, {"model": arrivals.Gamma(2), "num_commits": 20, "seed": 0}),
    "Epochs": (gemjax.Epochs, {"data": ROWS, "batch_size": 2, "seed": 0}),
    "Stream": (gemjax.Stream, {"data": ROWS, "batch_size": 2, "seed": 0}),
    "Shards": (
        gemjax.Shards,
        {"data": ROWS, "batch_size": 2, "num_workers": 2, "seed": 0, "labels": [0, 1] * 6, "concentration": 9.0},
    ),
    "rows": (gemjax.Shards, {"data": ROWS, "batch_size": 1, "num_workers": 2, "rows": [[0, 1], [2]]}),
    "OnHost": (gemjax.OnHost, {"batches": gemjax.Epochs(ROWS, 2)}),
    "FromSource": (gemjax.FromSource, {"source": ROWS, "batches": None, "threads": 1, "batch_size": 2, "seed": 0}),
    "Computed": (gemjax.Computed, {"fn": batches}),
    "place": (
        gemjax.place,
        {"num_workers": 2, "central": None, "devices": None, "central_devices": 1, "worker_devices": 1},
    ),
    "asynchronous": (gemjax.asynchronous, {"inner": optax.sgd(0.1), "num_workers": 2}),
    "per_worker": (gemjax.per_worker, {"inner": optax.sgd(0.1), "num_workers": 2}),
    "dynamic_periods": (gemjax.rules.dynamic_periods, {"period": 4, "speeds": [1.0, 2.0], "minimum": 1}),
    "pull": (
        lambda **given: gemjax.pull(RUN["tx"].init(PARAMS), PARAMS, **given),
        {"worker": 1},
    ),
    "initial_state": (
        gemjax.initial_state,
        {"tx": RUN["tx"], "params": PARAMS, "num_workers": 2, "model_state": (), "local": None},
    ),
    "memory_of": (
        gemjax.memory_of,
        {"tx": RUN["tx"], "params": PARAMS, "num_workers": 2, "model_state": (), "local": None},
    ),
    "PerSeed": (gemjax.PerSeed, {"make": lambda seed: seed}),
}  # fmt: skip
