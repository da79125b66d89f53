"""What a sweep found: the best point of each method with each number of workers."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.table import Table

from train.sweep.folder import Row
from train.task.divergence import MARGIN

POINT = ("learning_rate", "momentum", "strength")


@dataclasses.dataclass(frozen=True)
class Point:
    """The runs of one method with one number of workers at one point of the grid, one a seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str):
        return self.rows[0][name]

    @property
    def diverged(self) -> int:
        """How many of its runs ended with a larger training loss than they began with."""
        return sum(row["diverged"] for row in self.rows)

    @property
    def idle(self) -> bool:
        """Whether the runs that did not diverge are, on average, no better than before training."""
        return self.spread("train_loss")[0] >= (1 - MARGIN) * self.mean("initial_train_loss")

    def spread(self, name: str) -> tuple[float, float, float]:
        """Mean, least and largest over the seeds, of the runs that did not diverge; not a number if all did."""
        values = [row[name] for row in self.rows if not row["diverged"] and row[name] is not None]
        return (math.fsum(values) / len(values), min(values), max(values)) if values else (math.nan,) * 3

    def mean(self, name: str) -> float:
        """Mean over all seeds, of what does not depend on how training went."""
        return math.fsum(row[name] for row in self.rows) / len(self.rows)


def points(rows: Iterable[Row]) -> list[Point]:
    """The rows of a sweep point by point; the seeds of a point stand together already."""
    key = lambda row: [row[name] for name in ("method", "workers", *POINT)]
    return [Point(list(group)) for _, group in itertools.groupby(rows, key)]


def best(candidates: Iterable[Point]) -> Point:
    """Where the fewest runs diverge and, among those, the mean training loss is least; test data have no say."""
    return min(candidates, key=lambda point: (point.diverged, _first_known(point.spread("train_loss")[0])))


def best_of_cells(rows: Iterable[Row]) -> list[tuple[Point, list[Point]]]:
    """Of each method with each number of workers: the best point, and all."""
    key = lambda point: (point["method"], point["workers"])
    cells = [list(group) for _, group in itertools.groupby(points(rows), key)]
    return [(best(cell), cell) for cell in cells]


def table(rows: Sequence[Row]) -> Table:
    """The best points as a table for the terminal."""
    shown = [name for name in POINT if len({row[name] for row in rows} - {None}) > (name != "learning_rate")]
    seeds = len({row["seed"] for row in rows})
    over = f", mean over {seeds} seeds (test error: least–most)" if seeds > 1 else ""
    found = Table(title=f"Best point by training loss{over}", box=SIMPLE, padding=0, collapse_padding=True)
    heads = {"learning_rate": "rate", "momentum": "mom.", "strength": "str."}
    found.add_column("method")
    for head in ("work-\ners", *(heads[name] for name in shown), "train loss", "test error %", "stale", "over\none"):
        found.add_column(head, justify="right")
    found.add_column("over\nsync", justify="right")
    found.add_column("diverged", justify="right")
    for point, cell in best_of_cells(rows):
        accuracy, staleness = point.spread("test_accuracy"), point.spread("staleness")[0]
        error = (100 * (1 - accuracy[0]), 100 * (1 - accuracy[2]), 100 * (1 - accuracy[1]))
        diverged = sum(one.diverged for one in cell)
        found.add_row(
            point["method"],
            str(point["workers"]),
            *("" if point[name] is None else f"{point[name]:g}" + _edge(point, cell, name) for name in shown),
            _known(point.spread("train_loss")[0], "{:.2g}") + (" ○" if point.idle else ""),
            _known(error[0], "{:.1f}") + _behind(point, error[1:]),
            _known(staleness, "{:.1f}"),
            f"{point.mean('speed_up'):.1f}",
            f"{point.mean('speed_up_over_synchronous'):.2f}",
            f"{diverged}/{sum(len(one.rows) for one in cell)}",
        )
    found.caption = (
        "over one, over sync: speed-up in virtual time over one worker and over synchronous SGD, counting commits; "
        f"diverged: runs of all points whose training loss ended over {100 * MARGIN:.0f} % above that of initial parameters"
    )
    bests = best_of_cells(rows)
    if any(point.idle for point, _ in bests):
        found.caption += f"; ○: no better than before training (by less than {100 * MARGIN:.0f} %)"
    if any(_edge(point, cell, name) for point, cell in bests for name in shown):
        found.caption += "; ↑ ↓: the largest or least that was tried, a better one may lie beyond"
    return found


def _edge(point: Point, cell: Sequence[Point], name: str) -> str:
    """An arrow where the best learning rate is the largest or the least of those tried."""
    tried = {one[name] for one in cell}
    if name != "learning_rate" or len(tried) < 2:
        return ""
    return {max(tried): " ↑", min(tried): " ↓"}.get(point[name], "")


def _known(value: float, form: str) -> str:
    return "–" if math.isnan(value) else form.format(value)


def _behind(point: Point, extent: tuple[float, ...]) -> str:
    """What stands behind a mean: the least and the most of it, or how few seeds it is of."""
    left = len(point.rows) - point.diverged
    if 0 < left < len(point.rows):
        return f" ({left} of {len(point.rows)} seeds)"
    return f" ({extent[0]:.1f}–{extent[1]:.1f})" if extent[0] < extent[1] else ""


def _first_known(value: float) -> float:
    return math.inf if math.isnan(value) else value
