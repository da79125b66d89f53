"""The runs that decide a claim."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from train.config.config import Config
from train.task import cluster as pace

Record = dict[str, Any]  # What is kept of a run.
Scale = Literal["small", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("small", "cpu", "full")
REQUIRED: tuple[Scale, ...] = ("small", "full")

# Fields of a configuration that change no number of a simulated run.
FREE = (
    "data_dir",
    "manual_dir",
    "out",
    "tensorboard",
    "dry_run",
    "resume",
    "eval_every",
    "eval_seconds",
    "checkpoint_every",
    "checkpoint_seconds",
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run of a claim, in the simulator.

    Args:
      series: the line of the picture, or the row of the table, that it belongs to.
      point: where on that line it stands: a number of workers, a κ, ….
      config: what is trained; runs of one series and point differ by its seed.
      diagnostics: quantities of the method to record at moments spread over the run (`pi_median`, `gap`, …).
      evaluations: how often the test set is looked at, evenly over the run; always at its end.
    """

    series: str
    point: float
    config: Config
    diagnostics: tuple[str, ...] = ()
    evaluations: int = 1

    def __post_init__(self):
        if self.config.engine != "simulate":
            raise ValueError(f"a claim's runs are simulated; got engine {self.config.engine!r} in {self}")
        if self.evaluations < 1:
            raise ValueError(f"evaluations must be at least 1, got {self.evaluations}")

    @property
    def name(self) -> str:
        """The run in words, for progress and messages."""
        return f"{self.series} at {self.point:g}, seed {self.config.seed}"

    def described(self) -> dict[str, Any]:
        """All that decides the run's numbers: what its configuration sets apart from defaults, and what is recorded.

        >>> Run("GEM", 5, Config(engine="simulate", workers=5, seed=1, data_dir="anywhere")).described()["config"]
        {'engine': 'simulate', 'seed': 1, 'workers': 5}
        """
        fields = {field.name: (field.default, getattr(self.config, field.name)) for field in dataclasses.fields(Config)}
        changed = {name: value for name, (default, value) in fields.items() if value != default and name not in FREE}
        return {
            "config": dict(sorted(changed.items())),
            "diagnostics": sorted(self.diagnostics),
            "evaluations": self.evaluations,
        }

    def key(self, version: str) -> str:
        """A file name that is another one as soon as anything differs that decides the run's numbers."""
        text = json.dumps(self.described() | {"version": version}, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:12]
        config = self.config
        return f"{config.dataset}-{config.method}-{config.workers}-seed{config.seed}-{short}"


def num_commits(config: Config, rows: int) -> int:
    """Commits of all workers together, on a data set of so many training rows.

    >>> num_commits(Config(dataset="mnist", workers=5, epochs=1.0, batch_size=64), 60_000)
    4685
    """
    steps = rows // min(config.batch_size, rows)
    return max(1, math.ceil(config.workers * config.epochs * steps / pace.mean_period(config)))


def over_seeds(
    series: str,
    config: Config,
    point: float | None = None,
    *,
    seeds: Iterable[int] = (0, 1, 2),
    diagnostics: tuple[str, ...] = (),
    evaluations: int = 1,
) -> list[Run]:
    """A run for each seed at one point, which is the number of workers if none is given.

    >>> [run.config.seed for run in over_seeds("GEM", Config(engine="simulate", workers=5))]
    [0, 1, 2]
    """
    point = config.workers if point is None else point
    return [Run(series, point, dataclasses.replace(config, seed=seed), diagnostics, evaluations) for seed in seeds]


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """`runs` in groups of which each can be one program: every learning rate of a group with every seed of it.

    Runs with diagnostics, or with more than one look at the test set, are groups of their own.

    >>> slow, fast = (Config(engine="simulate", learning_rate=rate) for rate in (0.01, 0.1))
    >>> together = groups([*over_seeds("slow", slow, seeds=(0, 1)), *over_seeds("fast", fast, seeds=(0, 1, 2))])
    >>> [[run.name for run in group] for group in together]
    [['slow at 8, seed 0', 'slow at 8, seed 1'], ['fast at 8, seed 0', 'fast at 8, seed 1', 'fast at 8, seed 2']]
    """
    by_rate: dict[Any, list[Run]] = {}  # By all but the seed.
    for index, run in enumerate(runs):
        config = dataclasses.replace(run.config, seed=0)
        alone = bool(run.diagnostics) or run.evaluations > 1
        by_rate.setdefault((config, index if alone else None), []).append(run)
    found: dict[Any, list[Run]] = {}
    for (config, alone), group in by_rate.items():
        seeds = tuple(run.config.seed for run in group)
        same = dataclasses.replace(config, learning_rate=1.0), seeds, alone
        found.setdefault(same, []).extend(group)
    return list(found.values())
