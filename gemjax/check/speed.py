"""Throughput of both engines and of a bare loop, and the overlap of gradients on different devices."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gemjax
from gemjax import arrivals
from gemjax.check.law import DEADLINE
from gemjax.engines.devices.hardware.sharding import devices_of
from gemjax.protocol import PyTree

MODELS = {"small": (784, 112, 96, 10), "large": (784, 1024, 1024, 1024, 1024, 10)}  # Units per layer.
BATCH, ROWS, RATE, MOMENTUM = 64, 2048, 1e-4, 0.9
GRADIENT = 0.02  # Target seconds per gradient where overlap is measured: long compared with a commit.
MOST_PASSES = 512  # Over a batch, per gradient.
SIMULATED = 32  # Workers where windows are measured.


@dataclasses.dataclass(frozen=True)
class Speed:
    """Throughput of the scheduler at one size of the model.

    Attributes:
      parameters: number of parameters.
      batch_size: rows per gradient.
      workers: number of workers.
      bare: steps per second of a bare loop of sequential momentum SGD on one device.
      rate: commits per second of the scheduler.
      alone: commits per second of the scheduler with one worker, where nothing overlaps.
    """

    parameters: int
    batch_size: int
    workers: int
    bare: float
    rate: float
    alone: float

    @property
    def ratio(self) -> float:
        """Throughput relative to the bare loop."""
        return self.rate / self.bare

    @property
    def overhead(self) -> float:
        """Seconds per commit that the scheduler and its transfers add with one worker."""
        return 1 / self.alone - 1 / self.bare


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Overlap in time of gradients on different devices, with one worker per device.

    Attributes:
      devices: number of devices that have workers.
      at_once: mean number of gradients in progress while there is at least one; 1 on one device.
      gain: gradients per second, relative to a bare loop on one device; ``None`` on one device.
      gradient: median time of a gradient in seconds; ``None`` on one device.
      headline: first line of :func:`gemjax.verdict`.
      advice: recommendations of :func:`gemjax.verdict`.
    """

    devices: int
    at_once: float
    gain: float | None = None
    gradient: float | None = None
    headline: str = ""
    advice: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Windows:
    """Throughput of the simulator on one device.

    Attributes:
      parameters: number of parameters.
      workers: number of simulated workers.
      rates: commits per second for each width of the window.
      default: default width of :func:`gemjax.simulate` here.
    """

    parameters: int
    workers: int
    rates: dict[int, float]
    default: int


@dataclasses.dataclass(frozen=True)
class Problem:
    """Classification of noise by a network; the timings do not depend on the data."""

    loss_fn: Callable
    params: PyTree
    batches: gemjax.Epochs
    model_state: PyTree = ()

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))


