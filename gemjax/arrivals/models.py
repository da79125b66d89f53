"""Distributions of one worker's durations."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gemjax.arrivals.base import Around, Arrivals, durations_of, per_worker
from gemjax.protocol.checks import check_at_least, check_between, check_positive, integer

SQUARED = 1e-100, 1e100  # Numbers between these have a square that neither overflows nor underflows.


@dataclasses.dataclass(frozen=True)
class RoundRobin(Arrivals):
    """Workers that commit in turn, 0, 1, …, N - 1, 0, …; every gradient takes one unit of time.

    The staleness is exactly N - 1 after the first round.

    Args:
      num_workers: number of workers N, positive.

    >>> RoundRobin(3).trace(5).worker
    array([0, 1, 2, 0, 1], dtype=int32)
    """

    def durations(self, worker, rng, count):
        del worker, rng
        return np.ones(count)


@dataclasses.dataclass(frozen=True)
class ConstantSpeeds(Arrivals):
    """Workers of constant, different speeds.

    Args:
      speeds: gradients per unit of time for each worker, all positive. Simultaneous commits are ordered by worker number.
        Inside another model the times are sums of durations, so rounding decides which of simultaneous commits is first.

    >>> ConstantSpeeds([2.0, 1.0]).trace(6).worker
    array([0, 0, 1, 0, 0, 1], dtype=int32)
    """

    num_workers: int = dataclasses.field(init=False, default=0)  # The number of speeds.
    speeds: Sequence[float] = ()

    def __post_init__(self):
        for speed in self.speeds:
            check_positive("each of speeds", speed)
        object.__setattr__(self, "speeds", tuple(map(float, self.speeds)))
        object.__setattr__(self, "num_workers", integer("the number of speeds", len(self.speeds), 1))

    def durations(self, worker, rng, count):
        del rng
        return np.full(count, 1.0 / self.speeds[worker])

    def finishes(self, worker, durations):
        count = len(durations)  # Exact: a running sum would round, and break ties.
        return np.arange(1, count + 1) / self.speeds[worker], np.full(count, np.nan)


@dataclasses.dataclass(frozen=True)
class Gamma(Arrivals):
    """Gamma-distributed durations, as DANA simulates clusters.

    A gradient of worker w takes T ~ Γ(1/V_b², μ_w V_b²): mean μ_w, coefficient of variation V_b. On a homogeneous cluster every
    μ_w is ``mean``; on a heterogeneous one it is drawn once per worker from Γ(1/V_m², mean · V_m²).

    Args:
      num_workers: number of workers N, positive.
      batch_variation: V_b > 0, default 0.1; a number, or one per worker.
      machine_variation: V_m ≥ 0; 0 (default) is homogeneous, DANA's heterogeneous cluster has 0.6.
      mean: mean duration, positive, in any unit of time; default 1.

    >>> trace = Gamma(8).trace(10_000)
    >>> float(trace.staleness[8:].mean().round(1))  # N - 1 on any cluster in a steady state.
    7.0

    References:
      Hakimi et al., `Taming Momentum in a Distributed Asynchronous Environment
      <https://arxiv.org/abs/1907.11612>`_, 2019; Ali et al., Representing Task and Machine Heterogeneities for
      Heterogeneous Computing Systems, 2000
    """

    batch_variation: float | Sequence[float] = 0.1
    machine_variation: float = 0.0
    mean: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        variations = per_worker("batch_variation", self.batch_variation, self.num_workers)
        for variation in set(variations):
            check_between("batch_variation", variation, *SQUARED)
        if not np.isscalar(self.batch_variation):
            object.__setattr__(self, "batch_variation", variations)
        check_positive("mean", self.mean)
        check_at_least("machine_variation", self.machine_variation, 0.0)

    def durations(self, worker, rng, count):
        mean = self.mean
        if self.machine_variation:
            mean = rng.gamma(self.machine_variation**-2, mean * self.machine_variation**2)
        variation = float(np.broadcast_to(self.batch_variation, self.num_workers)[worker])
        return rng.gamma(variation**-2, mean * variation**2, count)


@dataclasses.dataclass(frozen=True)
class Exponential(Arrivals):
    """Exponential durations: memoryless arrivals, the model of queueing theory and of most proofs.

    Args:
      num_workers: number of workers N, positive.
      mean: mean duration, positive, in any unit of time; default 1.

    >>> round(float(Exponential(8).trace(20_000).staleness.std()))  # Geometric: standard deviation near the mean.
    7
    """

    mean: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_positive("mean", self.mean)

    def durations(self, worker, rng, count):
        del worker
        return rng.exponential(self.mean, count)


@dataclasses.dataclass(frozen=True)
class LogNormal(Arrivals):
    """Log-normal durations: mostly similar, occasionally long.

    Args:
      num_workers: number of workers N, positive.
      variation: coefficient of variation, positive; default 0.5.
      mean: mean duration, positive, in any unit of time; default 1.

    >>> bool(LogNormal(4, variation=1.0).trace(1000).staleness.max() > LogNormal(4, variation=0.1).trace(1000).staleness.max())
    True
    """

    variation: float = 0.5
    mean: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_between("variation", self.variation, *SQUARED)
        check_positive("mean", self.mean)

    def durations(self, worker, rng, count):
        del worker
        spread = np.log1p(self.variation**2)
        return rng.lognormal(np.log(self.mean) - spread / 2, np.sqrt(spread), count)


@dataclasses.dataclass(frozen=True)
class Pareto(Arrivals):
    """Pareto durations: stragglers of any length, by a power law.

    No gradient takes less than mean · (a - 1) / a. The share that takes more than x falls as x^(-a).

    Args:
      num_workers: number of workers N, positive.
      shape: a > 1; smaller values make longer stragglers; default 2.5. Below 2 the variance is infinite.
      mean: mean duration, positive, in any unit of time; default 1.

    >>> int(Pareto(8, shape=1.5).trace(2000).staleness.max()) > 50
    True
    """

    shape: float = 2.5
    mean: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if not 1 < self.shape < math.inf:
            raise ValueError(f"shape must be finite and above 1, where durations have a mean; got {self.shape!r}")
        check_positive("mean", self.mean)

    def durations(self, worker, rng, count):
        del worker
        return self.mean * (self.shape - 1) / self.shape * (1 + rng.pareto(self.shape, count))


@dataclasses.dataclass(frozen=True)
class Scaled(Around):
    """Another model with workers of unequal speeds.

    Args:
      model: how long gradients take on a worker of speed 1.
      speeds: speed of each worker, positive; its durations are divided by it.

    >>> trace = Scaled(Gamma(3), speeds=[1.0, 1.0, 4.0]).trace(600)
    >>> int((trace.worker == 2).sum().round(-2))
    400
    """

    speeds: Sequence[float] = ()

    def __post_init__(self):
        super().__post_init__()
        speeds = per_worker("speeds", self.speeds, self.num_workers)
        for speed in speeds:
            check_positive("each of speeds", speed)
        object.__setattr__(self, "speeds", speeds)

    def durations(self, worker, rng, count):
        return durations_of(self.model, worker, rng, count) / self.speeds[worker]
