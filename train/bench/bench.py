"""`python -m train bench`: costs of the engines, relative to references timed in the same run."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import tyro

import gemjax
from train.bench import (
    arrivals as bench_arrivals,
)
from train.bench import (
    check as bench_check,
)
from train.bench import (
    cluster as bench_cluster,
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
    scale as bench_scale,
)
from train.bench import (
    second as bench_second,
)
from train.bench import (
    simulate as bench_simulate,
)
from train.common.console import RunConsole, say
from train.common.errors import UsageError
from train.common.files import check_no_address, check_out, check_replaces, write_whole
from train.config.methods import METHODS, Method
from train.config.parsing import parse_flags
from train.config.validation import MOST_WORKERS

PyTree = Any
MOST = {"parameters": 1 << 31, "workers": MOST_WORKERS, "hosts": MOST_WORKERS, "batch_sizes": bench_simulate.IMAGES}

Part = Literal["simulate", "devices", "cluster", "methods", "network", "arrivals", "scale", "check", "second"]
MARK = {"command": "python -m train bench"}  # At the beginning of each file of figures.


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure what the engines cost.

    The simulator is compared with a plain sequential loop, the device scheduler with a bare loop, the cluster with plain
    programs on Ray, methods with ASGD, networks with PyTorch, if that is installed, and commits with those that are not tested
    (`check`). The speed of making traces is measured, too, and what a second call costs (`second`).
    """

    what: tyro.conf.Positional[tuple[Part, ...]] = ("simulate", "devices")
    """What to measure."""

    rounds: int = 7
    """Number of rounds. Each round times everything once; medians over rounds are printed."""
    steps: int = 100
    """Commits per measurement (`simulate`, `methods`, `network`, `check`)."""
    workers: tuple[int, ...] = (1, 8, 64, 512)
    """Numbers of simulated workers (`simulate`)."""
    methods: tuple[Method, ...] = ("gem",)
    """Methods simulated (`simulate`)."""
    networks: tuple[Literal["cnn", "mlp", "cnn7", "resnet8", "resnet20"], ...] = ("cnn",)
    """Networks to train (`simulate`, `network`, `check`): GEM's, three dense layers, or for CIFAR (`resnet8` half as wide)."""
    batch_sizes: tuple[int, ...] = (bench_simulate.BATCH_SIZE,)
    """Images per gradient (`simulate`, `network`)."""
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
    measured: str | None = None
    """File of `bench cluster --out` with the driver's time per commit (`scale`); default: an assumption."""
    out: str | None = None
    """File for the figures as JSON; default: none is written."""

    def __post_init__(self):
        for name in ("rounds", "steps", "workers", "batch_sizes", "parameters", "commits", "hosts"):
            values = getattr(self, name)
            for value in values if isinstance(values, tuple) else (values,):
                least = 100 if name == "parameters" else 1
                if value < least:
                    raise ValueError(f"--{name.replace('_', '-')} must be at least {least}; got {value}")
                if value > (most := MOST.get(name, value)):
                    raise ValueError(f"--{name.replace('_', '-')} must be at most {most}; got {value}")
        for name in ("gigabits", "gradient_seconds"):
            value = getattr(self, name)
            if not 1e-9 <= value <= 1e9:
                raise ValueError(f"--{name.replace('_', '-')} must be between 1e-9 and 1e9; got {value}")


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks that the command line names."""
    bench = parse_flags(Bench, argv, "python -m train bench")
    if bench.measured and "scale" not in bench.what:
        raise UsageError("--measured is read by scale alone; name that part, or leave the flag out")
    if bench.out and bench.measured and Path(bench.out).resolve() == Path(bench.measured).resolve():
        raise UsageError(f"--out {bench.out} would replace the figures of --measured; name another file")
    # Known before the measurements of other parts, which may take an hour.
    if "scale" in bench.what:
        bench_scale.driver_of(bench.measured)
    if "cluster" in bench.what:
        bench_cluster.imported_ray()
    if bench.out:
        check_no_address(bench.out)
        check_out(Path(bench.out).parent)
        Path(bench.out).parent.mkdir(parents=True, exist_ok=True)
        if Path(bench.out).is_dir():
            raise UsageError(f"--out {bench.out} is a folder; name a file")
        for path in (Path(bench.out), Path(f"{bench.out}.partial")):
            if path.is_file() and path.read_bytes().strip():
                check_replaces(_text(MARK).partition("\n}")[0].encode(), path, first=True)
    gemjax.cpu_devices(9)
    console = RunConsole()
    console.print(f"{os.cpu_count()} cores, jax {jax.__version__}, {jax.devices()[0].device_kind}", highlight=False)
    measures = {
        "simulate": lambda: bench_simulate.ratios(
            bench.networks, bench.batch_sizes, bench.methods, bench.workers, bench.rounds, bench.steps, console
        ),
        "network": lambda: bench_network.compare(bench.networks, bench.batch_sizes, bench.rounds, bench.steps, console),
        "devices": lambda: bench_devices.measure(bench.parameters, bench.rounds, bench.commits, console),
        "cluster": lambda: bench_cluster.measure(bench.parameters, bench.rounds, bench.commits, console),
        "arrivals": lambda: bench_arrivals.rates(bench.rounds, 1_000_000, console),
        "scale": lambda: bench_scale.table(
            bench.parameters, bench.hosts, bench.gigabits, bench.gradient_seconds, bench.measured, console
        ),
        "check": lambda: bench_check.measure(bench.parameters, bench.networks, bench.rounds, bench.steps, console),
        "second": lambda: bench_second.measure(bench.rounds, console),
        "methods": lambda: bench_methods.compare(list(METHODS), bench.rounds, bench.steps, console),
    }
    figures = {}
    try:
        for name, measure in measures.items():
            if name in bench.what:
                figures[name] = measure()
    except BaseException:
        if figures and bench.out and (Path(bench.out).is_file() or not Path(bench.out).exists()):
            _write(f"{bench.out}.partial", figures)
            say(console, f"the figures so far are in {bench.out}.partial")
        raise
    if bench.out:
        _write(bench.out, figures)
    return 0


def _write(out: str, figures: dict[str, Any]) -> None:
    write_whole(out, _text(MARK | figures))


def _text(figures: dict[str, Any]) -> str:
    return json.dumps(figures, indent=2) + "\n"
