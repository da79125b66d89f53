"""The memory of a run, computed before its allocation."""

import contextlib

import jax
import jax.numpy as jnp
import optax
import pytest

import gemjax
from gemjax.engines import memory, transition
from gemjax.testing import quadratic

PARAMS = {"w": jnp.zeros((100, 10)), "b": jnp.zeros(24)}
COPY = 4 * 1024


@pytest.mark.parametrize(
    ("tx", "views", "method"),
    [
        (gemjax.asgd(0.1, 50), 50, 0),
        (gemjax.multi_asgd(0.1, num_workers=50), 50, 50),
        (gemjax.gem(0.1, num_workers=50), 0, 100),  # The method keeps the pulled view.
        (gemjax.dana_zero(0.1, num_workers=50), 50, 51),
    ],
)
def test_it_is_counted_in_copies_of_the_parameters(tx, views, method):
    found = gemjax.memory_of(tx, PARAMS, num_workers=50)
    assert found["central variable"] == COPY
    assert found["views"] == views * COPY
    assert found["method"] == pytest.approx(method * COPY, abs=1000)
    assert found["local optimizers"] == 0


def test_local_optimizers_and_anchors_are_counted():
    local = gemjax.LocalSteps(optax.adam(0.1), 4)
    tx = gemjax.lsgd(num_workers=50, anchors=True)
    found = gemjax.memory_of(tx, PARAMS, num_workers=50, local=local)
    assert found["views"] == 50 * COPY  # The anchors; the method keeps the pulled views.
    assert found["local optimizers"] == pytest.approx(100 * COPY, abs=1000)


def test_it_is_the_memory_that_a_run_keeps():
    tx = gemjax.gem(0.1, num_workers=7)
    state = gemjax.initial_state(tx, PARAMS, num_workers=7)
    counters = 4 * (5 + 3 * 7)
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert sum(gemjax.memory_of(tx, PARAMS, num_workers=7).values()) == pytest.approx(kept, abs=counters + 64)


def test_nothing_is_allocated():
    """The state would be a thousand copies of a thousand billion numbers."""
    params = jax.ShapeDtypeStruct((10**12,), jnp.float32)
    assert gemjax.memory_of(gemjax.gem(0.1, num_workers=1000), params, num_workers=1000)["method"] > 8e15


def test_a_run_that_cannot_fit_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(memory, "_capacity", lambda device: 2000)
    loss_fn, params, batches = quadratic()
    trace = gemjax.arrivals.RoundRobin(64).trace(10)
    message = r"the run keeps \d.* KiB \(central variable 16 B, method .*\), but .* has 1.953 KiB; take fewer workers"
    with pytest.raises(MemoryError, match=message):
        gemjax.simulate(gemjax.gem(0.1, num_workers=64), loss_fn, params, batches, trace)


def live_bytes():
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.slow
@pytest.mark.parametrize("make", [gemjax.gem, gemjax.asgd])
def test_a_run_keeps_one_state_from_the_start(make, monkeypatch):
    """There is at most one more array at the start, and the caller's parameters are kept."""
    params = {name: jnp.ones(5000) for name in "abcdefgh"}
    tx = make(0.05, num_workers=16)
    state = sum(gemjax.memory_of(tx, params, num_workers=16).values())
    largest = 16 * params["a"].nbytes
    seen = []
    copied = transition.copied
    monkeypatch.setattr(transition, "copied", lambda leaf: seen.append(live_bytes()) or copied(leaf))
    trace = gemjax.arrivals.RoundRobin(16).trace(32)
    before = live_bytes()
    gemjax.simulate(
        tx,
        lambda params, batch: sum(jnp.sum(leaf**2) for leaf in params.values()),
        params,
        lambda worker, step: step,
        trace,
        callback_every=16,
        callback=lambda progress: seen.append(live_bytes()),
    )
    assert len(seen) > 8 + 2
    assert state > 8 * largest
    assert max(seen) - before < state + largest + 2**14
    assert seen[-1] - before < state + 2**14
    assert float(params["a"][0]) == 1.0


def test_a_rules_own_array_is_not_donated():
    """A second run can begin with an array that the optimizer owns."""
    own = jnp.ones(4)
    tx = optax.GradientTransformation(lambda params: own, lambda updates, state, params=None: (updates, state + 1.0))
    loss_fn, params, batches = quadratic()
    for _ in range(2):
        result = gemjax.simulate(tx, loss_fn, params, batches, gemjax.arrivals.RoundRobin(2).trace(3))
        assert float(result.opt_state.inner_state[0]) == 4.0
    assert float(own[0]) == 1.0


@pytest.mark.nightly
def test_a_state_to_continue_from_is_counted(monkeypatch):
    loss_fn, params, batches = quadratic()
    tx, trace = gemjax.gem(0.1, num_workers=64), gemjax.arrivals.RoundRobin(64).trace(10)
    state = gemjax.simulate(tx, loss_fn, params, batches, trace.first(5)).state
    kept = sum(gemjax.memory_of(tx, params, num_workers=64).values())
    monkeypatch.setattr(memory, "_capacity", lambda device: 1.5 * kept)
    gemjax.simulate(tx, loss_fn, params, batches, trace)
    with pytest.raises(MemoryError, match="the state to continue from"):
        gemjax.simulate(tx, loss_fn, params, batches, trace, state=state)


@pytest.mark.nightly
def test_a_sweep_counts_all_its_runs(monkeypatch):
    loss_fn, params, batches = quadratic()
    trace = gemjax.arrivals.RoundRobin(64).trace(10)
    kept = sum(gemjax.memory_of(gemjax.gem(0.1, num_workers=64), params, num_workers=64).values())
    monkeypatch.setattr(memory, "_capacity", lambda device: 2.5 * kept)

    def sweep(rates):
        return gemjax.sweep(
            lambda rate: gemjax.gem(rate, num_workers=64), loss_fn, params, batches, trace, {"rate": rates}
        )

    assert sweep([0.1, 0.2]).params["x"].shape == (2, 4)
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("it went on"))
    with pytest.raises(MemoryError, match=r"take fewer of the 3 runs at a time, fewer workers"):
        sweep([0.1, 0.2, 0.3])


def test_a_device_of_unknown_size_passes():
    memory.check_fits({"views": 10**18}, type("Device", (), {"platform": "tpu", "memory_stats": lambda self: None})())


@pytest.mark.parametrize(("text", "fits"), [("1000", False), ("max", True), (None, True)])
def test_the_memory_of_a_container_is_that_of_its_limit(tmp_path, monkeypatch, text, fits):
    monkeypatch.setattr(memory, "CONTAINER", tmp_path / "memory.max")
    if text is not None:
        (tmp_path / "memory.max").write_text(f"{text}\n")
    with contextlib.nullcontext() if fits else pytest.raises(MemoryError, match=r"but .* has 1000 B"):
        memory.check_fits({"views": 2000}, jax.devices("cpu")[0], advice="fewer workers")
