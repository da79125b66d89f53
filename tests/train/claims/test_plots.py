"""Pictures of claims: seeds that failed, and the others."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from train.claims import plots
from train.claims.results import Measured
from train.claims.runs import PlannedRun
from train.config.config import Config

CONFIG = Config(engine="simulate", method="gem", workers=2)


def measured(**values):
    """Return the measurements of a series with a point per keyword, its accuracies per seed given."""
    runs = []
    for index, accuracies in enumerate(values.values()):
        for seed, accuracy in enumerate(accuracies):
            config = dataclasses.replace(CONFIG, workers=2 ** (index + 1), seed=seed)
            record = {"diagnostics": {}, "test_accuracy": accuracy, "train_loss": 0.1, "initial_train_loss": 2.3}
            runs.append((PlannedRun("GEM", config.workers, config), record))
    return Measured("cpu", runs)


def drawn(found):
    axes = Figure().subplots()
    plots.lines(axes, found, "test_accuracy", label="gem")
    line, hollow, crosses = axes.lines[0], *axes.lines[-2:]
    return axes, line, hollow, crosses


def test_a_point_with_a_failed_seed_is_the_hollow_mean_of_the_others_below_a_cross():
    _, line, hollow, crosses = drawn(measured(two=(0.8, 0.9), four=(0.6, None, 0.7)))
    np.testing.assert_allclose(line.get_ydata(), [85, 65])
    np.testing.assert_allclose(hollow.get_xydata(), [[4, 65]])
    assert hollow.get_markerfacecolor() == "white"
    assert crosses.get_xdata().tolist() == [4]
    assert crosses.get_marker() == "x"


def test_a_point_whose_seeds_all_failed_is_a_cross_alone():
    _, line, hollow, crosses = drawn(measured(two=(0.8, 0.9), four=(None, None)))
    np.testing.assert_allclose(line.get_xydata(), [[2, 85]])
    assert not len(hollow.get_xdata())
    assert crosses.get_xdata().tolist() == [4]


def test_series_of_one_picture_have_different_markers():
    methods = {"a": "asgd", "b": "asgd", "c": "gem", "d": "gem"}
    runs = [(PlannedRun(name, 2, dataclasses.replace(CONFIG, method=of)), {}) for name, of in methods.items()]
    assert len({look["marker"] for look in plots.looks(Measured("cpu", runs)).values()}) == 4


@pytest.mark.parametrize("accuracies", [(0.8, 0.9), (0.7,)])
def test_a_point_without_failures_has_neither(accuracies):
    _, line, hollow, crosses = drawn(measured(two=accuracies))
    np.testing.assert_allclose(line.get_ydata(), [100 * np.mean(accuracies)])
    assert not len(hollow.get_xdata())
    assert not len(crosses.get_xdata())
