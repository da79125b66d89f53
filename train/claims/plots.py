"""Parts of a claim's picture: lines with intervals, published numbers, curves along a run. Colours are those of the methods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from gemjax.telemetry.style import band, look, ticks_at
from train.claims.results import Measured
from train.task import cluster as pace

PAPER: dict[str, Any] = {"color": "0.8", "lw": 2.8, "zorder": 1.5, "solid_capstyle": "round"}  # Published curves.
PAPER_POINTS = PAPER | {"marker": "o", "ms": 8, "mec": "0.8"}  # Published points.
MARKERS = "osD^vP*X"
WORDS = {
    "train_loss": "training loss at the end",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy (%)",
    "test_error": "test error (%)",
}


AXES = {
    "worker": "commits of each worker",
    "epoch": "data epochs (all workers together)",
    "own epoch": "data epochs of each worker",
}


def shades(color: Any, count: int) -> list[tuple[float, ...]]:
    """Return `count` shades of a colour, from the colour itself to a light one; greys stay darker than published curves."""
    base = np.array(to_rgb(color))
    white = 0.3 if grey(color) else 0.55
    return [tuple(base + (1 - base) * white * index / max(1, count - 1)) for index in range(count)]


def grey(color: Any) -> bool:
    """Return True for a grey, which is the colour of published curves, and for colours close to one."""
    return bool(np.ptp(to_rgb(color)) <= 0.1)


def looks(measured: Measured) -> dict[str, dict[str, Any]]:
    """Return colour, marker and line of each series: those of its method, in shades where several series share one."""
    # Reversed: methods that the claim names first are drawn last, above the others.
    methods = {run.series: run.config.method for run, _ in reversed(measured.records)}
    alone = {run.series for run, _ in measured.records if run.config.workers == 1}
    found: dict[str, dict[str, Any]] = {}
    taken = {look(method)["marker"] for method in methods.values()}
    for method in dict.fromkeys(methods.values()):
        alike = [series for series in measured.series if methods[series] == method]
        alike.sort(key=lambda series: series in alone)  # The method's own colour is for its asynchronous runs.
        own = look(method)
        for index, (series, color) in enumerate(zip(alike, shades(own["color"], len(alike)), strict=True)):
            free = [marker for marker in MARKERS if marker not in taken] if index else []
            found[series] = own | {"color": color, "marker": (free or [own["marker"]])[0]}
            taken.add(found[series]["marker"])
    return found


def lines(
    axes: Axes,
    measured: Measured,
    what: str = "train_loss",
    paper: Mapping[str, Mapping[Any, float]] | None = None,
    only: Sequence[str] | None = None,
    label: str = "",
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    aside: float = 0.0,
    along: str = "workers",
    log: bool = True,
) -> None:
    """Draw a line per series over its points, with the range over seeds.

    Published numbers are grey. A seed fails if its value is not finite, or a training loss above ten times that of the initial
    parameters. A point with such seeds has a cross at the upper edge (the lower edge for accuracies), and a hollow point at the
    mean of its other seeds. `only` names the series to draw (default: all), `label` replaces their names, `styles` their looks.
    On a logarithmic axis the series lie side by side, each a factor of 1 + `aside` from the next. The horizontal axis is
    `along`, logarithmic if `log` is set.
    """
    edge = 0.03 if what == "test_accuracy" else 0.97
    factor = 100.0 if what in ("test_accuracy", "test_error") else 1.0
    styles = {name: style for name, style in (styles or looks(measured)).items() if only is None or name in only}
    for index, (name, style) in enumerate(styles.items()):
        points = measured.points(name)
        at = np.array(points) * (1 + aside) ** (index - (len(styles) - 1) / 2)
        if paper and name in paper and measured.full:
            known = sorted(paper[name])
            axes.plot(known, [factor * paper[name][x] for x in known], **PAPER_POINTS | {"marker": style["marker"]})
        values = [factor * np.array(_values(measured, what, name, point)) for point in points]
        most = [10 * measured.chance(name, point) if what == "train_loss" else np.inf for point in points]
        kept = [one[np.isfinite(one) & (one <= top)] for one, top in zip(values, most, strict=True)]
        good = np.array([len(some) == len(one) for some, one in zip(kept, values, strict=True)])
        some = np.array([len(one) > 0 for one in kept])
        means = np.array([one.mean() if len(one) else np.nan for one in kept])
        spreads = [(mean - one.min(), one.max() - mean) for mean, one in zip(means, kept, strict=True) if len(one)]
        bars = np.array(spreads).T if max(map(len, values)) > 1 and spreads else None
        axes.errorbar(at[some], means[some], bars, label=label or name, capsize=2, **style)
        hollow: dict[str, Any] = {**style, "ls": "", "mfc": "white", "zorder": 3}
        axes.plot(at[some & ~good], means[some & ~good], **hollow)
        axes.plot(
            at[~good], np.full((~good).sum(), edge), "x", color=style["color"], mew=1.8,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    axes.set_ylabel(WORDS[what])
    points_axis(axes, {point for name in styles for point in measured.points(name)}, along, log=log)


def level(axes: Axes, points: Sequence[float], value: float, label: str) -> None:
    """Draw a dotted line at `value` over the points."""
    axes.plot(points, [value] * len(points), color="0.3", ls=":", lw=1.2, label=label)


def _values(measured: Measured, what: str, name: str, point: float) -> tuple[float, ...]:
    if what == "test_error":
        return tuple(1 - value for value in measured.spread("test_accuracy", name, point).values)
    return measured.spread(what, name, point).values


def fan(
    axes: Axes, measured: Measured, series: str, published: Callable[[float], tuple], label: str = "", color: Any = None
) -> None:
    """Draw a curve per point of a series, in shades of its colour, over the published curves at full scale.

    Args:
      axes: where.
      measured: the measurements.
      series: the series.
      published: function from a point to the horizontal and vertical values of the paper's curve.
      label: format of a point; default: a number of workers.
      color: in place of that of the series.
    """
    points = measured.points(series)
    for shade, point in zip(shades(color or looks(measured)[series]["color"], len(points)), points, strict=True):
        if measured.full:
            axes.plot(*published(point), **PAPER)
        curve(axes, measured, series, point, label=label.format(point) if label else workers(point), color=shade)


def workers(count: float) -> str:
    """Return a number of workers in words."""
    return f"{count:g} worker{'s' * (count > 1)}"


def points_axis(axes: Axes, points: Iterable[float], label: str, *, log: bool = True) -> None:
    """Put the ticks of the horizontal axis at the points."""
    ticks_at(axes, points, log=log)
    axes.set_xlabel(label)


def means(axes: Axes, x: Any, seeds: np.ndarray, color: Any, **looks: Any) -> None:
    """Draw the mean over seeds, the rows of `seeds`, in a band of their range."""
    axes.plot(x, seeds.mean(axis=0), color=color, **looks)
    band(axes, x, seeds.min(axis=0), seeds.max(axis=0), color)


def log_axis(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with ticks at 1, 2 and 5 in each decade, or at more digits if these are few."""
    shared = [line for one in axes.get_shared_y_axes().get_siblings(axes) for line in one.lines]
    drawn = [np.asarray(line.get_ydata(), float) for line in shared if line.get_transform() == line.axes.transData]
    if not any((values > 0).any() for values in drawn):  # Every run failed.
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if low <= 0 or high / low > 2_000:  # Nothing finite is drawn, or decades are enough ticks.
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
    """Draw a curve along the run, the mean over seeds, in a band of their range.

    `per` is the unit of the horizontal axis: commits per `worker`, data `epoch`s of all workers, or each worker's `own epoch`s.
    At full scale a grey band is not filled, because a filled one looks like a curve of the paper.
    """
    commits, values = measured.curve(what, series, point, kind)
    config = next(run.config for run, _ in measured.records if (run.series, run.point) == (series, point))
    an_epoch = measured.steps_per_epoch(series, point) / pace.mean_period(config)  # Commits per epoch.
    over = {"worker": config.workers, "epoch": an_epoch, "own epoch": config.workers * an_epoch}[per]
    factor = 100.0 if what == "test_accuracy" else 1.0
    axes.plot(commits / over, factor * values, label=label or series, **style)
    _, seeds = measured.curves(what, series, point, kind)
    known = np.isfinite(seeds).any(0)
    if len(seeds) > 1 and known.any():
        low, high = (factor * reduce(seeds[:, known], axis=0) for reduce in (np.nanmin, np.nanmax))
        looks: dict[str, Any] = (
            {"facecolor": "none", "lw": 0.5, "alpha": 0.6} if measured.full and grey(style["color"]) else {}
        )
        band(axes, commits[known] / over, low, high, style["color"], **looks)
    axes.set(
        xlabel=AXES[per],
        ylabel={"train_loss": "training loss"}.get(what, WORDS[what]),
    )


def curves(axes: Axes, measured: Measured, point: float, what: str = "train_loss", **options: Any) -> None:
    """Draw the curve of each series at a point; `options` are those of :func:`curve` and update the looks of the series."""
    for series, style in looks(measured).items():
        curve(axes, measured, series, point, what, **style | options)
