"""The contestants of a race: rules for the same gradients, each at its best rate."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

import gemjax
from gemjax.testing import Faults
from train.task.task import PyTree, Task

EVALUATIONS = 100  # Per contestant, at most.


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A method and its rule for when a gradient commits.

    Args:
      method: name of the function in `gemjax` that makes the method.
      learning_rate: the best of its grid.
      momentum: the best of its grid; `None` for a method without one.
      late: number of workers that a round does not wait for; `None` if there are no rounds.
      tried: learning rates of its grid.
    """

    method: str
    learning_rate: float
    momentum: float | None
    late: int | None
    tried: tuple[float, ...]

    def quorum(self, workers: int) -> int:
        """Return the number of gradients that commit together."""
        return 1 if self.late is None else max(1, workers - self.late)

    def make(self, workers: int, learning_rate: Any = None) -> Any:
        """Return the method, at its own rate or another one."""
        momentum = {} if self.momentum is None else {"momentum": self.momentum}
        rate = self.learning_rate if learning_rate is None else learning_rate
        return getattr(gemjax, self.method)(rate, num_workers=workers, **momentum)


SYNCHRONOUS = (0.00625, 0.0125, 0.025, 0.05, 0.1)
CONTESTANTS = {
    "synchronous": Contestant("momentum_asgd", 0.0125, 0.9, 0, SYNCHRONOUS),
    "quorum": Contestant("momentum_asgd", 0.025, 0.9, 1, SYNCHRONOUS),
    "asgd": Contestant("asgd", 0.1, None, None, (0.05, 0.1, 0.2, 0.4, 0.8)),
    "gem": Contestant("gem", 0.2, 0.9, None, (0.05, 0.1, 0.2, 0.4, 0.8)),
}
if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[tuple(CONTESTANTS)]


def label(name: str, workers: int) -> str:
    """Return the name of a contestant for people.

    >>> label("synchronous", 4), label("quorum", 4), label("gem", 4)
    ('synchronous', 'synchronous, first 3 of 4', 'gem')
    """
    return f"synchronous, first {workers - 1} of {workers}" if name == "quorum" else name


@dataclasses.dataclass(frozen=True)
class Lap:
    """The run of one contestant.

    Attributes:
      seconds: wall-clock time of each evaluated commit, from the first dispatch on; compilation comes before that.
      losses: test loss after each of these commits, computed when the run had ended.
      commits: number of each of these commits.
      history: the columns of the run.
    """

    seconds: np.ndarray
    losses: np.ndarray
    commits: np.ndarray
    history: dict[str, np.ndarray]

    def reached(self, target: float) -> int | None:
        """Return the index of the first evaluation with a loss of at most `target`; `None` if there is none."""
        found = np.flatnonzero(self.losses <= target)
        return int(found[0]) if len(found) else None


def run(contestant: Contestant, task: Task, workers: int, slow: float, gradients: int) -> Lap:
    """Run one contestant on the devices of this machine.

    The last worker waits `slow` seconds with each finished gradient, in a thread that takes no core meanwhile.
    """
    kept: list[tuple[int, PyTree]] = [(0, task.params)]

    def keep(progress: gemjax.Progress) -> None:
        kept.append((progress.commits, jax.tree.map(np.array, progress.params)))  # Copies.

    with Faults().slow(workers - 1, slow) as gate:
        result = gemjax.run_on_devices(
            contestant.make(workers), task.loss_fn, task.params, task.batches, gradients,
            placement=gemjax.place(workers), policy=gemjax.Policy(quorum=contestant.quorum(workers)), gate=gate,
            callback=keep, callback_every=max(1, gradients // EVALUATIONS),
        )  # fmt: skip
    commits = np.array([count for count, _ in kept])
    times = np.concatenate([[0.0], result.history["time"][result.history["applied"]]])
    losses = np.array([task.evaluate(params)[0] for _, params in kept])
    return Lap(times[commits], losses, commits, dict(result.history))
