"""Figure 6: GEM tolerates a learning rate that is twice too large.

Claim: at η = 0.1 GEM trains with 5, 10 and 20 workers, better than its proxy, momentum SGD with one worker, while DOWNPOUR,
plain asynchronous SGD, does not.

Setting (full): figure 1's at η = 0.1, with 5, 10 and 20 workers; the proxy is sequential momentum SGD at that rate.
Setting (small): digits at η = 0.05 with 4, 16 and 32 workers, one seed.

Expected: GEM and the proxy as published; DOWNPOUR 0.14, 0.10, and 2.3 (chance) with 20.
Found: GEM ends at 0.077 / 0.056 / 0.041, the paper's 0.066 / 0.058 / 0.035, and far below the sequential proxy in both (0.82,
the paper's 0.57), whose effective rate of η / (1 - μ) = 1 is too large. DOWNPOUR fails earlier in the paper: it ends at 0.87
with 5 workers, leaves the plot after ten steps with 10, and is at chance with 20. Ours learns with 5 and 10 (0.14 / 0.28) and
is at chance with 20. The reason is open; arrivals that scatter more are a candidate (figure 3).

Deviations:
  1. Those of figure 1.
"""

import functools
import math
import statistics

from train.claims.claim import Claim, Statement, compare, numbers
from train.claims.papers.gem_setting import at_end, curve, digits, mnist
from train.claims.runs import PlannedRun, over_seeds

GEM, PLAIN, PROXY = "GEM", "DOWNPOUR", "momentum SGD, sequential"
METHODS = {GEM: "gem", PLAIN: "asgd"}
FIGURES = {GEM: "6a", PLAIN: "6b"}
WORKERS = (5, 10, 20)
PAPER = {
    "train_loss": {
        GEM: {n: at_end("6a", n) for n in WORKERS},
        PROXY: {1: at_end("6a", "proxy")},
        PLAIN: {5: at_end("6b", 5), 20: at_end("6b", 20)},
    }
}


def _runs(make, workers, seeds, rate: float) -> list[PlannedRun]:
    runs = [
        run
        for series, method in METHODS.items()
        for count in workers
        for run in over_seeds(series, make(method, count, learning_rate=rate), seeds=seeds)
    ]
    return runs + over_seeds(PROXY, make("momentum_asgd", 1, learning_rate=rate), seeds=seeds)


def judge(measured) -> list[Statement]:
    points = measured.points(GEM)
    ours = {series: measured.values("train_loss", series) for series in (GEM, PROXY, PLAIN)}
    gem, (proxy,), plain = ([statistics.fmean(values) for values in ours[series]] for series in (GEM, PROXY, PLAIN))
    trains = all(loss < 0.5 * proxy < math.inf for loss in gem)
    behind = all(a > 1.2 * b for a, b in zip(plain, gem, strict=True)) and plain[-1] >= 10 * gem[-1]
    texts = (
        f"GEM's final training loss at twice the rate, {numbers(points, 'g')} workers",
        "its proxy's, momentum SGD with one worker",
        f"DOWNPOUR's, {numbers(points, 'g')} workers",
    )
    if not measured.full:
        better = all(loss <= 1.25 * proxy < math.inf for loss in gem)
        return [
            Statement(f"{texts[0]}: no worse than its proxy's", better, f"{numbers(gem)}; proxy {numbers([proxy])}"),
            Statement(f"{texts[2]}: ten times GEM's at the end", plain[-1] >= 10 * gem[-1] < math.inf, numbers(plain)),
        ]
    paper = PAPER["train_loss"]
    return [
        compare(texts[0], ours[GEM], [*paper[GEM].values()], direction=trains),
        compare(texts[1], ours[PROXY], [paper[PROXY][1]], direction=trains),
        Statement(
            texts[2],
            behind,
            numbers(plain),
            f"{paper[PLAIN][5]:.3g} / leaves the plot / {paper[PLAIN][20]:.3g}",
            f"ratio {plain[0] / paper[PLAIN][5]:.2f} / – / {plain[-1] / paper[PLAIN][20]:.2f}",
        ),
    ]


def draw(figure, measured, plots) -> list:
    words = [statement.verdict for statement in judge(measured)]
    columns = figure.subplots(1, 3 if measured.full else 2, sharey=True)
    shown = dict(zip(columns, (GEM, PROXY, PLAIN) if measured.full else (GEM, PLAIN), strict=True))
    for (axes, series), verdict in zip(shown.items(), words, strict=True):
        published = (lambda _: curve("6a", "proxy")) if series == PROXY else functools.partial(curve, FIGURES[series])
        plots.fan(axes, measured, series, published)
        axes.set_title(f"{series.split(',')[0]}\n{verdict}")
    for axes in columns[1:]:
        axes.set_ylabel("")
    columns[0].set_ylim(0.025, 10)
    plots.log_axis(columns[0])
    return [*columns]


CLAIM = Claim(
    name="gem_figure_6",
    title="GEM tolerates a learning rate that is twice too large",
    source="GEM, figure 6",
    runs={
        "full": _runs(mnist, WORKERS, (0, 1, 2), 0.1),
        "small": _runs(digits, (4, 16, 32), (0,), 0.05),
    },
    judge=judge,
    draw=draw,
    paper=PAPER,
    read_off=False,
    minutes={"full": 20, "small": 2},
)
