"""Event logs: plain JSON lines that survive a crash and contain the trace."""

import functools
import json
import os

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import Abreast
from hypothesis import strategies as st

import gemjax
from gemjax import testing
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


@pytest.mark.parametrize("path", [None, 1, b"log.jsonl"])
def test_what_is_no_path_is_refused(path):
    """An int would be an open file, such as the output of the process."""
    with pytest.raises(TypeError, match="path must be a path"):
        EventLog(path)
    with pytest.raises(TypeError, match="folder must be a path"):
        gemjax.Checkpoints(path)


def test_an_empty_path_is_refused():
    with pytest.raises(ValueError, match=r"^path is empty; for the current folder give '\.'$"):
        EventLog("")
    with pytest.raises(ValueError, match=r"^folder is empty; for the current folder give '\.'$"):
        gemjax.Checkpoints("")


@pytest.mark.parametrize("value", [1.2345678e-12, 1.5e20, -3.0e-5, 0.0])
def test_small_and_large_numbers_keep_their_digits(tmp_path, value):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("commit", 0.0, worker=0, step=0, pulled_at=0, staleness=0, loss=np.float32(value))
    np.testing.assert_allclose(next(eventlog.read(tmp_path / "log.jsonl"))["loss"], value, rtol=1e-6)


def test_flushed_events_can_be_read_while_the_log_is_open(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0)
        log.flush()
        assert len(list(eventlog.read(tmp_path / "log.jsonl"))) == 1


def test_the_trace_comes_back(tmp_path, trace):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0.0, num_workers=3, commits=0)
        write_commits(log, trace, range(6))
        log.write("reject", trace.time[5], worker=trace.worker[6], step=trace.step[6], pulled_at=6, staleness=0)
        trace = with_a_step_used_up(trace, 6)
        write_commits(log, trace, range(6, 12))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


def test_a_continued_log_is_one_log(tmp_path, trace):
    for start, end in [(0, 5), (5, 12)]:
        with EventLog(tmp_path / "log.jsonl") as log:
            log.write("start", trace.time[start - 1] if start else 0.0, num_workers=3, commits=start)
            write_commits(log, trace, range(start, end))
    assert eventlog.trace_of(tmp_path / "log.jsonl", num_workers=3) == trace


def test_a_run_continued_from_an_earlier_commit_replaces_later_ones(tmp_path, trace):
    """The commits between a checkpoint and a crash are made again."""
    for start, end in [(0, 9), (5, 12)]:
        with EventLog(tmp_path / "log.jsonl") as log:
            log.write("start", trace.time[start - 1] if start else 0.0, num_workers=3, commits=start)
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
        log.write("end", 2.0, worker=0)
    assert [event["event"] for event in eventlog.read(path)] == ["start", "end"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("no json", "not JSON"),
        ("", "not JSON"),
        ("[1, 2]", "a JSON list, expected an object"),
        ('{"event":"party","time":0}', "event is 'party', expected one of start, dispatch"),
        ('{"event":["commit"],"time":0}', r"event is \['commit'\], expected one of"),
        ('{"event":"commit","worker":0,"step":0,"pulled_at":0}', "a commit has a time, and this one has none"),
        ('{"event":"commit","time":0,"step":0,"pulled_at":0}', "a commit has a worker, and this one has none"),
        ('{"event":"dispatch","time":0,"worker":-1,"step":0}', "worker is -1, expected a count"),
        ('{"event":"dispatch","time":0,"worker":true,"step":0}', "worker is True, expected a count"),
        ('{"event":"dispatch","time":0,"worker":1.5,"step":0}', "worker is 1.5, expected a count"),
        ('{"event":"dispatch","time":0,"worker":2,"step":0}', "worker is 2, but the run has 2 workers"),
        ('{"event":"dispatch","time":-1,"worker":0,"step":0}', "time is -1, expected a time"),
        ('{"event":"dispatch","time":"now","worker":0,"step":0}', "time is 'now', expected a time"),
        ('{"event":"dispatch","time":1e999,"worker":0,"step":0}', "time is inf, expected a time"),
        ('{"event":"dispatch","time":NaN,"worker":0,"step":0}', "NaN is not JSON"),
        ('{"event":"dispatch","time":1' + "0" * 400 + ',"worker":0,"step":0}', "expected a time"),
        ('{"event":"dispatch","time":1' + "0" * 5000 + ',"worker":0,"step":0}', "4300 digits"),
        (
            '{"event":"commit","time":0,"worker":0,"step":0,"pulled_at":0,"staleness":0,"loss":"<b>"}',
            "expected a number or null",
        ),
        (
            '{"event":"commit","time":0,"worker":0,"step":0,"pulled_at":0,"staleness":0,"gap":[1]}',
            "expected a number or null",
        ),
        ('{"event":"start","time":0,"devices":"all"}', "devices is 'all', expected a list of names"),
        ('{"event":"fault","time":0,"worker":0,"step":0,"error":7}', "error is 7, expected a text"),
        ('{"event":' + "[" * 100_000, "nested too deeply"),
        ('{"event":"' + "x" * (1 << 20), "longer than"),
        ('{"event":"commit","time":0,"worker":0,"step":0,"pulled_at":3,"staleness":0}', "commit 3 by its pulled_at"),
    ],
)
def test_a_line_that_is_not_an_event_is_named_with_the_reason(tmp_path, line, wrong):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"start","time":0.0,"num_workers":2,"commits":0}\n' + line + "\n")
    with pytest.raises(ValueError, match=rf"log\.jsonl, line 2: not an event of a gemjax log: .*{wrong}"):
        list(eventlog.read(path))


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n\x1a\n\0\0", b"PK\x03\x04 no line break", b"\0" * 512])
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "log.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"log\.jsonl, line 1: not an event of a gemjax log"):
        list(eventlog.read(tmp_path / "log.jsonl"))


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


