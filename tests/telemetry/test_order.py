"""The order of events in a log: a line that is inconsistent with those before is refused."""

import pytest
from cycles import cycle, start

from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog


def cycles_that_follow():
    """Return a log of two workers with a restart, in which later lines depend on every line but the last three."""
    return [
        start(2),
        *cycle(0, 0, 0.0, 0.0, 1.0, 1.0, 0, 0),
        {"event": "dispatch", "time": 1.0, "worker": 0, "step": 1},
        {"event": "fault", "time": 1.5, "worker": 0, "step": 1, "error": "boom"},
        *cycle(1, 0, 0.0, 0.0, 1.6, 1.6, 0, 1, kind="reject"),
        *cycle(1, 1, 1.6, 1.6, 1.7, 1.7, 1, 0, kind="drop"),
        *cycle(0, 1, 1.5, 1.5, 2.0, 2.0, 1, 0),
        *cycle(1, 2, 1.7, 1.7, 2.5, 2.5, 1, 1),
        start(2, commits=2, time=2.0),  # From a checkpoint before the last commit.
        *cycle(1, 2, 2.0, 2.0, 2.6, 2.6, 1, 1),
        *cycle(0, 2, 2.0, 2.0, 2.7, 2.7, 2, 1),
    ]  # fmt: skip


def test_a_missing_or_repeated_line_before_the_end_is_found(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        for event in cycles_that_follow():
            log.write(**event)
    lines = path.read_text().splitlines(keepends=True)
    assert len(list(eventlog.read(path))) == len(lines)
    whole = {number for number, line in enumerate(lines) if '"start"' not in line and '"fault"' not in line}
    changed = {f"line {number + 1} again": lines[: number + 1] + lines[number:] for number in whole}
    # A worker may fail before its dispatch, and a commit made again may be missing in the log before.
    changed |= {f"no line {n + 1}": lines[:n] + lines[n + 1 :] for n in range(len(lines) - 1) if n not in (4, 17)}
    for name, content in changed.items():
        path.write_text("".join(content))
        with pytest.raises(ValueError, match=r"lines are missing, repeated or out of order|was not ready"):
            pytest.fail(f"{name} passes: {len(list(eventlog.read(path)))} events")


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
