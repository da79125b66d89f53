"""The table of a sweep: the best point of each method with each number of workers."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from train.sweep.folder import POINT, Row
from train.task.divergence import MARGIN

UNBOUNDED = 1000  # Columns, more than any table needs.


@dataclasses.dataclass(frozen=True)
class Point:
    """The runs of one method with one number of workers at one point of the grid, one per seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str):
        return self.rows[0][name]

    @property
    def diverged(self) -> int:
        """The number of its runs that ended with a larger training loss than they began with."""
        return sum(row["diverged"] for row in self.rows)

    @property
    def idle(self) -> bool:
        """True if the runs that did not diverge are, on average, no better than before training."""
        return self.spread("train_loss")[0] >= (1 - MARGIN) * self.mean("initial_train_loss")

    def spread(self, name: str) -> tuple[float, float, float]:
        """Return mean, least and largest value over the runs that did not diverge; NaN if all did."""
        values = [row[name] for row in self.rows if not row["diverged"] and row[name] is not None]
        return (math.fsum(values) / len(values), min(values), max(values)) if values else (math.nan,) * 3

    def mean(self, name: str) -> float:
        """Return the mean over all seeds of a column that does not depend on divergence."""
        return math.fsum(row[name] for row in self.rows) / len(self.rows)


def points(rows: Iterable[Row]) -> list[Point]:
    """Return the points of rows, in which the seeds of a point are adjacent."""
    key = lambda row: [row[name] for name in ("method", "workers", *POINT)]
    return [Point(list(group)) for _, group in itertools.groupby(rows, key)]


def best(candidates: Iterable[Point]) -> Point:
    """Return the point with the fewest diverged runs and, among those, the least training loss; test data play no part."""
    return min(candidates, key=lambda point: (point.diverged, _first_known(point.spread("train_loss")[0])))


def best_of_cells(rows: Iterable[Row]) -> list[tuple[Point, list[Point]]]:
    """Return the best point and all points of each method with each number of workers."""
    key = lambda point: (point["method"], point["workers"])
    cells = [list(group) for _, group in itertools.groupby(points(rows), key)]
    return [(best(cell), cell) for cell in cells]


def fitted(rows: Sequence[Row], console: Console) -> Table:
    """Return the table for the width of a console: without the range of the test error if that is too wide."""
    found = table(rows)
    needed = console.measure(found, options=console.options.update_width(UNBOUNDED)).maximum
    return found if needed <= console.width else table(rows, ranges=False)


def table(rows: Sequence[Row], *, ranges: bool = True) -> Table:
    """Return a table of the best points for the terminal.

    Args:
      rows: rows of a sweep.
      ranges: True to show the range of the test error over the seeds.
    """
    shown = [name for name in POINT if len({row[name] for row in rows} - {None}) > (name != "learning_rate")]
    seeds = len({row["seed"] for row in rows})
    over = f", mean over {seeds} seeds" + " (test error: least–most)" * ranges if seeds > 1 else ""
    found = Table(title=f"Best point by training loss{over}", box=SIMPLE, padding=0, collapse_padding=True)
    heads = {"learning_rate": "rate", "momentum": "mom.", "strength": "str."}
    found.add_column("method", no_wrap=True)
    for head in ("N", *(heads[name] for name in shown), "loss", "error %", "stale", "×one", "×sync", "div."):
        found.add_column(head, justify="right", no_wrap=True)
    for point, cell in best_of_cells(rows):
        accuracy, staleness = point.spread("test_accuracy"), point.spread("staleness")[0]
        error = (100 * (1 - accuracy[0]), 100 * (1 - accuracy[2]), 100 * (1 - accuracy[1]))
        diverged = sum(one.diverged for one in cell)
        found.add_row(
            point["method"],
            str(point["workers"]),
            *("" if point[name] is None else f"{point[name]:g}" + _edge(point, cell, name) for name in shown),
            _known(point.spread("train_loss")[0], "{:.2g}") + (" ○" if point.idle else ""),
            _known(error[0], "{:.1f}") + _behind(point, error[1:]) * ranges,
            _known(staleness, "{:.1f}"),
            f"{point.mean('speed_up'):.1f}",
            f"{point.mean('speed_up_over_synchronous'):.2f}",
            f"{diverged}/{sum(len(one.rows) for one in cell)}",
        )
    found.caption = (
        "N: workers; loss: training loss; error: test error; stale: mean staleness; ×one, ×sync: speed-up in virtual time over "
        "one worker (the mean of each by itself) and over synchronous SGD, counting commits; "
        f"div.: diverged runs of all points, whose final training loss is over {100 * MARGIN:.0f} % above that of initial "
        "parameters, or most of whose last commits were rejected"
    )
    bests = best_of_cells(rows)
    if any(point.idle for point, _ in bests):
        found.caption += f"; ○: no better than before training (by less than {100 * MARGIN:.0f} %)"
    if any(_edge(point, cell, name) for point, cell in bests for name in shown):
        found.caption += "; ↑ ↓: the largest or least rate tried; a better one may lie beyond"
    return found


def _edge(point: Point, cell: Sequence[Point], name: str) -> str:
    """Return an arrow if the best learning rate is the largest or least one tried."""
    tried = {one[name] for one in cell}
    if name != "learning_rate" or len(tried) < 2:
        return ""
    return {max(tried): " ↑", min(tried): " ↓"}.get(point[name], "")


def _known(value: float, form: str) -> str:
    return "–" if math.isnan(value) else form.format(value)


def _behind(point: Point, extent: tuple[float, ...]) -> str:
    """Return the remark after a mean: its range, or the number of seeds that did not diverge."""
    left = len(point.rows) - point.diverged
    if 0 < left < len(point.rows):
        return f" ({left} of {len(point.rows)} seeds)"
    return f" ({extent[0]:.1f}–{extent[1]:.1f})" if extent[0] < extent[1] else ""


def _first_known(value: float) -> float:
    return math.inf if math.isnan(value) else value
