"""Traces: checks, derived columns, saving and loading."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shrunk import no_file_beyond

import gemjax


def history(*, with_late_pulls=True):
    """Traces as of runs: any order of workers, lost steps, and workers that pull again before they commit."""

    @st.composite
    def draw_trace(draw):
        num_workers = draw(st.integers(1, 5))
        workers = draw(st.lists(st.integers(0, num_workers - 1), max_size=30))
        pulled, step, rows = [0] * num_workers, [0] * num_workers, []
        for clock, worker in enumerate(workers):
            rows.append((worker, pulled[worker], step[worker]))
            pulled[worker] = clock + 1
            step[worker] += 1
            for other in range(num_workers) if with_late_pulls else ():
                if (
                    draw(st.integers(0, 5)) == 0
                ):  # A retried or rejected worker pulls again now, possibly with the next step.
                    pulled[other] = clock + 1
                    step[other] += draw(st.integers(0, 2))
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        worker, pulled_at, steps = (np.array(column, np.int32) for column in columns)
        gaps = draw(st.lists(st.floats(0, 10), min_size=len(rows), max_size=len(rows)))
        return gemjax.Trace(worker, pulled_at, steps, np.cumsum(np.array(gaps, float)), num_workers)

    return draw_trace()


def test_the_defaults_are_workers_that_pull_right_after_their_own_commits():
    trace = gemjax.Trace(worker=[1, 0, 1, 1, 0])
    assert trace.num_workers == 2
    np.testing.assert_array_equal(trace.pulled_at, [0, 0, 1, 3, 2])
    np.testing.assert_array_equal(trace.step, [0, 0, 1, 2, 1])
    np.testing.assert_array_equal(trace.time, [1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_array_equal(trace.staleness, [0, 1, 1, 0, 2])
    assert [trace.worker.dtype, trace.pulled_at.dtype, trace.step.dtype, trace.time.dtype] == [np.int32] * 3 + [
        np.float64
    ]
    assert len(trace) == 5


def test_a_trace_has_columns_of_its_own():
    time = np.array([1.0, 2.0])
    trace = gemjax.Trace(worker=[0, 1], time=time)
    time[0] = 9.0
    np.testing.assert_array_equal(trace.time, [1.0, 2.0])
    np.testing.assert_array_equal(gemjax.Trace(worker=[0, 1], time=[[1.0], [2.0]]).time, [1.0, 2.0])


def test_a_number_beyond_32_bits_is_no_other_one():
    with pytest.raises(ValueError, match="worker must be a vector of integers that fit 32 bits, got int64"):
        gemjax.Trace(worker=[2**32 + 1])


def test_workers_that_never_commit_are_kept():
    assert gemjax.Trace(worker=[0, 1], num_workers=7).num_workers == 7


def test_an_empty_trace_is_a_trace():
    trace = gemjax.Trace(worker=[], num_workers=3)
    assert len(trace) == 0
    assert trace.num_workers == 3
    assert trace.staleness.shape == (0,)
    assert [len(column) for column in trace.events()] == [0] * 6


def test_a_worker_draws_the_next_batch_after_its_commit():
    trace = gemjax.Trace(worker=[1, 1, 0, 1, 2], pulled_at=[0, 1, 1, 2, 4], num_workers=4)
    np.testing.assert_array_equal(trace.draw, [1, 4, 0, 5, 2])  # Late pulls draw nothing; worker 3 still has batch 3.
    np.testing.assert_array_equal(trace.first(3).draw, trace.draw[:3])
    events = trace.events()
    np.testing.assert_array_equal(events.draw[events.commits], trace.draw)


def test_recorded_draws_are_kept():
    """A rejected gradient has a draw, but no row."""
    trace = gemjax.Trace(worker=[0, 1, 0], draw=[0, 1, 3])
    np.testing.assert_array_equal(trace.draw, [0, 1, 3])
    assert trace != gemjax.Trace(worker=[0, 1, 0])


def test_a_worker_may_draw_an_earlier_batch_that_a_lost_worker_held():
    np.testing.assert_array_equal(gemjax.Trace(worker=[0, 0, 0], num_workers=2, draw=[0, 2, 1]).draw, [0, 2, 1])


def test_equality_compares_every_column():
    same = {"worker": [0, 1], "pulled_at": [0, 0], "step": [0, 0], "time": [1.0, 2.0], "num_workers": 2}
    trace = gemjax.Trace(**same)
    assert trace == gemjax.Trace(**same)
    different = {"worker": [1, 0], "pulled_at": [0, 1], "step": [0, 1], "time": [1.0, 3.0], "num_workers": 3}
    for name, value in different.items():
        assert trace != gemjax.Trace(**same | {name: value}), name
    assert trace != "a trace"


def test_first_is_the_beginning():
    trace = gemjax.arrivals.Gamma(3).trace(20)
    assert trace.first(20) == trace
    assert trace.first(7) == gemjax.arrivals.Gamma(3).trace(7)
    assert trace.first(0).num_workers == 3


def test_a_late_pull_is_an_arrival_without_a_commit():
    trace = gemjax.Trace(worker=[0, 1, 0, 1], pulled_at=[0, 1, 1, 3], step=[0, 2, 1, 4])
    events = trace.events()
    # Worker 1 pulls again at clock 1 (and then computes step 2) and at clock 3.
    np.testing.assert_array_equal(events.worker, [0, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(events.commits, [True, False, True, True, False, True])
    np.testing.assert_array_equal(events.step, [0, 2, 2, 1, 4, 4])
    np.testing.assert_array_equal(events.row, [0, 1, 1, 2, 3, 3])


@settings(max_examples=60)
@given(history())
def test_events_execute_to_the_staleness_of_the_trace(trace):
    """Executing the arrivals one by one (commit, then pull) reproduces the clocks of the trace."""
    clock, pulled = 0, [0] * trace.num_workers
    rows = []
    for worker, step, commits, row, *_ in zip(*trace.events(), strict=True):
        assert worker == trace.worker[row]
        assert step == trace.step[row]
        if commits:
            assert row == clock
            assert pulled[worker] == trace.pulled_at[row]
            assert clock - pulled[worker] == trace.staleness[row]
            rows.append(row)
            clock += 1
        pulled[worker] = clock
    assert rows == list(range(len(trace)))


@settings(max_examples=40)
@given(history(with_late_pulls=False))
def test_without_late_pulls_the_pulls_are_the_default(trace):
    assert trace.events().commits.all()
    np.testing.assert_array_equal(trace.pulled_at, gemjax.Trace(worker=trace.worker).pulled_at)
    assert (trace.staleness >= 0).all()
    assert trace.staleness.sum() <= len(trace) * (trace.num_workers - 1) * max(1, len(trace))


@settings(max_examples=40)
@given(history(), st.data())
def test_a_broken_row_is_refused(trace, data):
    if not len(trace):
        return
    row = data.draw(st.integers(0, len(trace) - 1))
    columns = {name: getattr(trace, name).copy() for name in ("worker", "pulled_at", "step", "time")}
    before = [t for t in range(row) if trace.worker[t] == trace.worker[row]]
    breaks = {
        "worker": trace.num_workers + data.draw(st.integers(0, 9)),
        "pulled_at": data.draw(st.sampled_from([row + 1, before[-1] if before else -1])),
        "step": int(trace.step[before[-1]]) if before else -1,
        "time": data.draw(st.sampled_from([np.nan, -np.inf, np.inf])),
    }
    name = data.draw(st.sampled_from(sorted(breaks)))
    columns[name][row] = breaks[name]
    with pytest.raises(ValueError, match=f"row {row} of the trace cannot happen"):
        gemjax.Trace(**columns, num_workers=trace.num_workers)


@settings(max_examples=20)
@given(trace=history())
def test_a_saved_trace_is_loaded(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "run.trace"
    trace.save(path)
    assert gemjax.Trace.load(path) == trace
    assert gemjax.Trace.load(str(path)) == trace


def test_a_save_that_fails_keeps_the_file_of_before(tmp_path):
    earlier, later = gemjax.Trace([0, 1, 0]), gemjax.arrivals.Gamma(4).trace(2000)
    earlier.save(tmp_path / "trace.npz")
    with no_file_beyond(2000), pytest.raises(OSError, match="File too large"):
        later.save(tmp_path / "trace.npz")
    assert gemjax.Trace.load(tmp_path / "trace.npz") == earlier
    later.save(tmp_path / "trace.npz")
    assert gemjax.Trace.load(tmp_path / "trace.npz") == later
    earlier.save(tmp_path / "trace.npz")
    assert gemjax.Trace.load(tmp_path / "trace.npz") == earlier
    assert os.listdir(tmp_path) == ["trace.npz"]


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**31))
@settings(max_examples=40)
def test_recorded_delays_are_those_of_the_trace_with_no_more_workers(num_workers, commits, seed):
    order = np.random.default_rng(seed).choice(num_workers, size=commits)
    recorded = gemjax.Trace(order, num_workers=num_workers)
    found = gemjax.Trace.from_delays(recorded.staleness)
    np.testing.assert_array_equal(found.staleness, recorded.staleness)
    assert found.num_workers <= num_workers


def test_a_table_of_delays_is_the_trace_of_its_server():
    """As PIAG's logs: eight columns, the delay of each worker's entry per step; the server began with an entry of each."""
    n = 8
    later = gemjax.arrivals.Gamma(n).trace(300, seed=0)
    pulled = np.concatenate([np.zeros(n, int), n + later.pulled_at])
    trace = gemjax.Trace(np.concatenate([np.arange(n), later.worker]), pulled)
    version, rows = np.zeros(n, int), [np.zeros(n, int)]
    for step, commit in enumerate(range(n, len(trace)), start=1):
        version[trace.worker[commit]] = trace.pulled_at[commit] - n + 1  # Steps before its pull.
        rows.append(step - version)
    assert gemjax.Trace.from_delays(rows) == trace


@pytest.mark.parametrize("delays", [[0, -1], [1], [[1]], [[9]], [[0], [-2]], [[0, 0], [2, 0]], [[0, 0], [3, 0]]])
def test_impossible_delays_are_refused(delays):
    with pytest.raises(ValueError, match="pulled_at is"):
        gemjax.Trace.from_delays(delays)
