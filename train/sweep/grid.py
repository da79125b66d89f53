"""The definition of a sweep, on the command line and in its folder."""

import dataclasses
import itertools
import json
import os
from typing import Annotated, Any, NamedTuple

import tyro

from train.common.errors import either
from train.config.config import BOOKKEEPING, Common, Config, load
from train.config.methods import LOCAL_FLAGS, METHODS, Method, methods_with
from train.config.validation import changed, flag

# Fields whose combinations a cell tries, with the name of a single value in `Config`.
LISTS = {
    "methods": "method",
    "workers": "workers",
    "learning_rates": "learning_rate",
    "momenta": "momentum",
    "strengths": "strength",
    "seeds": "seed",
}


class Cell(NamedTuple):
    """One method with one number of workers. All its runs share one program."""

    method: Method
    workers: int


@dataclasses.dataclass(frozen=True)
class Grid(Common):
    """A sweep: every method with every number of workers at every learning rate, momentum and strength, for every seed."""

    methods: tuple[Method, ...] = ("asgd", "dana_slim", "gem")
    """Methods to compare: those of gemjax, or `dc_momentum_asgd`, `outer_nesterov` or `m_synchronous_sgd`."""
    workers: tuple[int, ...] = (2, 8, 32)
    """Numbers of simulated workers."""
    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    """Learning rates of one worker's gradients (of its local steps, for methods that have them)."""
    momenta: tuple[float, ...] = (0.9,)
    """Momenta in [0, 1), for the methods that have one."""
    strengths: tuple[float, ...] = ()
    """κ of `gem`, and `--strength` of `python -m train` for other methods; default: as published."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Repetitions. A seed decides initial parameters, shuffles, dropout masks and arrivals, the same for all methods."""
    gradients: int = 600
    """Gradients (batches) per run, of all its workers together; methods with local steps commit once in `--period`."""
    out: str | None = None
    """Folder of the sweep; default: `runs/<time>-<dataset>-sweep`. A sweep of the same grid in it is resumed."""
    dry_run: bool = False
    """Print the size of the sweep and the memory that its programs keep, and end."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder of a sweep to resume; without a name, the newest under `runs/`."""

    def __post_init__(self):
        super().__post_init__()
        for name in LISTS:
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))  # JSON has lists.
        if self.gradients < max(1, self.period):
            raise ValueError(f"--gradients must be at least --period, {max(1, self.period)}; got {self.gradients}")
        for cell, seed in itertools.product(self.cells, self.seeds):
            for point in self.points(cell.method):
                dataclasses.replace(self.config(cell), seed=seed, **point)  # Checks its values.
        able = {name: methods_with(name) for name in ("reading", "variant", *LOCAL_FLAGS)}
        able |= {"momenta": methods_with("momentum"), "strengths": [*methods_with("kappa"), *methods_with("strength")]}
        for name in changed(self) & able.keys():
            if not set(self.methods) & set(able[name]):
                raise ValueError(
                    f"{flag(name)} acts only with --methods {either(able[name])}; it is {' '.join(self.methods)}"
                )

    @classmethod
    def of(cls, config: Config) -> "Grid":
        """Return the default sweep of the task of a configuration."""
        names = {field.name for field in dataclasses.fields(cls)} - set(LISTS)
        shared = {
            field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in names
        }
        return cls(**shared, momenta=(config.momentum,))

    @property
    def cells(self) -> list[Cell]:
        return [Cell(method, workers) for method in self.methods for workers in self.workers]

    def config(self, cell: Cell) -> Config:
        """Return the configuration of a run in `cell`, with default learning rate, momentum, strength and seed."""
        of_others = {name for facts in METHODS.values() for name in facts.flags} - set(METHODS[cell.method].flags)
        names = {field.name for field in dataclasses.fields(Common)} - of_others
        shared = {name: getattr(self, name) for name in names}
        return Config(engine="simulate", method=cell.method, workers=cell.workers, **shared)

    def commits(self, method: Method) -> int:
        """Return the number of commits of a run."""
        return self.gradients // self.period if METHODS[method].local else self.gradients

    def over(self, method: Method) -> dict[str, tuple[float, ...]]:
        """Return the values that a cell of `method` tries."""
        takes = METHODS[method].takes
        tried = {"momentum": self.momenta, "kappa": self.strengths, "strength": self.strengths}
        own = {name: values for name, values in tried.items() if name in takes and values}
        return {"learning_rate": self.learning_rates, **own}

    def points(self, method: Method) -> list[dict[str, Any]]:
        """Return all combinations of the values that a cell of `method` tries."""
        over = self.over(method)
        return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]

    def differences(self, other: "Grid") -> list[str]:
        """Return the flags that make `other` another sweep."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in BOOKKEEPING]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{flag(name)} {_words(mine)} (not {_words(theirs)})" for name, mine, theirs in pairs if mine != theirs]

    def text(self) -> str:
        """Return the sweep as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Grid":
        """Read the JSON that :meth:`text` returns.

        Raises:
          ValueError: if the file is not that, with its name.
        """
        return load(cls, path, "a sweep")


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
