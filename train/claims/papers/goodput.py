"""Goodput: the share of gradients that training keeps while workers fail.

Question: how much of the work of N healthy workers is left when workers fail and return, with a barrier, with a barrier that
waits for the fastest m, with elastic training, and without a barrier?

Setting: computed from `gemjax.arrivals.Incidents` alone, nothing is trained. 64 workers, whose gradients take a time of mean 1
and standard deviation 0.1. Each worker fails at random at the same rate. It then loses its gradient in flight, and is
back after 50; an absent worker does not fail. All are there at the beginning. 3 seeds. Kept are the gradients that are
committed, as a share of those that 64 healthy workers compute.

- Asynchronous: each gradient is committed when it is ready.
- First 48 of 64: a round ends with the 48th gradient; the other workers are called back. This is m-synchronous SGD.
- Elastic: a round has the workers that are there. A failure loses its round, and other workers than before cost a time of 1.
- Synchronous: a round has all 64 gradients, so that each failure stops all workers until that worker is back.

No mode loses more than gradients in flight: going back to a checkpoint would cost the modes with rounds further work.

Two rates are marked, both of a whole job in gradients of 6 s. The training of Llama 3 (arXiv 2407.21783) had 419 unexpected
interruptions in 54 days, one every 3.1 hours. A million chips that fail once a year each have one every 32 s.

Expected: most is lost with a barrier. Decoupled DiLoCo (arXiv 2604.21428) reports 88 % of the work kept at high rates, and 27 %
with data parallelism; its setting is another one.
Found: shares of the gradients that 64 healthy workers compute. At the rate of a million chips, with failures 5 gradients
apart while all workers run, asynchronous training keeps 88 %, rounds of the first 48 of 64 68 %, elastic training 46 % and
synchronous training 2 %. At the rate of Llama 3 it is 100, 71, 80 and 79 %: failures cost little there, waiting for the slowest
of 64 costs a fifth, and calling back 16 of 64 costs more. A worker is away for 50 gradients; elastic training goes on with the
others. Not modelled: what a stale gradient is worth, the network, and gradients lost since a checkpoint.

Deviations:
  1. The 6 s are our arithmetic: 6 operations per parameter and token, 405 billion parameters, 16 million tokens, 16,384 GPUs at
     400 Tflop/s.
"""

import functools
import statistics
from typing import NamedTuple

import numpy as np

from gemjax import arrivals
from gemjax.arrivals.base import draw as draw_durations
from train.claims.claim import Claim, Statement, numbers

WORKERS, FIRST, SEEDS, LENGTH = 64, 48, 3, 1000.0
AWAY, RESTART = 50.0, 1.0  # In gradients, as all times here.
SECONDS = 6.0  # Of a gradient.
MARKED = {"Llama 3": 54 * 86_400 / 419 / SECONDS, "a million chips": 365 * 86_400 / 1e6 / SECONDS}
BETWEEN = (*np.geomspace(2, 5000, 12).tolist(), *MARKED.values())  # Times between two failures of the job.
COLORS = {"asynchronous": "C0", f"first {FIRST} of {WORKERS}": "C1", "elastic": "C2", "synchronous": "C3"}


class Failures(NamedTuple):
    """Moments at which each worker fails, float64 [workers, failures], filled up with infinity; it is back after `AWAY`."""

    at: np.ndarray

    @classmethod
    def random(cls, between: float, seed: int) -> "Failures":
        """Return failures of workers that are there for `WORKERS * between` in the mean."""
        rng, count = np.random.default_rng(seed), 2 + int(4 * LENGTH / (WORKERS * between)) + 20
        there = rng.exponential(WORKERS * between, (WORKERS, count))
        return cls(np.cumsum(there, axis=1) + AWAY * np.arange(count))

    def next(self, now: np.ndarray) -> np.ndarray:
        """Return, per worker, the first failure from which it is not back at `now`."""
        return np.take_along_axis(self.at, np.sum(self.at + AWAY <= now[:, None], axis=1)[:, None], axis=1)[:, 0]

    def finish(self, now: float, durations: np.ndarray) -> np.ndarray:
        """Return when each worker has the gradient that it begins at `now`, or when it is back, and again after a failure."""
        began = np.full(WORKERS, now)
        while np.any(failed := self.next(began) < began + durations):
            began = np.where(failed, self.next(began) + AWAY, began)
        return began + durations

    def incidents(self) -> list[arrivals.Leaves | arrivals.Joins]:
        """Return them for :class:`gemjax.arrivals.Incidents`."""
        moves = [(worker, at) for worker, row in enumerate(self.at.tolist()) for at in row if at < LENGTH]
        return [
            move for worker, at in moves for move in (arrivals.Leaves(worker, at), arrivals.Joins(worker, at + AWAY))
        ]


