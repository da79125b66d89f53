"""`python -m train bench methods`: the cost of a commit of each method, relative to plain ASGD."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from gemjax.engines.transition import Gradient, RunState, Transition
from gemjax.protocol import slots
from train.common.console import show_table
from train.config.config import Config
from train.task.methods import local_steps, make_method

PyTree = Any
WORKERS = 16
SIZES = (784, 800, 500, 10)  # Units per layer of a network with 1,034,310 parameters.


@dataclasses.dataclass
class CompiledCommit:
    """Compiled commit of one method, with the state of the run."""

    name: str
    commit: Callable  # (shared, mine, gradient, worker) -> (shared, mine); donates both.
    shared: list
    mine: list[list]  # Slots of each worker.
    gradient: Gradient
    traffic: int  # Bytes that a commit must read and write: the arguments that it uses, and its results.
    compiled: float  # Bytes that the loops of the compiled program read and write, as estimated by XLA.
    kept: int  # Bytes of the state of the whole run.

    def seconds(self, commits: int) -> float:
        """Mean seconds per commit and pull, with the workers in turn."""
        began = time.perf_counter()
        for t in range(commits):
            worker = t % WORKERS
            self.shared, self.mine[worker] = self.commit(
                self.shared, self.mine[worker], self.gradient, np.int32(worker)
            )
        jax.block_until_ready((self.shared, self.mine))
        return (time.perf_counter() - began) / commits


def measure(name: Any) -> CompiledCommit:
    """Compile the commit of a method as the device engine does: slots unstacked, all state donated."""
    config = Config(method=name, workers=WORKERS, learning_rate=1e-3)
    params = _params()
    local = local_steps(config)
    transition = Transition(tx=make_method(config), loss_fn=_loss, num_workers=WORKERS, local=local).bind(params)
    state = transition.init(params)
    # The state of local optimizers stays with the workers; commits do not touch it.
    state = state._replace(view=slots.Slots(state.view.value._replace(local=()), WORKERS))
    gradient = _gradient(params, steps=local is not None)
    taken = [jax.tree.map(jnp.copy, slots.take(state, worker)) for worker in range(WORKERS)]
    mine = [slots.split(one)[0] for one in taken]
    _, join, shared = slots.split(taken[0])

    def commit(shared: list, mine: list, gradient: Gradient, worker: jax.Array) -> tuple[list, list]:
        now = join(mine, shared)
        now, _, _ = transition.commit_and_pull(now, gradient, worker, now.step.value)
        mine, _, shared = slots.split(now)
        return shared, mine

    compiled = jax.jit(commit, donate_argnums=(0, 1)).lower(shared, mine[0], gradient, np.int32(0)).compile()
    memory: Any = compiled.memory_analysis()  # XLA has removed unused arguments.
    traffic = memory.argument_size_in_bytes + memory.output_size_in_bytes - _untouched(state)
    cost: Any = compiled.cost_analysis()
    return CompiledCommit(name, compiled, shared, mine, gradient, traffic, cost["bytes accessed"], _bytes(state))


def _untouched(state: RunState) -> int:
    """Bytes of shared rows that pass through a commit: it writes one row and reads two (its own and a leader's)."""
    nodes = [node for node in jax.tree.leaves(state, is_leaf=slots.is_rows) if slots.is_rows(node)]
    return sum(_bytes(node) * (2 * WORKERS - 3) // WORKERS for node in nodes)


def compare(names: Sequence[str], rounds: int, commits: int, console: Console) -> dict[str, Any]:
    """Time each method against ASGD, round by round, and print the table."""
    base = measure("asgd")
    size = _bytes(_params())
    figures: dict[str, Any] = {"parameters": size // 4, "workers": WORKERS, "methods": {}}
    base.seconds(2 * WORKERS)
    for name in names:
        method = measure(name)
        method.seconds(2 * WORKERS)
        ratios, times = [], []
        for _ in range(rounds):
            before, seconds, after = base.seconds(commits), method.seconds(commits), base.seconds(commits)
            times.append(seconds)
            ratios.append(seconds / (0.5 * (before + after)))
        figures["methods"][name] = {
            "ms": 1e3 * float(np.median(times)),
            "time ratio": float(np.median(ratios)),
            "traffic ratio": method.traffic / base.traffic,
            "compiled traffic ratio": method.compiled / base.compiled,
            "state in copies": method.kept / size,
            "state ratio": method.kept / base.kept,
        }
        console.print(f"  {name}: {1e3 * np.median(times):.2f} ms", highlight=False)
    _show(figures, console)
    return figures


def _show(figures: dict[str, Any], console: Console) -> None:
    title = f"A commit and its pull, {figures['workers']} workers, {figures['parameters']:,} parameters; ratios to asgd"
    caption = (
        "needed: traffic if each argument that a commit uses and each result is moved once. compiled: traffic of XLA's loops; "
        "on CPUs each output has its own loop, which reads its inputs again. copies: state in copies of the parameters. Each "
        "method is timed between two measurements of asgd; a single round is noisy."
    )
    rows = [
        (
            name, f"{one['ms']:.2f}", f"{one['time ratio']:.2f}", f"{one['traffic ratio']:.2f}",
            f"{one['time ratio'] / one['traffic ratio']:.2f}", f"{one['compiled traffic ratio']:.2f}",
            f"{one['time ratio'] / one['compiled traffic ratio']:.2f}",
            f"{one['state in copies']:.1f}", f"{one['state ratio']:.2f}",
        )
        for name, one in figures["methods"].items()
    ]  # fmt: skip
    columns = ("method", "ms", "time", "needed", "time/needed", "compiled", "time/compiled", "copies", "state")
    show_table(console, title, columns, rows, caption=caption)


def _params() -> PyTree:
    keys = jax.random.split(jax.random.key(0), len(SIZES) - 1)
    layers = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return [{"w": 0.05 * jax.random.normal(key, (m, n)), "b": jnp.zeros(n)} for key, m, n in layers]


def _loss(params: PyTree, batch: Any) -> jax.Array:
    """Stand-in that is never called: commits are timed with a given gradient."""
    raise AssertionError


def _gradient(params: PyTree, *, steps: bool) -> Gradient:
    grads = jax.tree.map(lambda p: 1e-3 * jax.random.normal(jax.random.key(p.size), p.shape), params)
    one = jnp.ones([])
    return Gradient(one, grads, (), {}, one, *((one[None], one) if steps else ()))


def _bytes(tree: PyTree | RunState) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
