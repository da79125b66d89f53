"""Values that functions read from outside of their arguments: a run computes with those of its functions' first run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

ASGD = gemjax.asgd(0.1, num_workers=2)
DECAY = 1.0
OPTIONS = {"decay": {"of": [1.0]}}
ARRAY = np.ones(2, np.float32)


def penalty(params):
    return DECAY * jnp.sum(params)


def of_a_module(params, batch):
    return penalty(params) + jnp.sum((params - batch) ** 2)


def of_a_dict(params, batch):
    return OPTIONS["decay"]["of"][0] * jnp.sum(params) + jnp.sum((params - batch) ** 2)


def of_an_array(params, batch):
    return jnp.sum(ARRAY * params) + jnp.sum((params - batch) ** 2)


@dataclasses.dataclass(slots=True, eq=False)
class Loss:
    decay: float = 1.0

    def __call__(self, params, batch):
        return self.decay * jnp.sum(params) + jnp.sum((params - batch) ** 2)


@dataclasses.dataclass
class Unhashable:
    decay: float = 1.0

    def __call__(self, params, batch):
        return self.decay * jnp.sum(params) + jnp.sum((params - batch) ** 2)


def cases():
    loss, unhashable = Loss(), Unhashable()
    set_to_3 = lambda owner: functools.partial(setattr, owner, "decay", 3.0)
    return {
        "module": (of_a_module, lambda: globals().update(DECAY=3.0)),
        "dict": (of_a_dict, lambda: OPTIONS["decay"]["of"].__setitem__(0, 3.0)),
        "array": (of_an_array, lambda: ARRAY.fill(3.0)),
        "object": (loss, set_to_3(loss)),
        "method": (loss.__call__, set_to_3(loss)),
        "unhashable": (unhashable, set_to_3(unhashable)),
    }


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setitem(globals(), "DECAY", 1.0)
    monkeypatch.setitem(OPTIONS, "decay", {"of": [1.0]})
    ARRAY.fill(1.0)


def ones(worker, step):
    return jnp.float32(step)


def simulated(loss_fn, batches=ones, tx=ASGD):
    return gemjax.simulate(tx, loss_fn, jnp.zeros(2), batches, gemjax.arrivals.RoundRobin(2).trace(6)).params


def anew(fn):
    """Return a function of its own that does the same."""
    return lambda first, second: fn(first, second)


@pytest.mark.parametrize(
    "kind", ["module", "dict", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in [*cases()][2:])]
)
def test_a_changed_value_counts_for_a_function_made_anew(kind):
    """As for ``jax.jit``, which finds what it has traced by the identity of the function."""
    loss_fn, change = cases()[kind]
    before = simulated(loss_fn)
    change()
    np.testing.assert_array_equal(simulated(loss_fn), before)
    after = simulated(anew(loss_fn))
    expected = gemjax.testing.run_in_python(
        ASGD, anew(loss_fn), jnp.zeros(2), ones, gemjax.arrivals.RoundRobin(2).trace(6)
    )
    np.testing.assert_allclose(after, expected, rtol=1e-6)
    assert not np.array_equal(after, before)


@pytest.mark.slow
def test_a_changed_value_counts_for_batches_and_a_schedule_made_anew():
    batches = lambda worker, step: DECAY * jnp.float32(step)
    scheduled = lambda: gemjax.asynchronous(optax.sgd(lambda count: 0.1 * DECAY), num_workers=2)
    loss_fn = lambda params, batch: jnp.sum((params - batch) ** 2)
    before = simulated(loss_fn, batches), simulated(loss_fn, tx=scheduled())
    globals()["DECAY"] = 3.0
    np.testing.assert_allclose(simulated(loss_fn, anew(batches)), 3 * before[0], rtol=1e-6)
    after = simulated(loss_fn, tx=scheduled())
    np.testing.assert_array_equal(after, simulated(loss_fn, tx=gemjax.asgd(0.3, num_workers=2)))
    assert not np.array_equal(after, before[1])


def test_another_function_that_is_called_back_counts_for_a_loss_made_anew():
    """The text of a program does not name it."""
    found = []
    for value in (1.0, 2.0):
        get = lambda batch, value=value: np.float32(value * batch)
        of = lambda batch, get=get: jax.pure_callback(get, jax.ShapeDtypeStruct((), jnp.float32), batch)
        found.append(simulated(lambda params, batch, of=of: jnp.sum((params - of(batch)) ** 2)))
    np.testing.assert_allclose(2 * found[0], found[1], rtol=1e-5)


def test_another_array_counts_for_a_loss_made_anew():
    """A large one, which some versions of JAX do not write into the text of a program."""
    found = []
    for value in (1.0, 2.0):
        constant = jnp.full(5000, value)
        found.append(
            simulated(lambda params, batch, constant=constant: jnp.sum((params - batch * constant.mean()) ** 2))
        )
    np.testing.assert_allclose(2 * found[0], found[1], rtol=1e-5)
