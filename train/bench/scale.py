"""`python -m train bench scale`: hundreds of hosts on one central variable, by arrival models with a network."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gemjax import arrivals
from train.bench.cluster import AT_ACTORS, HOSTS
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
WIRE = "float32, 4"  # Figures of `bench cluster --address`.
COLUMNS = {"commits": "commits/s", "gradients": "gradients/s", "wire": "MB per commit", "asgd": "GB, asgd", "gem": "GB, gem",
           "p50": "staleness p50", "p95": "p95"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds per commit and pull, as `bench cluster` measures them: a fixed part (calls of Ray), and one per byte.

    Attributes:
      seconds: the fixed part of the driver's thread.
      per_byte: that of each byte of the parameters, for copies and the commit.
      at_actors: the fixed part of central actors, for which the driver's thread waits.
      per_byte_there: that of each byte of an actor's part of the parameters.
      share: of the wire's speed that commits reach.
    """

    seconds: float
    per_byte: float
    at_actors: float
    per_byte_there: float
    share: float

    def service(self, size: float, actors: int) -> float:
        """Return the seconds of a commit of so many bytes, over so many actors; 1 stands for the driver."""
        if actors == 1:
            return self.seconds + self.per_byte * size
        return self.at_actors + self.per_byte_there * size / actors


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """A way to run the same training.

    Args:
      name: description in the table.
      period: local steps per commit.
      up: bytes of a commit relative to float32.
      actors: central actors, each on a host of its own, over which the parameters are sharded. They copy and commit their parts
        at the same time, while the driver's thread waits.
    """

    name: str
    period: int = 1
    up: float = 1.0
    actors: int = 1


ARRANGEMENTS = (
    Arrangement("as it is"),
    Arrangement("int8 gradients", up=0.25),
    Arrangement("8 central actors", actors=8),
    Arrangement("16 local steps", period=16),
    Arrangement("500 local steps, 8 central actors", period=500, actors=8),
)


def table(
    sizes: Sequence[int],
    hosts: Sequence[int],
    gigabits: float,
    gradient_seconds: float,
    files: Sequence[str],
    console: Console,
) -> dict[str, Any]:
    """Simulate every arrangement for each number of parameters and hosts; print rates and the memory of central hosts.

    Args:
      sizes: numbers of parameters.
      hosts: numbers of hosts, with one worker each.
      gigabits: bandwidth of every host in each direction, in Gbit/s.
      gradient_seconds: mean time of a gradient.
      files: as for :func:`measured_in`.
      console: prints the table.
    """
    measured = measured_in(files)
    figures: dict[str, Any] = {
        "assumptions": {"gigabits": gigabits, "gradient_seconds": gradient_seconds, "latency": LATENCY, "variation": VARIATION,
                        "measured": dataclasses.asdict(measured)}
    }  # fmt: skip
    rows = []
    for size, count, arrangement in itertools.product(sizes, hosts, ARRANGEMENTS):
        row = simulate(arrangement, size, count, gigabits, gradient_seconds, measured)
        figures[f"{size} parameters, {count} hosts, {arrangement.name}"] = row
        numbers = (*(short(row[name]) for name in COLUMNS), f"{100 * row['computing']:.0f} %")
        rows.append((f"{size:,}", f"{count:,}", arrangement.name, *numbers, row["bottleneck"]))
    title = f"{gradient_seconds:g} s per gradient; {gigabits:g} Gbit/s per host, of which commits reach {measured.share:.0%}"
    columns = ("parameters", "hosts", "arrangement", *COLUMNS.values(), "computing", "bottleneck")
    show_table(console, title, columns, rows, words=3)
    return figures


def short(value: float) -> str:
    """Return a number as the table has it."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def simulate(
    arrangement: Arrangement, size: int, hosts: int, gigabits: float, gradient_seconds: float, measured: Measured
) -> dict[str, Any]:
    """Return rates, staleness and bottleneck of one arrangement, by a trace of its arrival model.

    The stages of a central variable overlap: while a commit is applied, others arrive and views leave. So it serves one commit
    per duration of the slowest stage.

    >>> found = simulate(Arrangement("as it is"), 10_000_000, 64, 10.0, 0.2, Measured(2.3e-3, 3.5e-9, 4e-3, 3e-9, 0.8))
    >>> round(found["commits"]), found["bottleneck"]
    (7, 'the central variable')
    """
    per_second = measured.share * gigabits * 1e9 / 8
    up, down = BYTES * size * arrangement.up, BYTES * size
    stages = {
        "the central variable": measured.service(BYTES * size, arrangement.actors),
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
    numbers = {"asgd": 1, "gem": 1 + 2 * hosts}  # Per parameter, of the central variable and its method's state.
    return {
        **{name: (count + 1) * BYTES * size / arrangement.actors / 1e9 for name, count in numbers.items()},
        "wire": (up + down) / 1e6,
        "commits": rate,
        "gradients": rate * arrangement.period,
        "p50": float(p50),
        "p95": float(p95),
        "computing": rate * computing / hosts,
        "bottleneck": slowest if rate * stages[slowest] > FULL else "none",
    }


def measured_in(files: Sequence[str]) -> Measured:
    """Return what `bench cluster` measured, by lines through its sizes, from files that it wrote with and without `--address`.

    Raises:
      UsageError: if the files lack figures of the wire, or those of two sizes.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for name, of in json.loads(Path(file).read_text(encoding="utf-8"))["cluster"].items():
            if isinstance(of, dict):
                found.setdefault(name, {}).update(of)
    timed = {int(name.replace(",", "")): of["times"] for name, of in found.items() if "times" in of}
    shares = [of[WIRE]["share"] for of in found.values() if WIRE in of]
    if len(timed) < 2 or not shares:
        raise UsageError(
            f"{', '.join(files)}: figures of `bench cluster` at two or more sizes are needed, and those with --address"
        )
    lines = []
    for parts, actors in ((PARTS, 1), ((AT_ACTORS,), HOSTS)):
        seconds = [1e-3 * sum(times[part]["median"] for part in parts) for times in timed.values()]
        per_byte, fixed = np.polyfit(BYTES * np.array(list(timed)) / actors, seconds, 1)
        lines += [max(float(fixed), 0.0), max(float(per_byte), 0.0)]
    return Measured(*lines, share=float(np.median(shares)))
