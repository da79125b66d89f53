"""Goodput: without failures the rounds are those of a barrier; with them each mode keeps what is worked out by hand."""

import numpy as np
import pytest

from gemjax import arrivals
from gemjax.arrivals.base import draw
from train.claims.papers import goodput
from train.claims.papers.goodput import AWAY, LENGTH, RESTART, WORKERS, Failures

NEVER = Failures(np.full((WORKERS, 2), np.inf))


def failing(*at):
    """Return failures of the first worker at these times, and of no other."""
    return Failures(np.stack([[*at, np.inf], *np.full((WORKERS - 1, len(at) + 1), np.inf)]))


@pytest.mark.parametrize("first", [WORKERS, goodput.FIRST])
def test_without_failures_rounds_are_those_of_a_barrier(first):
    model, rounds = arrivals.Gamma(WORKERS, batch_variation=0.1), int(1.5 * LENGTH)
    durations = np.stack([draw(model, worker, 0, rounds) for worker in range(WORKERS)], axis=1)
    time = arrivals.Barrier(model, first).trace(first * rounds).time
    expected = np.searchsorted(time, LENGTH, "right")
    assert goodput.in_rounds(durations, NEVER, first) == expected
    if first == WORKERS:
        assert goodput.elastic(durations, NEVER) == expected


def test_one_failure_costs_what_its_mode_says():
    """All gradients take 1; the worker fails in the middle of a gradient."""
    model, durations = arrivals.ConstantSpeeds([1.0] * WORKERS), np.ones((int(LENGTH) + 9, WORKERS))
    failures, whole = failing(10.5), int(WORKERS * LENGTH)
    lost = 1  # Half of a gradient at the failure, and half of one at the end.
    assert goodput.in_rounds(durations, failures, WORKERS) == whole - WORKERS * (AWAY + lost)
    assert goodput.in_rounds(durations, failures, goodput.FIRST) == goodput.FIRST * LENGTH
    assert goodput.asynchronous(model, failures, 0) == whole - (AWAY + lost)
    rounds_without = AWAY - RESTART
    assert goodput.elastic(durations, failures) == whole - WORKERS * (lost + 2 * RESTART) - rounds_without


def test_asynchronous_training_keeps_the_share_of_workers_that_are_there():
    between = 10.0
    share = goodput.kept(between, 0)[0]
    there = WORKERS * between / (WORKERS * between + AWAY)
    assert there - 0.01 < share < there + 0.03  # All are there at the beginning.
