"""A fixed effective batch, split over more workers, is worked through sooner at the same loss: figure 4.

Claim: with 256 rows split over 1, 2, 4, 8 and 16 workers (batches of 256 to 16), time falls in inverse proportion to the
workers' batch, and the loss does not suffer.

Setting (full): MNIST, GEM's CNN, GEM with η = 0.05 and μ = 0.9; all workers together see eight epochs of data; one seed.
Setting (small): digits, 64 rows split over 1, 2, 4 and 8 workers, twenty epochs of data in all, one seed.

What time is: simulated. A gradient on the whole 256 rows takes one unit, one on a part of them takes that part; commits
take none. So the speed-up says that nobody waits for anybody, not how fast a machine computes small batches.

Cost (full): 5 runs, 58,112 commits, most on small batches.
Expected: speed-up within 5 % of the number of workers; final losses alike.
Found: speed-up 1 / 2 / 3.99 / 7.98 / 16; final losses 0.052 / 0.066 / 0.064 / 0.054 / 0.063, test errors 0.92 / 1.08 / 1.12 /
0.92 / 1.17 %. One and eight workers are ahead by up to a quarter of the loss, the others are in no order, and it is one seed:
whether splitting costs anything is open.

Deviations:
  1. Simulated workers; time as above.
  2. The paper does not name the amount of data: eight epochs here.
  3. η stays while batches shrink, as the effective batch does.
"""

import math

from train.claims.claim import Claim, Statement
from train.claims.papers.gem_setting import digits, mnist, words
from train.claims.runs import Run, over_seeds


def _runs(make, effective: int, epochs: float, workers, seeds) -> list[Run]:
    split = {count: {"epochs": epochs / count, "batch_size": effective // count} for count in workers}
    return [
        run
        for count, own in split.items()
        for run in over_seeds("GEM", make("gem", count, learning_rate=0.05, **own), seeds=seeds)
    ]


def speed_ups(measured) -> dict[float, float]:
    """How many times sooner than one worker, by number of workers."""
    times = {n: measured.mean("time", "GEM", n) * _part(measured, n) for n in measured.points("GEM")}
    return {n: times[min(times)] / time for n, time in times.items()}


def _part(measured, workers: float) -> float:
    """Of the effective batch, what one worker computes on: the time of its gradient."""
    sizes = {run.point: run.config.batch_size for run, _ in measured.records}
    return sizes[workers] / sizes[min(sizes)]


def judge(measured) -> list[Statement]:
    points = measured.points("GEM")
    gained, losses = speed_ups(measured), [measured.mean("train_loss", "GEM", n) for n in points]
    errors = [100 * (1 - measured.mean("test_accuracy", "GEM", n)) for n in points]
    return [
        Statement(
            "virtual time, in which a gradient takes as long as its batch is large, falls in inverse proportion to it, to 10 %",
            all(abs(gained[n] / n - 1) <= 0.1 and not measured.diverged("GEM", n) for n in points),
            "speed-up " + words([gained[n] for n in points]),
            words([float(n) for n in points]),
        ),
        Statement(
            "splitting the batch does not make the final training loss worse (by more than a quarter)",
            all(loss <= 1.25 * losses[0] < math.inf for loss in losses),
            words(losses),
            "alike" if measured.full else "",
        ),
        Statement(
            "nor the test error (by more than 0.3 percentage points)"
            if measured.full
            else "nor the test error (2 points)",
            all(error <= errors[0] + (0.3 if measured.full else 2.0) < 50 for error in errors),
            words(errors) + " %",
        ),
    ]


def draw(figure, measured) -> None:
    from train.claims import plots as claim_plots

    left, middle, right = figure.subplots(1, 3)
    points = measured.points("GEM")
    gained = speed_ups(measured)
    left.plot(points, points, ls="--", color="0.4", lw=1, label="number of workers")
    left.plot(points, [gained[n] for n in points], label="GEM", ms=5, **claim_plots.look(0))
    claim_plots.points_axis(left, points, "workers")
    left.set_yscale("log", base=2)
    left.set_ylabel("speed-up, virtual time")
    left.legend(frameon=False)
    for index, workers in enumerate(points):
        _, losses = measured.curve("train_loss", "GEM", workers)
        times = measured.times("GEM", workers) * _part(measured, workers)
        middle.plot(times, losses, color=f"C{index}", lw=1, label=f"{workers:g}")
    middle.set(xlabel="virtual time", ylabel="training loss")
    middle.set_xscale("log", base=2)
    claim_plots.log_axis(middle)
    middle.legend(frameon=False, title="workers", fontsize="small")
    claim_plots.lines(right, measured, "train_loss")
    claim_plots.points_axis(right, points, "workers")
    right.set_ylim(0, 1.15 * right.get_ylim()[1])


CLAIM = Claim(
    name="gem_figure_4",
    title="A fixed effective batch split over more workers is done sooner at no larger a loss",
    source="Hermans & Louppe, 2018, figure 4",
    runs={
        "full": _runs(mnist, 256, 8.0, (1, 2, 4, 8, 16), (0,)),
        "small": _runs(digits, 64, 20.0, (1, 2, 4, 8), (0,)),
    },
    judge=judge,
    draw=draw,
    minutes={"full": 5, "small": 1},
)
