"""Delay compensation wins back what staleness costs, nearly to sequential SGD and beyond: DC-ASGD's table on CIFAR-10.

Claim: with 4 and 8 workers asynchronous SGD ends with a larger test error than SGD by one worker; delay compensation with a
constant λ (DC-ASGD-c) takes most of that back, and with an adaptive one (DC-ASGD-a) all of it and more.

Setting (full): CIFAR-10, ResNet-20, 160 epochs of data of all workers together, batches of 128, η = 0.5 (a tenth from epochs 80
and 120 on), no momentum; λ = 0.04 (c), 2 with m = 0.95 (a); three seeds.
Setting (cpu): ResNet-8 at half width on CIFAR-10 (JPEG q75), batches of 64, 3 epochs (decay after 1.5 and 2.25), one seed;
the order alone.
Setting (small): digits, 10 epochs, one seed.

Cost (full): 21 runs, 1,310,400 commits; about a week on two cores.
Expected: test errors near 8.7 (SGD), above 9 (ASGD), between (DC-ASGD).
Found (cpu): asynchrony costs 7.5 points with 4 workers and 19.5 with 8 (one worker: 42.1 %), and compensation takes back little
of it. A constant λ of 0.04 changes nothing with 8 workers (61.5 against 61.6 %): λ g² is so small against gradients that are
means over a batch that it moves them by a ten-thousandth of their length (diagnostic `compensation` in a run aside that is not
kept, median over the first 400 commits 7e-5). So the 1.5 points with 4 workers are what one seed differs by, and so may be the
0.9 of the adaptive one, which moves gradients by 12 to 47 % (aside) and takes back 6 points with 8. Where the published gain
with a constant λ comes from is open; the authors' code of 2016 had |g| in place of g², which is larger below 1.

Deviations:
  1. Simulated workers: the time of a gradient is gamma-distributed with a coefficient of variation of 0.1.
  2. Weight decay 1e-4 and crops with mirror images, as ResNet's paper has them; DC-ASGD's says less.
  3. Each worker has its own order of all rows. Three seeds, where the paper reports one number.
  4. The first compensation of a worker is against the initial parameters (the authors' code: against zero).
"""

from typing import Any

from train.claims.claim import Claim, Statement
from train.claims.papers.cifar_setting import CIFAR10, CPU, CPU_NETWORK, DIGITS, percent, shared
from train.claims.runs import Run, over_seeds
from train.config.config import Config

ONE = "SGD, one worker"
SERIES: dict[str, dict[str, Any]] = {
    "ASGD": {"method": "asgd"},
    "DC-ASGD-c": {"method": "dc_asgd", "variant": "constant", "strength": 0.04},
    "DC-ASGD-a": {"method": "dc_asgd", "variant": "adaptive", "strength": 2.0},
}
# High: SGD, and ASGD and DC-ASGD-a with 4 workers (two sources). Medium: the others, from memory alone.
PAPER = {
    "test_error": {
        ONE: {1: 0.0865},
        "ASGD": {4: 0.0927, 8: 0.1026},
        "DC-ASGD-c": {4: 0.0867, 8: 0.0927},
        "DC-ASGD-a": {4: 0.0819, 8: 0.0857},
    }
}


def _runs(base: Config, epochs: float, seeds, **changes) -> list[Run]:
    rows = over_seeds(ONE, shared(base, "asgd", 1, epochs, **changes), seeds=seeds)
    for series, own in SERIES.items():
        for workers in (4, 8):
            rows += over_seeds(series, shared(base, workers=workers, epochs=epochs, **own, **changes), seeds=seeds)
    return rows


