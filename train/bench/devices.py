"""Measurements of `python -m train bench devices`: overhead of the scheduler per commit, and utilisation of workers."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import gemjax
from gemjax.engines.devices.hardware.central import EXAMPLE_EVENT
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.transition import Transition
from gemjax.testing import Faults
from train.common.console import show_table

PyTree = Any
GRADIENT = 0.02  # Seconds of the fastest worker's gradient in the measurement of utilisation.
SLOWDOWNS = (1, 2, 4)
MATRIX = 1000  # Rows of the square matrices that an evaluation multiplies.
LEAVES, LEAVES_SIZE = (3, 30, 120), 24_000  # Compared numbers of leaves, and the total number of parameters.


def measure(sizes: Sequence[int], rounds: int, commits: int, console: Console) -> dict[str, Any]:
    """Measure the overhead at each size of the central variable, the cost of leaves, and the utilisation of unequal workers."""
    overheads = {
        f"{size:,}": overhead(size, rounds, min(commits, max(200, commits * 10**6 // size)), console) for size in sizes
    }
    return {
        "overhead": overheads,
        "leaves": many_leaves(rounds, commits, console),
        "utilisation": utilisation(console),
        "evaluation": evaluation(console),
    }


def overhead(size: int, rounds: int, commits: int, console: Console) -> dict[str, dict[str, float]]:
    """Measure the parts of a commit with a trivial gradient.

    The overhead (queue, threads, bookkeeping and reading reports) is the time per commit of the engine with one worker, where
    nothing overlaps, less that of a bare loop over the same programs and transfers in the same run.

    Returns:
      For each part, ``median`` and ``mean`` in microseconds, and ``per second``, the throughput by the mean.
    """
    params = parameters(size)

    def engine(num_workers: int) -> np.ndarray:
        """Return the seconds of each commit of the device engine, without set-up and compilation."""
        result = gemjax.run_on_devices(
            gemjax.gem(1e-3, 0.9, num_workers), trivial_loss, params, step_as_batch, commits,
            placement=place(num_workers),
        )  # fmt: skip
        return np.diff(result.history["time"])

    programs = programs_of(params)
    measured = [(_bare(programs, commits)[0], engine(1)) for _ in range(max(1, rounds))]
    bare, alone = (np.concatenate(times) for times in zip(*measured, strict=True))
    figures = {
        name: {"median": 1e6 * np.median(times), "mean": 1e6 * np.mean(times), "per second": 1 / np.mean(times)}
        for name, times in (
            _pieces(programs, commits)
            | {
                "there and back between two threads": _handover(commits),
                "bare loop of these, per commit": bare,
                "engine with 1 worker, per commit": alone,
                "engine with 4 workers, per commit": engine(4),
            }
        ).items()
    }
    added = [
        {
            "median": 1e6 * (np.median(with_engine) - np.median(without)),
            "mean": 1e6 * (with_engine.mean() - without.mean()),
        }
        for without, with_engine in measured
    ]
    figures["overhead of the scheduler, per commit"] = {
        kind: np.median([one[kind] for one in added]) for kind in ("median", "mean")
    }
    plain = {name: {kind: float(number) for kind, number in of.items()} for name, of in figures.items()}
    _print(f"Device scheduler: trivial gradient, {size:,} parameters", plain, console)
    return plain


def many_leaves(rounds: int, commits: int, console: Console) -> dict[str, dict[str, float]]:
    """Measure the bare loop with the same parameters in few and in many leaves, in turns.

    The thread that commits waits for a gradient first. A long gradient evicts the thread's caches, and the commit after it
    takes longer. Commits are therefore compared after the same gradient, that of the most leaves.

    Returns:
      For each number of leaves:

      - ``median`` and ``mean`` of the time per commit in microseconds, and ``per second``, the throughput by the mean;
      - ``scheduler's thread``, the median processor time per commit in microseconds after the gradient of the most leaves, and
        ``ratio``, to that of the fewest leaves;
      - ``after own gradient`` and ``own ratio``, the same after the gradient of that number of leaves.
    """
    programs = {
        leaves: programs_of({str(leaf): jnp.zeros(LEAVES_SIZE // leaves) for leaf in range(leaves)})
        for leaves in LEAVES
    }
    most = programs[max(LEAVES)]
    longest = lambda: jax.block_until_ready(most.compute(0, most.select(0)))
    spent: dict[int, list] = {leaves: [] for leaves in LEAVES}
    for _ in range(max(1, rounds)):
        for leaves in LEAVES:
            own, same = _bare(programs[leaves], commits), _bare(programs[leaves], commits, before=longest)
            spent[leaves].append((*own, same[1]))
    figures = {}
    for leaves in LEAVES:
        wall, own, same = np.concatenate(spent[leaves], axis=1)
        figures[f"{leaves} leaves"] = {
            "median": 1e6 * float(np.median(wall)),
            "mean": 1e6 * float(np.mean(wall)),
            "per second": 1 / float(np.mean(wall)),
            "scheduler's thread": 1e6 * float(np.median(same)),
            "after own gradient": 1e6 * float(np.median(own)),
        }
    fewest = next(iter(figures.values()))
    for of in figures.values():
        of["ratio"] = of["scheduler's thread"] / fewest["scheduler's thread"]
        of["own ratio"] = of["after own gradient"] / fewest["after own gradient"]
    _print(f"A commit of {LEAVES_SIZE:,} parameters in few and in many leaves", figures, console)
    return figures


COLUMNS = {
    "median": ("µs (median)", ".0f"),
    "mean": ("µs (mean)", ".0f"),
    "per second": ("per second (mean)", ",.0f"),
    "scheduler's thread": ("µs of the thread", ".0f"),
    "ratio": ("ratio", ".2f"),
    "after own gradient": ("after its own gradient", ".0f"),
    "own ratio": ("its ratio", ".2f"),
}


def _print(title: str, figures: dict[str, dict[str, float]], console: Console) -> None:
    """Print one row per figure, and one column per kind of number that any of them has."""
    kinds = [kind for kind in COLUMNS if any(kind in of for of in figures.values())]
    rows = (
        (name, *(f"{of[kind]:{COLUMNS[kind][1]}}" if kind in of else "" for kind in kinds))
        for name, of in figures.items()
    )
    show_table(console, title, ("", *(COLUMNS[kind][0] for kind in kinds)), rows)


def place(num_workers: int) -> gemjax.Placement:
    """Place the central variable on a device of its own or on the only device, never on the CPU beside an accelerator."""
    return gemjax.place(num_workers, "dedicated" if len(jax.local_devices()) > 1 else "colocated")


def trivial_loss(params: PyTree, batch: Any) -> jax.Array:
    """Return a loss with a constant gradient."""
    return 1e-6 * sum((jnp.sum(leaf) for leaf in jax.tree.leaves(params)), jnp.zeros([]))


def step_as_batch(worker: Any, step: Any) -> Any:
    """Return the step as the batch."""
    return step


def parameters(size: int) -> PyTree:
    """Return that many parameters in two large leaves and a small one."""
    return {"a": jnp.zeros(size // 2), "b": jnp.zeros(size - size // 2 - 10), "c": jnp.zeros(10)}


def programs_of(params: PyTree, kind: type[Transition] = Transition) -> Programs:
    """Return the programs of GEM with one worker, compiled."""
    transition = kind(tx=gemjax.gem(1e-3, 0.9, 1), loss_fn=trivial_loss, num_workers=1).bind(params)
    programs = Programs(transition, gemjax.Computed(step_as_batch), place(1), transition.init(params))
    programs.warm_up()
    return programs


def utilisation(console: Console) -> dict[str, float]:
    """Measure the shares of time in which workers compute if their gradients take 20, 40 and 80 ms.

    The gradients only wait, so that the scheduler can be measured on a host with fewer cores than workers.
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
    figures = {
        f"{1e3 * GRADIENT * slowdown:.0f} ms": float(share) for slowdown, share in zip(SLOWDOWNS, busy, strict=True)
    }
    rows = ((name, f"{100 * share:.1f} %") for name, share in figures.items())
    show_table(
        console, "Utilisation of workers whose gradients take unequal times", ("per gradient", "utilisation"), rows
    )
    return figures


