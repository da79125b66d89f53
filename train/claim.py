"""What a claim is: the runs that decide it, the published numbers, a judgement and a picture."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from train import pace
from train.config import Config

if TYPE_CHECKING:  # Claims are listed and planned without drawing.
    from matplotlib.figure import Figure

    from train.measured import Measured

Scale = Literal["small", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("small", "cpu", "full")
REQUIRED: tuple[Scale, ...] = ("small", "full")
Verdict = Literal["held", "held in part", "did not hold"]

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


@dataclasses.dataclass(frozen=True)
class Statement:
    """One sentence of a claim, and whether the runs bear it out.

    Args:
      text: the sentence.
      held: whether it holds for what was measured.
      measured: our numbers, in words.
      paper: the published ones, in words; empty if there are none.
    """

    text: str
    held: bool
    measured: str
    paper: str = ""

    def __post_init__(self):
        object.__setattr__(self, "held", bool(self.held))  # JSON has no numpy.bool.


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published claim and how it is checked; `CLAIM` of a module in `train.configs`.

    Args:
      name: the module's name.
      title: one line, what is claimed.
      source: the paper and figure.
      runs: for each scale, what is run: `"full"` is the paper's setting, `"small"` takes minutes on two cores and needs no
        files from elsewhere; `"cpu"`, where the paper's setting would take days there, about an hour.
      paper: published numbers by quantity, series and point (`{"train_loss": {"GEM": {5: 0.075}}}`).
      read_off: whether those were read off a figure, so are approximate.
      judge: a pure function of what was measured; the statements, each held or not. It can ask for `measured.scale`.
      draw: draws what was measured, beside the published numbers at full scale, into an empty figure.
      minutes: for each scale, what all of its runs took on two CPU cores, those shared with other claims too, or would take
        by the speed of their first commits.
      setting: for each scale whose setting is not the paper's, what it is, in a few words; stands in tables and pictures.
      paper_note: where the published numbers are from and how sure they are, if that is not simply the paper.
      then: further runs that depend on what was measured so far (rates chosen on one seed, reported on others); asked again
        with these, until it names no new ones.
      tuning: seeds that serve this choice alone, and are not reported.
      together: whether runs that differ in learning rate and seed alone are made as one program, for networks so small
        that compiling takes longer than running; their numbers are the same up to rounding.
    """

    name: str
    title: str
    source: str
    runs: Mapping[Scale, Sequence[Run]]
    judge: Callable[[Measured], Sequence[Statement]]
    draw: Callable[[Figure, Measured], None]
    paper: Mapping[str, Mapping[str, Mapping[Any, float]]] = dataclasses.field(default_factory=dict)
    read_off: bool = True
    minutes: Mapping[Scale, float] = dataclasses.field(default_factory=dict)
    setting: Mapping[Scale, str] = dataclasses.field(default_factory=dict)
    paper_note: str = ""
    then: Callable[[Measured], Sequence[Run]] | None = None
    tuning: Sequence[int] = ()
    together: bool = False

    def __post_init__(self):
        if missing := set(REQUIRED) - set(self.runs):
            raise ValueError(f"the claim {self.name} has no runs at scale {', '.join(sorted(missing))}")
        for scale in self.runs:
            if not self.runs[scale]:
                raise ValueError(f"the claim {self.name} has no runs at scale {scale}")
            seen: dict[tuple, Run] = {}
            for run in self.runs[scale]:
                place = (run.series, run.point, run.config.seed)
                if place in seen:
                    raise ValueError(f"the claim {self.name} has two runs at {place}, scale {scale}")
                seen[place] = run


def file_name(claim: str, scale: Scale) -> str:
    """What the files of a claim's result are called, without their ending."""
    return claim if scale == "full" else f"{claim}-{scale}"


def verdict(statements: Iterable[Statement]) -> Verdict:
    """What became of a claim, in words.

    >>> verdict([Statement("a", True, ""), Statement("b", False, "")])
    'held in part'
    """
    held = [statement.held for statement in statements]
    return "held" if all(held) else "held in part" if any(held) else "did not hold"


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
