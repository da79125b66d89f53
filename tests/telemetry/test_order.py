"""The order of events in a log: a line that is inconsistent with those before is refused."""

import pytest

from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog


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
