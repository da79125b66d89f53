"""Signals while an engine reads data."""

import jax.numpy as jnp
import numpy as np
import pytest
from engines import signals
from engines.signals import gem, press

import gemjax

restored = signals.restored


class Read(gemjax.batches.Rows):
    """Rows that call a function when those of a worker's step are selected."""

    data = np.zeros((40, 4), np.float32)

    def __init__(self, at):
        self.at = at

    def select(self, worker, step):
        for one in zip(worker.tolist(), step.tolist(), strict=True):
            self.at(*one)
        return np.stack([step % 40], 1).astype(np.int32)


@pytest.mark.parametrize(("at", "commits"), [(2, 0), (11, 24)])
def test_a_simulation_that_reads_data_ends_before_their_chunk(at, commits):
    """Data of the next chunk are read while one computes."""
    seen = []

    def select(worker, step):
        seen.append((worker, step))
        if (worker, step) == (0, at):
            press()

    loss_fn = lambda params, batch: jnp.mean((params - batch.mean(0)) ** 2)
    trace = gemjax.arrivals.RoundRobin(3).trace(60)
    with pytest.raises(KeyboardInterrupt) as ended:
        gemjax.simulate(gem(), loss_fn, jnp.ones(4), Read(select), trace, callback_every=12)
    assert len(ended.value.result.trace) == commits
    assert seen[-1] == (0, at)


def test_a_run_on_devices_that_selects_data_ends_there():
    seen = []

    def select(worker, step):
        seen.append((worker, step))
        if step == 3:
            press()

    loss_fn = lambda params, batch: jnp.mean((params - batch.mean(0)) ** 2)
    with pytest.raises(KeyboardInterrupt) as ended:
        gemjax.run_on_devices(gem(), loss_fn, jnp.ones(4), Read(select), 40)
    assert len(ended.value.result.trace) >= 3
    assert [step for _, step in seen].count(3) == 1
