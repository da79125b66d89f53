"""What a run is: one frozen value, on the command line, in the run folder and in every checkpoint."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

import tyro

from train.common.files import write_whole
from train.config.networks import ModelName
from train.config.validation import check, flag, one_of

Engine = Literal["devices", "simulate"]
DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "cifar10_jpeg", "tiny_shakespeare")
DatasetName = Annotated[str, tyro.conf.arg(metavar="NAME")]
Method = Literal[
    "gem",
    "asgd",
    "multi_asgd",
    "staleness_aware",
    "dynsgd",
    "momentum_asgd",
    "nag_asgd",
    "delay_adaptive",
    "dana_slim",
    "dana_zero",
    "dana_dc",
    "dc_asgd",
    "dc_momentum_asgd",
    "gap_aware",
    "gap_aware_adam",
    "dana_ga",
    "lwp",
    "one_step_delay",
    "yellowfin",
    "eamsgd",
    "ringmaster",
    "rennala",
    "downpour",
    "agn",
    "easgd",
    "lsgd",
    "outer_nesterov",
    "delayed_nesterov",
    "diloco",
    "momentum_lookahead",
    "heloco",
]
Schedule = Literal["constant", "cosine"]
Cluster = Literal["homogeneous", "heterogeneous", "round_robin", "tiered", "tiered_barrier"]


@dataclasses.dataclass(frozen=True)
class Config:
    """An asynchronous training run. Every worker computes gradients on batches of its own and commits them as they come."""

    dataset: DatasetName = "digits"
    """`digits`, `mnist`, `fashion_mnist`, `cifar10`, `cifar100`, `cifar10_jpeg`, `tiny_shakespeare` or an image set of TFDS."""
    engine: Engine = "devices"
    """`devices`: workers on real JAX devices; `simulate`: virtual workers in one compiled program."""
    method: Method = "gem"
    """Method of asynchronous training: how a stale gradient changes the central variable."""
    workers: int = 8
    """Number of asynchronous workers."""
    epochs: float = 6.0
    """Passes of each worker through the data; a run has workers * epochs * (rows / batch size) / period commits."""
    batch_size: int = 32
    """Rows per gradient, of one worker."""
    learning_rate: float = 0.1
    """Learning rate of one worker's gradients; with `--method yellowfin` a factor on the rate that it tunes."""
    momentum: float = 0.9
    """Momentum in [0, 1), for the methods that have one."""
    period: int = 1
    """Local steps per commit, for methods with local steps (`downpour`, `easgd`, `lsgd`, `diloco`, …)."""
    dynamic_periods: bool = False
    """Give slower workers fewer local steps, so that all commit equally often (tiered clusters only)."""
    local_momentum: float = 0.0
    """Nesterov momentum of a worker's local steps, in [0, 1)."""
    outer_learning_rate: float | None = None
    """Learning rate of the central variable, for methods with local steps; default: the published one."""
    kappa: float = 1.0
    """Energy of GEM's proxy (`--method gem` only)."""
    strength: float | None = None
    """λ of `dc_*` and `dana_dc`, pull of `easgd`, `eamsgd`, `lsgd`, feedback of `one_step_delay`; default: as published."""
    reading: Literal["equations", "code", "algorithm"] = "equations"
    """Source that GEM follows: the paper's equations, its code or its algorithm (`--method gem` only); see `gemjax.gem`."""
    variant: Literal["constant", "adaptive"] = "constant"
    """Delay compensation, constant or adaptive (`--method dc_asgd` only); see `gemjax.dc_asgd`."""
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
    """`cosine`: the learning rate falls to 0 at the end of the run, after the warm-up."""
    warmup_epochs: float = 0.0
    """Passes of all workers together in which the learning rate rises to its value, from 1 / workers of it."""
    decay_epochs: tuple[float, ...] = ()
    """Passes of all workers together after which the learning rate is multiplied by `--decay-factor`."""
    decay_factor: float = 0.1
    """Factor on the learning rate at each of `--decay-epochs`, in (0, 1]."""
    seed: int = 0
    """Seed of initial parameters, shuffles, dropout masks and simulated arrivals."""
    cluster: Cluster = "homogeneous"
    """Speeds of simulated workers: equal; unequal; in turn; full, 3/4, half, quarter; the same, with a barrier."""
    central: Literal["auto", "dedicated", "host", "colocated"] = "auto"
    """Place of the central variable: a device of its own, the host's memory, or a worker's device (`--engine devices`)."""
    central_devices: int = 1
    """Devices over which the central variable is sharded (`--engine devices`)."""
    worker_devices: int = 1
    """Devices per worker, which share each of its batches (`--engine devices`)."""
    max_staleness: int | None = None
    """Most commits that a gradient may be stale; faster workers wait for slower ones. Default: no bound."""
    quorum: int = 1
    """Gradients to collect before any is committed; as many as workers make a barrier."""
    grace: float = 0.0
    """Seconds in which more gradients may arrive after the quorum."""
    deadline: float | None = None
    """Seconds of silence after which a worker is given up; default: never."""
    retries: int = 2
    """Times in a row that a step which raises is tried again before its worker is given up."""
    eval_every: int = 0
    """Commits between two evaluations on the test set; 0: 20 evaluations per run."""
    eval_seconds: float | None = None
    """Virtual seconds between two evaluations; a gradient takes one on average (`--engine simulate`)."""
    checkpoint_every: int = 0
    """Commits between two checkpoints, at least; 0: `--checkpoint-seconds` alone decides."""
    checkpoint_seconds: float = 600.0
    """Seconds between two checkpoints, at least: what a killed run loses. 0: only at the end and at Ctrl-C."""
    data_dir: str | None = None
    """Folder of prepared data sets; default: that of TFDS."""
    manual_dir: str | None = None
    """Folder with the original files of a data set, needed at its first use; `digits` needs none."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run folder, too (needs the extra `tensorboard`)."""
    out: str | None = None
    """Run folder, new or empty; default: `runs/<time>-<dataset>-<method>`."""
    dry_run: bool = False
    """Print what the run is and the memory that it keeps, and end."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None
    """Run folder to go on with; without a name, the newest under `runs/`."""

    def __post_init__(self):
        object.__setattr__(self, "decay_epochs", tuple(self.decay_epochs))  # JSON has lists.
        for name, kind in get_type_hints(type(self)).items():
            choices = get_args(kind)
            if choices and all(isinstance(choice, str) for choice in choices) and getattr(self, name) not in choices:
                got = getattr(self, name)
                raise ValueError(f"{flag(name)} must be {one_of(got, choices)}; got {got!r}")
        check(self)

    def changed(self, before: "Config") -> list[str]:
        """Flags that a resumed run must keep and that differ from those it began with."""
        free = (
            "epochs",
            "eval_every",
            "eval_seconds",
            "checkpoint_every",
            "checkpoint_seconds",
            "data_dir",
            "manual_dir",
            "out",
            "tensorboard",
            "dry_run",
            "resume",
            "learning_rate",
            "central_devices",
            "max_staleness",
            "quorum",
            "grace",
            "deadline",
            "retries",
        )
        names = [field.name for field in dataclasses.fields(self) if field.name not in free]
        return [flag(name) for name in names if getattr(self, name) != getattr(before, name)]

    def save(self, path: str | os.PathLike) -> None:
        """Writes the configuration as JSON."""
        write_whole(path, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Config":
        """Reads a configuration that :meth:`save` wrote.

        Raises:
          ValueError: if the file is not one, with its name.
        """
        try:
            fields = json.loads(Path(path).read_text())
            return cls(**fields)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is not the configuration of a run: {error}") from error
