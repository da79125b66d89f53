"""Statistics over seeds: time to a target, intervals by bootstrap over seeds, ties and profiles. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 4000  # Bootstrap samples.
Seeds = Sequence[float] | np.ndarray  # One value per seed.


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % interval."""

    mean: float
    low: float
    high: float


def crossing(x: Sequence[float], values: Sequence[float | None], target: float) -> float:
    """Return the x at which a curve, linear between its points, first reaches a target; infinite if it does not.

    >>> crossing([1, 2, 3], [0.0, 0.5, 0.7], 0.6), crossing([1, 2], [0.8, 0.9], 0.6), crossing([1, 2], [0.1, None], 0.6)
    (2.5, 1.0, inf)
    """
    before: tuple[float, float] | None = None
    for place, value in zip(x, values, strict=True):
        if value is None:
            continue
        if value >= target:
            if before is None:
                return float(place)
            share = (target - before[1]) / (value - before[1])
            return float(before[0] + share * (place - before[0]))
        before = place, value
    return math.inf


def estimate(groups: Sequence[Seeds]) -> Estimate:
    """Return the mean of the means of several settings, and its interval by bootstrap of the seeds within each setting.

    >>> estimate([[1.0, 1.0], [3.0, 3.0]])
    Estimate(mean=2.0, low=2.0, high=2.0)
    """
    random, drawn = np.random.default_rng(0), np.zeros(DRAWS)
    for values in groups:
        array = np.asarray(values, float)
        drawn += array[random.integers(0, len(array), (DRAWS, len(array)))].mean(1) / len(groups)
    mean = float(np.mean([np.mean(values) for values in groups]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(mean, float(low), float(high))


def ratio(numerators: Sequence[Seeds], denominators: Sequence[Seeds]) -> Estimate:
    """Return the geometric mean of ratios that are paired by seed, and its interval.

    >>> [round(value, 3) for value in ratio([[2.0, 8.0]], [[1.0, 2.0]])]
    [2.828, 2.0, 4.0]
    """
    pairs = zip(numerators, denominators, strict=True)
    logs = estimate([np.log(np.asarray(above, float)) - np.log(np.asarray(below, float)) for above, below in pairs])
    return Estimate(*(math.exp(value) for value in logs))


def leaders(scores: Mapping[str, Sequence[Seeds]]) -> list[str]:
    """Return the method with the highest mean score and those that tie with it, from the best on.

    A method ties if the interval of its difference to the best, paired by seed, contains 0.

    >>> leaders({"a": [[1.0, 1.1]], "b": [[5.0, 5.1]], "c": [[4.9, 5.15]]})
    ['b', 'c']
    """
    means = {name: float(np.mean([np.mean(values) for values in groups])) for name, groups in scores.items()}
    order = sorted(means, key=lambda name: -means[name])
    if not order:
        return []
    best = scores[order[0]]
    behind = lambda name: estimate([np.subtract(one, two) for one, two in zip(best, scores[name], strict=True)])
    return [order[0], *(name for name in order[1:] if behind(name).low <= 0)]


def profile(times: Mapping[str, Sequence[float]], factors: Sequence[float]) -> dict[str, list[float]]:
    """Return, per method, the share of settings in which its time is within each factor of the shortest.

    >>> profile({"a": [1.0, 4.0], "b": [2.0, math.inf]}, [1.0, 2.0, 1e9])
    {'a': [1.0, 1.0, 1.0], 'b': [0.0, 0.5, 0.5]}
    """
    shortest = np.min(np.array(list(times.values()), float), axis=0)
    counted = np.isfinite(shortest)
    if not counted.any():
        return {name: [0.0] * len(factors) for name in times}
    found = {}
    for name, values in times.items():
        relative = np.asarray(values, float)[counted] / shortest[counted]
        found[name] = [float(np.mean(relative <= factor * (1 + 1e-12))) for factor in factors]
    return found