def judge(measured) -> list[Statement]:
    points = measured.points("ASGD")
    errors = {series: [1 - measured.mean("test_accuracy", series, n) for n in points] for series in SERIES}
    one = 1 - measured.mean("test_accuracy", ONE, 1)
    paper = {
        series: percent([*values.values()]) if measured.full else "" for series, values in PAPER["test_error"].items()
    }
    shown = {series: f"{percent(values)}, SGD {percent([one])}" for series, values in errors.items()}
    plain, constant, adaptive = errors.values()
    # One seed: a compensation that does nothing has moved the error by 1.5 points.
    close = 0 if measured.full else 0.02
    by = "" if measured.full else ", by two points or more"
    statements = [
        Statement(
            f"asynchronous SGD ends with a larger test error than one worker, the larger with more of them{by}",
            one + close < plain[0] and plain[0] + close < plain[-1] < 1,
            shown["ASGD"],
            paper["ASGD"],
        ),
        Statement(
            f"a constant λ makes the error of asynchronous SGD smaller with 4 and 8 workers{by}",
            all(a + close < b < 1 for a, b in zip(constant, plain, strict=True)),
            shown["DC-ASGD-c"],
            paper["DC-ASGD-c"],
        ),
        Statement(
            "it takes back more than half of what asynchrony cost",
            all(b - a > 0.5 * (b - one) > 0 for a, b in zip(constant, plain, strict=True)),
            shown["DC-ASGD-c"],
            paper["DC-ASGD-c"],
        ),
        Statement(
            f"an adaptive λ makes it smaller than a constant one does{by}",
            all(a + close < b < 1 for a, b in zip(adaptive, constant, strict=True)),
            shown["DC-ASGD-a"],
            paper["DC-ASGD-a"],
        ),
        Statement(
            "with an adaptive λ 4 and 8 workers are no worse than one",
            all(a <= one < 1 for a in adaptive),
            shown["DC-ASGD-a"],
            paper[ONE],
        ),
    ]
    if measured.full:
        table = PAPER["test_error"]
        far = [
            abs(value - table[series][n])
            for series, values in errors.items()
            for n, value in zip(points, values, strict=True)
        ]
        far.append(abs(one - table[ONE][1]))
        statements.append(
            Statement(
                "every error is within one point of the published one",
                max(far) <= 0.01,
                f"largest difference {percent([max(far)])}",
            )
        )
    return statements


def draw(figure, measured) -> None:
    from train.claims import plots as claim_plots

    left, right = figure.subplots(1, 2)
    claim_plots.lines(left, measured, "test_error", PAPER["test_error"], list(SERIES))
    claim_plots.points_axis(left, measured.points("ASGD"), "workers")
    left.axhline(100 * (1 - measured.mean("test_accuracy", ONE, 1)), color="0.3", ls=":", lw=1.2, label=ONE)
    left.legend(frameon=False, fontsize="small")
    for index, series in enumerate(SERIES):
        claim_plots.curve(right, measured, series, max(measured.points(series)), per="epoch", color=f"C{index + 1}")
    claim_plots.log_axis(right)


LONG: dict[str, Any] = {"learning_rate": 0.5, "decay_epochs": (80.0, 120.0), "weight_decay": 1e-4}
SHORT: dict[str, Any] = {"learning_rate": 0.5, "decay_epochs": (1.5, 2.25), "weight_decay": 1e-4}
CLAIM = Claim(
    name="dc_asgd_table",
    title="Delay compensation wins back what staleness costs",
    source="Zheng et al., 2017, table on CIFAR-10",
    runs={
        "full": _runs(CIFAR10, 160.0, range(3), **LONG),
        "cpu": _runs(CPU, 3.0, (0,), **SHORT),
        "small": _runs(DIGITS, 10.0, (0,), learning_rate=0.15),
    },
    judge=judge,
    draw=draw,
    paper=PAPER,
    read_off=False,
    paper_note="SGD, and ASGD and DC-ASGD-a with 4 workers: high, by two sources; others: medium, recalled",
    minutes={"full": 9_800, "cpu": 40, "small": 1},
    setting={"cpu": f"{CPU_NETWORK}, 3 epochs"},
)