@pytest.mark.parametrize("how", [pytest.param("the same object", marks=pytest.mark.slow), "another object"])
def test_a_run_is_refused_a_log_that_another_one_writes(tmp_path, how):
    """The events of both would be mixed, and neither could be read."""
    path = tmp_path / "log.jsonl"
    problem = testing.quadratic()
    refused = []

    def nested(progress):
        with EventLog(path) as another:
            try:
                run(10, log=log if how == "the same object" else another)
            except BlockingIOError as error:
                refused.append(str(error))

    def run(commits, **options):
        return gemjax.run_on_devices(gemjax.asgd(0.1, num_workers=2), *problem, commits, num_workers=2, **options)

    with EventLog(path) as log:
        result = run(30, log=log, callback=nested, callback_every=10)
        assert eventlog.trace_of(path, 2) == result.trace
        again = run(40, log=log, state=result)  # Afterwards the log is free.
    assert eventlog.trace_of(path, 2) == again.trace
    assert set(refused) == {
        f"the log {path} is in use by another run; wait for its end, or give each run a log of its own"
    }


@pytest.mark.parametrize("content", [b'{"workers":4}', b"epoch,loss\n1,0.5\n", b"line 1\nline 2", b"\0\0"])
def test_another_file_is_not_written_to(tmp_path, content):
    """Its last line, without a line break, would be removed like one that a crash cut short."""
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"results\.json is no event log; move it away, or give another path"):
        EventLog(path)
    assert path.read_bytes() == content


def run_of_two(commits, **options):
    problem = testing.quadratic()
    return gemjax.run_on_devices(gemjax.asgd(0.1, num_workers=2), *problem, commits, num_workers=2, **options)


def after_a_call_without_a_log(path):
    with EventLog(path) as log:
        first = run_of_two(5, log=log)
    return {"num_commits": 12, "state": run_of_two(9, state=first)}


def another_number_of_workers(path):
    with EventLog(path) as log:
        run_of_two(5, log=log)
    return {"tx": gemjax.asgd(0.1, num_workers=3), "num_workers": 3}


def another_run(path):
    with testing.Faults() as slow, EventLog(path) as log:
        run_of_two(6, log=log, gate=Abreast(2, slow))
    order = gemjax.Trace([0] * 6, num_workers=2)
    return {"num_commits": 12, "state": gemjax.simulate(gemjax.asgd(0.1, num_workers=2), *testing.quadratic(), order)}


