"""Measurement of `python -m train bench check`: the cost of testing the state after each commit."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import gemjax
from gemjax.engines.devices.hardware.central import EXAMPLE_EVENT
from gemjax.engines.simulator import loops
from gemjax.engines.transition import Transition
from train.bench.devices import parameters, programs_of
from train.bench.simulate import BATCH_SIZE, make_problem
from train.common.console import show_table

WORKERS = 4


class Unchecked(Transition):
    """The transition without the test of the state after a commit."""

    def is_sound(self, before: Any, after: Any) -> jax.Array:
        """Return True."""
        del before, after
        return jnp.array(True)


def measure(sizes: Sequence[int], networks: Sequence[str], rounds: int, steps: int, console: Console) -> dict[str, Any]:
    """Time GEM's commits with and without the test, in turns.

    The first rows are the program that commits and pulls on devices; the others are commits of the simulator, with their
    gradients.

    Returns:
      For each, the median microseconds per commit without the test, and the median and the smallest ratio of the times in
      turn.
    """
    programs = {f"devices, {size:,}": (lambda kind, size=size: _on_device(kind, size, steps)) for size in sizes}
    programs |= {f"simulator, {name}": (lambda kind, name=name: _simulated(kind, name, steps)) for name in networks}
    figures = {}
    for name, make in programs.items():
        times = [make(kind) for kind in (Unchecked, Transition)]
        plain, tested = np.array([[timed() for timed in times] for _ in range(rounds)]).T
        of = {"microseconds": 1e6 * float(np.median(plain)), "ratio": float(np.median(tested / plain))}
        figures[name] = of | {"ratio of the fastest": float(tested.min() / plain.min())}
    columns = ("", "µs per commit without it", "ratio (median)", "of the fastest")
    rows = (
        (name, *(f"{value:.{digits}f}" for value, digits in zip(of.values(), (0, 3, 3), strict=True)))
        for name, of in figures.items()
    )
    show_table(console, "Test of the state after a commit (GEM)", columns, rows)
    return figures


def _on_device(kind: type[Transition], size: int, steps: int) -> Callable[[], float]:
    """Make a function that measures the seconds of one commit and pull at the central variable, the fastest of some."""
    programs = programs_of(parameters(size), kind)
    gradient, _ = programs.bring(jax.block_until_ready(programs.compute(0, programs.select(0))))

    def once() -> float:
        began = time.perf_counter()
        jax.block_until_ready(programs.central.commit(0, gradient, EXAMPLE_EVENT))
        return time.perf_counter() - began

    count = max(3, steps * 160_000 // size)
    return lambda: min(once() for _ in range(count))


def _simulated(kind: type[Transition], network: str, steps: int) -> Callable[[], float]:
    """Make a function that measures the seconds per simulated commit of a network."""
    problem, trace = make_problem(network, BATCH_SIZE), gemjax.arrivals.Gamma(WORKERS).trace(steps)
    tx = gemjax.gem(1e-3, num_workers=WORKERS)
    transition = kind(tx=tx, loss_fn=problem.loss_fn, num_workers=WORKERS).bind(problem.params)
    run_chunk = loops.compiled(transition, problem.batches, max(2, steps), 1, False)
    inputs = jax.device_put(loops.inputs(trace.events(), problem.batches, max(2, steps), 1))
    data = jax.device_put(problem.batches.data)

    def run() -> float:
        state = jax.tree.map(jnp.copy, transition.init(problem.params, problem.model_state))
        jax.block_until_ready(state)
        began = time.perf_counter()
        jax.block_until_ready(run_chunk(np.int64(0), state, data, *inputs))
        return (time.perf_counter() - began) / steps

    run()
    return run