def network(units: tuple[int, ...], passes: int = 1) -> Problem:
    """Make a network whose loss is the mean of ``passes`` passes over the batch, each at a different scale of the inputs."""
    rng = np.random.default_rng(0)
    params = [
        {"w": jnp.asarray(rng.normal(0, (2 / m) ** 0.5, (m, n)), jnp.float32), "b": jnp.zeros(n, jnp.float32)}
        for m, n in itertools.pairwise(units)
    ]
    data = {
        "x": rng.normal(size=(ROWS, units[0])).astype(np.float32),
        "y": rng.integers(0, units[-1], ROWS).astype(np.int32),
    }

    def once(params: PyTree, batch: PyTree, scale: jax.Array) -> jax.Array:
        x = scale * batch["x"]
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"][None])
        logits = x @ params[-1]["w"] + params[-1]["b"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
        if passes == 1:
            return once(params, batch, jnp.float32(1))
        add = lambda total, scale: (total + once(params, batch, scale), None)
        return jax.lax.scan(add, jnp.float32(0), jnp.linspace(0.9, 1.1, passes, dtype=jnp.float32))[0] / passes

    return Problem(loss_fn, params, gemjax.Epochs(data, BATCH))


def measure_speed(units: tuple[int, ...], placement: gemjax.Placement, seconds: float) -> Speed:
    """Time the bare loop, the scheduler with all workers and the scheduler with one, each for about ``seconds``."""
    problem, workers = network(units), len(placement.workers)
    bare = bare_rate(problem, devices_of(placement.workers[0])[0], seconds)
    one = gemjax.Placement(placement.workers[:1], placement.central)
    rate, alone = (_rate(_run_for(seconds, problem, where).history["time"]) for where in (placement, one))
    return Speed(problem.size, BATCH, workers, bare, rate, alone)


def measure_overlap(placement: gemjax.Placement, seconds: float, units: tuple[int, ...] = MODELS["small"]) -> Overlap:
    """Run one worker per device with gradients much longer than a commit, and measure their overlap."""
    places = tuple(dict.fromkeys(placement.workers))
    if len(places) == 1:
        return Overlap(devices=1, at_once=1.0)
    device = devices_of(places[0])[0]
    once = 1 / bare_rate(network(units), device, seconds / 8)
    problem = network(units, passes=int(np.clip(round(GRADIENT / once), 1, MOST_PASSES)))
    single = bare_rate(problem, device, seconds / 4)
    one_each = gemjax.Placement(places, placement.central)
    history, names = _run_for(seconds, problem, one_each).history, one_each.names()
    timeline = dataclasses.replace(
        gemjax.timeline(history, len(places)), devices=tuple(names["devices"]), central=names["central"]
    )
    summary = gemjax.summarise(timeline)
    verdict = gemjax.verdict(summary)
    return Overlap(
        devices=len(places),
        at_once=summary.at_once,
        gain=_rate(history["time"]) / single,
        gradient=summary.gradient_time,
        headline=verdict.headline,
        advice=verdict.advice,
    )


def measure_windows(
    num_commits: int, units: tuple[int, ...] = MODELS["small"], workers: int = SIMULATED, width: int = SIMULATED
) -> Windows:
    """Time a simulated run gradient by gradient and in windows, compilation excluded."""
    problem, trace = network(units), arrivals.Gamma(workers).trace(2 * num_commits)
    tx = gemjax.momentum_asgd(RATE, MOMENTUM, num_workers=workers)
    rates = {}
    for window in dict.fromkeys((1, width)):
        rates[window] = 1 / simulated_seconds(tx, problem, trace, window=window)
    return Windows(problem.size, workers, rates, default=1 if jax.default_backend() == "cpu" else min(32, workers))


def simulated_seconds(tx: Any, problem: Problem, trace: gemjax.Trace, **options: Any) -> float:
    """Return the seconds per commit of the second half of a simulated run; compilation falls into the first half.

    ``options`` are those of :func:`gemjax.simulate`.
    """
    half, times = len(trace) // 2, []

    def record_time(progress: gemjax.Progress) -> None:
        jax.block_until_ready(progress.params)
        times.append(time.perf_counter())

    gemjax.simulate(
        tx, problem.loss_fn, problem.params, problem.batches, trace,
        model_state=problem.model_state, callback_every=half, callback=record_time, **options,
    )  # fmt: skip
    return (times[1] - times[0]) / half


def bare_rate(problem: Problem, device: jax.Device, seconds: float, in_a_row: int = 16) -> float:
    """Return the steps per second of a plain loop of momentum SGD on one device, without any records."""
    tx, batches = optax.sgd(RATE, momentum=MOMENTUM), problem.batches

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt_state, data, rows):
        loss, grads = jax.value_and_grad(problem.loss_fn)(params, batches.batch(data, rows))
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    # Copied, because the loop donates its parameters.
    params, data = jax.device_put((jax.tree.map(jnp.copy, problem.params), batches.data), device)
    opt_state = jax.device_put(tx.init(params), device)
    rows = batches.select(np.zeros(in_a_row, np.int32), np.arange(in_a_row))

    def round_of_steps() -> None:
        nonlocal params, opt_state
        for chosen in rows:
            params, opt_state, _ = step(params, opt_state, data, chosen)
        jax.block_until_ready(params)

    round_of_steps()  # Compiles.
    rounds, began = 0, time.perf_counter()
    while rounds == 0 or time.perf_counter() - began < seconds:
        round_of_steps()
        rounds += 1
    return rounds * in_a_row / (time.perf_counter() - began)


def _run_for(seconds: float, problem: Problem, placement: gemjax.Placement) -> gemjax.Result:
    """Run momentum SGD on devices for about ``seconds`` and at least 8 commits per worker."""
    workers, began = len(placement.workers), []

    def is_over(progress: gemjax.Progress) -> bool:
        began.append(time.perf_counter())
        return began[-1] - began[0] >= seconds and progress.commits >= 8 * workers

    return gemjax.run_on_devices(
        gemjax.momentum_asgd(RATE, MOMENTUM, num_workers=workers), problem.loss_fn, problem.params, problem.batches, 10**6,
        placement=placement, policy=gemjax.Policy(deadline=DEADLINE), callback=is_over, callback_every=10**6,
        callback_seconds=seconds / 8,
    )  # fmt: skip


def _rate(times: np.ndarray) -> float:
    """Return the commits per second, without the first quarter of the commits."""
    skipped = len(times) // 4
    return float((len(times) - 1 - skipped) / max(times[-1] - times[skipped], 1e-9))
