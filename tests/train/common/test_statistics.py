"""Statistics of the benchmark on made-up numbers: crossings, intervals, ratios, ties and profiles."""

import math

import numpy as np
import pytest

from train.common.statistics import crossing, estimate, leaders, profile, ratio


def test_a_curve_that_begins_above_the_target_reaches_it_at_its_first_point():
    assert crossing([10, 20], [0.9, 0.95], 0.8) == 10
    assert crossing([10, 20, 30], [None, 0.5, 0.9], 0.7) == 25
    assert math.isinf(crossing([], [], 0.7))


def test_the_interval_covers_a_known_mean_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    samples = [estimate([random.normal(3.0, 1.0, 40)]) for _ in range(100)]
    assert 85 <= sum(one.low <= 3.0 <= one.high for one in samples) <= 100
    assert all(one.high - one.low < 1.0 for one in samples)


def test_settings_count_alike_whatever_their_number_of_seeds():
    assert estimate([[1.0] * 9, [3.0]]).mean == 2.0


def test_ratios_are_paired_by_seed():
    slow, fast = [[10.0, 40.0, 90.0]], [[5.0, 20.0, 45.0]]
    assert ratio(slow, fast) == pytest.approx((2.0, 2.0, 2.0))  # The spread over seeds cancels.
    assert ratio(slow, [fast[0][::-1]]).high > 10


def test_a_difference_inside_its_interval_is_a_tie_and_beyond_it_is_none():
    best, near, far = [[0.90, 0.92, 0.91]], [[0.91, 0.90, 0.91]], [[0.80, 0.82, 0.81]]
    assert leaders({"far": far, "near": near, "best": best}) == ["best", "near"]
    assert leaders({"far": far}) == ["far"]
    assert leaders({}) == []
    noisy = [[0.5, 1.0, 0.95]]
    assert leaders({"best": best, "noisy": noisy}) == ["best", "noisy"]


def test_a_method_that_did_not_arrive_is_never_within_a_factor():
    shares = profile({"a": [1.0, math.inf, 3.0], "b": [2.0, math.inf, 1.0]}, [1.0, 2.0, 3.0])
    assert shares == {"a": [0.5, 0.5, 1.0], "b": [0.5, 1.0, 1.0]}  # A setting in which none arrived does not count.
    assert profile({"a": [math.inf]}, [1.0]) == {"a": [0.0]}
