"""Second calls of engines: the same objects are not traced again, and equal ones are not compiled again."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.simulator.simulations import programs

import gemjax

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
DATA = {"x": np.arange(24, dtype=np.float32).reshape(8, 3) / 24}


class Loss:
    """A loss that counts its traces."""

    def __init__(self):
        self.traces = 0

    def __call__(self, params, batch):
        self.traces += 1
        return jnp.mean((batch["x"] @ params["w"] + params["b"][None]) ** 2)


def method(workers=2):
    return gemjax.delayed_nesterov(0.5, num_workers=workers)


def local_steps():
    return gemjax.LocalSteps(optax.adamw(1e-2), period=2)


def simulated(loss_fn, tx, local, length=6):
    trace = gemjax.arrivals.RoundRobin(2).trace(length)
    return gemjax.simulate(tx, loss_fn, PARAMS, gemjax.Epochs(DATA, 2), trace, local=local)


def swept(loss_fn, make, local, length=6, *, batched):
    trace = gemjax.arrivals.RoundRobin(2).trace(length)
    over = {"rate": [0.5, 0.25]}
    return gemjax.sweep(make, loss_fn, PARAMS, gemjax.Epochs(DATA, 2), trace, over, local=local, batched=batched)


def makes():
    return lambda rate: gemjax.delayed_nesterov(rate, num_workers=2)


def in_one_batch(*given):
    return swept(*given, batched=True)


def one_by_one(*given):
    return swept(*given, batched=False)


def on_devices(loss_fn, tx, local, length=6):
    return gemjax.run_on_devices(tx, loss_fn, PARAMS, gemjax.Epochs(DATA, 2), length, local=local)


def interruptible(loss_fn, tx, local, length=6):
    policy = gemjax.Policy(interrupt=100)
    return gemjax.run_on_devices(tx, loss_fn, PARAMS, gemjax.Epochs(DATA, 2), length, local=local, policy=policy)


ENGINES = [
    pytest.param(simulated, method, id="simulate"),
    pytest.param(in_one_batch, makes, id="sweep in one batch", marks=pytest.mark.slow),
    pytest.param(one_by_one, makes, id="sweep one by one", marks=pytest.mark.nightly),
    pytest.param(on_devices, method, id="devices"),
    pytest.param(interruptible, method, id="devices, interruptible", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("engine", "make"), ENGINES)
def test_a_second_call(engine, make):
    loss_fn, tx, local = Loss(), make(), local_steps()
    first = engine(loss_fn, tx, local)
    traces, before = loss_fn.traces, programs()
    same = engine(loss_fn, tx, local)
    assert loss_fn.traces == traces, "the same objects were traced again"
    engine(loss_fn, tx, local, 7)
    assert loss_fn.traces == traces, "another length was traced"
    anew = engine(Loss(), make(), local_steps())
    engine(Loss(), make(), local_steps(), 5)
    assert programs() == before, f"{programs() - before} programs were compiled again"
    if engine not in (on_devices, interruptible):  # Where the order of commits is another one.
        for second in (same, anew):
            jax.tree.map(np.testing.assert_array_equal, second.params, first.params)


def test_another_seed_compiles_nothing():
    def loss_fn(params, model_state, batch, key):
        return jnp.sum((params - jax.random.normal(key, (3,))) ** 2), (model_state, {})

    tx, trace = gemjax.asgd(0.1, num_workers=2), gemjax.Trace([0, 1, 1])
    end = lambda seed: gemjax.simulate(tx, loss_fn, jnp.zeros(3), lambda worker, step: 0.0, trace, seed=seed).params
    first, before = end(0), programs()
    assert not np.array_equal(end(1), first)
    np.testing.assert_array_equal(end(0), first)
    assert programs() == before


@pytest.mark.slow
def test_objects_of_an_address_that_was_another_objects_are_others():
    tx, trace = gemjax.asgd(0.1, num_workers=2), gemjax.Trace([0, 1, 1])
    for value in range(30):  # Each loss is freed, but for those that are kept; so addresses come again.
        loss_fn = lambda params, batch, value=value: jnp.sum((params - value) ** 2)
        found = gemjax.simulate(tx, loss_fn, jnp.zeros(1), lambda worker, step: 0.0, trace).history["loss"]
        assert found[0] == value**2
        del loss_fn


class Unhashable:
    """A loss without a hash, equal to all others of its class."""

    __hash__ = None

    def __init__(self, target):
        self.target = jnp.float32(target)

    def __eq__(self, other):
        return isinstance(other, Unhashable)

    def __call__(self, params, batch):
        return jnp.sum((params - self.target) ** 2)


@pytest.mark.parametrize("make", [Unhashable, lambda target: Unhashable(target).__call__], ids=["object", "method"])
def test_objects_that_say_they_are_equal_are_others(make):
    tx, trace = gemjax.asgd(0.1, num_workers=2), gemjax.Trace([0, 1, 1])
    found = []
    for loss_fn in (make(1.0), make(2.0)):
        found.append(gemjax.simulate(tx, loss_fn, jnp.zeros(1), lambda worker, step: 0.0, trace).history["loss"][0])
    assert found == [1.0, 4.0]