def evaluation(console: Console) -> dict[str, float]:
    """Measure the commits per second without evaluations, with ``evaluate=``, and with a callback that evaluates.

    Workers wait in place of computing (``Faults.slow``), so that on a CPU an evaluation takes no core from a gradient. One
    evaluation takes about five gradients of a worker.
    """
    workers, commits, evaluations = 4, 600, 20
    every = commits // evaluations
    loss_fn, params, batches = gemjax.testing.quadratic()
    matrix = jnp.eye(MATRIX) / 2
    work = jax.jit(lambda: jax.lax.fori_loop(0, 40, lambda _, product: product @ matrix, matrix).sum())
    work().block_until_ready()  # Compiles.
    began = time.perf_counter()
    work().block_until_ready()
    repeats = max(1, round(5 * GRADIENT / (time.perf_counter() - began)))
    evaluate = lambda *_: {"work": sum(float(work()) for _ in range(repeats))}
    ways: dict[str, dict[str, Any]] = {
        "none": {},
        "evaluate=": {"evaluate": evaluate, "evaluate_every": every},
        "in a callback": {"callback": lambda progress: evaluate() is None, "callback_every": every},
    }
    figures = {}
    for name, how in ways.items():
        with Faults() as speeds:
            for worker in range(workers):
                speeds.slow(worker, GRADIENT)
            result = gemjax.run_on_devices(
                gemjax.gem(0.01, 0.9, workers),
                loss_fn,
                params,
                batches,
                commits,
                num_workers=workers,
                gate=speeds,
                **how,
            )
        figures[name] = len(result.history["time"]) / float(result.history["time"][-1])
    rows = ((name, f"{rate:.0f}") for name, rate in figures.items())
    title = f"Commits per second with {evaluations} evaluations in {commits} commits of {workers} workers"
    show_table(console, title, ("evaluations", "commits per second"), rows)
    return figures


