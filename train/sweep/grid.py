"""What a sweep is: one frozen value, on the command line and in its folder."""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from train.config.config import Cluster, Config, DatasetName, Method, Schedule
from train.config.networks import ModelName
from train.config.validation import LOCAL, STRONG, flag

# What one cell tries all combinations of, by the name that one value has in `Config`.
LISTS = {
    "methods": "method",
    "workers": "workers",
    "learning_rates": "learning_rate",
    "momenta": "momentum",
    "strengths": "strength",
    "seeds": "seed",
}
# What is trained and how, the same for all cells.
NETWORK = (
    "model", "width", "depth", "dropout", "weight_decay", "augment", "schedule", "warmup_epochs", "decay_epochs",
    "decay_factor",
)  # fmt: skip
FREE = ("data_dir", "manual_dir", "out", "dry_run", "resume")  # What may change when a sweep goes on.


class Cell(NamedTuple):
    """One method with one number of workers; all its runs are one program."""

    method: Method
    workers: int


@dataclasses.dataclass(frozen=True)
class Grid:
    """A sweep: every method with every number of workers at every learning rate, momentum and strength, for every seed."""

    dataset: DatasetName = "digits"
    """Data set, as in `python -m train --help`."""
    methods: tuple[Method, ...] = ("asgd", "dana_slim", "gem")
    """Methods to compare."""
    workers: tuple[int, ...] = (2, 8, 32)
    """Numbers of simulated workers."""
    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    """Learning rates of one worker's gradients (of its local steps, for methods that have them)."""
    momenta: tuple[float, ...] = (0.9,)
    """Momenta in [0, 1), for the methods that have one."""
    strengths: tuple[float, ...] = ()
    """κ of `gem`, and `--strength` of `python -m train` for other methods; default: the published one."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Repetitions. A seed decides initial parameters, shuffles, dropout masks and arrivals, the same for all methods."""
    gradients: int = 600
    """Gradients (batches) per run, of all its workers together; methods with local steps commit once in `--period`."""
    batch_size: int = 32
    """Rows per gradient, of one worker."""
    period: int = 1
    """Local steps per commit, for methods with local steps (`downpour`, `easgd`, `lsgd`, `diloco`, …)."""
    local_momentum: float = 0.0
    """Nesterov momentum of a worker's local steps, in [0, 1)."""
    outer_learning_rate: float | None = None
    """Learning rate of the central variable, for methods with local steps; default: the published one."""
    reading: Literal["equations", "code", "algorithm"] = "equations"
    """Source that GEM follows: the paper's equations, its code or its algorithm (`gem` only); see `gemjax.gem`."""
    variant: Literal["constant", "adaptive"] = "constant"
    """Delay compensation, constant or adaptive (`dc_asgd` only); see `gemjax.dc_asgd`."""
    model: ModelName = "auto"
    """Network; `auto` is the data set's own: `digits_cnn`, `gem_cnn` (MNIST), `resnet20` (CIFAR), `transformer` (text)."""
    width: float = 1.0
    """Factor on the number of channels and units of the network."""
    depth: int | None = None
    """Layers of `resnet20` (6 n + 2) and `wrn_16_4` (6 n + 4), blocks of `transformer`; default: as the name says."""
    dropout: float = 0.5
    """Dropout rate of `gem_cnn`, `cnn7` and `alexnet`, in [0, 1)."""
    weight_decay: float = 0.0
    """L2 decay: this factor times the weights is added to each gradient, also to those of local steps."""
    augment: bool = False
    """Shift images by up to 4 pixels (2 with `cnn7`) and flip half of them, at random in each batch."""
    schedule: Schedule = "constant"
    """`cosine`: the learning rate falls to 0 at the end of a run, after the warm-up."""
    warmup_epochs: float = 0.0
    """Passes of all workers together in which the learning rate rises to its value, from 1 / workers of it."""
    decay_epochs: tuple[float, ...] = ()
    """Passes of all workers together after which the learning rate is multiplied by `--decay-factor`."""
    decay_factor: float = 0.1
    """Factor on the learning rate at each of `--decay-epochs`, in (0, 1]."""
    cluster: Cluster = "homogeneous"
    """Speeds of workers: equal; unequal; in turn; full, 3/4, half, quarter; the same, with a barrier."""
    data_dir: str | None = None
    """Folder of prepared data sets; default: that of TFDS."""
    manual_dir: str | None = None
    """Folder with the original files of a data set, needed at its first use; `digits` needs none."""
    out: str | None = None
    """Folder of the sweep; default: `runs/<time>-<dataset>-sweep`. A sweep of the same grid that is there goes on."""
    dry_run: bool = False
    """Print what the sweep is and the memory that its programs keep, and end."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder of a sweep to go on with; without a name, the newest under `runs/`."""

    def __post_init__(self):
        object.__setattr__(self, "decay_epochs", tuple(self.decay_epochs))  # JSON has lists.
        for name in LISTS:
            values = getattr(self, name)
            object.__setattr__(self, name, tuple(values))  # JSON has lists.
            if not values and name != "strengths":
                raise ValueError(f"{flag(name)} needs at least one value")
            if twice := [value for value in dict.fromkeys(values) if values.count(value) > 1]:
                raise ValueError(f"{flag(name)} has {', '.join(map(str, twice))} twice")
        if self.gradients < max(1, self.period):
            raise ValueError(f"--gradients must be at least --period, {max(1, self.period)}; got {self.gradients}")
        self._check_values()
        for name, method in (("reading", "gem"), ("variant", "dc_asgd")):
            if method not in self.methods and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise ValueError(f"{flag(name)} is for {method}; --methods has it not")
        for name in ("period", "local_momentum", "outer_learning_rate"):
            if (
                not set(self.methods) & set(LOCAL)
                and getattr(self, name) != type(self).__dataclass_fields__[name].default
            ):
                raise ValueError(
                    f"{flag(name)} is for methods with local steps ({', '.join(LOCAL)}); --methods has none"
                )
        if self.strengths and not set(self.methods) & {"gem", *STRONG}:
            raise ValueError(f"--strengths is for gem, {', '.join(STRONG)}; --methods has none of them")

    def _check_values(self) -> None:
        """Lets `Config` judge every value of every list."""
        for method in self.methods:
            self.config(Cell(method, 1))
        for name, one in list(LISTS.items())[1:]:
            for value in getattr(self, name):
                # What can be wrong with a kappa can be wrong with any strength.
                strong: list[Method] = [method for method in self.methods if method in STRONG] or ["dc_asgd"]
                for method in strong if name == "strengths" else self.methods[:1]:
                    try:
                        dataclasses.replace(self.config(Cell(method, 1)), **{one: value})
                    except ValueError as error:
                        raise ValueError(str(error).replace(flag(one), flag(name))) from None

    @classmethod
    def of(cls, config: Config) -> "Grid":
        """The default sweep of what a configuration trains."""
        names = {field.name for field in dataclasses.fields(cls)} - set(LISTS)
        shared = {
            field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in names
        }
        return cls(**shared, momenta=(config.momentum,))

    @property
    def cells(self) -> list[Cell]:
        return [Cell(method, workers) for method in self.methods for workers in self.workers]

    def config(self, cell: Cell) -> Config:
        """The configuration of a run in `cell`, with the learning rate, momentum, strength and seed left as they are."""
        names = ["dataset", "batch_size", "cluster", "data_dir", "manual_dir", *NETWORK]
        own = {"reading": cell.method == "gem", "variant": cell.method == "dc_asgd"}
        names += [name for name, acts in own.items() if acts]
        if cell.method in LOCAL:
            names += ["period", "local_momentum", "outer_learning_rate"]
        shared = {name: getattr(self, name) for name in names}
        return Config(engine="simulate", method=cell.method, workers=cell.workers, **shared)

    def commits(self, method: Method) -> int:
        """Commits of a run."""
        return self.gradients // self.period if method in LOCAL else self.gradients

    def over(self, knobs: frozenset[str]) -> dict[str, tuple[float, ...]]:
        """What a cell tries, for a method that reads `knobs`."""
        over: dict[str, tuple[float, ...]] = {"learning_rate": self.learning_rates}
        if "momentum" in knobs:
            over["momentum"] = self.momenta
        if self.strengths and (own := knobs & {"kappa", "strength"}):
            over[min(own)] = self.strengths
        return over

    def differences(self, other: "Grid") -> list[str]:
        """What makes `other` another sweep, flag by flag."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in FREE]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{flag(name)} {_words(mine)} (not {_words(theirs)})" for name, mine, theirs in pairs if mine != theirs]

    def text(self) -> str:
        """The sweep as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Grid":
        """Reads what :meth:`text` gave.

        Raises:
          ValueError: if the file is not that, with its name.
        """
        try:
            return cls(**json.loads(Path(path).read_text()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a sweep: {error}") from error


def programs(lists: dict[str, tuple], fits: Callable[[int], bool]) -> list[dict[str, tuple]]:
    """Grids that together are the product of `lists`, each of so few runs that `fits(runs)`; one run is never cut.

    >>> programs({"learning_rate": (0.1, 0.2), "seed": (0, 1, 2)}, lambda runs: runs <= 3)
    [{'learning_rate': (0.1, 0.2), 'seed': (0,)}, {'learning_rate': (0.1,), 'seed': (1, 2)},
     {'learning_rate': (0.2,), 'seed': (1, 2)}]
    """
    runs = math.prod(map(len, lists.values()))
    if runs == 1 or fits(runs):
        return [lists]
    longest = max(lists, key=lambda name: len(lists[name]))
    half = len(lists[longest]) // 2
    parts = (lists[longest][:half], lists[longest][half:])
    return [program for part in parts for program in programs(lists | {longest: part}, fits)]


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
