"""Progress of several jobs: their share of all gradients, and the time left at the rate of this session."""

import io

import pytest
from rich.console import Console

from train.run.groups.progress import GroupProgress
from train.run.progress import LINES, MINUTE


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def plain(clock, *numbers):
    console = Console(file=io.StringIO(), width=200)
    return console.file, GroupProgress(console, "cell", *numbers, clock=clock)


def test_the_time_left_excludes_jobs_of_earlier_sessions(clock):
    _, progress = plain(clock, 4, 1000, 2, 500)
    assert progress.left == "…"
    clock.now = 10.0
    progress.update("a", 100)
    assert (progress.gradients, progress.left) == (600, "40 s")
    progress.end("a", 250)
    clock.now = 100.0
    assert (progress.done, progress.gradients, progress.left) == (3, 750, "1 min 40 s")


def test_jobs_in_flight_are_counted_and_late_messages_are_not(clock):
    output, progress = plain(clock, 3, 300)
    progress.update("a", 60)
    progress.update("b", 30)
    assert progress.gradients == 90
    progress.end("a", 100, "loss 0.1")
    progress.update("a", 80)
    assert progress.gradients == 130
    assert output.getvalue().splitlines()[-1] == "1/3 cells done, 43 % of the gradients  left 0 s  a: loss 0.1"


def test_plain_lines_come_with_progress_or_once_a_minute(clock):
    output, progress = plain(clock, 1, 1000)
    for done in range(1, 1001):
        progress.update("a", done)
    assert len(output.getvalue().splitlines()) == LINES
    assert output.getvalue().splitlines()[0].endswith("  a")
    for _ in range(2):
        clock.now += MINUTE
        progress.update("a", 1000)
    assert len(output.getvalue().splitlines()) == LINES + 2


def test_a_terminal_gets_a_bar_with_the_job_in_flight_and_a_line_per_text(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    with GroupProgress(console, "run", 2, 20, clock=clock) as progress:
        progress.update("a", 5)
        assert progress._text == "0 of 2 runs done, a"
        progress.end("a", 10, "training loss 0.5")
        progress.end("b", 10)
    shown = console.file.getvalue()
    assert "a: training loss 0.5" in shown
    assert "2 of 2 runs done" in shown
    assert "100 % of the gradients" in shown
