"""The clock of deadlines, which runs only while the scheduler is polling."""

import pytest

from gemjax.engines.devices.watchdog import Watchdog


class Clock:
    """Time in seconds, set by a test."""

    at = 100.0


@pytest.fixture
def clock():
    return Clock()


def poll(watchdog, clock, seconds, step=0.1):
    """Look every ``step`` seconds; return True at the first look after which overdue workers may be given up."""
    for _ in range(round(seconds / step)):
        clock.at += step
        if watchdog.look(clock.at):
            return True
    return False


def test_time_of_polling_counts(clock):
    watchdog = Watchdog(2.0, clock.at)
    expires = watchdog.deadline()
    for _ in range(19):
        clock.at += 0.1
        assert watchdog.look(clock.at)
    assert watchdog.polled < expires
    clock.at += 0.11
    assert watchdog.look(clock.at)
    assert watchdog.polled >= expires


@pytest.mark.parametrize("deadline", [2.0, 60.0])
def test_a_wait_is_never_longer_than_a_beat(clock, deadline):
    watchdog = Watchdog(deadline, clock.at)
    assert watchdog.beat == min(1.0, deadline / 4)
    assert watchdog.wait(watchdog.deadline()) == watchdog.beat
    assert watchdog.wait(watchdog.polled + watchdog.beat / 2) == watchdog.beat / 2
    assert watchdog.wait(watchdog.polled - 1.0) == 0


def test_a_callback_does_not_count_as_silence(clock):
    """The time of any callback is excluded, and workers that it delayed have another beat."""
    watchdog = Watchdog(2.0, clock.at)
    watchdog.look(clock.at)
    before = watchdog.polled
    clock.at += 0.8
    watchdog.resume(clock.at)
    assert not watchdog.look(clock.at)
    assert watchdog.polled == before
    assert not poll(watchdog, clock, 0.4)
    assert poll(watchdog, clock, 0.2)


def test_a_scheduler_that_polls_seldom_retires_workers_too(clock):
    watchdog = Watchdog(2.0, clock.at)
    expires, rounds = watchdog.deadline(), 0
    while not (watchdog.look(clock.at) and watchdog.polled >= expires):
        clock.at += 10.0
        rounds += 1
        assert rounds < 10
    assert rounds >= 4  # One beat per round.


def test_frequent_callbacks_do_not_postpone_a_deadline_forever(clock):
    watchdog = Watchdog(2.0, clock.at)
    expires, rounds = watchdog.deadline(), 0
    while not (poll(watchdog, clock, 0.1) and watchdog.polled >= expires):
        clock.at += 5.0
        watchdog.resume(clock.at)
        rounds += 1
        assert rounds < 40
    assert rounds >= 19


def test_without_a_deadline_no_worker_is_given_up(clock):
    watchdog = Watchdog(None, clock.at)
    clock.at += 1e9
    assert not watchdog.look(clock.at)
    assert watchdog.deadline() == float("inf")
