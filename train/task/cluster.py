"""How fast the workers of a simulated cluster are, and how many local steps each takes between two commits."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemjax import arrivals

TIERS = (1.0, 0.75, 0.5, 0.25)
"""Speeds of the workers of a `tiered` cluster, worker by worker."""


def speeds(config: Any) -> tuple[float, ...]:
    """Steps in a unit of time, one number a worker; all 1 where a cluster does not fix them.

    >>> from train.config.config import Config
    >>> speeds(Config(engine="simulate", workers=5, cluster="tiered"))
    (1.0, 0.75, 0.5, 0.25, 1.0)
    """
    tiered = config.cluster in ("tiered", "tiered_barrier")
    return tuple(TIERS[worker % len(TIERS)] if tiered else 1.0 for worker in range(config.workers))


def periods(config: Any) -> int | tuple[int, ...]:
    """Local steps a commit: one number for all, or with `--dynamic-periods` one a worker, by its speed.

    >>> from train.config.config import Config
    >>> base = {"engine": "simulate", "method": "delayed_nesterov", "workers": 4, "cluster": "tiered", "period": 10}
    >>> periods(Config(**base)), periods(Config(**base, dynamic_periods=True))
    (10, (10, 7, 5, 2))
    """
    if not config.dynamic_periods:
        return config.period
    from gemjax import dynamic_periods  # Not sooner: commits are counted without JAX.

    return dynamic_periods(config.period, speeds(config))


def mean_period(config: Any) -> float:
    """Local steps a commit, on average over commits: with dynamic periods all workers commit equally often."""
    found = periods(config)
    return float(found) if isinstance(found, int) else sum(found) / len(found)


def cluster(config: Any) -> "arrivals.Arrivals":
    """How long the simulated workers of a run compute."""
    from gemjax import arrivals  # As above.

    if config.cluster == "round_robin":
        return arrivals.RoundRobin(config.workers)
    # A commit of tau local steps takes tau times as long, and varies by 1/sqrt(tau).
    model: arrivals.Arrivals = arrivals.Gamma(
        config.workers, batch_variation=0.1 / config.period**0.5, mean=float(config.period),
        machine_variation=0.6 if config.cluster == "heterogeneous" else 0.0,
    )  # fmt: skip
    if config.cluster in ("tiered", "tiered_barrier"):
        steps = periods(config)
        counts = [steps] * config.workers if isinstance(steps, int) else steps
        scales = [speed * config.period / count for speed, count in zip(speeds(config), counts, strict=True)]
        model = arrivals.Scaled(model, scales)
    return arrivals.Barrier(model) if config.cluster == "tiered_barrier" else model
