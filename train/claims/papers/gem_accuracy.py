"""No dropout, a stronger proxy or a lower rate at the end bring GEM with a hundred workers to the published accuracy.

Question: figure 2's text has 99.38 % test accuracy; none of the three readings of the rule comes there. Is it the dropout,
whose place and rate a reader may get wrong; the strength of the proxy, of which the authors' launch script recommends κ = 2;
or the noise of a rate that is never lowered?

Setting (full): figure 2's, the reading of the equations: as published (shared with it), without dropout, with κ = 2, and with a
tenth of the rate from epoch 90 of the 100 of all workers together on; one seed.
Setting (small): digits with 16 workers, two epochs a worker: as published, κ = 2, and a tenth of the rate from epoch 28
of 32 on.

Cost (full): 4 runs, 374,800 commits, a quarter of them shared with figure 2.
Expected: the lower rate gains most.
Found: none of them does. The lower rate has 99.26 and 99.30 % in the two looks under it (the mean of five takes in three before
it), where a steady one ends between 99.17 and 99.25; steady ones of figure 2's other readings have single looks as high (99.28,
99.34). If it gains, then less than a tenth of a point, which one seed cannot tell. Without dropout the network fits all of its
data (training loss 0.0001) and ends at 99.2 % as well; κ = 2 costs a third of a point. What is left, a tenth of a point, is ten
test rows.

Deviations:
  1. Those of figure 1.
"""

from typing import Any

from train.claims.claim import Claim, Statement
from train.claims.papers.gem_setting import digits, mnist
from train.claims.runs import Run, over_seeds

PLAIN = "as published"
PUBLISHED = 0.9938


def _runs(make, workers: int, changes: dict[str, dict[str, Any]], **shared: Any) -> list[Run]:
    return [
        run
        for series, own in changes.items()
        for run in over_seeds(series, make("gem", workers, **shared, **own), seeds=(0,), evaluations=20)
    ]


def judge(measured) -> list[Statement]:
    (workers,) = measured.points(PLAIN)
    reached = {series: _last(measured, series, workers) for series in measured.series}
    if measured.full:
        return [
            Statement(
                f"{series}: the test accuracy (mean of the last five looks) reaches the published one to 0.1 points",
                accuracy >= PUBLISHED - 0.001,
                f"{100 * accuracy:.2f} %",
                f"{100 * PUBLISHED:.2f} %",
            )
            for series, accuracy in reached.items()
        ]
    return [
        Statement(
            f"{series}: the test accuracy (mean of the last five looks) is above that as published, by half a point",
            accuracy >= reached[PLAIN] + 0.005 > 0.5,
            f"{100 * accuracy:.2f} %, as published {100 * reached[PLAIN]:.2f} %",
        )
        for series, accuracy in reached.items()
        if series != PLAIN
    ]


def _last(measured, series: str, workers: float) -> float:
    """The mean of the last five looks, of which one alone moves by more than what is asked; 0 if the run failed."""
    _, accuracy = measured.curve("test_accuracy", series, workers, "evaluations")
    return 0.0 if measured.diverged(series, workers) else float(accuracy[-5:].mean())


def draw(figure, measured) -> None:
    from train.claims import plots as claim_plots

    left, right = figure.subplots(1, 2)
    (workers,) = measured.points(PLAIN)
    for index, series in enumerate(measured.series):
        style = {"color": f"C{index}", "kind": "evaluations", "marker": "o", "ms": 3}
        claim_plots.curve(left, measured, series, workers, "test_loss", **style)
        claim_plots.curve(right, measured, series, workers, "test_accuracy", **style)
    claim_plots.log_axis(left)
    left.legend(frameon=False)
    if measured.full:
        right.set_ylim(98.0, 99.6)
        right.axhline(100 * PUBLISHED, color="0.3", ls="--", lw=1, label="paper, at the end")
        right.legend(frameon=False, loc="lower right")


CLAIM = Claim(
    name="gem_accuracy",
    title="No dropout, a stronger proxy or a lower rate at the end give GEM's published accuracy with a hundred workers",
    source="Hermans & Louppe, 2018, figure 2",
    runs={
        "full": _runs(
            mnist,
            100,
            {
                PLAIN: {},
                "no dropout": {"dropout": 0.0},
                "κ = 2": {"kappa": 2.0},
                "rate / 10": {"decay_epochs": (90.0,)},
            },
        ),
        "small": _runs(
            digits, 16, {PLAIN: {}, "κ = 2": {"kappa": 2.0}, "rate / 10": {"decay_epochs": (28.0,)}}, epochs=2.0
        ),
    },
    judge=judge,
    draw=draw,
    paper={"test_accuracy": {PLAIN: {100: PUBLISHED}}},
    read_off=False,
    minutes={"full": 40, "small": 1},
)
