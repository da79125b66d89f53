"""The event log: plain JSON lines that survive a crash and give the trace back."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax import eventlog
from gemjax.eventlog import EventLog


def write_commits(log, trace, rows):
    for t in rows:
        log.write(
            "commit",
            trace.time[t],
            worker=trace.worker[t],
            step=trace.step[t],
            pulled_at=trace.pulled_at[t],
            loss=np.float32(0.5),
        )


@pytest.fixture
def trace():
    columns = gemjax.arrivals.Gamma(3).trace(12)
    return gemjax.Trace(columns.worker, time=np.round(columns.time, 6), num_workers=3)


def test_events_are_lines_of_json(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0, num_workers=2)
        log.write("commit", np.float64(1.23456789), worker=np.int32(1), loss=np.float32(0.25), applied=np.bool_(True))
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"event": "start", "time": 0.0, "num_workers": 2}
    assert json.loads(lines[1]) == {"event": "commit", "time": 1.234568, "worker": 1, "loss": 0.25, "applied": True}
    assert list(eventlog.read(tmp_path / "log.jsonl")) == [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "value", [float("nan"), np.float32("inf"), np.float64("-inf"), np.zeros((), jnp.bfloat16)[()] * np.nan]
)
def test_what_is_not_finite_is_null(tmp_path, value):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("reject", 0.0, loss=value)
    assert next(eventlog.read(tmp_path / "log.jsonl"))["loss"] is None


@pytest.mark.parametrize("value", [1.2345678e-12, 1.5e20, -3.0e-5, 0.0])
def test_small_and_large_numbers_keep_their_digits(tmp_path, value):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("commit", 0.0, loss=np.float32(value))
    np.testing.assert_allclose(next(eventlog.read(tmp_path / "log.jsonl"))["loss"], value, rtol=1e-6)


def test_what_was_flushed_can_be_read_while_the_log_is_open(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0)
        log.flush()
        assert len(list(eventlog.read(tmp_path / "log.jsonl"))) == 1


def test_the_trace_comes_back(tmp_path, trace):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0, num_workers=3, commits=0)
        write_commits(log, trace, range(6))
        log.write("reject", trace.time[5], worker=0, step=99, pulled_at=6, loss=float("nan"))
        write_commits(log, trace, range(6, 12))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


def test_a_continued_log_is_one_log(tmp_path, trace):
    for start, end in [(0, 5), (5, 12)]:
        with EventLog(tmp_path / "log.jsonl") as log:
            log.write("start", trace.time[start - 1] if start else 0.0, num_workers=3, commits=start)
            write_commits(log, trace, range(start, end))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


def test_a_run_continued_from_an_earlier_commit_supersedes_what_came_after_it(tmp_path, trace):
    """A checkpoint is older than the crash: the commits between them happened, and are made again."""
    for start, end in [(0, 9), (5, 12)]:
        with EventLog(tmp_path / "log.jsonl") as log:
            log.write("start", 0.0, num_workers=3, commits=start)
            write_commits(log, trace, range(start, end))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


def test_an_empty_log_is_an_empty_trace(tmp_path):
    EventLog(tmp_path / "log.jsonl").close()
    assert len(eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3)) == 0


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0}\n{"event":"commit","ti')
    assert [event["event"] for event in eventlog.read(path)] == ["start"]


def test_a_log_cut_short_by_a_crash_can_be_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0}\n{"event":"commit","ti')
    with EventLog(path) as log:
        log.write("end", 2.0)
    assert [event["event"] for event in eventlog.read(path)] == ["start", "end"]


@pytest.mark.parametrize("line", ["no json", "[1, 2]", '{"event":"party","time":0}', '{"event":"commit"}'])
def test_a_line_that_is_no_event_is_named(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: not an event of a gemjax log"):
        list(eventlog.read(path))


def test_every_event_that_is_documented_can_be_read(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        for event in eventlog.EVENTS:
            log.write(event, 0.0)
    assert tuple(event["event"] for event in eventlog.read(tmp_path / "log.jsonl")) == eventlog.EVENTS
