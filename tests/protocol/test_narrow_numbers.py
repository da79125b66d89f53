"""Numbers of NumPy and JAX in few bits, which wrap around or round: refused, or replaced by numbers of Python."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import arrivals
from gemjax.engines.devices.policy import Policy

NARROW = [np.uint8(10), np.int16(10), np.uint32(10), np.uint64(10), jnp.uint32(10), np.array(10, np.uint16)]


@pytest.mark.parametrize("ten", [*NARROW, jnp.int32(10)], ids=lambda ten: f"{type(ten).__name__} {ten.dtype}")
def test_arrival_models_take_any_integer(ten):
    model = arrivals.Gamma(ten, mean=np.float32(0.5))
    assert (type(model.num_workers), type(model.mean)) == (int, float)
    assert arrivals.Barrier(model).trace(500) == arrivals.Barrier(arrivals.Gamma(10, mean=0.5)).trace(500)
    assert arrivals.SemiSynchronous(model, period=ten).period == 10
    assert arrivals.Interrupted(model, threshold=ten).threshold == 10


@pytest.mark.parametrize("kind", [np.float16, np.float32, jnp.float32, jnp.bfloat16])
def test_virtual_time_is_added_up_in_64_bits(kind):
    """In 16 bits it stopped at 256."""
    queue = arrivals.Queue(arrivals.Gamma(8, mean=0.05), service=kind(0.125))
    assert queue.trace(5_000) == arrivals.Queue(arrivals.Gamma(8, mean=0.05), service=0.125).trace(5_000)
    slow = arrivals.Slows(0, at=kind(0.5), factor=kind(2.0))
    arrivals.Incidents(arrivals.Gamma(2), [slow])
    assert type(slow.at) is type(slow.factor) is float


@pytest.mark.parametrize("kind", [np.float16, np.float32, jnp.float32])
def test_seconds_may_be_of_any_kind(kind):
    """A queue takes no seconds of NumPy, and 16 bits do not hold the time of a clock."""
    policy = Policy(grace=kind(0.125), deadline=kind(60.0), quorum=2, retries=np.int8(1))
    assert [type(value) for value in dataclasses.astuple(policy)[1:5]] == [int, float, float, int]
    options = {"policy": policy, "callback": lambda progress: False, "callback_seconds": kind(1.0)}
    result = gemjax.run_on_devices(
        gemjax.asgd(0.1, num_workers=2),
        lambda p, b: p**2,
        jnp.ones([]),
        lambda w, s: 0.0,
        6,
        callback_every=np.uint8(3),
        **options,
    )
    assert len(result.trace) == 6
    assert type(gemjax.callbacks.EarlyStopping(lambda progress: 0.0, min_delta=kind(0.0)).min_delta) is float


def test_an_observed_number_of_python_is_a_column():
    def update(updates, state, params=None, *, observe=None, **extra_args):
        if observe is not None:
            observe("momentum", lambda: 0.5)
        return updates, state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.1)), 2)
    result = gemjax.run_on_devices(tx, lambda p, b: p**2, jnp.ones([]), lambda w, s: 0.0, 4, diagnostics=("momentum",))
    np.testing.assert_array_equal(result.history["momentum"], 0.5)


def test_stages_may_be_counted_by_numpy():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2), "c": jnp.zeros(2)}
    for tx in (gemjax.async_pipeline(0.1, num_stages=np.int64(3)), gemjax.delay_stages(optax.sgd(0.1), np.int64(3))):
        tx.init(params)


def test_groups_may_be_read_once():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2), "c": jnp.zeros(2)}
    shapes = lambda one: [
        leaf.shape
        for leaf in jax.tree.leaves(gemjax.streaming_diloco(num_workers=2, fragments=[one, "c"]).init(params))
    ]
    for one in ((name for name in ("a", "b")), {"a", "b"}):
        assert shapes(one) == shapes(["a", "b"])


def offering(offered):
    """Return a problem, the rule of which offers ``offered`` as its pace."""

    def update(updates, state, params=None, *, observe=None, **extra_args):
        if observe is not None:
            observe("pace", lambda: offered)
        return updates, state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.1)), 2)
    return tx, lambda p, b: p**2, jnp.ones([]), lambda w, s: 0.0


@pytest.mark.parametrize("offered", [None, jnp.ones(3), 1j, "high"], ids=["None", "vector", "complex", "text"])
def test_what_a_rule_offers_is_one_number(offered):
    problem = offering(offered)
    with pytest.raises(
        TypeError, match=r"a rule offered .* as pace; what observe\(name, fn\) calls must return one real"
    ):
        gemjax.run_on_devices(*problem, 4, diagnostics=("pace",))
    with pytest.raises(TypeError, match=r"a rule offered .* as pace"):
        gemjax.simulate(*problem, arrivals.RoundRobin(2).trace(4), diagnostics=("pace",))


METHODS = {
    "malenia": gemjax.malenia(0.1, num_workers=300), "ringleader": gemjax.ringleader(0.1, num_workers=300),
    "lsgd": gemjax.lsgd(num_workers=300), "gem": gemjax.gem(0.1, num_workers=300),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [np.int8, jnp.int8, None])
def test_the_number_of_a_worker_may_be_narrower_than_that_of_all(method, kind):
    tx, params = METHODS[method], jnp.zeros(2)
    commit = lambda worker: tx.update(jnp.ones(2), tx.init(params), params, worker=worker, value=1.0)[0]
    update = jax.jit(commit)(np.int8(5)) if kind is None else commit(kind(5))
    np.testing.assert_array_equal(update, commit(5))
