"""Logs that runs continue: one run at a time, and only one that goes on from what is logged."""

import functools

import pytest
from engines.problems import Abreast

import gemjax
from gemjax import testing
from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog


@pytest.mark.slow
def test_a_run_is_refused_a_log_that_another_one_writes(tmp_path):
    """The events of both would be mixed, and neither could be read."""
    path = tmp_path / "log.jsonl"
    problem = testing.quadratic()
    refused = []

    def nested(progress):
        with EventLog(path) as another:
            try:
                run(10, log=another)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (
            after_a_call_without_a_log,
            "ends after 5 commits, but this run goes on after 9; give this run a log of its own",
        ),
        (another_number_of_workers, "is of a run with 2 workers, but this one has 3; give this run a log of its own"),
        (another_run, "is of another run, whose commits have another worker; give this run a log of its own"),
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


@pytest.mark.parametrize("commits", [0, 10])
def test_a_run_that_begins_anew_has_none_of_the_incidents_of_the_first_one(tmp_path, commits):
    """Incidents before the first commit stayed, as nothing was cut there."""
    path, problem = tmp_path / "log.jsonl", testing.quadratic()
    run = functools.partial(gemjax.run_on_devices, gemjax.asgd(0.1, num_workers=2), *problem, num_workers=2)
    with EventLog(path) as log:
        with testing.Faults() as faults:
            for worker in (0, 1) if commits == 0 else (0,):
                faults.fail(worker, 0, times=3)
            if commits:
                run(commits, log=log, gate=faults)
            else:
                with pytest.raises(gemjax.RunFailedError):
                    run(10, log=log, gate=faults)
        run(20, log=log)
    timeline = gemjax.timeline(eventlog.read(path), 2)
    summary = gemjax.summarise(timeline)
    assert (summary.commits, summary.faults, summary.retired, timeline.incidents) == (20, 0, 0, ())
    assert set(timeline.cycles["event"]) == {"commit"}


def test_a_worker_that_was_retired_and_takes_part_in_the_continued_run_is_not_counted(tmp_path):
    path, problem = tmp_path / "log.jsonl", testing.quadratic()
    run = functools.partial(gemjax.run_on_devices, gemjax.asgd(0.1, num_workers=2), *problem, num_workers=2)
    with EventLog(path) as log:
        with testing.Faults().fail(1, 2, times=3) as faults:
            first = run(400, log=log, gate=faults)  # It is retired long before their end.
        retired = gemjax.summarise(eventlog.read(path)).retired
        run(430, log=log, state=first, gate=Abreast(2))
    assert (retired, gemjax.summarise(eventlog.read(path)).retired) == (1, 0)


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
