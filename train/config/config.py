"""The configuration of a run: one frozen value, on the command line, in the run folder and in every checkpoint."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from train.common.errors import RecordError
from train.common.files import write_whole
from train.config.datasets import DATASETS, resolved
from train.config.methods import Method, usual_rate
from train.config.networks import ModelName
from train.config.policy import POLICY, Scheduling
from train.config.validation import RESOURCES, check_values, flag

Options = TypeVar("Options", bound="Common")
Engine = Literal["devices", "cluster", "simulate"]
DatasetName = Annotated[
    str,
    tyro.conf.arg(
        metavar="NAME", help=f"{', '.join(DATASETS)}, a file or folder of your own, or an image set of TFDS."
    ),
]
Schedule = Literal["constant", "cosine"]
Cluster = Literal[
    "homogeneous", "heterogeneous", "round_robin", "tiered", "barrier", "heterogeneous_barrier", "tiered_barrier"
]


# Fields that change no number of a simulated run.
BOOKKEEPING = (
    "data_dir", "manual_dir", "out", "tensorboard", "dry_run", "resume", "eval_every", "eval_seconds", "checkpoint_every",
    "checkpoint_seconds", "keep_checkpoints",
)  # fmt: skip
# Further fields that may change when a run is resumed.
RESUMABLE = (
    "epochs", "learning_rate", *POLICY, "central_devices", "central_hosts", "address", "min_workers", *RESOURCES,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Common:
    """Fields of a run, which a sweep has once for all of its runs."""

    dataset: DatasetName = "digits"
    batch_size: int = 32
    """Rows per gradient, of one worker."""
    period: int = 1
    """Local steps per commit, for methods with local steps (`downpour`, `easgd`, `lsgd`, `diloco`, …)."""
    local_optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimizer of a worker's local steps; `adamw` decays weights beside the gradient."""
    local_momentum: float = 0.0
    """Nesterov momentum of a worker's local steps, in [0, 1)."""
    outer_learning_rate: float | None = None
    """Learning rate of the central variable, for methods with local steps; default: the published one."""
    reading: Literal["equations", "code", "algorithm"] = "equations"
    """Source that GEM follows: the paper's equations, its code or its algorithm (method `gem` only); see `gemjax.gem`."""
    variant: Literal["constant", "adaptive"] = "constant"
    """Delay compensation, constant or adaptive (method `dc_asgd` only); see `gemjax.dc_asgd`."""
    model: ModelName = "auto"
    """Network; `auto`: `mlp` for features, `digits_cnn`, `gem_cnn` (MNIST), `resnet20` (CIFAR), `transformer` for text."""
    width: float = 1.0
    """Factor on the number of channels and units of the network."""
    depth: int | None = None
    """Layers of `resnet20` (6 n + 2; default 20), blocks of `transformer` (default 6)."""
    dropout: float = 0.5
    """Dropout rate of `gem_cnn` and `cnn7`, in [0, 1)."""
    weight_decay: float = 0.0
    """L2 decay: this factor times the weights is added to each gradient, also to those of local steps."""
    augment: bool = False
    """Shift images by up to 4 pixels (2 with `cnn7`) and flip half of them, at random in each batch."""
    pool: int = 1
    """Average squares of this many pixels a side: 2 makes images of 16x16 out of 32x32."""
    schedule: Schedule = "constant"
    """`cosine`: after the warm-up the rate falls to 0, over the applied commits, also that of local steps."""
    warmup_epochs: float = 0.0
    """Passes of all workers together in which the learning rate rises to its value, starting at value / workers."""
    decay_epochs: tuple[float, ...] = ()
    """Passes of all workers together after which the learning rate is multiplied by `--decay-factor`."""
    decay_factor: float = 0.1
    """Factor on the learning rate at each of `--decay-epochs`, in (0, 1]."""
    cluster: Cluster = "homogeneous"
    """Simulated speeds: homogeneous equal, heterogeneous random, round_robin in turn, tiered 1 to 1/4; *barrier: in rounds."""
    variation: float = 0.1
    """Coefficient of variation of the time of a simulated gradient."""
    transfer: float = 0.0
    """Virtual seconds that a view and a gradient take on the network together; a gradient takes one to compute."""
    x64: bool = False
    """Compute in double precision, in which a replay of a stable run agrees to about ten digits; it takes longer."""
    data_dir: str | None = None
    """Folder of prepared data sets; default: that of TFDS."""
    manual_dir: str | None = None
    """Folder with the original files of a data set, needed at its first use; `digits` needs none."""

    test_share: float = 0.2
    """Share of the rows that are for testing, in (0, 1), of a file or folder of your own without a test part."""
    image_size: int | None = None
    """Side in pixels to which the images in a folder of your own are brought; default: their own, or 32 if they differ."""

    def __post_init__(self):
        object.__setattr__(self, "decay_epochs", tuple(self.decay_epochs))  # JSON has lists.
        object.__setattr__(self, "dataset", resolved(self.dataset))


