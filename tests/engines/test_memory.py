"""What a run keeps, told before it is spent."""

import jax
import jax.numpy as jnp
import optax
import pytest

import gemjax
from gemjax.engines import memory
from gemjax.testing import quadratic

PARAMS = {"w": jnp.zeros((100, 10)), "b": jnp.zeros(24)}
COPY = 4 * 1024


@pytest.mark.parametrize(
    ("tx", "views", "method"),
    [
        (gemjax.asgd(0.1, 50), 50, 0),
        (gemjax.multi_asgd(0.1, num_workers=50), 50, 50),
        (gemjax.gem(0.1, num_workers=50), 0, 100),  # What it pulled is the view.
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
    assert found["views"] == 50 * COPY  # The anchors; the views are what it pulled.
    assert found["local optimizers"] == pytest.approx(100 * COPY, abs=1000)


def test_it_is_what_a_run_really_keeps():
    tx = gemjax.gem(0.1, num_workers=7)
    state = gemjax.initial_state(tx, PARAMS, num_workers=7)
    counters = 4 * (5 + 3 * 7)
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert sum(gemjax.memory_of(tx, PARAMS, num_workers=7).values()) == pytest.approx(kept, abs=counters + 64)


def test_nothing_is_allocated():
    """A thousand copies of a thousand billion numbers."""
    params = jax.ShapeDtypeStruct((10**12,), jnp.float32)
    assert gemjax.memory_of(gemjax.gem(0.1, num_workers=1000), params, num_workers=1000)["method"] > 8e15


def test_a_run_that_cannot_fit_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(memory, "_capacity", lambda device: 2000)
    loss_fn, params, batches = quadratic()
    trace = gemjax.arrivals.RoundRobin(64).trace(10)
    message = r"the run keeps \d.* KiB \(central variable 16 B, method .*\), but .* has 1.953 KiB; take fewer workers"
    with pytest.raises(MemoryError, match=message):
        gemjax.simulate(gemjax.gem(0.1, num_workers=64), loss_fn, params, batches, trace)


def test_a_device_that_does_not_tell_its_size_is_trusted():
    memory.check_fits({"views": 10**18}, type("Device", (), {"platform": "tpu", "memory_stats": lambda self: None})())
