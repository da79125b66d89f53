"""`python -m train bench`: what the engines cost, as ratios to something timed beside them in the same run."""

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from rich.console import Console

import gemjax
from train.bench import (
    arrivals as bench_arrivals,
)
from train.bench import (
    devices as bench_devices,
)
from train.bench import (
    methods as bench_methods,
)
from train.bench import (
    network as bench_network,
)
from train.bench import (
    simulate as bench_simulate,
)
from train.common.errors import UsageError
from train.common.files import check_out
from train.config.config import Method
from train.config.parsing import one_line
from train.task.methods import METHODS

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measures the simulator against a plain sequential loop, the device scheduler's overhead, what methods cost, and
    networks against PyTorch's, if that is installed, and how fast traces are made."""

    what: tyro.conf.Positional[tuple[Literal["simulate", "devices", "methods", "network", "arrivals"], ...]] = (
        "simulate",
        "devices",
    )
    """What to measure."""

    rounds: int = 7
    """Rounds; in each, everything is timed once, one after the other. Medians over rounds are printed."""
    steps: int = 100
    """Commits timed at a stretch (`simulate`, `methods`, `network`)."""
    workers: tuple[int, ...] = (1, 8, 64, 512)
    """Numbers of simulated workers (`simulate`)."""
    methods: tuple[Method, ...] = ("gem",)
    """Methods simulated (`simulate`)."""
    networks: tuple[Literal["cnn", "mlp", "cnn7", "resnet20"], ...] = ("cnn",)
    """What they train (`simulate`, `network`): GEM's MNIST network, one of three dense layers, or those for CIFAR."""
    batch_sizes: tuple[int, ...] = (bench_simulate.BATCH_SIZE,)
    """Images a gradient (`simulate`, `network`)."""
    parameters: tuple[int, ...] = (160_000, 1_000_000, 10_000_000)
    """Sizes of the central variable in the device scheduler (`devices`)."""
    commits: int = 2000
    """Commits of the device scheduler that are timed (`devices`); fewer of large ones."""
    out: str | None = None
    """Where to write the figures as JSON; nowhere if not given."""


def main(argv: Sequence[str]) -> int:
    """Runs the benchmarks that the command line asks for."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            bench = tyro.cli(Bench, args=list(argv), prog="python -m train bench")
    except SystemExit as stop:
        if stop.code == 0:  # --help.
            raise
        raise UsageError(f"{one_line(said.getvalue())} (python -m train bench --help)") from None
    if bench.out:
        check_out(Path(bench.out).parent)
    gemjax.cpu_devices(9)
    console = Console()
    console.print(f"{os.cpu_count()} cores, jax {jax.__version__}, {jax.devices()[0].device_kind}", highlight=False)
    measures = {
        "simulate": lambda: bench_simulate.ratios(
            bench.networks, bench.batch_sizes, bench.methods, bench.workers, bench.rounds, bench.steps, console
        ),
        "network": lambda: bench_network.compare(bench.networks, bench.batch_sizes, bench.rounds, bench.steps, console),
        "devices": lambda: bench_devices.measure(bench.parameters, bench.rounds, bench.commits, console),
        "arrivals": lambda: bench_arrivals.rates(bench.rounds, 1_000_000, console),
        "methods": lambda: bench_methods.compare(list(METHODS), bench.rounds, bench.steps, console),
    }
    figures = {name: measure() for name, measure in measures.items() if name in bench.what}
    if bench.out:
        Path(bench.out).write_text(json.dumps(figures, indent=2) + "\n")
    return 0
