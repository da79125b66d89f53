"""The picture of a sweep: the best point of each method by number of workers, and loss by learning rate."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from gemjax.telemetry import style
from train.common.files import write_picture
from train.sweep.folder import Row
from train.sweep.table import Point, best, best_of_cells, points

COLUMNS = 4  # Small multiples per row.
LOSS = "training loss at the end"
CROSS = "diverged"
ERROR = "test error (%)"

Looks = dict[str, dict[str, Any]]


def draw(rows: Sequence[Row], path: str | os.PathLike, title: str) -> None:
    """Draw a sweep to `path` (.png)."""
    workers, rates = (sorted({row[name] for row in rows}) for name in ("workers", "learning_rate"))
    methods = dict.fromkeys(row["method"] for row in rows)
    looks = {method: style.look(method) for method in methods}
    lines = math.ceil(len(workers) / COLUMNS) if len(rates) > 1 else 0
    with style.style():
        figure = style.picture(columns=2, height=3.2 + 2.1 * lines)
        heights = [2.6, 2.1 * lines] if lines else [1.0]
        upper, *lower = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
        best_points = upper.subplots(1, 2)
        for axes, what in zip(best_points, (ERROR, LOSS), strict=True):
            _draw_best(axes, rows, looks, what)
            style.ticks_at(axes, workers)
            _set_crosses_apart([axes], looks)
        if lines:
            columns = min(COLUMNS, len(workers))
            grid = lower[0].subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
            for axes, count in zip(grid, workers, strict=False):
                _draw_rates(axes, [row for row in rows if row["workers"] == count], looks)
                axes.set_title(f"{count} worker{'s' if count > 1 else ''}")
                axes.tick_params(labelbottom=True)
            style.ticks_at(grid[0], rates)
            _set_crosses_apart(grid[: len(workers)], looks)
            for axes in grid[len(workers) :]:
                axes.set_axis_off()
            others = [name for name in ("momentum", "strength") if len({row[name] for row in rows} - {None}) > 1]
            each = f" (each with the best {' and '.join(others)} there)" if others else ""
            lower[0].supxlabel(f"learning rate{each}", fontsize="medium")
            lower[0].supylabel(LOSS, fontsize="medium")
        style.heading(figure, title, _key(rows))
        for axes in best_points:
            style.label_ends(axes)
        write_picture(path, figure)


def _key(rows: Sequence[Row]) -> str:
    """Return the meaning of bands, marks and the dotted line."""
    seeds = len({row["seed"] for row in rows})
    parts = [f"Mean and range of {seeds} seeds" if seeds > 1 else "One seed", "dotted: before training"]
    if any(point.idle for point in points(rows)):
        parts.append("hollow: no better than that")
    if any(row["diverged"] for row in rows):
        parts.append("crosses: some seeds diverged, lines are the others")
    return "; ".join(parts) + "."


def _draw_best(axes: Axes, rows: Sequence[Row], looks: Looks, what: str) -> None:
    """Draw the point with the least training loss of each method and number of workers."""
    found = [point for point, _ in best_of_cells(rows)]
    for method in looks:
        mine = sorted((p for p in found if p["method"] == method), key=lambda p: p["workers"])
        _draw_line(axes, mine, "workers", what, method, looks)
    if what == LOSS:
        _draw_beginning(axes, rows)
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="workers", ylabel=what, title=f"{what.split(' at')[0].split(' (')[0].capitalize()} at the best point"
    )


def _draw_rates(axes: Axes, rows: Sequence[Row], looks: Looks) -> None:
    """Draw the best momentum and strength of each method at each learning rate."""
    found = points(rows)
    for method in looks:
        mine = [p for p in found if p["method"] == method]
        rates = sorted({p["learning_rate"] for p in mine})
        line = [best(p for p in mine if p["learning_rate"] == rate) for rate in rates]
        _draw_line(axes, line, "learning_rate", LOSS, method, looks)
    _draw_beginning(axes, rows)
    if min(p["learning_rate"] for p in found) > 0:
        axes.set_xscale("log")


def _draw_beginning(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the training loss of initial parameters. A point there has learned nothing."""
    axes.axhline(float(np.mean([row["initial_train_loss"] for row in rows])), color="0.4", ls=":", lw=1.2, zorder=1)


def _draw_line(axes: Axes, line: Sequence[Point], x: str, what: str, method: str, looks: Looks) -> None:
    """Draw mean and range over the seeds that did not diverge, and a cross at the upper edge where one did."""
    at = np.array([point[x] for point in line], float)
    mean, low, high = np.array([_values(point, what) for point in line]).T
    axes.plot(at, mean, label=method, **looks[method])
    idle = [point.idle for point in line]
    axes.plot(at[idle], mean[idle], **looks[method] | {"ls": "", "mfc": "white", "zorder": 3})
    style.band(axes, at, low, high, looks[method]["color"], limits=(0, 100 if what == ERROR else math.inf))
    lost = at[[point.diverged > 0 for point in line]]
    if len(lost):  # One row per method, so that no cross hides another.
        height = 1 - _row(looks) * (list(looks).index(method) + 0.7)
        axes.plot(lost, np.full(len(lost), height), ls="", marker="x", ms=4.5, mew=1.4, color=looks[method]["color"],
                  transform=axes.get_xaxis_transform(), gid=CROSS)  # fmt: skip


def _set_crosses_apart(group: Sequence[Axes], looks: Looks) -> None:
    """Scale axes that share their limits, and put crosses on a grey strip above all lines."""
    lines = [line for axes in group for line in axes.lines]
    known = np.concatenate([np.asarray(line.get_ydata(), float) for line in lines if line.get_gid() != CROSS])
    known = known[np.isfinite(known)]
    if len(known) and 0 < known.min() < known.max() / 5:
        group[0].set_yscale("log")
        group[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        few = known.max() < 100 * known.min()  # Decades alone would label only one or two ticks.
        group[0].yaxis.set_minor_formatter(FuncFormatter(_two_and_five) if few else NullFormatter())
    crosses = [line for line in lines if line.get_gid() == CROSS]
    strip = max((1 - float(np.min(line.get_ydata())) + _row(looks) / 2 for line in crosses), default=0.0)
    scale = group[0].yaxis.get_transform()
    low, high = scale.transform(np.array(group[0].get_ylim()))
    low, high = scale.inverted().transform(np.array([low, low + (high - low) / (1 - strip)])).tolist()
    group[0].set_ylim(low, high)
    for axes in group:
        if strip:
            axes.add_patch(Rectangle((0, 1 - strip), 1, strip, transform=axes.transAxes, color="0.93", zorder=0.5))


def _two_and_five(value: float, _: object = None) -> str:
    """Return the label of a minor tick between decades: only at 2 and 5, so that none overlap."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _row(looks: Looks) -> float:
    """Return the height of the crosses of one method as a fraction of the plot."""
    return min(0.045, 0.3 / len(looks))


def _values(point: Point, what: str) -> tuple[float, float, float]:
    if what == LOSS:
        return point.spread("train_loss")
    mean, least, most = point.spread("test_accuracy")
    return 100 * (1 - mean), 100 * (1 - most), 100 * (1 - least)