def _bare(programs: Programs, count: int, before: Callable[[], Any] = lambda: None) -> np.ndarray:
    """Return the seconds of each commit of a plain loop over the same programs and transfers.

    ``before`` is called between each gradient and its commit.

    Returns:
      Two rows in seconds: the time, and the processor time of this thread for the commit and the transfers, the part that
      an engine's scheduler does in its own thread.
    """
    times, report = [], None
    for _ in range(count):
        began = time.perf_counter()
        gradient = jax.block_until_ready(programs.compute(0, programs.select(0)))
        before()
        thread = time.thread_time()
        report = programs.commit(0, programs.bring(gradient))
        programs.deliver(0)
        times.append((time.perf_counter() - began, time.thread_time() - thread))
    jax.block_until_ready(report)
    return np.array(times).T


def _handover(count: int) -> list[float]:
    """Return the seconds of round trips of an object to a waiting thread and back, which any design with threads spends."""
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
    return spent


def _pieces(programs: Programs, count: int) -> dict[str, list[float]]:
    """Return the seconds of the parts of a commit, each of which is waited for."""
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable, *args: Any, wait: bool = True) -> Any:
        began = time.perf_counter()
        out = call(*args)
        if wait:
            jax.block_until_ready(out)
        spent.setdefault(name, []).append(time.perf_counter() - began)
        return jax.block_until_ready(out)

    for _ in range(count // 4):
        selection = programs.select(0)
        gradient = timed("gradient program", programs.compute, 0, selection)
        timed("  of that, its dispatch on the host", programs.compute, 0, selection, wait=False)
        packed, _ = timed("transfer of the gradient", programs.bring, gradient)
        view, report = timed("commit + pull program", programs.central.commit, 0, packed, EXAMPLE_EVENT)
        timed("transfer of the view", programs.send, 0, view)
        timed("reading the report", programs.read, report, wait=False)
    return spent
