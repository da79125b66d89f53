"""What a run is: one frozen value, on the command line, in the run folder and in every checkpoint."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

import tyro

from train import networks
from train.files import write_whole
from train.networks import ModelName

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
# Methods whose workers take steps of their own between two commits.
LOCAL = (
    "downpour",
    "agn",
    "easgd",
    "lsgd",
    "outer_nesterov",
    "delayed_nesterov",
    "diloco",
    "momentum_lookahead",
    "heloco",
)
# Methods with a number of their own that says how strongly they act.
STRONG = ("dc_asgd", "dc_momentum_asgd", "dana_dc", "easgd", "eamsgd", "lsgd", "one_step_delay")
PULLS = ("easgd", "eamsgd", "lsgd")  # Of these, those that pull towards a point: beyond it with more than 1.
# What else a flag needs to act.
NEEDS = {
    "kappa": ("method", ("gem",)),
    "reading": ("method", ("gem",)),
    "variant": ("method", ("dc_asgd",)),
    "cluster": ("engine", ("simulate",)),
    "dynamic_periods": ("cluster", ("tiered",)),
    **dict.fromkeys(
        ("central", "central_devices", "worker_devices", "max_staleness", "quorum", "deadline"),
        ("engine", ("devices",)),
    ),
}
Cluster = Literal["homogeneous", "heterogeneous", "round_robin", "tiered", "tiered_barrier"]


@dataclasses.dataclass(frozen=True)
class Config:
    """An asynchronous training run. Every worker computes gradients on batches of its own and commits them as they come."""

    dataset: DatasetName = "digits"
    """What to learn: `digits` comes with scikit-learn; `mnist`, `fashion_mnist`, `cifar10`, `cifar100`, `cifar10_jpeg` (lossy)
    and `tiny_shakespeare` need `--manual-dir` the first time; or an image set of TFDS, prepared in `--data-dir`."""
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
    """Slower workers take fewer local steps, so that all commit equally often (`--cluster tiered` only)."""
    local_momentum: float = 0.0
    """Nesterov momentum of local steps, in [0, 1); the worker's own."""
    outer_learning_rate: float | None = None
    """Rate at the centre of methods with local steps; the published one if not given."""
    kappa: float = 1.0
    """Energy of GEM's proxy (`--method gem` only)."""
    strength: float | None = None
    """λ of `dc_asgd`, `dc_momentum_asgd` and `dana_dc`, the pull of `easgd`, `eamsgd` and `lsgd`, the feedback of
    `one_step_delay`; the published one if not given."""
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
    warmup_epochs: float = 0.0
    """Data epochs of all workers together over which the learning rate rises from a worker's share, 1 / workers of it."""
    decay_epochs: tuple[float, ...] = ()
    """Data epochs of all workers together after which the learning rate is multiplied by `--decay-factor`, in order."""
    decay_factor: float = 0.1
    """What the learning rate is multiplied by at each of `--decay-epochs`, in (0, 1]."""
    seed: int = 0
    """Decides initial parameters, shuffles, dropout masks and simulated arrivals."""
    cluster: Cluster = "homogeneous"
    """Simulated speeds (`--engine simulate` only): gamma-distributed with equal or unequal means; in turn;
    `tiered`: full, 3/4, half and quarter speed, worker by worker; `tiered_barrier`: these, and all wait for the slowest."""
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
    deadline: float | None = None
    """Seconds after which a worker that is silent is given up; never if not given (`--engine devices` only)."""
    eval_every: int = 0
    """Commits between two evaluations on the test set; 0 makes it 20 in a run."""
    eval_seconds: float | None = None
    """Virtual seconds between two evaluations instead (`--engine simulate` only); a gradient takes one on average."""
    checkpoint_every: int = 0
    """Commits between two checkpoints, at least; 0 writes one at the end and on Ctrl-C."""
    data_dir: str | None = None
    """Folder of prepared data sets; TFDS's own default if not given."""
    manual_dir: str | None = None
    """Folder with the original files of data sets that cannot be made here."""
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
                raise ValueError(f"{flag(name)} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        for name in ("workers", "batch_size", "period", "central_devices", "worker_devices", "quorum"):
            if getattr(self, name) < 1:
                raise ValueError(f"{flag(name)} must be at least 1; got {getattr(self, name)}")
        for name in ("eval_every", "checkpoint_every", "seed", "kappa", "learning_rate"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{flag(name)} must not be negative; got {getattr(self, name)}")
        for name in ("learning_rate", "kappa", "epochs"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{flag(name)} must be finite; got {getattr(self, name)}")
        if self.seed >= 2**32:
            raise ValueError(f"--seed must be below 2**32; got {self.seed}")
        for name in ("momentum", "local_momentum", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{flag(name)} must be in [0, 1); got {getattr(self, name)}")
        if self.outer_learning_rate is not None and not 0 <= self.outer_learning_rate < math.inf:
            raise ValueError(f"--outer-learning-rate must be finite and not negative; got {self.outer_learning_rate}")
        for name, (other, values) in NEEDS.items():
            if (
                getattr(self, other) not in values
                and getattr(self, name) != type(self).__dataclass_fields__[name].default
            ):
                raise ValueError(
                    f"{flag(name)} acts only with {flag(other)} {' or '.join(values)}; {flag(other)} is {getattr(self, other)}"
                )
        if self.method not in LOCAL:
            for name in ("period", "dynamic_periods", "local_momentum", "outer_learning_rate"):
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise ValueError(
                        f"{flag(name)} is for methods with local steps ({', '.join(LOCAL)}); --method is {self.method}"
                    )
        self._check_network()
        self._check_schedule()
        if self.quorum > self.workers:
            raise ValueError(f"--quorum must be at most --workers, {self.workers}; got {self.quorum}")
        if self.max_staleness is not None and (self.max_staleness < 0 or self.quorum > 1):
            raise ValueError(
                f"--max-staleness must not be negative, nor stand beside --quorum; got {self.max_staleness}"
            )
        if self.deadline is not None and not 0 < self.deadline < math.inf:
            raise ValueError(f"--deadline must be a positive number of seconds; got {self.deadline}")
        if self.eval_seconds is not None:
            self._check_eval_seconds(self.eval_seconds)
        if self.strength is not None:
            if self.method not in STRONG:
                raise ValueError(f"--strength is for {', '.join(STRONG)}; --method is {self.method}")
            if not 0 <= self.strength < math.inf:
                raise ValueError(f"--strength must be finite and not negative; got {self.strength}")
            if self.method in PULLS and self.strength > 1:
                raise ValueError(f"--strength must be in [0, 1] with {self.method}; got {self.strength}")
        if not self.epochs > 0:
            raise ValueError(f"--epochs must be positive; got {self.epochs}")

    def _check_network(self):
        if not 0 < self.width < math.inf:
            raise ValueError(f"--width must be positive and finite; got {self.width}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"--weight-decay must be finite and not negative; got {self.weight_decay}")
        changed = {
            name
            for name in ("dropout", "width")
            if getattr(self, name) != type(self).__dataclass_fields__[name].default
        }
        networks.check(self.model, self.dataset, networks.SHAPES.get(self.dataset), changed, self.depth, self.augment)

    def _check_schedule(self):
        if not 0 <= self.warmup_epochs < math.inf:
            raise ValueError(f"--warmup-epochs must be finite and not negative; got {self.warmup_epochs}")
        epochs = self.decay_epochs
        if any(not 0 < epoch < math.inf for epoch in epochs) or sorted(set(epochs)) != list(epochs):
            raise ValueError(f"--decay-epochs must be positive and rise; got {' '.join(map(str, epochs))}")
        if not 0 < self.decay_factor <= 1:
            raise ValueError(f"--decay-factor must be in (0, 1]; got {self.decay_factor}")
        if not epochs and self.decay_factor != type(self).__dataclass_fields__["decay_factor"].default:
            raise ValueError("--decay-factor acts only with --decay-epochs, which are not given")

    def _check_eval_seconds(self, seconds: float):
        if not 0 < seconds < math.inf:
            raise ValueError(f"--eval-seconds must be positive and finite; got {seconds}")
        if self.engine != "simulate":
            raise ValueError(
                "--eval-seconds counts virtual time, which only --engine simulate has; on devices use --eval-every"
            )
        if self.eval_every:
            raise ValueError(f"give --eval-seconds or --eval-every, not both; --eval-every is {self.eval_every}")

    def changed(self, before: "Config") -> list[str]:
        """Flags that a resumed run must keep and that differ from those it began with."""
        free = (
            "epochs",
            "eval_every",
            "eval_seconds",
            "checkpoint_every",
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
            "deadline",
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


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")
