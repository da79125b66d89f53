"""`python -m train bench second`: the cost of second calls, and of a DiLoCo relative to the same program written by hand."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import gemjax
from gemjax.check.speed import Problem
from train.common.console import show_table
from train.task import losses, models

PyTree = Any
# The DiLoCo that is compared with a program by hand; the goal is a ratio of at most 1.1.
WORKERS, PERIOD, ROUNDS = 8, 16, 8
BATCH_SIZE, LENGTH, ROWS = 2, 32, 4096  # Rows per batch, tokens per row, and rows of the data.
WIDTH = 0.5  # Width of the transformers.
RATE, MOMENTUM, LOCAL_RATE = 0.7, 0.9, 1e-3


def make_problem(depth: int) -> Problem:
    """Make a small transformer on random tokens."""
    tokens = np.random.default_rng(0).integers(0, 64, (ROWS, LENGTH + 1), dtype=np.int32)
    model = models.Transformer(vocabulary=64, depth=depth, width=WIDTH)
    variables = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))

    def loss_fn(params: PyTree, batch: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, batch[:, :-1])
        return losses.cross_entropy(logits, batch[:, 1:])

    return Problem(loss_fn, variables["params"], gemjax.Epochs(tokens, BATCH_SIZE))


def measure(rounds: int, console: Console) -> dict[str, Any]:
    """Measure second calls of all engines that compile for themselves, and the DiLoCo."""
    return {"calls": _calls(make_problem(1), console), "diloco": _diloco(make_problem(2), rounds, console)}


def _calls(problem: Problem, console: Console) -> dict[str, dict[str, float]]:
    """Measure the CPU seconds of a first call, and of others that need no new program, of a few commits."""
    figures = {}
    for engine, (call, make) in _engines(problem).items():
        tx = make()
        figures[engine] = {
            "first": _cpu_seconds(lambda: call(tx, 2)),  # noqa: B023
            "same": min(_cpu_seconds(lambda: call(tx, 2)) for _ in range(3)),  # noqa: B023
            "anew": min(_cpu_seconds(lambda: call(make(), 2)) for _ in range(3)),  # noqa: B023
            "length": _cpu_seconds(lambda: call(tx, 3)),  # noqa: B023
        }
    columns = ("engine", "first", "same objects", "method built anew", "another length")
    rows = ((engine, *(f"{seconds:.3f}" for seconds in of.values())) for engine, of in figures.items())
    show_table(console, "CPU seconds of a call of few commits", columns, rows)
    return figures


def _engines(problem: Problem) -> dict[str, tuple[Callable, Callable]]:
    """Return, by engine, ``call(tx, commits)`` and a function that builds its first argument anew."""
    local = gemjax.LocalSteps(optax.adamw(LOCAL_RATE), 1)
    trace = lambda commits: gemjax.arrivals.RoundRobin(2).trace(commits)
    given = problem.loss_fn, problem.params, problem.batches
    method = lambda: gemjax.delayed_nesterov(RATE, num_workers=2)
    return {
        "simulate": (lambda tx, commits: gemjax.simulate(tx, *given, trace(commits), local=local), method),
        "sweep": (
            lambda make, commits: gemjax.sweep(make, *given, trace(commits), {"rate": [0.1, RATE]}, local=local),
            lambda: lambda rate: gemjax.delayed_nesterov(rate, num_workers=2),
        ),
        "run_on_devices": (lambda tx, commits: gemjax.run_on_devices(tx, *given, commits, local=local), method),
    }


def _diloco(problem: Problem, rounds: int, console: Console) -> dict[str, Any]:
    """Time a simulated DiLoCo, called a second time, against the program by hand; both from the call to the last loss."""
    tx = gemjax.diloco(RATE, MOMENTUM, num_workers=WORKERS)
    local = gemjax.LocalSteps(optax.adamw(LOCAL_RATE), PERIOD)
    trace = gemjax.arrivals.Barrier(gemjax.arrivals.RoundRobin(WORKERS)).trace(WORKERS * ROUNDS)

    def simulated() -> np.ndarray:
        given = tx, problem.loss_fn, problem.params, problem.batches, trace
        return gemjax.simulate(*given, local=local, window=1).history["loss"]

    by_hand, ratios, times = program_by_hand(problem), [], []
    last = {name: float(run()[-WORKERS:].mean()) for name, run in (("simulated", simulated), ("by hand", by_hand))}
    for _ in range(rounds):
        # Timed right before and after, so that the ratio does not depend on a drift of the machine's speed.
        before, own, after = _cpu_seconds(by_hand), _cpu_seconds(simulated), _cpu_seconds(by_hand)
        times.append((before + after) / 2)
        ratios.append(own / times[-1])
    console.print(
        f"DiLoCo, {WORKERS} workers x {PERIOD} local steps x {ROUNDS} rounds, {problem.size:,} parameters: "
        f"{np.median(ratios):.3f} times the CPU seconds of the program by hand ({min(ratios):.3f} - {max(ratios):.3f}), which "
        f"takes {np.median(times):.2f} s; loss of the last round {last['simulated']:.6f} and {last['by hand']:.6f}",
        highlight=False,
    )
    return {"ratio": float(np.median(ratios)), "by_hand_seconds": float(np.median(times)), "loss": last}


def program_by_hand(problem: Problem) -> Callable[[], np.ndarray]:
    """Make a function that runs DiLoCo as a loop over rounds, workers and local steps, and returns a loss per commit.

    It is what one writes for DiLoCo alone: workers in turn, each with its state of AdamW, and one outer Nesterov step on the
    mean displacement of a round.
    """
    inner = optax.adamw(LOCAL_RATE)
    outer = optax.sgd(RATE, MOMENTUM, nesterov=True)

    @jax.jit
    def run(params: PyTree, data: PyTree, rows: jax.Array) -> jax.Array:
        def step(carry, chosen):
            params, state = carry
            loss, grads = jax.value_and_grad(problem.loss_fn)(params, problem.batches.batch(data, chosen))
            updates, state = inner.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        def round_of_all(carry, of_workers):
            params, state, outer_state = carry

            def worker(total, given):
                own, chosen = given
                (moved, own), found = jax.lax.scan(step, (params, own), chosen)
                total = jax.tree.map(lambda sum_, old, new: sum_ + (old - new), total, params, moved)
                return total, (own, found.mean())

            zeros = jax.tree.map(jnp.zeros_like, params)
            total, (state, found) = jax.lax.scan(worker, zeros, (state, of_workers))
            mean = jax.tree.map(lambda sum_: sum_ / WORKERS, total)
            updates, outer_state = outer.update(mean, outer_state, params)
            return (optax.apply_updates(params, updates), state, outer_state), found

        state = jax.tree.map(lambda leaf: jnp.stack([leaf] * WORKERS), inner.init(params))
        _, found = jax.lax.scan(round_of_all, (params, state, outer.init(params)), rows)
        return found.ravel()

    def called() -> np.ndarray:
        worker = np.tile(np.repeat(np.arange(WORKERS), PERIOD), ROUNDS)
        step = np.arange(ROUNDS)[:, None, None] * PERIOD + np.zeros((1, WORKERS, 1), int) + np.arange(PERIOD)
        rows = problem.batches.select(worker, step.ravel()).reshape(ROUNDS, WORKERS, PERIOD, BATCH_SIZE)
        return np.asarray(run(problem.params, jax.device_put(problem.batches.data), rows))

    return called


def _cpu_seconds(run: Callable[[], Any]) -> float:
    """Return the seconds that all cores together spend on a call; other programs do not change them much."""
    began = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - began
