"""Threads that read the rows of a source: their settings and their number."""

import pickle
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import FromSource

N = 4


def loss_fn(params, batch):
    return jnp.mean((params - batch) ** 2)


class Sines:
    """Rows that are computed with JAX, in the precision of the thread that reads them."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return {"x": jnp.sin(jnp.asarray(float(number)))}


@pytest.mark.slow
def test_threads_read_with_the_settings_of_the_run(x64):
    loss_fn, trace = lambda params, batch: jnp.mean((params - batch["x"]) ** 2), gemjax.arrivals.Gamma(N).trace(30)
    tx, zero = gemjax.asgd(0.1, N), jnp.zeros([])
    in_memory = gemjax.Epochs({"x": np.array([Sines()[number]["x"] for number in range(8)])}, 2)
    expected = gemjax.simulate(tx, loss_fn, zero, in_memory, trace).params
    assert expected == gemjax.simulate(tx, loss_fn, zero, FromSource(Sines(), batch_size=2), trace).params
    result = gemjax.run_on_devices(tx, loss_fn, zero, FromSource(Sines(), batch_size=2), 30)
    replayed = gemjax.simulate(tx, loss_fn, zero, in_memory, result.trace).params
    np.testing.assert_allclose(result.params, replayed, rtol=1e-14)


class Counted:
    """Rows whose readers count how many of them read at the same time."""

    def __init__(self):
        self.now, self.most, self.changed = 0, 0, threading.Condition()

    def __len__(self):
        return 24

    def __getitem__(self, number):
        with self.changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.now > 2, timeout=0.02)  # For another reader to come.
            self.now -= 1
        return np.float32(number)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_no_more_threads_read_than_given(threads):
    """Threads that read ahead had a pool of as many each for the batches of local steps."""
    source = Counted()
    batches = FromSource(source, batch_size=1, threads=threads)
    local, tx = gemjax.LocalSteps(optax.sgd(0.1), 3), gemjax.downpour(num_workers=N)
    for _ in range(3 if threads == 1 else 1):  # A thread of one run may still read when the next one begins.
        gemjax.run_on_devices(tx, loss_fn, jnp.zeros(()), batches, 12, num_workers=N, local=local)
    assert source.most <= threads


def test_a_source_that_was_read_can_be_sent_to_other_processes():
    batches = FromSource([np.float32(number) for number in range(8)], batch_size=2)
    expected = batches.gather(np.array([[1, 5]]))[0]
    copied = pickle.loads(pickle.dumps(batches))
    np.testing.assert_array_equal(copied.gather(np.array([[1, 5]]))[0], expected)
