"""Figure 8: more energy in GEM's proxy, κ, helps up to a point.

Claim: the final loss improves as κ grows from 1 to 2 or 3, and training fails at 4.

Setting (full): figure 1's with κ = 1, 2, 3 and 4. The paper does not name the number of workers. Its loss at κ = 1 is that of 5
workers in figure 1, so 5 workers with three seeds are judged; 2, 10, 20 and 30 have one. κ = 1 is shared with figure 1.
Setting (small): digits, 4 and 16 workers, κ = 1, 2 and 4, one seed; 4 workers are judged.

Expected: the shape of the paper with 5 workers.
Found: with 5 workers the losses are 0.069 / 0.064 / 0.069 / 0.111, the paper's 0.070 / 0.051 / 0.054 / 2.30: best at κ = 2,
worst at 4. But the gain of κ = 2 is within the scatter of three seeds, and κ = 4 does not fail: nothing shows that more energy
helps. The mean of π grows faster with κ than in the paper: 1.2 / 3.8 / 4.8 / 3.2 against 0.64 / 0.81 / 1.20 and 0 at the end.
With 10, 20 and 30 workers no κ above 1 gains; with 30 training fails at κ = 4. The reason for the difference is open. It is not
the reading of the worker's last step: with the reading `code` the losses at κ = 1, 2 and 4 are 0.062 / 0.067 / 0.115 (one seed
at κ = 1, else three).

Deviations:
  1. Those of figure 1.
  2. κ scales |m| (equation 27), not |m|² (equation 26).
"""

import dataclasses
import functools
import statistics

from train.claims.claim import Claim, Statement, compare, numbers
from train.claims.papers.gem_setting import DIGITS, MNIST, at_end, curve
from train.claims.runs import PlannedRun, over_seeds

REPEATED = 5  # Number of workers with more seeds.
KAPPAS = (1.0, 2.0, 3.0, 4.0)
PAPER = {"train_loss": {f"{REPEATED} workers": {kappa: at_end("8a", kappa) for kappa in KAPPAS}}}


def _runs(base, workers, kappas, seeds: int) -> list[PlannedRun]:
    return [
        run
        for count in workers
        for kappa in kappas
        for run in over_seeds(
            f"{count} workers",
            dataclasses.replace(base, method="gem", workers=count, kappa=kappa),
            kappa,
            seeds=range(seeds if count == REPEATED else 1),
            diagnostics=("pi_median",),
        )
    ]


def _judged(measured) -> str:
    return f"{REPEATED} workers" if measured.full else measured.series[0]


def judge(measured) -> list[Statement]:
    series = _judged(measured)
    kappas, ours = measured.points(series), measured.values("train_loss", series)
    losses = [statistics.fmean(values) for values in ours]
    best = losses.index(min(losses))
    gains = measured.exceeds("train_loss", (series, kappas[0]), (series, kappas[best]))
    text = f"final training loss at κ = {numbers(kappas, 'g')}, {series}: least at κ = 2 or 3, largest at 4"
    return [
        compare(
            text,
            ours,
            [*PAPER["train_loss"][series].values()] if measured.full else (),
            direction=0 < best < len(losses) - 1 and gains and losses[-1] > 1.1 * max(losses[:-1]),
        )
    ]


def draw(figure, measured, plots) -> list:
    series, (statement,) = _judged(measured), judge(measured)
    left, right = figure.subplots(1, 2)
    color = plots.looks(measured)[measured.series[0]]["color"]
    if measured.full:
        paper = PAPER["train_loss"][series]
        left.plot([*paper], [*paper.values()], label="paper", **plots.PAPER_POINTS)
    styles = {series: plots.looks(measured)[series] | {"color": color}}
    plots.lines(left, measured, styles=styles, label="ours", along="κ", log=False)
    plots.log_axis(left)
    left.set_title(f"loss, {series}: {statement.verdict}")
    plots.fan(right, measured, series, functools.partial(curve, "8a"), "κ = {:g}", color)
    right.set_title("along the run")
    plots.log_axis(right)
    return [left, right]


CLAIM = Claim(
    title="A proxy with more energy (κ) helps GEM up to a point",
    source="GEM, figure 8",
    runs={
        "full": _runs(MNIST, (2, REPEATED, 10, 20, 30), KAPPAS, 3),
        "small": _runs(DIGITS, (4, 16), (1.0, 2.0, 4.0), 1),
    },
    judge=judge,
    draw=draw,
    paper=PAPER,
    minutes={"full": 33, "small": 2},
)
