"""Every method of the library on one task, tuned alike: which of them is worth its trouble, and where a plain one does.

Claim: none of a paper; a comparison. Each method has the same learning rates to choose from, of which one seed takes the best
by training loss at each number of workers on each cluster; other seeds are reported, with confidence intervals. All work
through the same data, so more workers mean less each and more staleness, not more work.

Setting (full): MNIST, GEM's CNN, batches of 64, 10 epochs of all workers together; 4, 16, 64 and 128 workers on a homogeneous
and a heterogeneous cluster; rates 0.01, 0.03, 0.1 and 0.3, and outward from there, down to 0.0001 and up to 3, while the best
is at the edge; μ = 0.9, other numbers as published; local steps: 4 a commit; three reported seeds.
Setting (cpu): the same on digits, batches of 32, 30 epochs; six reported seeds.
Setting (small): digits, 4 and 64 workers, a heterogeneous cluster, rates 0.03 and 0.3, ten epochs, one reported seed.

Cost (full): 992 runs, 7,271,264 commits, then one to three hundred at rates beyond the first, and 744 runs of 5,453,448 commits
at the rates that were chosen; about a day on two cores.
Expected: with 4 workers most methods alike; with 64 and more those ahead that damp, match energies or look ahead.
Found (cpu): on equal workers no method made for staleness is ahead of the best plain one by more than the interval of their
difference; with 64 and 128 of them, so 20 and 10 commits each, DANA-GA has the highest means (82.2 ± 6.9 and 75.6 ± 4.5 %
against 77.2 ± 3.7, Multi-ASGD, and 68.0 ± 7.7, ASGD). On unequal workers some are: with 16 Gap-Aware Adam by a point (98.8
against 97.7), with 64 GEM (97.3 ± 1.1), DynSGD (96.6 ± 2.0), DANA-GA and Gap-Aware Adam (96.1) against 79.7 ± 5.9
(Multi-ASGD), with 128 GEM (94.9 ± 3.0) and Gap-Aware Adam (92.5 ± 2.9) against 71.7 ± 9.2. GEM and DANA-GA keep their best
rates (0.1 to 0.3, 0.03 to 0.1) where plain ones have to fall to 0.0003 to 0.003, and with those momentum without a cure is no
worse than none (68.9 and 67.7 % with 64 and 128 equal workers); on 128 equal workers GEM is behind them (50.6 ± 19.6). With
rates from 0.01 to 0.3 alone, and with three seeds, all of this had looked different. Rates chosen by one seed fail with others
here and there, whatever the method: GEM with 16 unequal workers (81 ± 42), DynSGD with 4 equal ones (66 ± 50), plain ASGD with
64 unequal ones (73 ± 35).

Deviations:
  1. Only the learning rate is tuned; momentum, strengths and periods are as published or as they are by default.
  2. YellowFin's rate is a factor on the one that it tunes; for methods with local steps it is that of the steps, and the
     rate at the centre is as published.
  3. A best rate at the edge of the grid may not be the best there is; how many there are is a statement.
  4. A run that failed counts as an accuracy of 0 in the means, so a mean below a tenth is of failed runs.
  5. The best of many methods is compared with the best of four plain ones, which favours the many; so it has to be ahead by
     more than half a point and more than the 95 % interval of their difference.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import get_args

from train.claims.claim import Claim, Statement
from train.claims.results import Measured
from train.claims.runs import Run
from train.config.config import Config, Method
from train.config.validation import LOCAL
from train.task.divergence import MARGIN

METHODS: tuple[Method, ...] = get_args(Method)
PLAIN = ("asgd", "momentum_asgd", "nag_asgd", "multi_asgd")
SELDOM = (
    "downpour",
    "easgd",
    "eamsgd",
    "lsgd",
    "diloco",
    "outer_nesterov",
)  # Made to send less; neither plain nor for staleness.
TUNING = 0  # The seed that chooses rates.
REACH = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # How far best rates are followed.
REPORTED = {"full": (1, 2, 3), "cpu": (1, 2, 3, 4, 5, 6), "small": (1,)}  # Seeds by scale.
PERIOD = 4
CLOSE = 0.005  # What two test accuracies may differ by and count as equal, at least: digits has 360 test rows.
GOOD = 0.9  # A test accuracy with the fewest workers from which on it is asked what more of them cost.


def _series(method: str, cluster: str, rate: float) -> str:
    return f"{method}, {cluster}, {rate:g}"


def _parts(series: str) -> tuple[str, str, float]:
    method, cluster, rate = series.split(", ")
    return method, cluster, float(rate)


def _runs(base: Config, epochs: float, workers, clusters, rates) -> list[Run]:
    """The runs that choose rates."""
    return [
        Run(
            _series(method, cluster, rate),
            count,
            dataclasses.replace(
                base, method=method, workers=count, cluster=cluster, learning_rate=rate, epochs=epochs / count,
                seed=TUNING, period=PERIOD if method in LOCAL else 1,
            ),
        )
        for method in METHODS
        for cluster in clusters
        for count in workers
        for rate in rates
    ]  # fmt: skip


def best_rates(measured: Measured) -> dict[tuple[str, str, float], str]:
    """By method, cluster and number of workers: the series with the smallest training loss of the tuning seed.

    Where every rate diverged it is the smallest, from which smaller ones are tried.
    """
    best: dict[tuple[str, str, float], tuple[float, float, str]] = {}
    for run, record in measured.records:
        if run.config.seed == TUNING:
            loss = math.inf if record["train_loss"] is None or record["diverged"] else record["train_loss"]
            method, cluster, rate = _parts(run.series)
            place, found = (method, cluster, run.point), (loss, rate, run.series)
            best[place] = min(best.get(place, found), found)
    return {place: series for place, (_, _, series) in best.items()}


def then(measured: Measured) -> list[Run]:
    """Runs at rates beyond those tried, where the best is at their edge; if there are none, those that are reported.

    These are of other seeds, at the rates that the tuning seed chose.
    """
    if measured.scale != "small" and (more := _beyond(measured)):
        return more
    chosen = {(series, point) for (_, _, point), series in best_rates(measured).items()}
    return [
        dataclasses.replace(run, config=dataclasses.replace(run.config, seed=seed))
        for run, _ in measured.records
        if (run.series, run.point) in chosen and run.config.seed == TUNING
        for seed in REPORTED[measured.scale]
    ]


def _beyond(measured: Measured) -> list[Run]:
    """A run at the next rate outward for each method, cluster and number of workers whose best rate is at the edge."""
    tried: dict[tuple[str, str, float], dict[float, Run]] = {}
    for run, _ in measured.records:
        if run.config.seed == TUNING:
            method, cluster, rate = _parts(run.series)
            tried.setdefault((method, cluster, run.point), {})[rate] = run
    more = []
    for place, series in best_rates(measured).items():
        method, cluster, rate = _parts(series)
        runs = tried[place]
        step = -1 if rate == min(runs) else 1 if rate == max(runs) else 0
        index = REACH.index(rate) + step
        if step and 0 <= index < len(REACH):
            config = dataclasses.replace(runs[rate].config, learning_rate=REACH[index])
            more.append(Run(_series(method, cluster, REACH[index]), runs[rate].point, config))
    return more


def table(measured: Measured) -> dict[tuple[str, str, float], list[float]]:
    """Test accuracies of the reported seeds, by method, cluster and number of workers."""
    rows: dict[tuple[str, str, float], list[float]] = {}
    for run, record in measured.records:
        if run.config.seed != TUNING:
            method, cluster, _ = _parts(run.series)
            rows.setdefault((method, cluster, run.point), []).append(record["test_accuracy"] or 0.0)
    return rows


def judge(measured: Measured) -> list[Statement]:
    accuracy = table(measured)
    means = {place: sum(values) / len(values) for place, values in accuracy.items()}
    statements = []
    for cluster in dict.fromkeys(place[1] for place in means):
        for count in dict.fromkeys(place[2] for place in means):
            here: dict[str, float] = {
                method: means[method, cluster, count] for method in METHODS if (method, cluster, count) in means
            }
            margin = lambda one, other, at=(cluster, count): _margin(accuracy[one, *at], accuracy[other, *at])
            statements.append(_plain_or_not(here, cluster, count, margin))
        statements.append(_stable(accuracy, cluster))
    return statements if measured.scale == "small" else [*statements, _edges(measured)]  # Two rates are two edges.


def _margin(*samples: Sequence[float]) -> float:
    """What a sum or difference of their means has to exceed to count as more than chance: half its 95 % interval."""
    half = math.hypot(*map(measured_half, samples))
    return max(CLOSE, half) if math.isfinite(half) else CLOSE


def _plain_or_not(here: dict[str, float], cluster: str, count: float, margin: Callable[[str, str], float]) -> Statement:
    """Whether a method that was made for staleness is ahead of all plain ones, and who is."""
    order = sorted(here, key=lambda method: -here[method])
    plain = max((method for method in order if method in PLAIN), key=lambda method: here[method])
    made = max((method for method in order if method not in (*PLAIN, *SELDOM)), key=lambda method: here[method])
    said = lambda methods: ", ".join(f"{method} {100 * here[method]:.2f}" for method in methods)
    first = said([method for method in order if method not in (*PLAIN, *SELDOM)][:3])
    return Statement(
        f"{count:g} workers, {cluster}: the best method made for staleness is ahead of the best plain one",
        here[made] > here[plain] + margin(made, plain),
        f"{first} %; plain: {said([plain])} %; margin {100 * margin(made, plain):.2f}; best of all: {said(order[:1])} %",
    )


def _stable(accuracy: dict[tuple[str, str, float], list[float]], cluster: str) -> Statement:
    """Who loses least from the fewest to the most workers, of those who are good with the fewest."""
    counts = [count for _, where, count in accuracy if where == cluster]
    fewest, most = min(counts), max(counts)
    mean = lambda method, count: sum(accuracy[method, cluster, count]) / len(accuracy[method, cluster, count])
    lost: dict[str, float] = {
        method: mean(method, fewest) - mean(method, most)
        for method in METHODS
        if (method, cluster, most) in accuracy and mean(method, fewest) > GOOD
    }
    text = f"{cluster}: some method loses less accuracy from {fewest:g} to {most:g} workers than any plain one"
    order = sorted(lost, key=lambda method: lost[method])
    plain = next((method for method in order if method in PLAIN), None)
    if plain is None:
        return Statement(text, False, f"no plain method has more than {100 * GOOD:g} % with {fewest:g}")
    margin = _margin(*(accuracy[method, cluster, count] for method in (order[0], plain) for count in (fewest, most)))
    return Statement(
        text,
        lost[order[0]] < lost[plain] - margin,
        f"least: {', '.join(f'{method} {100 * lost[method]:.2f}' for method in order[:4])}; "
        f"plain: {plain} {100 * lost[plain]:.2f} points; margin {100 * margin:.2f}",
    )


def _edges(measured: Measured) -> Statement:
    """How far the grid of rates is to be trusted: best rates at its edges, where any rate learned."""
    learned = {
        (run.series, run.point)
        for run, record in measured.records
        if run.config.seed == TUNING
        and (record["train_loss"] or math.inf) < (1 - MARGIN) * record["initial_train_loss"]
    }
    every = best_rates(measured)
    best = [series for (_, _, count), series in every.items() if (series, count) in learned]
    low, high = (sum(_parts(series)[2] == edge for series in best) for edge in (REACH[0], REACH[-1]))
    return Statement(
        f"the best rates lie between {REACH[0]:g} and {REACH[-1]:g} in at least three quarters of the table, where any learned",
        bool(best) and low + high <= len(best) / 4,
        f"{low} at {REACH[0]:g} and {high} at {REACH[-1]:g} of {len(best)}; none learned in {len(every) - len(best)} more",
    )


def draw(figure, measured: Measured) -> None:
    import numpy as np

    accuracy = table(measured)
    clusters: Sequence[str] = list(dict.fromkeys(place[1] for place in accuracy))
    counts = sorted({place[2] for place in accuracy})
    methods = [method for method in METHODS if any(place[0] == method for place in accuracy)]
    figure.set_size_inches(11, 2 + 0.22 * len(methods))
    for axes, cluster in zip(figure.subplots(1, len(clusters), squeeze=False)[0], clusters, strict=True):
        grid = np.array(
            [[100 * np.mean(accuracy.get((method, cluster, n), [np.nan])) for n in counts] for method in methods]
        )
        top = np.nanmax(grid)
        axes.imshow(grid, aspect="auto", vmin=top - 30, vmax=top, cmap="viridis")
        for (row, column), value in np.ndenumerate(grid):
            values = accuracy.get((methods[row], cluster, counts[column]), [])
            half = measured_half(values)
            text = f"{value:.1f}" + (f" ± {100 * half:.1f}" if math.isfinite(half) else "")
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color="w" if value < top - 12 else "k")
        axes.set_xticks(range(len(counts)), [f"{n:g}" for n in counts])
        axes.set_yticks(range(len(methods)), methods, fontsize=6)
        axes.set(title=f"test accuracy (%), {cluster}", xlabel="workers")


def measured_half(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean; NaN of a single value."""
    from train.claims.results import Spread

    return Spread.of(values).half


MNIST = Config(dataset="mnist", engine="simulate", batch_size=64)
DIGITS = Config(dataset="digits", engine="simulate", batch_size=32)
RATES = (0.01, 0.03, 0.1, 0.3)
WORKERS = (4, 16, 64, 128)
CLUSTERS = ("homogeneous", "heterogeneous")
CLAIM = Claim(
    name="every_method",
    title="Every method of the library on one task, tuned alike",
    source="a comparison of this library's",
    runs={
        "full": _runs(MNIST, 10.0, WORKERS, CLUSTERS, RATES),
        "cpu": _runs(DIGITS, 30.0, WORKERS, CLUSTERS, RATES),
        "small": _runs(DIGITS, 10.0, (4, 64), ("heterogeneous",), (0.03, 0.3)),
    },
    judge=judge,
    draw=draw,
    then=then,
    tuning=(TUNING,),
    together=True,
    minutes={"full": 1_300, "cpu": 160, "small": 9},
    setting={"cpu": "digits in place of MNIST, 30 epochs"},
)
