"""The live view: a table where there is room, else a bar, else plain lines."""

import io

import numpy as np
import pytest
from rich.console import Console

from train.run.dashboard import Workers
from train.run.progress import LINES, ProgressLine


def history(workers, times, *, measured=True, applied=None, dropped=None, staleness=1):
    count = len(workers)
    columns = {
        "worker": np.array(workers), "time": np.array(times, float), "staleness": np.full(count, staleness),
        "loss": np.full(count, 0.5), "applied": np.ones(count, bool) if applied is None else np.array(applied),
        "dropped": np.zeros(count, bool) if dropped is None else np.array(dropped),
    }  # fmt: skip
    if measured:
        times = columns["time"]
        columns |= {"dispatched": times - 1.0, "began": times - 0.8, "ready": times - 0.2}
    return columns


def cells(workers):
    return [list(column.cells) for column in workers.table().columns]


def test_the_table_says_who_did_what():
    workers = Workers(3)
    workers.update(history([0, 1, 0], [1.0, 1.5, 2.0]))
    workers.update(history([0], [3.0], staleness=7))
    number, state, commits, share, staleness, utilisation = cells(workers)
    assert number == ["0", "1", "2"]
    assert state == ["computing", "computing", "starting"]
    assert commits == ["3", "1", "0"]
    assert share == ["75.0 %", "25.0 %", "0.0 %"]
    assert staleness == ["7", "1", "–"]
    assert utilisation == ["60 %", "24 %", "–"]


def test_what_was_refused_and_who_is_silent_is_told():
    workers = Workers(3)
    workers.update(history([0, 1, 2], [1.0, 1.0, 1.0], applied=[True, False, False], dropped=[False, True, False]))
    assert cells(workers)[1] == ["computing", "dropped", "rejected"]
    workers.update(history([0], [15.0]))
    assert cells(workers)[1] == ["computing", "silent for 14.0 s", "silent for 14.0 s"]


def test_simulated_workers_have_no_utilisation():
    workers = Workers(1)
    workers.update(history([0], [1.0], measured=False))
    assert cells(workers)[5] == ["–"]


def show(console, workers=3, updates=4):
    with ProgressLine(console, total=3 * updates, workers=workers) as line:
        for update in range(1, updates + 1):
            line.update(3 * update, 0, history([0, 1, 2], [update - 0.5, update - 0.25, update]))
    return console.file.getvalue()


def terminal(height):
    return Console(file=io.StringIO(), force_terminal=True, width=140, height=height, color_system=None)


def test_a_terminal_shows_the_table_and_the_bar():
    shown = show(terminal(height=30))
    assert "utilisation" in shown
    assert "12/12 commits" in shown
    assert "staleness p50 1" in shown


@pytest.mark.parametrize(("height", "workers"), [(10, 3), (200, 33)])
def test_where_there_is_no_room_the_bar_stands_alone(height, workers):
    shown = show(terminal(height), workers)
    assert "utilisation" not in shown
    assert "12/12 commits" in shown


def test_elsewhere_there_are_plain_lines():
    shown = show(Console(file=io.StringIO(), width=140), updates=60)
    assert "\x1b" not in shown
    assert "utilisation" not in shown
    lines = shown.splitlines()
    assert len(lines) == LINES
    assert lines[-1].startswith("180/180 commits")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_plain_lines_go_on_while_no_commit_comes():
    """One a minute, which says so, and whose rate falls."""
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    line = ProgressLine(console, total=1000, clock=clock)
    for done, now in ((10, 101.0), (20, 111.0)):
        clock.now = now
        line.update(done, 0, history([0] * 10, np.full(10, now - 100)))
    assert console.file.getvalue() == ""
    for second in range(111, 231):
        clock.now = second
        line.update(20, 0, {})
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("20/1000 commits  0.17/s  left 5782 s  loss 0.5000")
    assert first.endswith("nothing for 49 s")
    assert second.startswith("20/1000 commits  0.084/s")
    assert second.endswith("nothing for 109 s")


def test_plain_lines_come_each_minute_when_commits_are_slow():
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    line = ProgressLine(console, total=1000, clock=clock)
    for commit in range(1, 11):
        clock.now += 30.0
        line.update(commit, 0, history([0], [30.0 * commit]))
    lines = console.file.getvalue().splitlines()
    assert [text.split("/")[0] for text in lines] == ["2", "4", "6", "8", "10"]
    assert "0.033/s" in lines[-1]


def test_the_table_goes_on_while_no_commit_comes():
    """Who is silent for longer and longer is told so, in a measured run; virtual time stands still."""
    clock = Clock()
    console = terminal(height=30)
    with ProgressLine(console, total=10, workers=2, clock=clock) as line:
        line.update(0, 0, {})  # Before the first commit.
        line.update(2, 0, history([0, 1], [1.0, 1.5]))
        for _ in range(25):
            clock.now += 1.0
            line.update(2, 0, {})
    shown = console.file.getvalue()
    assert "no commit yet" in shown
    assert "silent for 25.0 s" in shown
    workers = Workers(1)
    workers.update(history([0], [1.0], measured=False))
    workers.wait(100.0)
    assert workers.state(0) == "computing"
