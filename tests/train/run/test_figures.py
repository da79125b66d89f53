"""Figures of unusual runs: one commit, nothing measured, missing values."""

import jax.numpy as jnp
import numpy as np
import pytest
from cycles import cycle, free, start
from matplotlib.figure import Figure

import gemjax
from train.config.config import Config
from train.report import report
from train.run import figures
from train.run.folder import RunFolder


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("one commit", "no loss") else pytest.mark.nightly) for name in EDGES],
)
def test_unusual_runs_are_drawn_without_a_warning(name, tmp_path):
    """Warnings are errors, such as those of an empty axis, a logarithm of zero, or a mean of nothing."""
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


def test_a_short_curve_is_not_thinned():
    y = np.arange(50.0)
    np.testing.assert_array_equal(figures._thinned(y, y), [y, y])


def test_waits_below_the_resolution_of_the_log_are_counted_in_the_legend():
    axes = Figure().add_subplot()
    figures.draw_waits(axes, gemjax.timeline(free(2, rounds=4, view=0.0)))
    assert [text.get_text() for text in axes.get_legend().get_texts()][1:] == [
        "commit wait: median 20 ms", "view wait: median 0 µs\nnone in 8 cycles"
    ]  # fmt: skip
    assert axes.get_xlim()[0] > 1e-3


def test_evaluations_are_drawn_above_the_loss_of_the_commits():
    axes, metrics = Figure().add_subplot(), {"commits": np.array([8.0]), "test_loss": np.array([1.0])}
    figures.draw_loss(axes, gemjax.timeline(free(2, rounds=4)), metrics=metrics)
    *commits, test = axes.lines
    assert test.get_zorder() > max(line.get_zorder() for line in commits)
    assert test.get_color() not in {line.get_color() for line in commits}


def test_rejected_commits_of_a_simulation_have_a_place_on_the_axis_of_commits():
    """The evaluations count them, too."""
    result = gemjax.simulate(
        gemjax.asgd(0.01, 2), lambda params, batch: jnp.sum((params - batch) ** 2), jnp.zeros(3),
        lambda worker, step: jnp.where(step == 1, jnp.inf, 1.0), gemjax.arrivals.RoundRobin(2).trace(8),
    )  # fmt: skip
    axes = Figure().add_subplot()
    figures.draw_loss(axes, gemjax.timeline(result))
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 5, 6, 7, 8]


def test_the_shares_of_time_add_up_to_all_of_it():
    run = gemjax.timeline(free(4))
    axes = Figure().add_subplot()
    figures.draw_account(axes, run, gemjax.summarise(run))
    tops = np.zeros(4)
    for part in axes.containers:
        tops += [bar.get_height() for bar in part]
    np.testing.assert_allclose(tops, 100.0)


def test_bars_of_staleness_have_as_many_values_each():
    history = {"worker": [0] * 202, "step": np.arange(202), "time": np.arange(1.0, 203.0), "loss": [1.0] * 202}
    history |= {"applied": [True] * 202, "dropped": [False] * 202, "pulled_at": [0] * 202}
    history |= {"staleness": np.arange(202) // 2}
    axes = Figure().add_subplot()
    figures.draw_staleness(axes, gemjax.timeline({name: np.array(column) for name, column in history.items()}))
    *bars, _ = (bar.get_height() for bar in axes.containers[0])  # The last one may go beyond the largest value.
    assert set(bars) == {4}


@pytest.mark.parametrize("commits", [150, 4_000, 300_000])
def test_the_running_mean_of_the_loss_is_that_of_as_many_commits_as_it_says(commits, monkeypatch):
    loss = 1 + np.random.default_rng(0).random(commits)
    loss[commits // 2] = np.inf
    history = {
        "worker": np.zeros(commits),
        "step": np.arange(commits),
        "time": np.arange(1.0, commits + 1),
        "loss": loss,
    }
    history |= {"applied": np.ones(commits, bool), "dropped": np.zeros(commits, bool)}
    monkeypatch.setattr(figures, "_thinned", lambda x, y: (x, y))
    axes = Figure().add_subplot()
    figures.draw_loss(axes, gemjax.timeline(history))
    at, mean = axes.lines[1].get_data()
    window = int(axes.lines[1].get_label().split()[2])
    assert 0.9 * commits / 50 < window <= max(2, commits / 50)
    for commit, value in list(zip(at, mean, strict=True))[:: len(at) // 20]:
        np.testing.assert_allclose(value, loss[int(commit) - window : int(commit)].mean())


def test_the_expected_staleness_is_marked():
    axes = Figure().add_subplot()
    figures.draw_staleness(axes, run := gemjax.timeline(free(4)), expected=3)
    assert axes.get_title().endswith(f", largest {run.cycles['staleness'].max():.0f}")
    assert [line.get_xdata()[0] for line in axes.lines] == [3]
    assert sum(bar.get_height() for bar in axes.containers[0]) == 120


def test_the_picture_of_a_run_names_the_learning_rates_of_its_sessions():
    folder, config = RunFolder("run"), Config(learning_rate=0.03)
    assert figures._rates(folder, config) == "0.03"
    folder.provenance.settings = [
        (0, {"learning_rate": 0.1}),
        (200, {"learning_rate": 0.1}),
        (276, {"learning_rate": 0.03}),
    ]
    assert figures._rates(folder, config) == "0.1, then 0.03 after 276 applied commits"


def test_computations_that_were_called_back_are_drawn():
    lost = [
        {"event": kind, "time": time, "worker": 1, "step": 0} for kind, time in (("dispatch", 0.5), ("interrupt", 3.0))
    ]
    events = [
        start(2),
        *cycle(0, 0, 0.0, 0.0, 0.5, 0.5, 0, 0),
        lost[0],
        *cycle(0, 1, 0.5, 0.5, 2.0, 2.5, 1, 0),
        lost[1],
    ]
    axes = Figure().add_subplot()
    figures.draw_timeline(axes, gemjax.timeline(events))
    assert [(bars.get_label(), [bar.get_width() for bar in bars]) for bars in axes.containers] == [
        ("computing", [0.0, 1.5]), ("called back", [2.5]), ("view wait", [0.0, 0.0]), ("commit wait", [0.0, 0.5]),
    ]  # fmt: skip