def a_damaged_log(path):
    with EventLog(path) as log:
        first = run_of_two(5, log=log)
    path.write_bytes(path.read_bytes().replace(b'"step":1,', b'"step":9,'))
    return {"num_commits": 12, "state": first}


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (
            after_a_call_without_a_log,
            "ends after 5 commits, but this run goes on after 9; give this run a log of its own",
        ),
        (another_number_of_workers, "is of a run with 2 workers, but this one has 3; give this run a log of its own"),
        (another_run, "is of another run, whose commits have another worker; give this run a log of its own"),
        (a_damaged_log, "not an event of a gemjax log"),
    ],
)
def test_a_run_is_refused_a_log_that_it_does_not_continue(tmp_path, make, refused):
    """The log could not be read afterwards."""
    path = tmp_path / "log.jsonl"
    options = {"tx": gemjax.asgd(0.1, num_workers=2), "num_commits": 4, "num_workers": 2} | make(path)
    before = path.read_bytes()
    loss_fn, params, batches = testing.quadratic()
    with EventLog(path) as log, pytest.raises(ValueError, match=refused):
        gemjax.run_on_devices(loss_fn=loss_fn, params=params, batches=batches, log=log, **options)
    assert path.read_bytes() == before


@pytest.mark.parametrize("instead", [True, False])
def test_a_run_is_refused_a_log_that_was_moved(tmp_path, instead):
    """Another run on the file would not be kept out."""
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        first = run_of_two(4, log=log)
        path.rename(tmp_path / "moved.jsonl")
        if instead:
            path.touch()
        with pytest.raises(FileNotFoundError, match="was moved or removed since it was opened; open it again"):
            run_of_two(8, state=first, log=log)
    assert eventlog.trace_of(tmp_path / "moved.jsonl", 2) == first.trace


def test_a_run_in_pieces_reads_each_line_of_its_log_once(tmp_path, monkeypatch):
    read, parse = [], eventlog.parse
    monkeypatch.setattr(eventlog, "parse", lambda line: read.append(line) or parse(line))
    path, result = tmp_path / "log.jsonl", None
    with EventLog(path) as log:
        for commits in (10, 20, 30, 40):
            result = run_of_two(commits, state=result, log=log)
    assert len(read) == len(set(read)) < len(path.read_bytes().splitlines())
    assert eventlog.trace_of(path, 2) == result.trace


