"""The figure of a run, which shows the history and is readable at the width of a column."""

import matplotlib.text
import numpy as np
import pytest
from matplotlib.figure import Figure

from gemjax.telemetry import plotting

N = 3


def history(commits=200, **columns):
    """Return the history of three workers, the last of which never commits; the loss falls."""
    row = np.arange(commits)
    return {
        "worker": row % 3 % 2,
        "time": 0.5 * (row + 1.0),
        "loss": np.exp(-row / 20.0),
        "staleness": row % 5,
        "applied": np.ones(commits, bool),
        "dropped": np.zeros(commits, bool),
    } | columns


def drawn(figure):
    """Draw a figure and return its visible texts."""
    figure.canvas.draw()
    texts = figure.findobj(matplotlib.text.Text)
    return [text for text in texts if text.get_visible() and text.get_text()]


@pytest.mark.parametrize("commits", [1, 2, 7, 200, 5000])
def test_runs_of_any_length_are_drawn(commits):
    figure = plotting.plot_run(history(commits), N)
    assert isinstance(figure, Figure)
    texts = drawn(figure)
    assert min(text.get_fontsize() for text in texts) >= 8
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "staleness (commits)", "commits per worker"]
    assert figure.axes[-1].get_xlabel() == "virtual time (units of the trace)"
    assert figure.get_size_inches()[0] <= 3.5


def test_the_curves_are_those_of_the_history():
    one = history(1200)
    loss, staleness, commits = plotting.plot_run(one, N).axes
    raw, mean = (line.get_ydata() for line in loss.lines[:2])
    assert (raw.min(), raw.max()) == (one["loss"].min(), one["loss"].max())
    np.testing.assert_allclose(mean[:3], [one["loss"][k : k + 24].mean() for k in range(3)])
    assert loss.get_yscale() == "log"
    np.testing.assert_array_equal(staleness.lines[0].get_ydata(), 2)
    assert sorted(line.get_ydata()[-1] for line in commits.lines) == [0, 400, 800]
    assert {text.get_text() for text in commits.texts} == {"most: worker 0, 800", "fewest: worker 2, 0", "others"}


def test_of_workers_that_commit_equally_often_two_are_named():
    commits = plotting.plot_run(history(worker=np.arange(200) % 2), 2).axes[2]
    assert {text.get_text() for text in commits.texts} == {"most: worker 0, 100", "fewest: worker 1, 100"}


def test_commits_that_were_not_applied_are_marked_and_in_no_curve():
    one = history(100)
    one["applied"][[3, 50, 60]] = False
    one["dropped"][50] = True
    one["loss"][[3, 60]] = np.nan
    loss, _, commits = plotting.plot_run(one, N).axes
    ticks = [line.get_xdata().tolist() for line in loss.lines if line.get_marker() == "|"]
    assert ticks == [[2.0, 30.5], [25.5]]
    assert loss.get_title("right") == "2 rejected and 1 dropped (ticks)"
    assert np.isfinite(loss.lines[0].get_ydata()).all()
    assert sum(line.get_ydata()[-1] for line in commits.lines) == 97


def test_the_axis_names_seconds_and_begins_with_a_continued_history():
    one = history(time=100.0 + np.arange(200.0), dispatched=np.arange(200.0))
    axes = plotting.plot_run(one, N).axes[-1]
    assert axes.get_xlabel() == "time (s)"
    assert axes.get_xlim()[0] > 90
    assert plotting.plot_run(history(), N).axes[-1].get_xlim()[0] == 0


@pytest.mark.slow
def test_many_workers_and_commits_make_a_small_figure(tmp_path):
    many = history(50_000, worker=np.arange(50_000) % 1000)
    figure = plotting.plot_run(many, 1000)
    assert len(figure.axes[2].lines) <= plotting.WORKERS + 2
    assert max(len(line.get_xdata()) for axes in figure.axes for line in axes.lines[:1]) <= 2 * plotting.POINTS
    assert "62 of 998 others" in {text.get_text() for text in figure.axes[2].texts}
    figure.savefig(tmp_path / "run.pdf")
    assert (tmp_path / "run.pdf").stat().st_size < 200_000


def test_a_sweep_is_drawn_over_the_number_with_the_most_values_and_marks_runs_that_diverged():
    rates, momenta = (0.01, 0.1, 1.0), (0.5, 0.9)
    table = [
        {"momentum": momentum, "rate": rate, "seed": seed, "loss": np.nan if rate == 1.0 else rate + momentum + seed}
        for momentum in momenta for rate in rates for seed in (0, 1, 2)
    ]  # fmt: skip
    axes = plotting.plot_sweep(table, ["momentum", "rate"]).axes[0]
    lines = {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}
    assert set(lines) == {"momentum 0.5", "momentum 0.9"}
    np.testing.assert_allclose(lines["momentum 0.5"], [[0.01, 1.51], [0.1, 1.6]])  # Medians over seeds.
    assert axes.get_xlabel() == "rate"
    assert axes.get_title("right") == "6 of 18 runs diverged (ticks)"
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "|"] == [[1.0] * 6]
