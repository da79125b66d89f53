"""The picture of a sweep: the best of each method against the number of workers, and loss against learning rate."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from train.sweep_table import Point, best, best_of_cells, points
from train.sweepfolder import Row

COLUMNS = 4  # Small multiples beside each other.
MARKERS = "osD^vP*"
LOSS = "training loss at the end"
ERROR = "test error (%)"

Looks = dict[str, dict[str, Any]]


def draw(rows: Sequence[Row], path: str | os.PathLike, title: str) -> None:
    """Draws a sweep into `path` (.png)."""
    workers, rates = (sorted({row[name] for row in rows}) for name in ("workers", "learning_rate"))
    methods = dict.fromkeys(row["method"] for row in rows)
    looks = {
        method: {"color": f"C{k % 10}", "marker": MARKERS[k % len(MARKERS)], "ls": "-" if k < 10 else "--"}
        for k, method in enumerate(methods)
    }
    lines = math.ceil(len(workers) / COLUMNS) if len(rates) > 1 else 0
    figure = Figure(figsize=(11, 4.3 + 3.2 * lines), layout="constrained")
    upper, *lower = np.atleast_1d(
        figure.subfigures(2 if lines else 1, 1, height_ratios=[4, 3.2 * lines][: 2 if lines else 1])
    )
    for axes, what in zip(upper.subplots(1, 2), (ERROR, LOSS), strict=True):
        _draw_best(axes, rows, looks, what)
        _ticks(axes, workers)
    shown = [Line2D([], [], label=method, ms=5, lw=1.5, **look) for method, look in looks.items()]
    if any(row["diverged"] for row in rows):
        shown.append(Line2D([], [], ls="", marker="x", color="black", mew=1.8, label="diverged:\nsome or all seeds"))
    upper.legend(handles=shown, loc="outside right upper", frameon=False)
    if lines:
        columns = min(COLUMNS, len(workers))
        grid = lower[0].subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, count in zip(grid, workers, strict=False):
            _draw_rates(axes, [row for row in rows if row["workers"] == count], looks)
            axes.set_title(f"{count} worker{'s' if count > 1 else ''}", fontsize="medium")
            axes.tick_params(labelbottom=True)
        _ticks(grid[0], rates)
        for axes in grid[len(workers) :]:
            axes.set_axis_off()
        lower[0].supxlabel("learning rate", fontsize="medium")
        lower[0].supylabel(LOSS, fontsize="medium")
    seeds = len({row["seed"] for row in rows})
    figure.suptitle(f"{title}; " + (f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"))
    figure.savefig(path, dpi=110)


def _draw_best(axes: Axes, rows: Sequence[Row], looks: Looks, what: str) -> None:
    """Of each method with each number of workers the point of the least training loss."""
    found = [point for point, _ in best_of_cells(rows)]
    for method in looks:
        mine = sorted((p for p in found if p["method"] == method), key=lambda p: p["workers"])
        _draw_line(axes, mine, "workers", what, method, looks)
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="workers", ylabel=what, title=f"{what.split(' at')[0].split(' (')[0].capitalize()} at the best point"
    )


def _draw_rates(axes: Axes, rows: Sequence[Row], looks: Looks) -> None:
    """Of each method at each learning rate the best momentum and strength."""
    found = points(rows)
    for method in looks:
        mine = [p for p in found if p["method"] == method]
        rates = sorted({p["learning_rate"] for p in mine})
        line = [best(p for p in mine if p["learning_rate"] == rate) for rate in rates]
        _draw_line(axes, line, "learning_rate", LOSS, method, looks)
    if min(p["learning_rate"] for p in found) > 0:
        axes.set_xscale("log")


def _draw_line(axes: Axes, line: Sequence[Point], x: str, what: str, method: str, looks: Looks) -> None:
    """Mean and range over the seeds that did not diverge; a cross at the upper edge where one did."""
    at = np.array([point[x] for point in line], float)
    mean, low, high = np.array([_values(point, what) for point in line]).T
    axes.plot(at, mean, ms=5, lw=1.5, **looks[method])
    axes.fill_between(at, low, high, color=looks[method]["color"], alpha=0.18, lw=0)
    lost = at[[point.diverged > 0 for point in line]]
    # One below the other where several methods diverge.
    height = 0.96 - 0.05 * list(looks).index(method)
    axes.plot(lost, np.full(len(lost), height), ls="", marker="x", ms=6, mew=1.8, color=looks[method]["color"],
              transform=axes.get_xaxis_transform())  # fmt: skip
    known = np.concatenate([other.get_ydata() for other in axes.lines if other.get_transform() == axes.transData])
    if np.nanmin(known, initial=1.0) > 0:
        axes.set_yscale("log")
    axes.margins(y=0.12)
    axes.grid(alpha=0.3)


def _values(point: Point, what: str) -> tuple[float, float, float]:
    if what == LOSS:
        return point.spread("train_loss")
    mean, least, most = point.spread("test_accuracy")
    return 100 * (1 - mean), 100 * (1 - most), 100 * (1 - least)


def _ticks(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at what was tried, and nowhere else."""
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
