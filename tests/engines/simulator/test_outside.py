"""Programs that are compiled again if a function reads another value from outside."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.engines.simulator.outside import Outside

ASGD = gemjax.asgd(0.1, num_workers=2)  # A program belongs to one method object.
DECAY = 1.0
OPTIONS = {"decay": 1.0}
MODULE = types.ModuleType("options")
MODULE.decay = 1.0


def penalty(params):
    return DECAY * jnp.sum(params)


def of_a_module(params, batch):
    return penalty(params) + jnp.sum((params - batch) ** 2)


def of_a_dict(params, batch):
    return OPTIONS["decay"] * jnp.sum(params) + jnp.sum((params - batch) ** 2)


def of_another_module(params, batch):
    return (lambda: MODULE.decay)() * jnp.sum(params) + jnp.sum((params - batch) ** 2)


@dataclasses.dataclass(eq=False)
class Loss:
    decay: float = 1.0

    def __call__(self, params, batch):
        return self.decay * jnp.sum(params) + jnp.sum((params - batch) ** 2)

    def method(self, params, batch):
        return self(params, batch) + self.decay * jnp.sum(params)


def enclosing():
    decay = 1.0

    def loss_fn(params, batch):
        return decay * jnp.sum(params) + jnp.sum((params - batch) ** 2)

    def change():
        nonlocal decay
        decay = 3.0

    return loss_fn, change


def cases():
    loss = Loss()
    inner, change = enclosing()
    set_to_3 = lambda owner: functools.partial(setattr, owner, "decay", 3.0)
    return {
        "module": (of_a_module, lambda: globals().update(DECAY=3.0)),
        "dict": (of_a_dict, lambda: OPTIONS.update(decay=3.0)),
        "another module": (of_another_module, set_to_3(MODULE)),
        "object": (loss, set_to_3(loss)),
        "method": (loss.method, set_to_3(loss)),
        "object that is called": (lambda params, batch: loss(params, batch), set_to_3(loss)),
        "enclosing": (inner, change),
    }


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setitem(globals(), "DECAY", 1.0)
    monkeypatch.setitem(OPTIONS, "decay", 1.0)
    monkeypatch.setattr(MODULE, "decay", 1.0)


def simulated(loss_fn, batches=lambda worker, step: jnp.float32(step)):
    trace = gemjax.arrivals.RoundRobin(2).trace(6)
    return gemjax.simulate(ASGD, loss_fn, jnp.zeros(2), batches, trace).params


@pytest.mark.parametrize("kind", cases())
def test_a_changed_value_counts_in_the_next_run(kind):
    loss_fn, change = cases()[kind]
    before = simulated(loss_fn)
    np.testing.assert_array_equal(simulated(loss_fn), before)
    change()
    after, anew = simulated(loss_fn), simulated(lambda params, batch: loss_fn(params, batch))
    np.testing.assert_array_equal(after, anew)
    assert not np.array_equal(after, before)


def test_a_changed_value_of_batches_counts_in_the_next_run():
    batches = lambda worker, step: DECAY * jnp.float32(step)
    loss_fn = lambda params, batch: jnp.sum((params - batch) ** 2)
    before = simulated(loss_fn, batches)
    globals()["DECAY"] = 3.0
    np.testing.assert_allclose(simulated(loss_fn, batches), 3 * before, rtol=1e-6)


def test_without_a_change_nothing_is_traced_again():
    traces = []

    def loss_fn(params, batch):
        traces.append(1)
        return penalty(params) + jnp.sum((params - batch) ** 2)

    simulated(loss_fn)
    first = len(traces)
    simulated(loss_fn)
    assert len(traces) == first > 0
    globals()["DECAY"] = 3.0
    simulated(loss_fn)
    assert len(traces) == 2 * first


def test_functions_of_all_kinds_are_read():
    loss = Loss()
    kinds = {
        "partial": functools.partial(of_a_module, batch=0.0),
        "method": loss.method,
        "default": lambda params, batch, decay=loss: decay,
        "wrapped": jax.jit(of_a_module),
        "object": loss,
    }
    before = {name: Outside(function) for name, function in kinds.items()}
    assert {name for name, function in kinds.items() if before[name] == Outside(function)} == {*kinds}
    loss.decay, globals()["DECAY"] = 3.0, 3.0
    assert {name for name, function in kinds.items() if before[name] == Outside(function)} == set()
    assert Outside(max) == Outside(max)
    of = lambda batch: Outside(functools.partial(of_a_module, batch=batch))
    assert of(1) == of(1) != of(2)


def test_numbers_are_compared_and_objects_must_be_the_same():
    of = lambda value: Outside(lambda: value)
    assert of(1.5) == of(3.0 / 2)
    assert of("a") != of("b")
    assert of(1) != of(1.0)  # They promote to other types.
    array = np.ones(2)
    assert of(array) == of(array)
    assert of(array) != of(np.ones(2))
    assert hash(of(1)) == hash(of(2))
    assert of(1) != 1


def test_functions_that_call_each_other_end():
    def one():
        return other()

    def other():
        return one()

    assert Outside(one) == Outside(one)


class Proxy:
    """Object outside of its context."""

    @property
    def __dict__(self):
        raise RuntimeError("outside of its context")


def test_objects_that_refuse_to_be_read_are_compared_as_a_whole():
    proxy = Proxy()
    of = lambda value: Outside(lambda: value.decay)
    assert of(proxy) == of(proxy)
    assert of(proxy) != of(Proxy())
