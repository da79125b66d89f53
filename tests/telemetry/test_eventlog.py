"""Event logs: plain JSON lines that survive a crash and contain the trace."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import Abreast
from shrunk import no_file_beyond

import gemjax
from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog


def write_commits(log, trace, rows):
    for t in rows:
        log.write(
            "commit",
            trace.time[t],
            worker=trace.worker[t],
            step=trace.step[t],
            pulled_at=trace.pulled_at[t],
            staleness=trace.staleness[t],
            loss=np.float32(0.5),
        )


def with_a_step_used_up(trace, row):
    """Return the events of a row whose worker had a gradient rejected first."""
    later = (trace.worker == trace.worker[row]) & (np.arange(len(trace)) >= row)
    columns = {name: getattr(trace, name) for name in ("worker", "pulled_at", "time", "draw")}
    return gemjax.Trace(**columns, step=trace.step + later, num_workers=trace.num_workers)


@pytest.fixture
def trace():
    columns = gemjax.arrivals.Gamma(3).trace(12)
    return gemjax.Trace(columns.worker, time=np.round(columns.time, 6), num_workers=3)


def test_events_are_lines_of_json(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0, num_workers=2)
        log.write(
            "commit",
            np.float64(1.23456789),
            worker=np.int32(1),
            step=2,
            pulled_at=0,
            staleness=0,
            applied=np.bool_(True),
        )
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"event": "start", "time": 0.0, "num_workers": 2}
    assert json.loads(lines[1]) == {
        "event": "commit", "time": 1.234568, "worker": 1, "step": 2, "pulled_at": 0, "staleness": 0, "applied": True
    }  # fmt: skip
    assert list(eventlog.read(tmp_path / "log.jsonl")) == [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "value", [float("nan"), np.float32("inf"), np.float64("-inf"), np.zeros((), jnp.bfloat16)[()] * np.nan]
)
def test_values_that_are_not_finite_are_null(tmp_path, value):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("reject", 0.0, worker=0, step=0, pulled_at=0, staleness=0, loss=value)
    assert next(eventlog.read(tmp_path / "log.jsonl"))["loss"] is None


def test_the_trace_comes_back(tmp_path, trace):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0, num_workers=3, commits=0)
        write_commits(log, trace, range(6))
        log.write("reject", trace.time[5], worker=trace.worker[6], step=trace.step[6], pulled_at=6, staleness=0)
        trace = with_a_step_used_up(trace, 6)
        write_commits(log, trace, range(6, 12))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


@pytest.mark.parametrize("reached", [5, 9])
def test_a_continued_log_is_one_log(tmp_path, trace, reached):
    """The commits between a checkpoint and a crash are made again."""
    for start, end in [(0, reached), (5, 12)]:
        with EventLog(tmp_path / "log.jsonl") as log:
            log.write("start", trace.time[start - 1] if start else 0.0, num_workers=3, commits=start)
            write_commits(log, trace, range(start, end))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


def test_a_log_cut_short_by_a_crash_can_be_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0}\n{"event":"commit","ti')
    with EventLog(path) as log:
        log.write("end", 2.0, worker=0)
    assert [event["event"] for event in eventlog.read(path)] == ["start", "end"]


def test_what_the_loss_of_power_leaves_behind_the_last_line_is_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0}\n' + 100 * "\0")
    with EventLog(path) as log:
        log.check_continued(gemjax.Trace([], num_workers=1))
    assert path.read_text() == '{"event":"start","time":0.0}\n'


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("no json", "Expecting value"),
        ("[1, 2]", "event is None"),
        ('{"event":[],"time":0}', r"event is \[\], expected one of start"),
        (f'{{"event":"fault","error":"{"x" * 2**20}"}}', "Unterminated string"),
        ('{"event":"party","time":0}', "event is 'party', expected one of start, dispatch"),
        ('{"event":"commit","worker":0,"step":0,"pulled_at":0}', "time of a commit is None, expected a number"),
        ('{"event":"commit","time":0,"step":0,"pulled_at":0}', "worker of a commit is None, expected a number"),
    ],
)
def test_a_line_that_is_not_an_event_is_named_with_the_reason(tmp_path, line, wrong):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0,"num_workers":2,"commits":0}\n' + line + "\n")
    with pytest.raises(ValueError, match=rf"log\.jsonl, line 2: not an event of a gemjax log: .*{wrong}"):
        list(eventlog.read(path))


@pytest.fixture(scope="module")
def real_log(tmp_path_factory):
    """Bytes of the log of a run on devices with a fault."""
    path = tmp_path_factory.mktemp("run") / "log.jsonl"
    failing = iter([True])

    def gate(worker, step):
        if worker == 1 and next(failing, False):
            raise RuntimeError("injected")

    loss_fn = lambda params, batch: jnp.sum((params - batch) ** 2)
    with EventLog(path) as log:
        gemjax.run_on_devices(
            gemjax.asgd(0.1, num_workers=2),
            loss_fn,
            jnp.zeros(2),
            lambda worker, step: jnp.ones(2),
            12,
            num_workers=2,
            log=log,
            gate=Abreast(2, gate),
        )
    return path.read_bytes()


def test_the_log_of_a_run_can_be_read(tmp_path, real_log):
    (tmp_path / "log.jsonl").write_bytes(real_log)
    events = list(eventlog.read(tmp_path / "log.jsonl"))
    assert len(events) == real_log.count(b"\n")
    assert {event["event"] for event in events} == {"start", "dispatch", "ready", "commit", "fault"}
    assert len(events[0]["devices"]) == 2
    ready = [event for event in events if event["event"] == "ready"]
    assert all(0 <= event["began"] <= event["time"] for event in ready)


@pytest.mark.slow
def test_the_log_of_a_long_run_can_be_read(tmp_path):
    """Nine digits of ``began`` were less than microseconds after 1,000 seconds, and the log counted as damaged."""
    after, tx = 1e9, gemjax.asgd(0.1, num_workers=2)
    loss = lambda params, batch: jnp.sum((params - batch) ** 2)
    trace = gemjax.Trace(worker=[0, 1], time=[after / 2, after], num_workers=2)
    run = lambda engine, **more: engine(tx, loss, jnp.zeros(2), lambda worker, step: jnp.ones(2), **more)
    before = run(gemjax.simulate, trace=trace)
    with EventLog(tmp_path / "log.jsonl") as log:
        result = run(gemjax.run_on_devices, num_commits=100, state=before, log=log)
    ready = [event for event in eventlog.read(tmp_path / "log.jsonl") if event["event"] == "ready"]
    assert result.trace.time[-1] > after
    np.testing.assert_allclose([event["began"] for event in ready], result.history["began"][2:], rtol=0, atol=1e-6)
    gemjax.timeline(eventlog.read(tmp_path / "log.jsonl"))
    with EventLog(tmp_path / "log.jsonl") as log:
        run(gemjax.run_on_devices, num_commits=101, state=result, log=log)


def test_a_closed_log_is_refused_before_the_run(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        pass
    run = gemjax.asgd(0.1), lambda params, batch: jnp.sum(params**2), jnp.ones(1), lambda worker, step: step
    with pytest.raises(ValueError, match=r"the log .*log\.jsonl is closed; make another gemjax\.EventLog of this path"):
        gemjax.run_on_devices(*run, 3, num_workers=1, log=log)


def test_a_log_that_begins_later_than_its_run_is_no_trace(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 4.0, num_workers=1, commits=1)
        log.write("commit", 5.0, worker=0, step=1, pulled_at=1, staleness=0)
    assert len(list(eventlog.read(tmp_path / "log.jsonl"))) == 2
    with pytest.raises(ValueError, match="it begins after 1 commits"):
        eventlog.trace_of(tmp_path / "log.jsonl", num_workers=1)


def test_every_documented_event_can_be_read(tmp_path):
    """In a possible order: three steps of a worker with different outcomes."""
    steps = {"commit": 0, "drop": 1, "reject": 2}
    with EventLog(tmp_path / "log.jsonl") as log:
        for event in eventlog.EVENTS:
            fields = dict.fromkeys(eventlog.NEEDED.get(event, ()), 0)
            if event in steps:
                fields_of_worker = {"worker": 0, "step": steps[event]}
                if event != "commit":  # The loop writes the first of each.
                    log.write("dispatch", 0.0, **fields_of_worker)
                    log.write("ready", 0.0, **fields_of_worker)
                fields |= fields_of_worker | {"pulled_at": 0, "staleness": int(event != "commit")}
            log.write(event, 0.0, **fields)
    found = list(dict.fromkeys(event["event"] for event in eventlog.read(tmp_path / "log.jsonl")))
    assert tuple(found) == eventlog.EVENTS


def with_a_log(path, write):
    with EventLog(path) as log:
        write(log)


def test_a_run_whose_log_cannot_be_written_raises_its_own_error_with_the_result(tmp_path):
    """The file would be closed by ``with``, which fails for the same reason."""
    loss_fn, batches = lambda params, batch: jnp.mean((params - batch) ** 2), lambda worker, step: jnp.ones(3) * worker
    run = lambda log: gemjax.run_on_devices(gemjax.asgd(0.1, 2), loss_fn, jnp.zeros(3), batches, 200, log=log)
    with no_file_beyond(8000), pytest.raises(OSError, match=r"File too large: '.*run\.jsonl'") as full:
        with_a_log(tmp_path / "run.jsonl", run)
    assert 10 < len(full.value.result.trace) < 200


@pytest.mark.parametrize("draws", [(0, 2, 1), (0, 2, 2)])
def test_no_draw_repeats_and_that_of_a_lost_worker_may_come_late(draws, tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        for step, draw in enumerate(draws):
            log.write("commit", 1.0, worker=0, step=step, draw=draw, pulled_at=step, staleness=0)
    if len(set(draws)) == 3:
        assert eventlog.trace_of(tmp_path / "log.jsonl", 2).draw.tolist() == [*draws]
        return
    with pytest.raises(ValueError, match=r"row 2 of the trace cannot happen: draw 2 is used by an earlier row"):
        eventlog.trace_of(tmp_path / "log.jsonl", 2)
