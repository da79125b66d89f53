"""`python -m train bench scale`: hundreds of hosts on one central variable, by arrival models with a network."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gemjax import arrivals
from train.common.console import show_table
from train.common.errors import UsageError

# Parts of a commit in `bench cluster`, in which the driver is busy; in the others it waits for a worker.
PARTS = ("view to the object store, and the call", "get", "gradient to the central device", "commit + pull program",
         "delivery of the view")  # fmt: skip
ROUNDS = 200  # Commits per host; the first half, in which hosts that began together drift apart, is not counted.
LATENCY = 1e-4  # Seconds per message between two hosts of one data centre.
VARIATION = 0.1  # Of a gradient's duration, as DANA simulates clusters.
FULL = 0.95  # Utilisation from which a stage is the bottleneck.
BYTES = 4  # Of a parameter in float32.


@dataclasses.dataclass(frozen=True)
class Driver:
    """Seconds of the driver's thread per commit and pull: a fixed part (calls of Ray), and one per byte (copies, the commit).

    The defaults are those that `bench cluster` measured on two cores that other programs used as well.
    """

    seconds: float = 2.3e-3
    seconds_per_byte: float = 3.5e-9
    source: str = "two cores"

    def service(self, size: float) -> float:
        return self.seconds + self.seconds_per_byte * size


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """A way to run the same training.

    Args:
      name: description in the table.
      period: local steps per commit.
      up: bytes of a commit relative to float32.
      down: bytes of a view relative to float32.
      actors: central actors, each on a host of its own, over which the parameters are sharded. They copy and commit their parts
        at the same time, while the driver's thread waits.
    """

    name: str
    period: int = 1
    up: float = 1.0
    down: float = 1.0
    actors: int = 1


ARRANGEMENTS = (
    Arrangement("as it is"),
    Arrangement("8-bit commits, bf16 views", up=0.25, down=0.5),
    Arrangement("8 central actors", actors=8),
    Arrangement("16 local steps", period=16),
    Arrangement("16 local steps, 8-bit, bf16, 8 actors", period=16, up=0.25, down=0.5, actors=8),
)


def table(
    sizes: Sequence[int],
    hosts: Sequence[int],
    gigabits: float,
    gradient_seconds: float,
    figures_of_cluster: str | None,
    console: Console,
) -> dict[str, Any]:
    """Simulate every arrangement for each number of parameters and hosts, and print the result.

    Args:
      sizes: numbers of parameters.
      hosts: numbers of hosts, with one worker each.
      gigabits: bandwidth of every host in each direction, in Gbit/s.
      gradient_seconds: mean time of a gradient.
      figures_of_cluster: file of `bench cluster --out`, for the driver's time per commit; ``None`` for the assumed one.
      console: prints the table.
    """
    driver = driver_of(figures_of_cluster)
    figures: dict[str, Any] = {
        "assumptions": {"gigabits": gigabits, "gradient_seconds": gradient_seconds, "latency": LATENCY, "variation": VARIATION,
                        "driver": dataclasses.asdict(driver)}
    }  # fmt: skip
    for size in sizes:
        title = (
            f"{size:,} parameters, {gradient_seconds:g} s per gradient, {gigabits:g} Gbit/s per host; the driver's thread "
            f"({driver.source}): {1e3 * driver.service(BYTES * size):.3g} ms per commit"
        )
        rows = []
        for count in hosts:
            for arrangement in ARRANGEMENTS:
                row = simulate(arrangement, size, count, gigabits, gradient_seconds, driver)
                figures[f"{size} parameters, {count} hosts, {arrangement.name}"] = row
                numbers = (_short(row[name]) for name in ("commits", "gradients", "in_mb", "out_mb", "p50", "p95"))
                rows.append(
                    (f"{count:,}", arrangement.name, *numbers, f"{100 * row['computing']:.0f} %", row["bottleneck"])
                )
        columns = ("hosts", "arrangement", "commits/s", "gradients/s", "in MB/s", "out MB/s",
                   "staleness p50", "p95", "computing", "bottleneck")  # fmt: skip
        show_table(console, title, columns, rows, words=2)
    return figures


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def simulate(
    arrangement: Arrangement, size: int, hosts: int, gigabits: float, gradient_seconds: float, driver: Driver
) -> dict[str, Any]:
    """Return rates, staleness and bottleneck of one arrangement, by a trace of its arrival model.

    The stages of a central variable overlap: while a commit is applied, others arrive and views leave. So it serves one commit
    per duration of the slowest stage.

    >>> found = simulate(Arrangement("as it is"), 10_000_000, 64, 10.0, 0.2, Driver())
    >>> round(found["commits"]), found["bottleneck"]
    (7, "the driver's thread")
    """
    per_second = gigabits * 1e9 / 8
    up, down = (BYTES * size * share for share in (arrangement.up, arrangement.down))
    stages = {
        "the driver's thread": driver.service(BYTES * size / arrangement.actors),
        "network in": up / per_second / arrangement.actors,
        "network out": down / per_second / arrangement.actors,
    }
    slowest = max(stages, key=lambda stage: stages[stage])
    computing = arrangement.period * gradient_seconds
    gradients = arrivals.Gamma(hosts, batch_variation=VARIATION / arrangement.period**0.5, mean=computing)
    network = arrivals.Delayed(gradients, up=LATENCY + up / per_second, down=LATENCY + down / per_second)
    trace = arrivals.Queue(network, service=stages[slowest]).trace(ROUNDS * hosts)
    half = len(trace) // 2
    rate = half / float(trace.time[-1] - trace.time[-1 - half])
    p50, p95 = np.percentile(trace.staleness[half:], [50, 95])
    return {
        "commits": rate,
        "gradients": rate * arrangement.period,
        "in_mb": rate * up / 1e6,
        "out_mb": rate * down / 1e6,
        "p50": float(p50),
        "p95": float(p95),
        "computing": rate * computing / hosts,
        "bottleneck": slowest if rate * stages[slowest] > FULL else "none",
    }


def driver_of(figures: str | None) -> Driver:
    """Return the driver in a file of `bench cluster --out`, by a line through its sizes; without a file, the assumed one.

    Raises:
      UsageError: if the file has fewer than two sizes.
    """
    if figures is None:
        return Driver()
    found = json.loads(Path(figures).read_text(encoding="utf-8"))["cluster"]
    sizes = [int(name.replace(",", "")) for name, of in found.items() if isinstance(of, dict)]
    if len(sizes) < 2:
        raise UsageError(f"{figures} has no figures of `bench cluster` at two or more sizes")
    times = [1e-3 * sum(found[f"{size:,}"]["times"][part]["median"] for part in PARTS) for size in sizes]
    per_byte, fixed = np.polyfit(BYTES * np.array(sizes), times, 1)
    return Driver(max(float(fixed), 0.0), max(float(per_byte), 0.0), f"measured, {figures}")
