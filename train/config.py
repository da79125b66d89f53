"""What a run is: one frozen value, on the command line, in the run folder and in every checkpoint."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

import tyro

from train.files import write_whole
from train.networks import ModelName
from train.ranges import check, flag, one_of

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
    """`digits`, `mnist`, `fashion_mnist`, `cifar10`, `cifar100`, `cifar10_jpeg`, `tiny_shakespeare`, or images of TFDS."""
    engine: Engine = "devices"
    """`devices` dispatches to real JAX devices; `simulate` runs virtual workers in one compiled program."""
    method: Method = "gem"
    """How commits are made safe against staleness."""
    workers: int = 8
    """Number of asynchronous workers."""
    epochs: float = 6.0
    """Data epochs that each worker contributes; a run has workers * epochs * (rows / batch_size) / period commits."""
    batch_size: int = 32
    """Rows a gradient, of one worker."""
    learning_rate: float = 0.1
    """Learning rate of one worker's gradient; of `--method yellowfin` a factor on the rate that it tunes."""
    momentum: float = 0.9
    """Momentum, for the methods that have one; in [0, 1)."""
    period: int = 1
    """Local steps of a worker from one commit to the next, for the methods that have them (`downpour`, `easgd`, `lsgd`, …)."""
    dynamic_periods: bool = False
    """Slower workers take fewer local steps, so that all commit equally often (tiered `--cluster`s only)."""
    local_momentum: float = 0.0
    """Nesterov momentum of local steps, in [0, 1); the worker's own."""
    outer_learning_rate: float | None = None
    """Rate at the centre of methods with local steps; the published one if not given."""
    kappa: float = 1.0
    """Energy of GEM's proxy (`--method gem` only)."""
    strength: float | None = None
    """λ of `dc_*` and `dana_dc`, pull of `easgd`, `eamsgd`, `lsgd`, feedback of `one_step_delay`; published if not given."""
    reading: Literal["equations", "code", "algorithm"] = "equations"
    """Which reading of GEM's paper (`--method gem` only); see `gemjax.gem`."""
    variant: Literal["constant", "adaptive"] = "constant"
    """Which delay compensation (`--method dc_asgd` only); see `gemjax.dc_asgd`."""
    model: ModelName = "auto"
    """Network; `auto` is the data set's own: `digits_cnn`, `gem_cnn` (MNIST), `resnet20` (CIFAR), `transformer` (text)."""
    width: float = 1.0
    """Factor on the network's channels and units."""
    depth: int | None = None
    """Layers of `resnet20` (6 n + 2) and `wrn_16_4` (6 n + 4), blocks of `transformer`; as the names say if not given."""
    dropout: float = 0.5
    """Dropout rate of `gem_cnn`, `cnn7` and `alexnet`, in [0, 1)."""
    weight_decay: float = 0.0
    """L2 decay: this times the weights is added to each gradient, in front of the method (of local steps: of each step)."""
    augment: bool = False
    """Shift images by up to 4 pixels (2 with `cnn7`) and flip half of them, anew in each batch."""
    schedule: Schedule = "constant"
    """Learning rate over the run: `constant`, or `cosine`: decay to 0 at the end of `--epochs`, after the warm-up."""
    warmup_epochs: float = 0.0
    """Data epochs of all workers together over which the learning rate rises from a worker's share, 1 / workers of it."""
    decay_epochs: tuple[float, ...] = ()
    """Data epochs of all workers together after which the learning rate is multiplied by `--decay-factor`, in order."""
    decay_factor: float = 0.1
    """What the learning rate is multiplied by at each of `--decay-epochs`, in (0, 1]."""
    seed: int = 0
    """Decides initial parameters, shuffles, dropout masks and simulated arrivals."""
    cluster: Cluster = "homogeneous"
    """Speeds of simulated workers: equal; unequal; in turn; full, 3/4, half, quarter; the same, waiting for the slowest."""
    central: Literal["auto", "dedicated", "host", "colocated"] = "auto"
    """Where the central variable lives (`--engine devices` only)."""
    central_devices: int = 1
    """Devices that the central variable is sharded over (`--engine devices` only)."""
    worker_devices: int = 1
    """Devices of a worker, which share each of its batches (`--engine devices` only)."""
    max_staleness: int | None = None
    """Commits that a gradient may be stale at most; faster workers wait for slower ones (`--engine devices` only)."""
    quorum: int = 1
    """Gradients to wait for before any is committed; the number of workers makes a barrier (`--engine devices` only)."""
    grace: float = 0.0
    """Seconds that gradients may still come in after the quorum (`--engine devices` only)."""
    deadline: float | None = None
    """Seconds after which a worker that is silent is given up; never if not given (`--engine devices` only)."""
    retries: int = 2
    """Times in a row that a worker which raises tries its step again, before it is given up (`--engine devices` only)."""
    eval_every: int = 0
    """Commits between two evaluations on the test set; 0 makes it 20 in a run."""
    eval_seconds: float | None = None
    """Virtual seconds between two evaluations instead (`--engine simulate` only); a gradient takes one on average."""
    checkpoint_every: int = 0
    """Commits between two checkpoints, at least; 0 does not count commits. One is written at the end and on Ctrl-C."""
    checkpoint_seconds: float = 600.0
    """Seconds between two checkpoints, at least, beside `--checkpoint-every`: what a run that is killed loses; 0 for never."""
    data_dir: str | None = None
    """Folder of prepared data sets; TFDS's own default if not given."""
    manual_dir: str | None = None
    """Folder with the original files of a data set, for the first time that it is used; `digits` needs none."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run folder, too (needs the extra `tensorboard`)."""
    out: str | None = None
    """Run folder; `runs/<time>-<dataset>-<method>` if not given."""
    dry_run: bool = False
    """Say what the run is and what memory it keeps, and end."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None
    """Run folder to continue; alone (`--resume`) it means the newest under `runs/`."""

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
