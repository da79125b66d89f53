"""What a sweep found: the best point of each method with each number of workers."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from rich.table import Table

from train.sweepfolder import Row

POINT = ("learning_rate", "momentum", "strength")


@dataclasses.dataclass(frozen=True)
class Point:
    """The runs of one method with one number of workers at one point of the grid, one a seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str):
        return self.rows[0][name]

    @property
    def diverged(self) -> int:
        """How many of its runs ended worse than they began."""
        return sum(row["diverged"] for row in self.rows)

    def spread(self, name: str) -> tuple[float, float, float]:
        """Mean, least and largest over the seeds, of the runs that did not diverge; not a number if all did."""
        values = [row[name] for row in self.rows if not row["diverged"] and row[name] is not None]
        return (math.fsum(values) / len(values), min(values), max(values)) if values else (math.nan,) * 3


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
    shown = [name for name in POINT if any(row[name] is not None for row in rows)]
    seeds = len({row["seed"] for row in rows})
    over = f"mean (least to most) over {seeds} seeds" if seeds > 1 else "one seed"
    found = Table(title=f"Best point by training loss; {over}")
    for name in ("method", "workers", *(name.replace("_", " ") for name in shown), "training loss", "test error %"):
        found.add_column(name, justify="left" if name == "method" else "right")
    for name in ("staleness", "speed-up over 1 worker", "over synchronous", "diverged"):
        found.add_column(name, justify="right")
    method = None
    for point, cell in best_of_cells(rows):
        if method not in (None, point["method"]):
            found.add_section()
        method = point["method"]
        accuracy = point.spread("test_accuracy")
        error = tuple(100 * (1 - value) for value in (accuracy[0], accuracy[2], accuracy[1]))
        diverged = sum(one.diverged for one in cell)
        found.add_row(
            method,
            str(point["workers"]),
            *("" if point[name] is None else f"{point[name]:g}" for name in shown),
            _spread(point.spread("train_loss"), "{:.3g}"),
            _spread(error, "{:.1f}"),
            f"{point.spread('staleness')[0]:.1f}",
            f"{point['speed_up']:.1f}",
            f"{point['speed_up_over_synchronous']:.2f}",
            f"{diverged} of {sum(len(one.rows) for one in cell)}",
        )
    found.caption = (
        "Speed-ups are in virtual time and count commits. A run that ended worse than it began has diverged."
    )
    return found


def _spread(values: tuple[float, float, float], form: str) -> str:
    mean, least, most = values
    if math.isnan(mean):
        return "diverged"
    if least == most:
        return form.format(mean)
    return f"{form.format(mean)} ({form.format(least)} to {form.format(most)})"


def _first_known(value: float) -> float:
    return math.inf if math.isnan(value) else value
