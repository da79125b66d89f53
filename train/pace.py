"""How fast the workers of a simulated cluster are, and how many local steps each takes between two commits."""

from typing import Any

TIERS = (1.0, 0.75, 0.5, 0.25)
"""Speeds of the workers of a `tiered` cluster, worker by worker."""


def speeds(config: Any) -> tuple[float, ...]:
    """Steps in a unit of time, one number a worker; all 1 where a cluster does not fix them.

    >>> from train.config import Config
    >>> speeds(Config(engine="simulate", workers=5, cluster="tiered"))
    (1.0, 0.75, 0.5, 0.25, 1.0)
    """
    tiered = config.cluster in ("tiered", "tiered_barrier")
    return tuple(TIERS[worker % len(TIERS)] if tiered else 1.0 for worker in range(config.workers))


def periods(config: Any) -> int | tuple[int, ...]:
    """Local steps a commit: one number for all, or with `--dynamic-periods` one a worker, by its speed.

    >>> from train.config import Config
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
