"""Figure 3: GEM scales commits down by itself with more workers.

Claim: the mean over workers of each worker's median of π falls as workers are added.

Setting (full): figure 1's with 5, 10, 20 and 30 workers and the reading `code`, the first 421 commits per worker, three seeds.
The time of a gradient has a coefficient of variation (CV) of 0.1, as in all other figures, and of 0.4. The scatter of staleness
decides π, and the paper does not state it: 0.4 is fitted, one number for four points. π is recorded at 40 moments spread over a
run, for one commit per worker. The number is the mean over the moments from commit 120 to commit 400 per worker.
Setting (small): digits with 2, 8 and 16 workers, five epochs per worker, one seed.

Expected: 0.97 / 0.50 / 0.20 / 0.075 at CV 0.4, one seed of a separate program; less at CV 0.1.
Found: π falls with the number of workers at both. At CV 0.4 it is 0.94 / 0.43 / 0.19 / 0.10, the paper's 0.83 / 0.43 / 0.15 /
0.05; with 30 workers the difference is more than chance. At CV 0.1 it is 0.56 / 0.06 / 0.001 / 0, as with 20 workers or more
half of the parameters are clamped there. So staleness scattered more in the paper's cluster than in our other simulations.

Deviations:
  1. Those of figure 1, except for the reading and the CV.
  2. π is clamped to [0, 5], as in the authors' code.
"""

import dataclasses
import itertools
import math

import numpy as np

from train.claims.claim import Claim, Statement, compare, numbers
from train.claims.papers.gem_setting import DIGITS, MNIST, between, curve
from train.claims.runs import PlannedRun, grid

SERIES = {
    name: {"method": "gem", "reading": "code", "variation": variation}
    for name, variation in (("CV 0.1", 0.1), ("CV 0.4, fitted", 0.4))
}
WORKERS = (5, 10, 20, 30)
WINDOW = 120, 400  # Commits per worker.
SMOOTH = 3  # Moments per point of the picture.
PAPER = {"pi_median": {series: {n: between("3", n, *WINDOW) for n in WORKERS} for series in SERIES}}


def _runs(base, workers, seeds) -> list[PlannedRun]:
    return grid(base, SERIES, workers, seeds=seeds, diagnostics=("pi_median",))


def means(measured, series: str, workers: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return commits per worker, and per seed the mean over workers of each worker's median of π there."""
    records = measured.of(series, workers)
    curves = [np.array(one["diagnostics"]["pi_median"]["mean_curve"], float) for one in records]
    longest = max(map(len, curves))
    steps = np.arange(1, longest + 1) / max(longest, 1) * records[0]["commits"] / workers
    return steps, curves


def _values(measured, series: str, workers: float) -> list[float]:
    """Return a value per seed: the mean over the window, or over the second half of a run that is shorter than it."""
    steps, curves = means(measured, series, workers)
    begin, end = WINDOW if measured.full else (steps[-1:].sum() / 2, math.inf)
    inside = (begin <= steps) & (steps <= end)
    found = [curve[inside[: len(curve)]] for curve in curves]
    return [float(values.mean()) if len(values) else math.inf for values in found]


def judge(measured) -> list[Statement]:
    statements = []
    for series in measured.series:
        points = measured.points(series)
        ours = [_values(measured, series, n) for n in points]
        falls = all(after < before < math.inf for before, after in itertools.pairwise(map(np.mean, ours)))
        text = f"mean over workers of the median of π, {numbers(points, 'g')} workers, {series}"
        paper = [*PAPER["pi_median"][series].values()] if measured.full else ()
        statements.append(compare(text, ours, paper, direction=falls, words="falls", form=".2g"))
    return statements


def draw(figure, measured, plots) -> list:
    columns = figure.subplots(1, len(measured.series), sharey=True)
    color = plots.looks(measured)[measured.series[0]]["color"]
    for axes, series, statement in zip(columns, measured.series, judge(measured), strict=True):
        points = measured.points(series)
        for workers, shade in zip(points, plots.shades(color, len(points)), strict=True):
            if measured.full:
                axes.plot(*curve("3", workers), **plots.PAPER)
            steps, curves = means(measured, series, workers)
            longest = [one for one in curves if len(one) == len(steps)]
            windows = range(len(steps) - SMOOTH + 1)
            moments = [steps[at + SMOOTH // 2] for at in windows]
            seeds = np.array([[one[at : at + SMOOTH].mean() for at in windows] for one in longest])
            plots.means(axes, moments, seeds, shade, label=plots.workers(workers))
        axes.set(xlabel="commits of each worker", title=f"arrivals with {series}\n{statement.verdict}")
        if measured.full:
            axes.set(xlim=(0, 430), ylim=(0, 2.0))
    columns[0].set_ylabel("mean of workers' medians of π")
    return [*columns]


CLAIM = Claim(
    title="GEM scales commits down by itself where there are more workers",
    source="GEM, figure 3",
    runs={
        "full": _runs(dataclasses.replace(MNIST, epochs=0.45), WORKERS, (0, 1, 2)),
        "small": _runs(DIGITS, (2, 8, 16), (0,)),
    },
    judge=judge,
    draw=draw,
    paper=PAPER,
    height=3.1,
    minutes={"full": 44, "small": 1},
)
