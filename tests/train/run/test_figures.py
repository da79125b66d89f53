"""Figures of runs at the edges: one commit, nothing measured, values that are missing."""

import numpy as np
import pytest
from cycles import cycle, free, start
from matplotlib.figure import Figure

import gemjax
from train.report import report
from train.run import figures


def commit(worker, step, time, pulled_at, **fields):
    return {"event": "commit", "time": time, "worker": worker, "step": step, "pulled_at": pulled_at, **fields}


EDGES = {
    "one commit": [start(1), *cycle(0, 0, 0.0, 0.0, 1.0, 1.0, 0, 0)],
    "nothing but commits": [commit(0, 0, 1.0, 0), commit(1, 0, 2.0, 0), commit(0, 1, 3.0, 1)],
    "no loss": [commit(0, step, step + 1.0, step, loss=None, gap=None, staleness=0) for step in range(5)],
    "no time": [start(2), *cycle(0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0), *cycle(1, 0, 0.0, 0.0, 0.0, 0.0, 0, 1)],
    "loss below zero": [start(1), *[e for i in range(4) for e in cycle(0, i, i, i, i + 0.5, i + 0.6, i, 0, loss=-1.0)]],
    "an idle worker": [start(3), *free(2, rounds=3)[1:]],
    "many commits": free(2, rounds=2500),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "nothing but commits" else pytest.mark.slow) for name in EDGES]
)
def test_whatever_there_is_is_drawn(name, tmp_path):
    """Warnings are errors: of an empty axis, a logarithm of zero, a mean of nothing."""
    run = gemjax.timeline(EDGES[name])
    pictures = report.draw(run, gemjax.summarise(run), {}, tmp_path / "figures")
    assert {"loss", "loss-time", "shares", "timeline"} <= {picture.name for picture in pictures}
    for picture in pictures:
        assert picture.svg.startswith(b"<?xml")
        assert len(picture.svg) < 500_000


def test_a_thinned_curve_keeps_its_extremes_and_its_end():
    y = np.random.default_rng(0).normal(size=100_003)
    y[[777, 50_000]], y[12_345] = [99.0, -99.0], np.nan
    x, thin = figures._thinned(np.arange(len(y)), y)
    assert len(x) == len(thin) <= 1.1 * figures.POINTS
    assert (np.nanmax(thin), np.nanmin(thin), thin[-1], x[-1]) == (99.0, -99.0, y[-1], 100_002)
    assert (np.diff(x) >= 0).all()
    assert np.isnan(figures._thinned(np.arange(9000), np.full(9000, np.nan))[1]).all()


def test_a_short_curve_is_drawn_as_it_is():
    y = np.arange(50.0)
    np.testing.assert_array_equal(figures._thinned(y, y), [y, y])


def test_the_account_of_time_fills_the_whole():
    run = gemjax.timeline(free(4))
    axes = Figure().add_subplot()
    figures.draw_account(axes, run, gemjax.summarise(run))
    tops = np.zeros(4)
    for part in axes.containers:
        tops += [bar.get_height() for bar in part]
    np.testing.assert_allclose(tops, 100.0)


def test_the_expected_staleness_is_marked():
    axes = Figure().add_subplot()
    figures.draw_staleness(axes, gemjax.timeline(free(4)), expected=3)
    assert [line.get_xdata()[0] for line in axes.lines] == [3]
    assert sum(bar.get_height() for bar in axes.containers[0]) == 120
