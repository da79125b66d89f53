"""Measurements of the runs of a claim: means and intervals over seeds, by series and point."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from train.claims.runs import PlannedRun, RunRecord, Scale

SCALARS = ("train_loss", "test_loss", "test_accuracy", "time", "staleness_p50", "staleness_p95", "seconds")


class Spread(NamedTuple):
    """A mean over seeds and half the width of its 95 % confidence interval (Student's t; NaN for one seed)."""

    mean: float
    half: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one value per seed. The mean is infinite if a value is.

        >>> Spread.of([1.0, 2.0, 3.0]).mean, round(Spread.of([1.0, 2.0, 3.0]).half, 2)
        (2.0, 2.48)
        """
        mean = float(np.mean(values)) if len(values) else math.nan
        half = math.nan
        if len(values) > 1 and np.isfinite(values).all():
            half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
        return cls(mean, half, tuple(float(value) for value in values))

    @property
    def positive(self) -> bool:
        """True if the mean is above zero by more than half of the interval; if that is unknown, if every value is."""
        return self._all(lambda value: value > 0) if math.isnan(self.half) else self.mean > self.half

    @property
    def negative(self) -> bool:
        """True if the mean is below zero by half of the interval; if that is unknown, if no value is above zero."""
        return self._all(lambda value: value <= 0) if math.isnan(self.half) else self.mean <= -self.half

    def _all(self, holds: Callable[[float], bool]) -> bool:
        return bool(self.values) and all(map(holds, self.values))

    def text(self, form: str = ".3g", factor: float = 1.0) -> str:
        """Return the mean and, if known, the interval.

        >>> Spread.of([0.5, 0.7]).text(".1f", 100)
        '60.0 ± 127.1'
        """
        if not math.isfinite(self.mean):
            return "diverged"
        mean = f"{factor * self.mean:{form}}"
        return mean if math.isnan(self.half) else f"{mean} ± {factor * self.half:{form}}"


class Measured:
    """The records of a claim's runs. Series and points keep the order in which the claim names them.

    Args:
      scale: the scale of the claim.
      records: pairs of a run and its record.
    """

    def __init__(self, scale: Scale, records: Sequence[tuple[PlannedRun, RunRecord]]):
        self.scale = scale
        self.records = list(records)

    @property
    def full(self) -> bool:
        """True if this is the paper's setting, so that its numbers can be compared."""
        return self.scale == "full"

    def where(self, keep: Callable[[PlannedRun], bool]) -> "Measured":
        """Return the measurements of the runs for which `keep` is true."""
        return Measured(self.scale, [(run, record) for run, record in self.records if keep(run)])

    def guessing(self, accuracy: float) -> "Measured":
        """Return the measurements with that test accuracy, that of a guess, for each run that failed."""
        known = lambda record: record if record["test_accuracy"] is not None else record | {"test_accuracy": accuracy}
        return Measured(self.scale, [(run, known(record)) for run, record in self.records])

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(run.series for run, _ in self.records))

    def points(self, series: str) -> list[float]:
        """Return the points of `series`."""
        return list(dict.fromkeys(run.point for run, _ in self.records if run.series == series))

    def of(self, series: str, point: float) -> list[RunRecord]:
        """Return the records of one point, one per seed.

        Raises:
          KeyError: if there is none.
        """
        found = [record for run, record in self.records if (run.series, run.point) == (series, point)]
        if not found:
            raise KeyError(f"no run of {series!r} at {point}; there are {self.series}")
        return found

    def spread(self, what: str, series: str, point: float) -> Spread:
        """Return mean and interval over seeds of a scalar of the record, or of the median of a diagnostic (`pi_median`).

        A value that is not finite becomes infinite (a loss) or NaN (an accuracy), so that no comparison with it holds.
        """
        return Spread.of([_value(record, what) for record in self.of(series, point)])

    def values(self, what: str, series: str, points: Sequence[float] | None = None) -> list[tuple[float, ...]]:
        """Return per point (default: all of `series`) a value per seed; see :meth:`spread`."""
        return [self.spread(what, series, point).values for point in points or self.points(series)]

    def mean(self, what: str, series: str, point: float) -> float:
        """Return the mean over seeds; see :meth:`spread`."""
        return self.spread(what, series, point).mean

    def exceeds(self, what: str, one: tuple[str, float], other: tuple[str, float], by: float = 0.0) -> bool:
        """Return True if a scalar at `one`, a series and its point, exceeds that at `other` beyond the scatter over seeds.

        Seeds are compared in pairs: the mean of their differences, less `by`, is above half of its 95 % interval. With one seed
        a larger number is enough.
        """
        return Spread.of([value - by for value in self.excess(what, one, other).values]).positive

    def excess(self, what: str, one: tuple[str, float], other: tuple[str, float]) -> Spread:
        """Return by how much a scalar is larger at `one`, a series and its point, than at `other`, over the seeds of both."""
        ours, others = (
            {run.config.seed: _value(record, what) for run, record in self.records if (run.series, run.point) == place}
            for place in (one, other)
        )
        return Spread.of([value - others[seed] for seed, value in ours.items() if seed in others])

    def diverged(self, series: str, point: float) -> int:
        """Return the number of seeds that ended with a larger training loss than they began with."""
        return sum(record["diverged"] for record in self.of(series, point))

    def chance(self, series: str, point: float) -> float:
        """Return the mean training loss of initial parameters."""
        return float(np.mean([record["initial_train_loss"] for record in self.of(series, point)]))

    def curve(self, what: str, series: str, point: float, kind: str = "curve") -> tuple[np.ndarray, np.ndarray]:
        """Return commits and mean over seeds of a curve (`train_loss`), or with `kind="evaluations"` of `test_loss`, ….

        Values that are not finite are NaN. Seeds that ended early count up to their end.
        """
        commits, table = self.curves(what, series, point, kind)
        known = np.isfinite(table)
        sums = np.where(known, table, 0.0).sum(0)
        return commits, np.where(known.any(0), sums / np.maximum(1, known.sum(0)), np.nan)

    def curves(self, what: str, series: str, point: float, kind: str = "curve") -> tuple[np.ndarray, np.ndarray]:
        """Return commits and a row per seed of the values of :meth:`curve`; behind the end of a seed they are NaN."""
        found = [record[kind] for record in self.of(series, point)]
        longest = max(found, key=lambda curve: len(curve["commits"]))["commits"]
        table = np.full((len(found), len(longest)), np.nan)
        for row, curve in zip(table, found, strict=True):
            values = np.array(curve[what], float)  # None becomes NaN.
            row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
        return np.array(longest, float), table

    def times(self, series: str, point: float) -> np.ndarray:
        """Return virtual times of the points of :meth:`curve`, from the seed with the longest run."""
        curves = [record["curve"] for record in self.of(series, point)]
        return np.array(max(curves, key=lambda curve: len(curve["commits"]))["time"], float)

    def diagnostics(self, what: str, series: str, point: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return per seed fractions of the virtual time, in (0, 1], and a diagnostic there (medians)."""
        found = [record["diagnostics"][what] for record in self.of(series, point)]
        curves = [(np.array(one["time"], float), np.array(one["curve"], float)) for one in found]
        return [(times / times[-1:], values) for times, values in curves]

    def steps_per_epoch(self, series: str, point: float) -> int:
        """Return the number of gradients of one worker per epoch of data."""
        return self.of(series, point)[0]["steps_per_epoch"]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per series and point, for JSON: mean, interval and values over seeds of scalars and diagnostics."""
        rows = []
        for series in self.series:
            for point in self.points(series):
                runs = [run for run, _ in self.records if (run.series, run.point) == (series, point)]
                names = [*SCALARS, *runs[0].diagnostics]
                row: dict[str, Any] = {"series": series, "point": point, "config": runs[0].described()["config"]}
                row["config"] = {name: value for name, value in row["config"].items() if name != "seed"}
                row["seeds"] = [run.config.seed for run in runs]
                row["commits"] = self.of(series, point)[0]["commits"]
                row["diverged"] = self.diverged(series, point)
                rows.append(row | {name: _plain(self.spread(name, series, point)) for name in names})
        return rows


def _value(record: RunRecord, what: str) -> float:
    value = record["diagnostics"][what]["median"] if what in record["diagnostics"] else record[what]
    if value is None:
        return math.nan if what.endswith("accuracy") else math.inf
    return float(value)


def _plain(spread: Spread) -> dict[str, Any]:
    mean, half, values = spread
    finite = [None if not math.isfinite(value) else round(value, 6) for value in (mean, half, *values)]
    return {"mean": finite[0], "interval_95": finite[1], "values": finite[2:]}
