"""Measurements of `python -m train bench cluster`: commits on Ray, relative to plain programs on Ray in the same run."""

import math
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from rich.console import Console

import gemjax
from gemjax.check.speed import network
from gemjax.engines.cluster.central.programs import SharedPrograms
from gemjax.engines.cluster.programs import ClusterPrograms, receive
from gemjax.engines.transition import Transition
from train.bench.cluster import on_ray, wire
from train.bench.devices import parameters, step_as_batch, trivial_loss
from train.common.console import show_table
from train.common.errors import UsageError

PyTree = Any
WORKERS = 4
BATCH_SIZE = 16  # Small, so that the gradient does not hide the transport.
INPUTS, CLASSES = 784, 10
ROUNDS = 3  # At most: each run on the cluster also compiles in every worker.
HOSTS = 2  # Of a central variable over several.
AT_ACTORS = f"commit at {HOSTS} central actors, with its gradient and view"
ALONE, TOGETHER = "1 worker", f"{WORKERS} workers"


def imported_ray() -> ModuleType:
    """Return the module `ray`.

    Raises:
      UsageError: if Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("bench cluster needs Ray; pip install 'gemjax[cluster]'") from None
    return ray


def measure(
    sizes: Sequence[int], rounds: int, commits: int, console: Console, address: str | None = None
) -> dict[str, Any]:
    """Measure, at each size of the central variable, commits against Ray's bare round trip and against a parameter server.

    With the ``address`` of a running cluster, measure them against the wire to another host of it instead.

    Raises:
      UsageError: if Ray is not installed, or as :func:`train.bench.cluster.wire.measure`.
    """
    ray = imported_ray()
    rounds = max(1, min(rounds, ROUNDS))
    if address is not None:
        return wire.measure(address, sizes, rounds, commits, console)
    figures: dict[str, Any] = {"ray": ray.__version__, "workers": WORKERS, "batch size": BATCH_SIZE}
    with gemjax.Cluster(WORKERS) as cluster:
        echoes: list[Any] = [ray.remote(on_ray.Echo).remote() for _ in range(WORKERS)]
        ray.get([echo.ready.remote() for echo in echoes])
        for size in sizes:
            count = max(40, min(commits, commits * 30_000 // size))
            figures[f"{size:,}"] = _against_round_trip(ray, cluster, echoes, size, rounds, count, console)
            figures[f"{size:,}"] |= _against_server(ray, cluster, size, rounds, count, console)
    return figures


def _against_round_trip(
    ray: Any, cluster: gemjax.Cluster, echoes: Sequence[Any], size: int, rounds: int, count: int, console: Console
) -> dict[str, Any]:
    """Measure the time per commit with a trivial gradient, and that of bare round trips of as many numbers.

    Returns:
      ``times``: for each of them and for each part of a commit, ``median`` and ``mean`` in milliseconds; ``ratio``, of the
      medians, per number of workers, the median over rounds.
    """
    params = parameters(size)
    view = np.zeros(size, np.float32)

    def engine(num_workers: int) -> np.ndarray:
        members = gemjax.Members(WORKERS, absent=range(num_workers, WORKERS))
        tx = gemjax.asgd(1e-3, num_workers=WORKERS)
        return _intervals(cluster, tx, trivial_loss, params, step_as_batch, count, members)

    times: dict[str, list] = {}
    ratios: dict[str, list] = {ALONE: [], TOGETHER: []}
    for _ in range(rounds):
        for name, num_workers in ((ALONE, 1), (TOGETHER, WORKERS)):
            bare = on_ray.round_trips(ray, echoes[:num_workers], view, count)
            ours = engine(num_workers)
            times.setdefault(f"Ray's bare round trip, {name}", []).extend(bare)
            times.setdefault(f"commit, {name}", []).extend(ours)
            ratios[name].append(np.median(ours) / np.median(bare))
    times |= _pieces(ray, cluster, params, count) | _at_actors(cluster, params, count)
    plain = {
        name: {"median": 1e3 * float(np.median(of)), "mean": 1e3 * float(np.mean(of))} for name, of in times.items()
    }
    ratio = {name: float(np.median(of)) for name, of in ratios.items()}
    rows = []
    for name, of in plain.items():
        kind, _, workers = name.partition(", ")
        seen = ratios[workers] if kind == "commit" else []
        words = f"{ratio[workers]:.2f} ({min(seen):.2f} – {max(seen):.2f})" if seen else ""
        rows.append((name, f"{of['median']:.2f}", f"{of['mean']:.2f}", words))
    columns = ("", "ms (median)", "ms (mean)", "ratio (range)")
    show_table(console, f"Ray: trivial gradient, {size:,} parameters", columns, rows)
    return {"times": plain, "ratio": ratio}


def _intervals(
    cluster: gemjax.Cluster,
    tx: Any,
    loss_fn: Callable,
    params: PyTree,
    batches: Any,
    count: int,
    members: Any = None,
) -> np.ndarray:
    """Return the seconds between ``count`` consecutive commits on the cluster, after the first round."""
    warm_up = cluster.num_workers
    result = gemjax.run_on_cluster(tx, loss_fn, params, batches, count + warm_up + 1, cluster=cluster, members=members)
    return np.diff(result.history["time"][warm_up:])


def _programs(kind: type[ClusterPrograms], cluster: gemjax.Cluster, params: PyTree, parts: int = 0) -> ClusterPrograms:
    """Return the programs of a run with a trivial gradient, compiled."""
    transition = Transition(tx=gemjax.asgd(1e-3, WORKERS), loss_fn=trivial_loss, num_workers=WORKERS).bind(params)
    batches = gemjax.Computed(step_as_batch)
    programs = kind(transition, batches, batches, cluster.central, transition.init(params), parts=parts)
    programs.connect(cluster, lambda: None)
    programs.warm_up()
    return programs


def _at_actors(cluster: gemjax.Cluster, params: PyTree, count: int) -> dict[str, list[float]]:
    """Return the seconds of a commit at a central variable over several actors, in which the driver waits for them."""
    programs = _programs(SharedPrograms, cluster, params, HOSTS)
    spent: dict[str, list[float]] = {AT_ACTORS: []}
    for _ in range(max(20, count // 4)):
        call, times = programs.compute(0, None)()
        gradient = receive([], lambda call=call, times=times: (call, times)).gradient
        began = time.perf_counter()
        report = programs.commit(0, programs.bring(gradient))
        jax.tree.map(np.asarray, report)
        spent[AT_ACTORS].append(time.perf_counter() - began)
        programs.deliver(0)
        del call, gradient  # Frees the objects.
    programs.close()
    return spent


def _pieces(ray: Any, cluster: gemjax.Cluster, params: PyTree, count: int) -> dict[str, list[float]]:
    """Return the seconds of the parts of a commit of one worker, each of which is waited for."""
    programs = _programs(ClusterPrograms, cluster, params)
    view = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable) -> Any:
        began = time.perf_counter()
        out = jax.block_until_ready(call())
        spent.setdefault(name, []).append(time.perf_counter() - began)
        return out

    for _ in range(max(20, count // 4)):
        reply, _ = timed("view to the object store, and the call", programs.compute(0, None))
        timed("  of that, serialising and copying the view", lambda: ray.put(view))
        timed("transfer and gradient, to the object store", lambda reply=reply: ray.wait([reply], fetch_local=False))
        gradient = timed("get", lambda reply=reply: ray.get(reply))
        spent.setdefault("  in the worker: gradient", []).append(gradient.seconds)
        timed("  for comparison, a copy of the view to a device", lambda: jax.device_put(view, may_alias=False))
        brought = timed("gradient to the central device", lambda gradient=gradient: programs.bring(gradient))
        timed("commit + pull program", lambda brought=brought: (programs.commit(0, brought), programs.central.params()))
        timed("delivery of the view", lambda: programs.deliver(0))
        del reply, gradient, brought  # Frees the objects.
    programs.close()
    return spent


def _against_server(
    ray: Any, cluster: gemjax.Cluster, size: int, rounds: int, count: int, console: Console
) -> dict[str, Any]:
    """Compare commits per second with those of a plain parameter server on Ray, with the same network and batch.

    Returns:
      ``per second``: commits per second of both, the median over rounds, and their ``server ratio``, ours to the server's.
    """
    loss_fn, params, batch = make_network(size)
    server, _ = on_ray.parameter_server(ray, loss_fn, params, batch, WORKERS)
    server(WORKERS)  # Compiles.
    tx = gemjax.asgd(1e-3, num_workers=WORKERS)
    pairs = [
        (
            1 / np.mean(_intervals(cluster, tx, loss_fn, params, gemjax.Computed(lambda worker, step: batch), count)),
            server(count),
        )
        for _ in range(rounds)
    ]
    ours, theirs = np.array(pairs).T
    ratio = ours / theirs
    figures = {"gemjax": float(np.median(ours)), "parameter server": float(np.median(theirs))}
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    rows = [
        ("parameter server on Ray", f"{figures['parameter server']:.1f}", ""),
        ("gemjax", f"{figures['gemjax']:.1f}", f"{np.median(ratio):.2f} ({ratio.min():.2f} – {ratio.max():.2f})"),
    ]
    columns = ("", "commits per second", "ratio (range)")
    show_table(console, f"Dense network of {count:,} parameters, {TOGETHER}", columns, rows)
    return {"per second": figures, "server ratio": float(np.median(ratio))}


def make_network(size: int) -> tuple[Callable, PyTree, PyTree]:
    """Make a network of three dense layers with about ``size`` parameters: its loss, its parameters and a batch of noise."""
    linear = INPUTS + CLASSES + 2
    hidden = max(1, round((math.sqrt(linear**2 + 4 * (size - CLASSES)) - linear) / 2))
    problem = network((INPUTS, hidden, hidden, CLASSES))
    batch = {name: rows[:BATCH_SIZE] for name, rows in problem.batches.data.items()}
    return problem.loss_fn, jax.device_get(problem.params), batch