def test_a_log_that_was_cut_while_it_was_open_is_read_anew(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        first = run_of_two(6, log=log)
        size = path.stat().st_size
        second = run_of_two(12, state=first, log=log)
        run_of_two(18, state=second, log=log)
        os.truncate(path, size)
        with pytest.raises(ValueError, match="ends after 6 commits, but this run goes on after 12"):
            run_of_two(18, state=second, log=log)
        again = run_of_two(12, state=first, log=log)
    assert eventlog.trace_of(path, 2) == again.trace


def test_a_log_that_another_program_has_written_is_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        first = run_of_two(6, log=log)
    lines = [json.dumps(dict(sorted(json.loads(line).items()))) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    with EventLog(path) as log:
        again = run_of_two(12, state=first, log=log)
    assert eventlog.trace_of(path, 2) == again.trace


def test_a_log_may_begin_later_than_its_run_and_be_begun_anew(tmp_path):
    path, first = tmp_path / "log.jsonl", run_of_two(4)
    with EventLog(path) as log:
        second = run_of_two(8, state=first, log=log)
        run_of_two(12, state=second, log=log)
        run_of_two(10, state=second, log=log)
        last = run_of_two(6, state=first, log=log)
        assert [event["commits"] for event in eventlog.read(path) if event["event"] == "start"] == [4, 8, 8, 4]
        last = run_of_two(6, log=log)
    assert [event["commits"] for event in eventlog.read(path) if event["event"] == "start"] == [4, 8, 8, 4, 0]
    assert len(last.trace) == 6


def test_a_run_leaves_its_events_to_the_next_writer(tmp_path):
    """They are in the file before another object may write, though the first one stays open."""
    path, problem = tmp_path / "log.jsonl", testing.quadratic()
    run = functools.partial(gemjax.run_on_devices, gemjax.asgd(0.1, num_workers=2), *problem, num_workers=2)
    with EventLog(path) as first:
        result = run(3, log=first)
        with EventLog(path) as second:
            again = run(6, state=result, log=second)
    assert eventlog.trace_of(path, 2) == again.trace


def test_half_a_line_of_a_run_that_was_killed_is_removed_when_its_file_is_free(tmp_path):
    path = tmp_path / "log.jsonl"
    killed = EventLog(path)
    with killed.alone():
        killed._file.write('{"event":"start","time":0.0}\n{"event":"commit","ti')
        killed.flush()
        waiting = EventLog(path)
        with pytest.raises(BlockingIOError), waiting.alone():
            pass
    killed.close()
    with waiting, waiting.alone():
        waiting.write("end", 2.0, worker=0)
    assert [event["event"] for event in eventlog.read(path)] == ["start", "end"]


def test_opening_a_log_that_is_being_written_removes_no_line(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log, log.alone():
        log._file.write('{"event":"start"')
        log.flush()
        EventLog(path).close()
        log._file.write(',"time":0.0}\n')
    assert [event["event"] for event in eventlog.read(path)] == ["start"]


@pytest.fixture(scope="module")
def mixed_log(tmp_path_factory):
    """Lines of the log of a run with a fault, rejects and a drop, interrupted and continued from an earlier commit."""
    path = tmp_path_factory.mktemp("mixed") / "log.jsonl"
    tx = gemjax.ringmaster(0.1, threshold=2, num_workers=3)
    problem = testing.quadratic()
    faults = testing.Faults().fail(1, 1).poison(0, 1).poison(2, 2).poison(1, 3)
    with faults, EventLog(path) as log:
        run = functools.partial(gemjax.run_on_devices, tx, *problem, num_workers=3, log=log)
        first = run(num_commits=21, gate=Abreast(3, faults))
        begun = run(num_commits=24, state=first.state, recorded=first.trace)
        run(num_commits=30, state=first.state, recorded=first.trace)
    assert len(begun.trace) == 24
    lines = path.read_bytes().splitlines(keepends=True)
    assert {line.split(b'"')[3] for line in lines} >= {b"start", b"dispatch", b"ready", b"commit", b"reject", b"fault"}
    return lines


@pytest.mark.slow
def test_the_log_of_a_continued_run_can_be_read(mixed_log, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(mixed_log))
    assert len(list(eventlog.read(path))) == len(mixed_log)
    assert len(eventlog.trace_of(path, 3)) == 30


def test_control_sequences_in_a_name_are_escaped(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"event":"start","time":0,"\\u001b]0;owned\\u0007":"x"}\n')
    with pytest.raises(ValueError, match="owned") as refused:
        list(eventlog.read(tmp_path / "log.jsonl"))
    assert str(refused.value).isprintable()


def test_a_log_that_begins_later_than_its_run_is_no_trace(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 4.0, num_workers=1, commits=1)
        log.write("commit", 5.0, worker=0, step=1, pulled_at=1, staleness=0)
    assert len(list(eventlog.read(tmp_path / "log.jsonl"))) == 2
    with pytest.raises(ValueError, match="it begins after 1 commits"):
        eventlog.trace_of(tmp_path / "log.jsonl", num_workers=1)


def test_a_lost_repeated_or_moved_commit_is_found(tmp_path, real_log):
    lines = real_log.splitlines(keepends=True)
    commits = [number for number, line in enumerate(lines) if line.startswith(b'{"event":"commit"')]
    second, third = commits[1:3]
    moved = list(lines)
    moved[second], moved[third] = moved[third], moved[second]
    path = tmp_path / "log.jsonl"
    for changed in (lines[:second] + lines[second + 1 :], lines[:third] + lines[second:], moved):
        path.write_bytes(b"".join(changed))
        with pytest.raises(ValueError, match="lines are missing, repeated or out of order"):
            list(eventlog.read(path))


@hypothesis.settings(max_examples=200)
@hypothesis.given(data=st.data())
def test_a_damaged_log_is_read_as_events_or_refused_by_name(real_log, tmp_path_factory, data):
    """After any change of bytes, reading returns events with the fields they need, or raises one ValueError."""
    at = data.draw(st.integers(0, len(real_log)))
    gone = data.draw(st.integers(0, 40))
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.write_bytes(real_log[:at] + data.draw(st.binary(max_size=8)) + real_log[at + gone :])
    try:
        workers = {event["worker"] for event in eventlog.read(path) if event["event"] == "commit"}
        message = ""
    except ValueError as error:
        workers, message = set(), str(error)
    assert workers <= {0, 1}
    assert not message or "damaged.jsonl, line " in message


def test_a_trace_of_too_few_workers_is_refused_by_name(tmp_path, trace):
    with EventLog(tmp_path / "log.jsonl") as log:
        write_commits(log, trace, range(12))
    with pytest.raises(ValueError, match=r"log\.jsonl: its commits are no trace of 2 workers: .*worker 2"):
        eventlog.trace_of(tmp_path / "log.jsonl", num_workers=2)


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
