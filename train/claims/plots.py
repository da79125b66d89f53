"""Pieces of a claim's picture: lines with intervals, published numbers beside them, curves along a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from train.claims.results import Measured
from train.task import cluster as pace

MARKERS = "osD^vP*X"
WORDS = {
    "train_loss": "training loss at the end",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy (%)",
    "test_error": "test error (%)",
    "pi_median": "median of π",
    "gap": "gap (RMS)",
    "time": "virtual time",
}


AXES = {
    "worker": "commits of each worker",
    "epoch": "data epochs (all workers together)",
    "own epoch": "data epochs of each worker",
}


def look(index: int) -> dict[str, Any]:
    """Colour and marker of the series at `index`."""
    return {"color": f"C{index % 10}", "marker": MARKERS[index % len(MARKERS)]}


def lines(
    axes: Axes,
    measured: Measured,
    what: str = "train_loss",
    paper: Mapping[str, Mapping[Any, float]] | None = None,
    series: Sequence[str] | None = None,
) -> None:
    """A line for each series over its points, with 95 % intervals over seeds.

    Published numbers are hollow and dashed in the same colour. A point with seeds that are not finite, or with a loss of more
    than ten times that of initial parameters, is a cross at the edge, the lower one of accuracies.
    """
    edge = 0.03 if what == "test_accuracy" else 0.97
    factor = 100.0 if what in ("test_accuracy", "test_error") else 1.0
    for index, name in enumerate(measured.series):
        if series is not None and name not in series:
            continue
        points = measured.points(name)
        spreads = [_spread(measured, what, name, point) for point in points]
        means = np.array([spread[0] for spread in spreads]) * factor
        halves = np.array([spread[1] for spread in spreads]) * factor
        good = np.isfinite(means)
        if what == "train_loss":
            good &= ~(means > [10 * measured.chance(name, point) for point in points])
        style = look(index)
        bars = halves[good] if np.isfinite(halves[good]).any() else None
        axes.errorbar(np.array(points)[good], means[good], bars, label=name, ms=5, lw=1.5, capsize=3, **style)
        _seeds(axes, measured, what, name, points, factor, style["color"])
        if (~good).any():
            axes.plot(
                np.array(points)[~good], np.full((~good).sum(), edge), "x", color=style["color"], mew=1.8,
                transform=axes.get_xaxis_transform(), label=f"{name}: diverged",
            )  # fmt: skip
        if paper and name in paper and measured.full:
            at = sorted(paper[name])
            axes.plot(
                at, [factor * paper[name][x] for x in at], ls="--", lw=1, ms=6, mfc="white", alpha=0.8,
                label=f"{name}, paper", **style,
            )  # fmt: skip
    axes.set_ylabel(WORDS.get(what, what))


def _seeds(axes: Axes, measured: Measured, what: str, name: str, points, factor: float, color: str) -> None:
    """Every seed as a dot, where there are several."""
    for point in points:
        values = np.array(measured.spread("test_accuracy" if what == "test_error" else what, name, point).values)
        values = 1 - values if what == "test_error" else values
        if len(values) > 1:
            shown = factor * values[np.isfinite(values)]
            axes.plot([point] * len(shown), shown, ".", ms=3, color=color, alpha=0.6)


def _spread(measured: Measured, what: str, name: str, point: float) -> tuple[float, float]:
    if what == "test_error":
        mean, half, values = measured.spread("test_accuracy", name, point)
        mean = 1 - mean
    else:
        mean, half, values = measured.spread(what, name, point)
    return mean, half if len(values) > 2 else np.nan  # Of two seeds it would be 13 standard errors wide.


def points_axis(axes: Axes, points: Sequence[float], label: str, *, log: bool = True) -> None:
    """The points themselves as ticks of the horizontal axis."""
    if log:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(point) for point in sorted(points)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def log_axis(axes: Axes) -> None:
    """A logarithmic vertical axis labelled with plain numbers: at 1, 2 and 5, more where those are less than four."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if low <= 0 or high / low > 2_000:  # Nothing finite was drawn; or decades are ticks enough.
        return
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    at = lambda *digits: [x for decade in decades for digit in digits if low <= (x := digit * 10.0**decade) <= high]
    ticks = at(1, 2, 5)
    axes.yaxis.set_major_locator(FixedLocator(ticks if len(ticks) >= 4 else at(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def curve(
    axes: Axes, measured: Measured, series: str, point: float, what: str = "train_loss", *,
    per: str = "worker", kind: str = "curve", label: str | None = None, **style,
) -> None:  # fmt: skip
    """A curve along the run, mean over seeds.

    `per` is what the horizontal axis counts: commits of each `worker`, data `epoch`s of all, or each one's `own epoch`s.
    """
    commits, values = measured.curve(what, series, point, kind)
    config = next(run.config for run, _ in measured.records if (run.series, run.point) == (series, point))
    an_epoch = measured.steps_per_epoch(series, point) / pace.mean_period(config)  # In commits.
    over = {"worker": config.workers, "epoch": an_epoch, "own epoch": config.workers * an_epoch}[per]
    factor = 100.0 if what == "test_accuracy" else 1.0
    axes.plot(commits / over, factor * values, label=label or series, lw=1.3, **style)
    axes.set(
        xlabel=AXES[per],
        ylabel={"train_loss": "training loss"}.get(what, WORDS.get(what, what)),
    )
