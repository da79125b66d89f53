"""The clock of the deadlines: it goes on only while somebody listens."""

import pytest

from gemjax.engines.devices import deadlines as module
from gemjax.engines.devices.deadlines import Deadlines


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""

    class Clock:
        at = 100.0

        def perf_counter(self):
            return self.at

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def listen(deadlines, clock, seconds, step=0.1):
    """Looks every ``step`` seconds; when first somebody who is overdue may be given up, by the clock of the deadlines."""
    for _ in range(round(seconds / step)):
        clock.at += step
        if deadlines.look():
            return True
    return False


def test_time_in_which_one_listens_counts(clock):
    deadlines = Deadlines(2.0)
    expires = deadlines.from_now()
    for _ in range(19):
        clock.at += 0.1
        assert deadlines.look()
    assert deadlines.now < expires
    clock.at += 0.11
    assert deadlines.look()
    assert deadlines.now >= expires


@pytest.mark.parametrize("deadline", [2.0, 60.0])
def test_a_wait_is_never_longer_than_a_beat(clock, deadline):
    deadlines = Deadlines(deadline)
    assert deadlines.beat == min(1.0, deadline / 4)
    assert deadlines.wait(deadlines.from_now()) == deadlines.beat
    assert deadlines.wait(deadlines.now + deadlines.beat / 2) == deadlines.beat / 2
    assert deadlines.wait(deadlines.now - 1.0) == 0


def test_a_machine_that_was_stopped_is_no_silence(clock):
    """Whoever was nearly overdue has another beat, and is given up after that."""
    deadlines = Deadlines(2.0)
    expires = deadlines.from_now()
    listened = [listen(deadlines, clock, 0.1) for _ in range(19)]
    assert all(listened)
    clock.at += 3600.0
    assert not deadlines.look()
    assert not listen(deadlines, clock, 0.4)
    assert deadlines.wait(expires) > 0
    assert listen(deadlines, clock, 0.2)
    assert deadlines.now >= expires


def test_a_callback_is_no_silence(clock):
    """However short: its time is left out, and what it held up has a beat to catch up."""
    deadlines = Deadlines(2.0)
    deadlines.look()
    before = deadlines.now
    clock.at += 0.8
    deadlines.resume()
    assert not deadlines.look()
    assert deadlines.now == before
    assert not listen(deadlines, clock, 0.4)
    assert listen(deadlines, clock, 0.2)


def test_a_scheduler_that_never_listens_for_long_gives_up_too(clock):
    deadlines = Deadlines(2.0)
    expires, rounds = deadlines.from_now(), 0
    while not (deadlines.look() and deadlines.now >= expires):
        clock.at += 10.0
        rounds += 1
        assert rounds < 10
    assert rounds >= 4  # A beat each.


def test_callbacks_all_the_time_put_nothing_off_for_ever(clock):
    deadlines = Deadlines(2.0)
    expires, rounds = deadlines.from_now(), 0
    while not (listen(deadlines, clock, 0.1) and deadlines.now >= expires):
        clock.at += 5.0
        deadlines.resume()
        rounds += 1
        assert rounds < 40
    assert rounds >= 19


def test_without_a_deadline_nobody_is_given_up(clock):
    deadlines = Deadlines(None)
    clock.at += 1e9
    assert not deadlines.look()
    assert deadlines.from_now() == float("inf")
