"""GEM forgives a learning rate that is twice too large: figure 6.

Claim: at η = 0.1 GEM stays near its proxy (final training loss about 0.05 to 0.1) with 5, 10 and 20 workers, while
DOWNPOUR, plain asynchronous SGD, ends near 0.1 with 5, is slow with 10 and fails with 20.

Setting (full): figure 1's at η = 0.1, with 5, 10 and 20 workers; the proxy is sequential momentum SGD at that rate.
Setting (small): digits at η = 0.05 with 4, 16 and 32 workers, one seed.

Cost (full): 21 runs, 199,581 commits.
Expected: GEM 0.07 to 0.05; DOWNPOUR 0.14, 0.10, and 2.3 (chance) with 20.
Found: GEM 0.077 / 0.056 / 0.041, with 20 below the published 0.05 to 0.1. DOWNPOUR 0.14 / 0.28 / 2.3, as published: near
0.1, slow, failed. But the sequential proxy itself ends at 0.82 with its one epoch, dropout 0.5 and an effective rate of
η / (1 - μ) = 1: GEM is not near it, but far better, with any number of workers.

Deviations:
  1. Those of figure 1.
"""

import math

from train.claims.claim import Claim, Statement
from train.claims.papers.gem_setting import digits, mnist, words
from train.claims.runs import Run, over_seeds

GEM, PLAIN, PROXY = "GEM", "DOWNPOUR", "proxy: momentum SGD, sequential"
METHODS = {GEM: "gem", PLAIN: "asgd"}
PAPER = {"train_loss": {PLAIN: {5: 0.1}}}
BAND = 0.05, 0.1  # GEM's published losses, as read off, with any number of workers.


def _runs(make, workers, seeds, rate: float) -> list[Run]:
    runs = [
        run
        for series, method in METHODS.items()
        for count in workers
        for run in over_seeds(series, make(method, count, learning_rate=rate), seeds=seeds)
    ]
    return runs + over_seeds(PROXY, make("momentum_asgd", 1, learning_rate=rate), seeds=seeds)


def judge(measured) -> list[Statement]:
    points = measured.points(GEM)
    gem, plain = ([measured.mean("train_loss", series, n) for n in points] for series in METHODS)
    proxy = measured.mean("train_loss", PROXY, 1)
    statements = [
        Statement(
            "GEM is never worse than its proxy, one worker with momentum SGD, by more than a quarter",
            all(loss <= 1.25 * proxy < math.inf for loss in gem),
            f"{words(gem)}; proxy {proxy:.3g}",
            "≈ 0.05 to 0.1" if measured.full else "",
        ),
        Statement(
            "GEM is near its proxy: within a factor of two",
            all(proxy / 2 <= loss <= 2 * proxy < math.inf for loss in gem),
            f"{words(gem)}; proxy {proxy:.3g}",
            "≈ 0.05 to 0.1, both" if measured.full else "",
        ),
        Statement(
            "DOWNPOUR fails with the most workers: at least ten times GEM's loss",
            plain[-1] >= 10 * gem[-1] < math.inf,
            words(plain),
            "≈ 0.1 at 5, slow at 10, fails at 20" if measured.full else "",
        ),
    ]
    if measured.full:
        statements.append(
            Statement(
                "GEM's final loss is between 0.03 and 0.12 everywhere, near what is read off the figure",
                all(0.03 <= loss <= 0.12 for loss in gem),
                words(gem),
                "≈ 0.05 to 0.1",
            )
        )
        statements.append(
            Statement(
                "DOWNPOUR ends within a factor of two of 0.1 with 5 workers, and at least 1.5 times higher with 10",
                0.05 <= plain[0] <= 0.2 and 1.5 * plain[0] <= plain[1] < math.inf,
                words(plain[:2]),
                "≈ 0.1 at 5, slow at 10",
            )
        )
    return statements


def draw(figure, measured) -> None:
    from train.claims import plots as claim_plots

    left, right = figure.subplots(1, 2)
    points = measured.points(GEM)
    claim_plots.lines(left, measured, "train_loss", PAPER["train_loss"], series=(GEM, PLAIN))
    if measured.full:
        left.axhspan(*BAND, color="C0", alpha=0.15, lw=0, label="GEM, paper")
    left.axhline(measured.mean("train_loss", PROXY, 1), color="0.3", ls=":", label=PROXY)
    claim_plots.points_axis(left, points, "workers")
    left.margins(y=0.3)  # Room for the legend.
    claim_plots.log_axis(left)
    left.legend(frameon=False, fontsize="small", loc="upper left")
    for column, series in enumerate(METHODS):
        for index, workers in enumerate(points):
            claim_plots.curve(
                right,
                measured,
                series,
                workers,
                label=f"{series}, {workers:g}",
                color=f"C{column}",
                ls=("-", "--", ":")[index % 3],
            )
    right.margins(y=0.3)
    claim_plots.log_axis(right)
    right.legend(frameon=False, fontsize="small", ncols=2, loc="lower left")


CLAIM = Claim(
    name="gem_figure_6",
    title="GEM forgives a learning rate that is twice too large",
    source="Hermans & Louppe, 2018, figure 6",
    runs={
        "full": _runs(mnist, (5, 10, 20), (0, 1, 2), 0.1),
        "small": _runs(digits, (4, 16, 32), (0,), 0.05),
    },
    judge=judge,
    draw=draw,
    paper=PAPER,
    minutes={"full": 20, "small": 2},
)