@dataclasses.dataclass(frozen=True)
class Config(Scheduling, Common):
    """An asynchronous training run. Every worker computes gradients on batches of its own and commits them as they come."""

    engine: Engine = "devices"
    """`devices`: workers on JAX devices of this host; `cluster`: on hosts of a Ray cluster; `simulate`: virtual workers."""
    method: Method = "gem"
    """Rule for stale gradients: a method of gemjax, or `dc_momentum_asgd`, `outer_nesterov` or `m_synchronous_sgd`."""
    workers: int = 8
    """Number of asynchronous workers."""
    epochs: float = 6.0
    """Passes of each worker through the data; commits: workers * epochs * (full batches per epoch) / mean period."""
    learning_rate: float | None = None
    """Learning rate; default 0.1, or 0.1 * (1 - momentum) if the momentum is a sum of gradients; with `yellowfin` a factor."""
    momentum: float = 0.9
    """Momentum in [0, 1), for the methods that have one."""
    dynamic_periods: bool = False
    """Give slower workers fewer local steps, so that all commit equally often (tiered clusters only)."""
    kappa: float = 1.0
    """Energy of GEM's proxy (method `gem` only)."""
    strength: float | None = None
    """λ of `dc_*`, `dana_dc`, `async_pipeline`; pull of `easgd`, `eamsgd`, `lsgd`; feedback of `one_step_delay`."""
    seed: int = 0
    """Seed of initial parameters, shuffles, dropout masks and simulated arrivals."""
    central: Literal["auto", "dedicated", "host", "colocated"] = "auto"
    """Place of the central variable: a device of its own, the host's memory, or a worker's device (not in a simulation)."""
    central_devices: int = 1
    """Devices over which the central variable is sharded (not in a simulation)."""
    central_hosts: int = 0
    """Hosts over which the central variable and the method's state are sharded (`--engine cluster`); 0: the driver alone."""
    worker_devices: int = 1
    """Devices per worker, which divide each of its batches if the number of rows allows it (`--engine devices`)."""
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Running Ray cluster to join, or `auto` to find it (`--engine cluster`); default: a Ray of its own on this host."""
    min_workers: int | None = None
    """Workers with which a run begins; Ray's later ones join then (`--engine cluster`); default: those that have room."""
    worker_cpus: float = 1.0
    """Cores that Ray reserves per worker (`--engine cluster`)."""
    worker_gpus: float = 0.0
    """GPUs per worker, a fraction if workers share one (`--engine cluster`)."""
    worker_tpus: float = 0.0
    """TPU chips per worker (`--engine cluster`)."""
    compression: Literal["none", "bfloat16", "int8"] = "none"
    """Rounding of gradients on the network, with error feedback at the worker (`--engine cluster`)."""
    eval_every: int = 0
    """Commits between two evaluations on the test set; 0: about 20 per run, on devices in about a fifth of its time at most."""
    eval_seconds: float | None = None
    """Virtual seconds between two evaluations; a gradient takes one on average (`--engine simulate`)."""
    checkpoint_every: int = 0
    """Commits between two checkpoints, at least; 0: `--checkpoint-seconds` alone decides."""
    checkpoint_seconds: float = 600.0
    """Least seconds between two checkpoints; a killed run loses what came after the last one. 0: only at the end, or Ctrl-C."""
    keep_checkpoints: int = 2
    """Newest checkpoints to keep; 0: all, so that `replay` has short pieces."""
    tensorboard: bool = False
    """Also write curves for TensorBoard into the run folder (needs the extra `tensorboard`)."""
    out: str | None = None
    """Run folder, new or empty; default: `runs/<time>-<dataset>-<method>`."""
    dry_run: bool = False
    """Print the size of the run and the memory that it keeps, and end."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None
    """Run folder to resume; without a name, the newest under `runs/`."""

    def __post_init__(self):
        super().__post_init__()
        check_values(self)

    @property
    def rate(self) -> float:
        """Learning rate, that of the method by default."""
        return usual_rate(self.method, self.momentum) if self.learning_rate is None else self.learning_rate

    def changed(self, before: "Config") -> list[str]:
        """Return the flags that differ from `before` though a resumed run must keep them."""
        fixed = [field.name for field in dataclasses.fields(self) if field.name not in BOOKKEEPING + RESUMABLE]
        return [flag(name) for name in fixed if getattr(self, name) != getattr(before, name)]

    def save(self, path: str | os.PathLike) -> None:
        """Write the configuration as JSON, into a new folder if there is none."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Config":
        """Return the configuration that :meth:`save` wrote.

        Raises:
          RecordError: if the file is not a configuration; with its name.
        """
        return load(cls, path, "the configuration of a run")


def load(options: type[Options], path: str | os.PathLike, words: str) -> Options:
    """Return the options in a JSON file; missing fields have their defaults.

    Args:
      options: dataclass of the options.
      path: the file.
      words: content of such a file, for messages.

    Raises:
      RecordError: if the file has other content, or a value that is not possible; with its name, in one line.
    """
    try:
        return options(**json.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not {words}: {error}") from error
