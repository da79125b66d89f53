"""The live view: a table if the terminal is large enough, else a bar; plain lines without a terminal."""

import io

import numpy as np
import pytest
from rich.console import Console

from train.run.progress import LINES, RunProgress, Workers


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


def test_the_table_shows_the_commits_of_each_worker():
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


def test_the_table_shows_refused_commits_and_silent_workers():
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
    with RunProgress(console, total=3 * updates, workers=workers) as line:
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
def test_without_room_for_the_table_only_the_bar_is_shown(height, workers):
    shown = show(terminal(height), workers)
    assert "utilisation" not in shown
    assert "12/12 commits" in shown


def test_without_a_terminal_there_are_plain_lines():
    shown = show(Console(file=io.StringIO(), width=140), updates=60)
    assert "\x1b" not in shown
    assert "utilisation" not in shown
    lines = shown.splitlines()
    assert len(lines) == LINES
    assert lines[-1].startswith("180/180 commits")


class Clock:
    """Clock that a test advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_plain_lines_continue_without_commits():
    """One line per minute shows the time without commits, and a falling rate."""
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    line = RunProgress(console, total=1000, clock=clock)
    for done, now in ((10, 101.0), (20, 111.0)):
        clock.now = now
        line.update(done, 0, history([0] * 10, np.full(10, now - 100)))
    assert console.file.getvalue() == ""
    for second in range(111, 231):
        clock.now = second
        line.update(20, 0, {})
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("20/1000 commits  0.33 commits/s  left 2940 s  loss 0.5000")
    assert first.endswith("no commit for 49 s")
    assert second.startswith("20/1000 commits  0.17 commits/s")
    assert second.endswith("no commit for 109 s")


def test_what_is_not_known_is_not_shown():
    console = Console(file=io.StringIO(), width=200)
    line = RunProgress(console, total=2)
    line.update(1, 2, history([0, 1], [1.0, 2.0], applied=[False, False]))
    line.evaluated = 1, 0.5
    line.update(2, 2, history([0], [3.0]))
    first, second = console.file.getvalue().splitlines()
    assert first.endswith("no commit applied  staleness p50 1 p95 1  rejected 2")
    assert second.endswith("loss 0.5000  staleness p50 1 p95 1  test accuracy 50.00 % at 1  rejected 2")


def test_plain_lines_come_each_minute_when_commits_are_slow():
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    line = RunProgress(console, total=1000, clock=clock)
    for commit in range(1, 11):
        clock.now += 30.0
        line.update(commit, 0, history([0], [30.0 * commit], measured=False))
    lines = console.file.getvalue().splitlines()
    assert [text.split("/")[0] for text in lines] == ["2", "4", "6", "8", "10"]
    assert "0.033 commits/s" in lines[-1]


def test_the_rate_is_of_applied_commits_and_the_time_left_of_all_to_come():
    """A simulation counts dropped gradients among the commits that it was asked for."""
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    line = RunProgress(console, total=100, clock=clock)
    for done in (10, 50):
        clock.now += 4.0
        dropped = np.arange(done - line.done) % 4 == 0
        line.update(done, 0, history([0] * len(dropped), dropped, measured=False, applied=~dropped, dropped=dropped))
    assert line.rate == 30 / 4.0
    assert "50/100 commits  7.5 commits/s  left 5 s" in console.file.getvalue()


@pytest.mark.parametrize(("measured", "rate"), [(True, 25 / 10.0), (False, 20 / 8.0)])
def test_the_rate_counts_from_the_first_dispatch_or_from_the_end_of_the_first_chunk(measured, rate):
    clock = Clock()
    line = RunProgress(Console(file=io.StringIO()), total=100, done=40, clock=clock)
    for done, time in ((45, 52.0), (55, 55.0), (65, 60.0)):  # The first dispatch is at 50: at 51 - 1.
        clock.now = 100.0 + time
        line.update(
            done, 0, history([0] * (done - line.done), np.linspace(51.0, time, done - line.done), measured=measured)
        )
    assert line.rate == pytest.approx(rate)
    clock.now += 30.0
    line.update(65, 0, {})
    assert line.rate == pytest.approx(rate * (10 if measured else 8) / (40 if measured else 38))


def test_the_table_is_updated_without_commits():
    """Workers become silent in a measured run; virtual time does not advance."""
    clock = Clock()
    console = terminal(height=30)
    with RunProgress(console, total=10, workers=2, clock=clock) as line:
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
