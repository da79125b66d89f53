"""Shards: rows that are divided once among the workers."""

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax import Shards

ROWS = {"row": np.arange(120), "label": np.repeat(np.arange(4), 30)}


def shards_of(**options):
    return Shards(ROWS, 5, 6, **options)


@pytest.mark.parametrize("options", [{}, {"labels": ROWS["label"]}, {"labels": ROWS["label"], "concentration": 5.0}])
def test_every_row_belongs_to_one_worker(options):
    shards = shards_of(seed=1, **options)
    np.testing.assert_array_equal(np.sort(np.concatenate(shards.rows)), ROWS["row"])


@pytest.mark.parametrize("options", [{}, {"labels": ROWS["label"], "concentration": 5.0}])
def test_a_worker_uses_its_own_rows_once_per_epoch(options):
    shards = shards_of(**options)
    for worker in range(6):
        steps = shards.steps_per_epoch(worker)
        first, second = (
            shards.select(np.full(steps, worker), np.arange(epoch * steps, (epoch + 1) * steps)) for epoch in (0, 1)
        )
        assert len(set(first.ravel().tolist())) == first.size == 5 * steps
        assert set(first.ravel().tolist()) | set(second.ravel().tolist()) <= set(shards.rows[worker].tolist())
        assert steps == 1 or not np.array_equal(first, second)


def test_a_small_concentration_gives_workers_classes_of_their_own():
    def mixture(concentration):
        """Return the mean share of a worker's most frequent class."""
        rows = Shards(ROWS, 1, 6, 2, labels=ROWS["label"], concentration=concentration).rows
        return np.mean([np.bincount(ROWS["label"][mine]).max() / len(mine) for mine in rows])

    assert mixture(0.2) > 0.65
    assert mixture(1000.0) < 0.32


def test_shards_train_in_an_engine():
    """Workers have different means; the batch is gathered on the device."""
    data = {"x": np.repeat(np.arange(3.0, dtype=np.float32), 8)}
    shards = Shards(data, 4, 3, labels=np.repeat(np.arange(3), 8), concentration=50.0)
    seen = gemjax.simulate(
        gemjax.asgd(0.0, 3), lambda params, batch: params * 0.0 + batch["x"].mean(), jnp.zeros([]), shards,
        gemjax.arrivals.RoundRobin(3).trace(12),
    )  # fmt: skip
    worker, step = seen.history["worker"], seen.history["step"]
    expected = data["x"][shards.select(worker, step)].mean(1)
    np.testing.assert_allclose(seen.history["loss"], expected)


def test_a_partition_may_be_given():
    """Workers may have rows in common; the epoch of a worker is its own rows."""
    shards = Shards(ROWS, 2, 3, rows=[[5, 4, 3, 2], np.arange(4, 10), range(6)])
    for worker, expected in enumerate([range(2, 6), range(4, 10), range(6)]):
        steps = np.arange(shards.steps_per_epoch(worker))
        rows = shards.select(np.full(len(steps), worker), steps)
        assert sorted(rows.ravel().tolist()) == list(expected)
