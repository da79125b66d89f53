"""The runs that decide a claim."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from train.config.config import BOOKKEEPING, Config
from train.config.methods import USUAL_RATE
from train.task import cluster as pace

RunRecord = dict[str, Any]  # The measurements of a run.
Scale = Literal["small", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("small", "cpu", "full")


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One training run of a claim, in the simulator.

    Args:
      series: its line of the picture, or row of the table.
      point: its place on that line: a number of workers, a κ, ….
      config: the configuration. Runs of one series and point differ in its seed.
      diagnostics: quantities of the method to record at moments spread over the run (`pi_median`, `gap`, …).
      evaluations: number of evaluations on the test set, evenly spaced, with one at the end.
      pretraining: epochs in which one worker trains the initial parameters, with the local optimizer and its rate and with
        seed 0 whatever the run's: runs that differ in method, workers and seed begin alike.
    """

    series: str
    point: float
    config: Config
    diagnostics: tuple[str, ...] = ()
    evaluations: int = 1
    pretraining: float = 0.0

    @property
    def name(self) -> str:
        """The name of the run in progress lines and messages."""
        return f"{self.series} at {self.point:g}, seed {self.config.seed}"

    def described(self) -> dict[str, Any]:
        """Return everything that decides the run's numbers: fields that differ from their defaults, and recorded quantities.

        >>> PlannedRun("GEM", 5, Config(engine="simulate", workers=5, seed=1, data_dir="anywhere")).described()["config"]
        {'engine': 'simulate', 'seed': 1, 'workers': 5}
        """
        fields = {field.name: (field.default, getattr(self.config, field.name)) for field in dataclasses.fields(Config)}
        fields["learning_rate"] = (USUAL_RATE, self.config.rate)
        changed = {
            name: value for name, (default, value) in fields.items() if value != default and name not in BOOKKEEPING
        }
        return {
            "config": dict(sorted(changed.items())),
            "diagnostics": sorted(self.diagnostics),
            "evaluations": self.evaluations,
            **({"pretraining": self.pretraining} if self.pretraining else {}),
        }

    def key(self, version: str) -> str:
        """Return a file name that changes with everything that decides the run's numbers."""
        text = json.dumps(self.described() | {"version": version}, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:12]
        config = self.config
        return f"{config.dataset}-{config.method}-{config.workers}-seed{config.seed}-{short}"


def num_commits(config: Config, rows: int) -> int:
    """Return the number of commits of all workers on a data set with `rows` training rows.

    >>> num_commits(Config(dataset="mnist", workers=5, epochs=1.0, batch_size=64), 60_000)
    4685
    """
    return pace.commits(config, rows // min(config.batch_size, rows))


def over_seeds(
    series: str,
    config: Config,
    point: float | None = None,
    *,
    seeds: Iterable[int] = (0, 1, 2),
    diagnostics: tuple[str, ...] = (),
    evaluations: int = 1,
    pretraining: float = 0.0,
) -> list[PlannedRun]:
    """Return a run per seed at one point, by default the number of workers.

    >>> [run.config.seed for run in over_seeds("GEM", Config(engine="simulate", workers=5))]
    [0, 1, 2]
    """
    point = config.workers if point is None else point
    return [
        PlannedRun(series, point, dataclasses.replace(config, seed=seed), diagnostics, evaluations, pretraining)
        for seed in seeds
    ]


def grid(
    base: Config,
    series: Mapping[str, Mapping[str, Any]],
    workers: Iterable[int],
    *,
    epochs: float | None = None,
    **recorded: Any,
) -> list[PlannedRun]:
    """Return a run per series, number of workers and seed.

    Args:
      base: the configuration that all runs share.
      series: the fields of each series, by its name.
      workers: the numbers of workers, which are the points.
      epochs: of data that all workers share; default: those of the configuration for each worker.
      **recorded: arguments of :func:`over_seeds`.

    >>> [run.name for run in grid(Config(engine="simulate"), {"GEM": {"method": "gem"}}, (4, 8), seeds=(0,))]
    ['GEM at 4, seed 0', 'GEM at 8, seed 0']
    """
    length = lambda count: base.epochs if epochs is None else epochs / count
    return [
        run
        for name, own in series.items()
        for count in workers
        for run in over_seeds(name, dataclasses.replace(base, workers=count, epochs=length(count), **own), **recorded)
    ]
