"""`python -m train bench`: what the engines cost, as ratios to something timed beside them in the same run."""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import gemjax
from gemjax.engines.programs import Programs
from gemjax.engines.transition import Transition
from train import bench_arrivals, bench_methods, bench_network, bench_simulate
from train.config import Method
from train.methods import METHODS

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
    networks: tuple[Literal["cnn", "mlp"], ...] = ("cnn",)
    """What they train (`simulate`, `network`): GEM's MNIST network, or one of three dense layers."""
    batch_sizes: tuple[int, ...] = (bench_simulate.BATCH_SIZE,)
    """Images a gradient (`simulate`, `network`)."""
    commits: int = 2000
    """Commits of the device scheduler that are timed (`devices`)."""
    out: str | None = None
    """Where to write the figures as JSON; nowhere if not given."""


def main(argv: Sequence[str]) -> int:
    """Runs the benchmarks that the command line asks for."""
    bench = tyro.cli(Bench, args=list(argv), prog="python -m train bench")
    gemjax.cpu_devices(9)
    console = Console()
    console.print(f"{os.cpu_count()} cores, jax {jax.__version__}, {jax.devices()[0].device_kind}", highlight=False)
    measures = {
        "simulate": lambda: bench_simulate.ratios(
            bench.networks, bench.batch_sizes, bench.methods, bench.workers, bench.rounds, bench.steps, console
        ),
        "network": lambda: bench_network.compare(bench.networks, bench.batch_sizes, bench.rounds, bench.steps, console),
        "devices": lambda: device_overhead(bench, console),
        "arrivals": lambda: bench_arrivals.rates(bench.rounds, 1_000_000, console),
        "methods": lambda: bench_methods.compare(list(METHODS), bench.rounds, bench.steps, console),
    }
    figures = {name: measure() for name, measure in measures.items() if name in bench.what}
    if bench.out:
        Path(bench.out).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def device_overhead(bench: Bench, console: Console) -> dict[str, Any]:
    """What the scheduler adds to a commit, and where the time of a commit goes; the gradient is trivial.

    The overhead is the time of a commit in the engine with one worker (so that nothing overlaps) less that of a bare loop
    that calls the same programs and transfers, in the same run: queue, threads, bookkeeping and reading reports.
    """
    params = bench_simulate.make_problem("cnn").params

    def loss_fn(params, batch):
        return 1e-6 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

    def batches(worker, step):
        return step

    def engine(num_workers: int) -> float:
        """Seconds a commit of the device engine, without set-up and compilation."""
        at: list[float] = []
        gemjax.run_on_devices(
            gemjax.gem(1e-3, 0.9, num_workers), loss_fn, params, batches, bench.commits + 200,
            placement=gemjax.place(num_workers, "dedicated"), callback_every=200,
            callback=lambda progress: at.append(time.perf_counter()),
        )  # fmt: skip
        return (at[-1] - at[0]) / (200 * (len(at) - 1))

    transition, state = Transition(gemjax.gem(1e-3, 0.9, 1), loss_fn, 1).init(params)
    programs = Programs(transition, gemjax.Computed(batches), gemjax.place(1, "dedicated"), state)
    programs.warm_up()
    rounds = [(_bare(programs, bench.commits), engine(1)) for _ in range(max(1, bench.rounds // 2))]
    overhead = float(np.median([engine_time - bare for bare, engine_time in rounds]))
    figures = _pieces(programs, bench.commits) | {
        "bare loop of these, a commit": float(np.median([bare for bare, _ in rounds])),
        "engine with 1 worker, a commit": float(np.median([engine_time for _, engine_time in rounds])),
        "overhead of the scheduler, a commit": overhead,
        "engine with 4 workers, a commit": engine(4),
    }
    table = Table(
        title=f"Device scheduler: trivial gradient, {sum(p.size for p in jax.tree.leaves(params)):,} parameters"
    )
    table.add_column("piece (medians)")
    table.add_column("µs", justify="right")
    for name, seconds in figures.items():
        table.add_row(name, f"{1e6 * seconds:.0f}")
    console.print(table)
    return {name: 1e6 * seconds for name, seconds in figures.items()}


def _bare(programs: Programs, count: int) -> float:
    """Seconds a commit of a plain loop over the same programs and transfers."""
    report, began = None, time.perf_counter()
    for _ in range(count):
        gradient = jax.block_until_ready(programs.compute(0, programs.select(0)))
        report = programs.commit(0, programs.bring(gradient))
    jax.block_until_ready(report)
    return (time.perf_counter() - began) / count


def _pieces(programs: Programs, count: int) -> dict[str, float]:
    """Medians of the steps of a commit, each waited for by itself."""
    central = programs.placement.central
    worker = programs.placement.workers[0]
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable, *, wait: bool = True) -> Any:
        began = time.perf_counter()
        out = call()
        if wait:
            jax.block_until_ready(out)
        spent.setdefault(name, []).append(time.perf_counter() - began)
        return jax.block_until_ready(out)

    for _ in range(count // 4):
        selection = programs.select(0)
        gradient = timed("gradient program", functools.partial(programs.compute, 0, selection))
        timed("  of that, its dispatch on the host", functools.partial(programs.compute, 0, selection), wait=False)
        packed = timed("transfer of the gradient", functools.partial(jax.device_put, gradient, central))
        view, report = timed("commit + pull program", functools.partial(programs.run_commit, 0, packed))
        timed("transfer of the view", functools.partial(jax.device_put, view, worker))
        timed("reading the report", functools.partial(programs.read, report), wait=False)
    return {name: float(np.median(seconds)) for name, seconds in spent.items()}
