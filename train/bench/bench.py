"""`python -m train bench`: costs of the engines, relative to references timed in the same run."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro

import gemjax
from train.bench import arrivals as bench_arrivals
from train.bench import check as bench_check
from train.bench import cluster as bench_cluster
from train.bench import devices as bench_devices
from train.bench import methods as bench_methods
from train.bench import scale as bench_scale
from train.bench import second as bench_second
from train.bench import simulate as bench_simulate
from train.common.console import RunConsole
from train.common.files import check_out, write_whole
from train.config.methods import METHODS, Method
from train.config.parsing import parse_flags

PyTree = Any

RESULTS = Path(__file__).parents[1] / "results"
Measurement = Literal["simulate", "devices", "cluster", "methods", "arrivals", "scale", "check", "second"]


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure what the engines cost.

    The simulator is compared with a plain sequential loop, the device scheduler with a bare loop, the cluster with plain
    programs on Ray, methods with ASGD, and commits with those that are not tested (`check`). The speed of making traces is
    measured, too, and what a second call costs (`second`).
    """

    what: tyro.conf.Positional[tuple[Measurement, ...]] = ("simulate", "devices")
    """What to measure."""

    rounds: int = 7
    """Number of rounds. Each round times everything once; medians over rounds are printed."""
    steps: int = 100
    """Commits per measurement (`simulate`, `methods`, `check`)."""
    workers: tuple[int, ...] = (1, 8, 64, 512)
    """Numbers of simulated workers (`simulate`)."""
    methods: tuple[Method, ...] = ("gem",)
    """Methods simulated (`simulate`)."""
    networks: tuple[Literal["cnn", "mlp"], ...] = ("cnn",)
    """Networks to train (`simulate`, `check`): GEM's, or three dense layers."""
    batch_sizes: tuple[int, ...] = (bench_simulate.BATCH_SIZE,)
    """Images per gradient (`simulate`)."""
    parameters: tuple[int, ...] = (160_000, 1_000_000, 10_000_000)
    """Sizes of the central variable (`devices`, `cluster`, `scale`, `check`)."""
    commits: int = 2000
    """Timed commits of the scheduler (`devices`, `cluster`); fewer at large sizes."""
    hosts: tuple[int, ...] = (64, 1024)
    """Numbers of simulated hosts of a cluster (`scale`)."""
    gigabits: float = 10.0
    """Bandwidth of such a host in each direction, in Gbit/s (`scale`)."""
    gradient_seconds: float = 0.2
    """Mean time of a gradient on such a host (`scale`)."""
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Running Ray cluster: `cluster` measures the share of the wire's speed that commits from another host reach."""
    measured: tuple[str, ...] = tuple(str(RESULTS / f"bench_{name}.json") for name in ("cluster", "wire_1gbit"))
    """Files of `bench cluster --out`, one without and one with `--address` (`scale`); default: the published ones."""
    out: str | None = None
    """File for the figures as JSON; default: none is written."""


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks that the command line names."""
    bench = parse_flags(Bench, argv, "python -m train bench")
    # Known before the measurements of other parts, which may take an hour.
    if "scale" in bench.what:
        bench_scale.measured_in(bench.measured)
    if "cluster" in bench.what:
        bench_cluster.imported_ray()
    if bench.out:
        check_out(Path(bench.out).parent)
        Path(bench.out).parent.mkdir(parents=True, exist_ok=True)
    gemjax.cpu_devices(9)
    console = RunConsole()
    console.print(f"{os.cpu_count()} cores, jax {jax.__version__}, {jax.devices()[0].device_kind}", highlight=False)
    measures = {
        "simulate": lambda: bench_simulate.ratios(
            bench.networks, bench.batch_sizes, bench.methods, bench.workers, bench.rounds, bench.steps, console
        ),
        "devices": lambda: bench_devices.measure(bench.parameters, bench.rounds, bench.commits, console),
        "cluster": lambda: bench_cluster.measure(bench.parameters, bench.rounds, bench.commits, console, bench.address),
        "arrivals": lambda: bench_arrivals.rates(bench.rounds, 1_000_000, console),
        "scale": lambda: bench_scale.table(
            bench.parameters, bench.hosts, bench.gigabits, bench.gradient_seconds, bench.measured, console
        ),
        "check": lambda: bench_check.measure(bench.parameters, bench.networks, bench.rounds, bench.steps, console),
        "second": lambda: bench_second.measure(bench.rounds, console),
        "methods": lambda: bench_methods.compare(list(METHODS), bench.rounds, bench.steps, console),
    }
    figures: dict[str, Any] = {"command": "python -m train bench"}
    for name, measure in measures.items():
        if name in bench.what:
            figures[name] = measure()
            if bench.out:
                write_whole(bench.out, json.dumps(figures, indent=2) + "\n")
    return 0
