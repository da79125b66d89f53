"""Periods of local steps, per worker and per commit, and those that are refused."""

import numpy as np
import pytest
from protocol.local_simulations import QUADRATIC, SGD, run

import gemjax
from gemjax import LocalSteps

TABLE = ((2, 1, 4), (3,), (1, 1, 1, 5))


@pytest.mark.parametrize(
    ("period", "worker", "step", "first", "count"),
    [
        (1, [0, 5, 2], [0, 7, 3], [0, 7, 3], [1, 1, 1]),
        (4, [0, 5, 2, 2], [0, 7, 3, 4], [0, 28, 12, 16], [4, 4, 4, 4]),
        ((2, 5, 1), [0, 1, 2, 1, 0], [0, 0, 6, 3, 2], [0, 0, 6, 15, 4], [2, 5, 1, 5, 2]),
        (TABLE, [0, 0, 0, 1, 2, 2, 2], [0, 1, 2, 0, 3, 0, 2], [0, 2, 3, 0, 3, 0, 2], [2, 1, 4, 3, 5, 1, 1]),
    ],
    ids=["one", "same", "worker", "table"],
)
def test_the_first_step_and_the_number_of_steps_of_a_commit(period, worker, step, first, count):
    worker, step = np.array(worker, np.int32), np.array(step, np.int32)
    found = LocalSteps(SGD, period).span(worker, step)
    np.testing.assert_array_equal(found[0], first)
    np.testing.assert_array_equal(found[1], count)
    assert found[0].shape == found[1].shape == worker.shape
    for i in range(len(worker)):  # One at a time, as in engines on devices.
        one = LocalSteps(SGD, period).span(worker[i : i + 1], step[i : i + 1])
        assert (one[0].tolist(), one[1].tolist()) == ([first[i]], [count[i]])


@pytest.mark.parametrize(("period", "longest"), [(1, 1), (7, 7), ((2, 5, 1), 5), (TABLE, 5)])
def test_the_longest_period(period, longest):
    assert LocalSteps(SGD, period).longest == longest
    assert type(LocalSteps(SGD, period).longest) is int


@pytest.mark.parametrize(
    ("period", "plain"),
    [
        (np.int64(3), 3),
        (np.array(3), 3),
        ([2, np.int32(5)], (2, 5)),
        (np.array([2, 5]), (2, 5)),
        ([[1, 2], (3,)], ((1, 2), (3,))),
        (np.array([[1, 2], [3, 4]]), ((1, 2), (3, 4))),
    ],
)
def test_periods_in_any_form_are_the_same_object(period, plain):
    assert LocalSteps(SGD, period) == LocalSteps(SGD, plain)
    assert hash(LocalSteps(SGD, period)) == hash(LocalSteps(SGD, plain))
    assert LocalSteps(SGD, period).period == plain


def on_devices(local, tx=None, **options):
    tx = gemjax.downpour(num_workers=4) if tx is None else tx
    return gemjax.run_on_devices(tx, *QUADRATIC[:3], 8, num_workers=4, local=local, **options)


def test_a_table_that_ends_too_early_names_worker_and_commit():
    local = LocalSteps(SGD, ((1, 2, 1), (3, 1)))
    assert len(run(local, trace=gemjax.Trace([0, 1, 1, 0, 0])).history["loss"]) == 5
    with pytest.raises(ValueError, match="LocalSteps has 2 periods for worker 1, but none for its commit 2"):
        run(local, trace=gemjax.Trace([0, 1, 1, 0, 1, 0]))


def test_a_table_that_ends_too_early_ends_a_run_on_devices():
    """Each worker makes the commits for which it has periods; then no worker is left."""
    message = (
        r"6 of \d+ commits are made, but every worker has made its commits: LocalSteps has \d periods for worker \d"
    )
    with pytest.raises(gemjax.RunFailedError, match=message):
        on_devices(LocalSteps(SGD, ((1, 2), (3,), (1, 1), (2,))))


def test_a_table_need_not_be_longer_than_the_run_on_devices():
    loss_fn, params, batches = gemjax.testing.quadratic()
    local = LocalSteps(SGD, ((3, 2), (1,)))
    result = gemjax.run_on_devices(
        gemjax.downpour(num_workers=2), loss_fn, params, batches, 3, num_workers=2, local=local
    )
    assert sorted(result.trace.worker.tolist()) == [0, 0, 1]
