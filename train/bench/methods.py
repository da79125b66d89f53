"""`python -m train bench methods`: what a commit of each method costs beside one of plain ASGD."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from gemjax.engines.transition import Gradient, RunState, Transition, view_of
from gemjax.protocol import slots
from gemjax.protocol.board import Board
from train.config.config import Config
from train.task.methods import METHODS, local_steps

PyTree = Any
WORKERS = 16
SIZES = (784, 800, 500, 10)  # Of a network's layers: 1,034,310 parameters.


@dataclasses.dataclass
class Measured:
    """One method's commits, compiled, with the state that they work on."""

    name: str
    commit: Callable  # (shared, mine, gradient, worker) -> (shared, mine); donates both.
    shared: list
    mine: list[list]  # A worker's slots each.
    gradient: Gradient
    traffic: int  # Bytes that a commit must read and write: what it is given and uses, and what it returns.
    compiled: float  # Bytes that the loops of the compiled program read and write, by XLA's own account.
    kept: int  # Bytes of the whole run's state.

    def seconds(self, commits: int) -> float:
        """Mean time of a commit and the pull after it, the workers in turn."""
        began = time.perf_counter()
        for t in range(commits):
            worker = t % WORKERS
            self.shared, self.mine[worker] = self.commit(
                self.shared, self.mine[worker], self.gradient, np.int32(worker)
            )
        jax.block_until_ready((self.shared, self.mine))
        return (time.perf_counter() - began) / commits


def measure(name: Any) -> Measured:
    """Compiles the commit of a method as the device engine makes it: slots unstacked, all state donated."""
    config = Config(method=name, workers=WORKERS, learning_rate=1e-3)
    params = _params()
    local = local_steps(config)
    transition, state = Transition(METHODS[name](config), _loss, WORKERS, local=local).init(params)
    # What local optimizers keep stays with the workers and is no matter of a commit.
    state = state._replace(view=slots.Slots(state.view.value._replace(local=()), WORKERS))
    gradient = _gradient(params, steps=local is not None)
    taken = [jax.tree.map(jnp.copy, slots.take(state, worker)) for worker in range(WORKERS)]
    mine = [slots.split(one)[0] for one in taken]
    _, join, shared = slots.split(taken[0])

    def commit(shared: list, mine: list, gradient: Gradient, worker: jax.Array) -> tuple[list, list]:
        now = join(mine, shared)
        now, _, _ = transition.commit_and_pull(now, view_of(now).params, gradient, worker, now.step.value)
        mine, _, shared = slots.split(now)
        return shared, mine

    compiled = jax.jit(commit, donate_argnums=(0, 1)).lower(shared, mine[0], gradient, np.int32(0)).compile()
    memory: Any = compiled.memory_analysis()  # Arguments that are not used are not in the program any more.
    traffic = memory.argument_size_in_bytes + memory.output_size_in_bytes - _untouched(state)
    cost: Any = compiled.cost_analysis()
    return Measured(name, compiled, shared, mine, gradient, traffic, cost["bytes accessed"], _bytes(state))


def _untouched(state: RunState) -> int:
    """Of a board a commit writes one row and reads two (its own again, and a leader's); the others pass through."""
    boards = [node for node in jax.tree.leaves(state, is_leaf=_is_board) if _is_board(node)]
    return sum(_bytes(board) * (2 * WORKERS - 3) // WORKERS for board in boards)


def _is_board(node: Any) -> bool:
    return isinstance(node, Board)


def compare(names: Sequence[str], rounds: int, commits: int, console: Console) -> dict[str, Any]:
    """Times each method beside ASGD, round by round, and prints the table."""
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
    console.print(_table(figures))
    return figures


def _table(figures: dict[str, Any]) -> Table:
    table = Table(
        title=f"A commit and its pull, {figures['workers']} workers, {figures['parameters']:,} parameters; ratios to asgd",
        caption="Traffic needed: what a commit is given, uses and returns, once. Compiled: what XLA's loops read and write; on "
        "CPUs each output is a loop of its own that reads its inputs anew. State in copies of the parameters, and as a ratio. "
        "Each method is timed between two stretches of asgd; one round is noise.",
    )
    table.add_column("method", no_wrap=True)
    for column in (
        "ms",
        "time",
        "needed",
        "time/needed",
        "compiled",
        "time/compiled",
        "copies",
        "state",
    ):
        table.add_column(column, justify="right")
    for name, one in figures["methods"].items():
        table.add_row(
            name, f"{one['ms']:.2f}", f"{one['time ratio']:.2f}", f"{one['traffic ratio']:.2f}",
            f"{one['time ratio'] / one['traffic ratio']:.2f}", f"{one['compiled traffic ratio']:.2f}",
            f"{one['time ratio'] / one['compiled traffic ratio']:.2f}",
            f"{one['state in copies']:.1f}", f"{one['state ratio']:.2f}",
        )  # fmt: skip
    return table


def _params() -> PyTree:
    keys = jax.random.split(jax.random.key(0), len(SIZES) - 1)
    layers = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return [{"w": 0.05 * jax.random.normal(key, (m, n)), "b": jnp.zeros(n)} for key, m, n in layers]


def _loss(params: PyTree, batch: Any) -> jax.Array:
    """Never computed: commits are timed on a gradient that is there."""
    raise AssertionError


def _gradient(params: PyTree, *, steps: bool) -> Gradient:
    grads = jax.tree.map(lambda p: 1e-3 * jax.random.normal(jax.random.key(p.size), p.shape), params)
    one = jnp.ones([])
    return Gradient(one, grads, (), {}, one, *((one[None], one) if steps else ()))


def _bytes(tree: PyTree | RunState) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
