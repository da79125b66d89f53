"""The cluster of a run: simulated, with the speeds and local steps of its workers, of devices on this host, or of Ray."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from train.common.console import say, warnings_on
from train.common.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from gemjax import Cluster, Placement, Trace, arrivals

TIERS = (1.0, 0.75, 0.5, 0.25)
"""Speeds of the workers of a `tiered` cluster, in turn."""


def speeds(config: Any) -> tuple[float, ...]:
    """Return the steps per unit of time, per worker; all 1 if the cluster does not fix them.

    >>> from train.config.config import Config
    >>> speeds(Config(engine="simulate", workers=5, cluster="tiered"))
    (1.0, 0.75, 0.5, 0.25, 1.0)
    """
    tiered = config.cluster in ("tiered", "tiered_barrier")
    return tuple(TIERS[worker % len(TIERS)] if tiered else 1.0 for worker in range(config.workers))


def periods(config: Any) -> int | tuple[int, ...]:
    """Return the local steps per commit: one number, or with `--dynamic-periods` one per worker, by its speed.

    >>> from train.config.config import Config
    >>> base = {"engine": "simulate", "method": "delayed_nesterov", "workers": 4, "cluster": "tiered", "period": 10}
    >>> periods(Config(**base)), periods(Config(**base, dynamic_periods=True))
    (10, (10, 7, 5, 2))
    """
    if not config.dynamic_periods:
        return config.period
    from gemjax.rules import dynamic_periods  # Imported here, so that commits are counted without JAX.

    return dynamic_periods(config.period, speeds(config))


def mean_period(config: Any) -> float:
    """Return the mean local steps per commit; with dynamic periods all workers commit equally often."""
    found = periods(config)
    return float(found) if isinstance(found, int) else sum(found) / len(found)


def commits(config: Any, steps_per_epoch: int) -> int:
    """Return the number of commits of all workers in a run.

    >>> from types import SimpleNamespace
    >>> commits(SimpleNamespace(workers=3, epochs=1.6, period=1, dynamic_periods=False), 5)  # 24.000000000000004 in floats.
    24
    """
    return max(1, math.ceil(round(config.workers * config.epochs * steps_per_epoch / mean_period(config), 6)))


def cluster(config: Any) -> "arrivals.Arrivals":
    """Return the arrival model of a simulated run."""
    from gemjax import arrivals  # Imported here for the same reason.

    if config.cluster == "round_robin":
        return arrivals.ConstantSpeeds([1 / config.period] * config.workers)
    # A commit of tau local steps takes tau times as long and varies less, by 1/sqrt(tau).
    steps = periods(config)
    counts = [steps] * config.workers if isinstance(steps, int) else steps
    model: arrivals.Arrivals = arrivals.Gamma(
        config.workers, batch_variation=[config.variation / count**0.5 for count in counts], mean=float(config.period),
        machine_variation=0.6 if config.cluster.startswith("heterogeneous") else 0.0,
    )  # fmt: skip
    if config.cluster in ("tiered", "tiered_barrier"):
        scales = [speed * config.period / count for speed, count in zip(speeds(config), counts, strict=True)]
        model = arrivals.Scaled(model, scales)
    if config.transfer:
        model = arrivals.Delayed(model, up=config.transfer / 2, down=config.transfer / 2)
    return arrivals.Barrier(model, config.quorum) if config.cluster.endswith("barrier") else model


def traces(config: Any, num_commits: int) -> "tuple[Trace, Trace]":
    """Return the trace of a simulated run, and the longer one that is simulated up to there.

    A worker at a barrier pulls after later commits of others, which a trace shows only with that worker's next commit. The
    longer one has these, so that a run that ends inside of a round can be continued.
    """
    ahead = 2 * config.workers if config.cluster.endswith("barrier") else 0
    longer = cluster(config).trace(num_commits + ahead, config.seed)
    return longer.first(num_commits), longer


def placement(config: Any, needed: int) -> "Placement":
    """Return the devices of a run on this host, of whose CPU it needs so many; one more is for evaluations.

    Raises:
      UsageError: if there are too few, or they would overlap in part.
    """
    import jax  # Imported here for the same reason.

    import gemjax

    devices = jax.local_devices()
    evaluator = devices[-1] if devices[0].platform == "cpu" and len(devices) > needed else None
    try:
        placed = gemjax.place(
            config.workers, None if config.central == "auto" else config.central,
            devices[:-1] if evaluator else devices,
            central_devices=config.central_devices, worker_devices=config.worker_devices,
        )  # fmt: skip
        return dataclasses.replace(placed, evaluator=evaluator) if evaluator else placed
    except ValueError as error:
        raise UsageError(
            f"--central {config.central} does not fit this host: {str(error).partition('; ')[0]}; lower --central-devices and "
            "--worker-devices, or change --central"
        ) from error


@contextlib.contextmanager
def ray_cluster(config: Any, console: "Console") -> "Iterator[Cluster | None]":
    """Start Ray or join a running cluster, with an actor per worker; yield `None` for other engines.

    Raises:
      UsageError: if the cluster cannot be used.
      OSError: if no cluster answers.
    """
    if config.engine != "cluster":
        yield None
        return
    import jax  # Imported here for the same reason.
    from ray.exceptions import RayError  # The extra, which the command line has checked.

    import gemjax

    say(console, f"joining the Ray cluster at {config.address} …" if config.address else "starting Ray on this host …")
    count, devices = config.central_devices, jax.local_devices(backend=None if config.central == "dedicated" else "cpu")
    if len(devices) < count:
        raise UsageError(f"--central-devices is {count}, but this host has {len(devices)} devices for it")
    with contextlib.ExitStack() as stack:
        try:
            with warnings_on(console):
                cluster = stack.enter_context(gemjax.Cluster(
                    config.workers, min_workers=config.min_workers, address=config.address,
                    num_cpus=config.worker_cpus, num_gpus=config.worker_gpus,
                    resources={"TPU": config.worker_tpus} if config.worker_tpus else None,
                    central=devices[0] if count == 1 else tuple(devices[:count]),
                    central_hosts=config.central_hosts or None,
                ))  # fmt: skip
        except (ValueError, RuntimeError, RayError) as error:
            message = " ".join(str(error).split()).replace("address=", "--address")
            raise UsageError(f"Ray cannot be used: {message}") from error
        yield cluster
