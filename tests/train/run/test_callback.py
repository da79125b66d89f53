"""Evaluations of a run: their commits agree with the documentation of the flags."""

import numpy as np
import pytest

import gemjax
from train.config.config import Config
from train.run.callback import evaluations


@pytest.mark.parametrize(
    ("every", "num_commits", "expected"),
    [(4, 10, [4, 8, 10]), (5, 10, [5, 10]), (20, 10, [10]), (0, 10, [*range(1, 11)]), (0, 60, [*range(3, 61, 3)])],
)
def test_evaluations_at_multiples_of_commits(every, num_commits, expected):
    assert evaluations(Config(eval_every=every), num_commits).tolist() == expected


@pytest.mark.parametrize("seconds", [0.1, 0.3, 1.0, 2.5, 100.0])
@pytest.mark.parametrize("times", ["gamma", "multiples"])
def test_evaluations_at_multiples_of_virtual_seconds(seconds, times):
    """A commit exactly at a multiple counts as not later than it, despite rounding."""
    trace = gemjax.arrivals.Gamma(3).trace(60, seed=1)
    if times == "multiples":
        trace = gemjax.Trace(trace.worker, time=np.arange(1, 61) * 0.1)
    multiples = np.arange(1, 1 + trace.time[-1] / seconds) * seconds
    expected = {int((trace.time <= multiple).sum()) for multiple in multiples} - {0} | {60}
    config = Config(engine="simulate", eval_seconds=seconds)
    assert evaluations(config, 60, trace).tolist() == sorted(expected)


def test_nothing_is_evaluated_twice_without_commits():
    trace = gemjax.Trace([0, 0, 0], time=[2.5, 2.6, 9.0])
    assert evaluations(Config(engine="simulate", eval_seconds=1.0), 3, trace).tolist() == [2, 3]