def asynchronous(model: arrivals.Arrivals, failures: Failures, seed: int) -> int:
    """Return the commits up to `LENGTH`."""
    trace = arrivals.Incidents(model, failures.incidents()).trace(int(1.1 * WORKERS * LENGTH), seed)
    return int(np.searchsorted(trace.time, LENGTH, "right"))


def in_rounds(durations: np.ndarray, failures: Failures, first: int) -> int:
    """Return the gradients of rounds that end by `LENGTH` with the `first` gradients."""
    now, rounds = 0.0, 0
    while (now := np.partition(failures.finish(now, durations[rounds]), first - 1)[first - 1]) <= LENGTH:
        rounds += 1
    return first * rounds


def elastic(durations: np.ndarray, failures: Failures) -> int:
    """Return the gradients of rounds that end by `LENGTH` with the workers that are there.

    A failure loses its round. A round with other workers than the one before begins after `RESTART`.
    """
    now, kept, before = 0.0, 0, np.full(WORKERS, True)
    for row in durations:
        failure = failures.next(np.full(WORKERS, now))
        there = failure > now
        if np.any(there != before):
            now, before = now + RESTART, there
            continue
        end = now + row[there].max(initial=0.0)
        if (broken := failure[there].min(initial=np.inf)) < end:
            now = broken
        elif end <= LENGTH:
            now, kept = end, kept + int(there.sum())
        else:
            break
    return kept


@functools.cache
def kept(between: float, seed: int) -> tuple[float, ...]:
    """Return the share of gradients that each mode keeps."""
    model, failures = arrivals.Gamma(WORKERS, batch_variation=0.1), Failures.random(between, seed)
    rounds = int(2 * LENGTH)  # Enough: a round or a restart takes about 1, and there are fewer failures than that.
    durations = np.stack([draw_durations(model, worker, seed, rounds) for worker in range(WORKERS)], axis=1)
    found = (
        asynchronous(model, failures, seed),
        in_rounds(durations, failures, FIRST),
        elastic(durations, failures),
        in_rounds(durations, failures, WORKERS),
    )
    return tuple(count / (WORKERS * LENGTH) for count in found)


def _means(between: float, seeds: int) -> list[float]:
    return [statistics.fmean(values) for values in zip(*(kept(between, seed) for seed in range(seeds)), strict=True)]


def _seeds(measured) -> int:
    return SEEDS if measured.full else 1


def judge(measured) -> list[Statement]:
    text = f"share kept (%): {', '.join(COLORS)}; failures {{:,.0f}} gradients apart while all run ({{}})"
    return [
        Statement(
            text.format(between, name), "", numbers([100 * mean for mean in _means(between, _seeds(measured))], ".0f")
        )
        for name, between in MARKED.items()
    ]


def draw(figure, measured, plots) -> list:
    axes = figure.subplots()
    between = sorted(BETWEEN if measured.full else MARKED.values())
    shares = np.array([_means(each, _seeds(measured)) for each in between])
    for (name, color), column in zip(COLORS.items(), 100 * shares.T, strict=True):
        axes.plot(between, column, color=color, marker="o", ms=4, label=name)
    for name, each in MARKED.items():
        axes.axvline(each, color="0.8", zorder=0)
        axes.annotate(name, (each, 106), color="0.4", ha="center", annotation_clip=False)
    axes.set(
        xscale="log",
        ylim=(0, 105),
        xlabel="time between two failures while all workers run, in gradients",
        ylabel="gradients kept (%)",
    )
    axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    return [axes]


CLAIM = Claim(
    title="Workers that fail cost a barrier the time of all others",
    source="Decoupled DiLoCo",
    runs={"full": [], "small": []},
    judge=judge,
    draw=draw,
    own=True,
    minutes={"full": 1, "small": 0.1},
    setting=dict.fromkeys(("full", "small"), f"{WORKERS} workers, computed from arrivals, nothing is trained"),
)
