"""`python -m train bench devices`: what the scheduler adds to a commit, and how busy it keeps workers."""

import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import gemjax
from gemjax.engines.devices.hardware.programs import Programs
from gemjax.engines.transition import Transition
from gemjax.testing import Faults

PyTree = Any
GRADIENT = 0.02  # Seconds; of the fastest worker, where utilisation is measured.
SLOWDOWNS = (1, 2, 4)


def measure(sizes: Sequence[int], rounds: int, commits: int, console: Console) -> dict[str, Any]:
    """The scheduler's overhead at each size of the central variable, and the utilisation of unequal workers."""
    overheads = {
        f"{size:,}": overhead(size, rounds, max(200, min(commits, commits * 10**6 // size)), console) for size in sizes
    }
    return {"overhead": overheads, "utilisation": utilisation(console)}


def overhead(size: int, rounds: int, commits: int, console: Console) -> dict[str, float]:
    """Where the time of a commit goes; the gradient is trivial.

    The overhead is the time of a commit in the engine with one worker (so that nothing overlaps) less that of a bare loop
    that calls the same programs and transfers, in the same run: queue, threads, bookkeeping and reading reports.
    """
    params = {"a": jnp.zeros((size // 2,)), "b": jnp.zeros((size - size // 2 - 10,)), "c": jnp.zeros(10)}

    def loss_fn(params, batch):
        return 1e-6 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

    def batches(worker, step):
        return step

    def engine(num_workers: int) -> float:
        """Seconds a commit of the device engine, without set-up and compilation."""
        result = gemjax.run_on_devices(
            gemjax.gem(1e-3, 0.9, num_workers), loss_fn, params, batches, commits,
            placement=gemjax.place(num_workers, "dedicated"),
        )  # fmt: skip
        return float(np.median(np.diff(result.history["time"])))

    transition, state = Transition(gemjax.gem(1e-3, 0.9, 1), loss_fn, 1).init(params)
    programs = Programs(transition, gemjax.Computed(batches), gemjax.place(1, "dedicated"), state)
    programs.warm_up()
    measured = [(_bare(programs, commits), engine(1)) for _ in range(max(1, rounds))]
    added = [engine_time - bare for bare, engine_time in measured]
    figures = _pieces(programs, commits) | {
        "there and back between two threads": _handover(commits),
        "bare loop of these, a commit": float(np.median([bare for bare, _ in measured])),
        "engine with 1 worker, a commit": float(np.median([engine_time for _, engine_time in measured])),
        "overhead of the scheduler, a commit": float(np.median(added)),
        "engine with 4 workers, a commit": engine(4),
    }
    table = Table(title=f"Device scheduler: trivial gradient, {size:,} parameters")
    table.add_column("piece (medians)")
    table.add_column("µs", justify="right")
    for name, seconds in figures.items():
        table.add_row(name, f"{1e6 * seconds:.0f}")
    console.print(table)
    return {name: 1e6 * seconds for name, seconds in figures.items()}


def utilisation(console: Console) -> dict[str, float]:
    """Shares of the time in which workers compute, whose gradients take 20, 40 and 80 ms.

    The gradients are waiting and no work: on a host with fewer cores than workers it is the scheduler that is measured.
    """
    workers = len(SLOWDOWNS)
    loss_fn, params, batches = gemjax.testing.quadratic()
    with Faults() as speeds:
        for worker, slowdown in enumerate(SLOWDOWNS):
            speeds.slow(worker, GRADIENT * slowdown)
        result = gemjax.run_on_devices(
            gemjax.gem(0.01, 0.9, workers), loss_fn, params, batches, 600, num_workers=workers, gate=speeds
        )
    busy = gemjax.summarise(result.history).utilisation
    table = Table(title="Utilisation of workers whose gradients take unequal times")
    table.add_column("a gradient")
    table.add_column("utilisation", justify="right")
    figures = {
        f"{1e3 * GRADIENT * slowdown:.0f} ms": float(share) for slowdown, share in zip(SLOWDOWNS, busy, strict=True)
    }
    for name, share in figures.items():
        table.add_row(name, f"{100 * share:.1f} %")
    console.print(table)
    return figures


def _bare(programs: Programs, count: int) -> float:
    """Seconds a commit of a plain loop over the same programs and transfers; the median, as for the engine."""
    at, report = [time.perf_counter()], None
    for _ in range(count):
        gradient = jax.block_until_ready(programs.compute(0, programs.select(0)))
        report = programs.commit(0, programs.bring(gradient))
        programs.deliver(0)
        at.append(time.perf_counter())
    jax.block_until_ready(report)
    return float(np.median(np.diff(at)))


def _handover(count: int) -> float:
    """Seconds for an object to go to a thread that waits for it, and back: what any waiting in threads costs here."""
    there, back, spent = queue.SimpleQueue(), queue.SimpleQueue(), []

    def echo() -> None:
        while (item := there.get()) is not None:
            back.put(item)

    thread = threading.Thread(target=echo, name="gemjax-bench-echo")
    thread.start()
    for _ in range(count):
        began = time.perf_counter()
        there.put(began)
        back.get()
        spent.append(time.perf_counter() - began)
    there.put(None)
    thread.join()
    return float(np.median(spent))


def _pieces(programs: Programs, count: int) -> dict[str, float]:
    """Medians of the steps of a commit, each waited for by itself."""
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
        packed = timed("transfer of the gradient", functools.partial(programs.bring, gradient))
        view, report = timed("commit + pull program", functools.partial(programs.run_commit, 0, packed))
        timed("transfer of the view", functools.partial(programs.send, 0, view))
        timed("reading the report", functools.partial(programs.read, report), wait=False)
    return {name: float(np.median(seconds)) for name, seconds in spent.items()}
