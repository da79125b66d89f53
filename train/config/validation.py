"""Values that a configuration may have, and the flags that act with some others only."""

import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from train.common.errors import UsageError, either
from train.config import networks
from train.config.datasets import DATASETS
from train.config.methods import LOCAL_FLAGS, METHODS, methods_with

MOST_LISTED = 20  # Choices in a message; more are in the help.
MOST_WORKERS = 1 << 20  # That of gemjax.
MOST_LOCAL_STEPS = 1 << 20  # That of gemjax.LocalSteps.
MOST_DEVICES = 1 << 12
MOST_LAYERS = 2000
MOST_WIDTH = 1000.0
LARGEST = 3.4e38
RESOURCES = ("worker_cpus", "worker_gpus", "worker_tpus")  # Of a Ray cluster, per worker.
ADDRESS = re.compile(r"auto|(?:\[[\da-fA-F:.]+\]|\w[\w.-]*):(\d{1,5})", re.ASCII)
# Fields with what their values must be; None is always possible.
RANGES = (
    (
        ("workers", "batch_size", "period", "pool", "central_devices", "worker_devices", "quorum", "interrupt",
         "min_workers"),
        lambda value: value >= 1,
        "must be at least 1",
    ),
    (
        ("eval_every", "checkpoint_every", "checkpoint_seconds", "seed", "kappa", "learning_rate", "grace", "retries",
         "max_staleness", "keep_checkpoints", "central_hosts"),
        lambda value: value >= 0,
        "must not be negative",
    ),
    (("learning_rate", "kappa", "epochs", "checkpoint_seconds", "grace"), math.isfinite, "must be finite"),
    (("epochs",), lambda value: 0 < value <= 1e12, "must be positive and at most 1e12"),
    (("workers",), lambda value: value <= MOST_WORKERS, f"must be at most {MOST_WORKERS}"),
    (("period",), lambda value: value <= MOST_LOCAL_STEPS, f"must be at most {MOST_LOCAL_STEPS}"),
    (
        ("central_devices", "central_hosts", "worker_devices"),
        lambda value: value <= MOST_DEVICES,
        f"must be at most {MOST_DEVICES}",
    ),
    (
        ("batch_size", "eval_every", "checkpoint_every", "keep_checkpoints", "retries", "max_staleness",
         "interrupt"),
        lambda value: value < 2**31,
        "must be below 2**31",
    ),
    (("depth",), lambda value: value <= MOST_LAYERS, f"must be at most {MOST_LAYERS}, because each layer is compiled"),
    (("width",), lambda value: value <= MOST_WIDTH, f"must be at most {MOST_WIDTH:.0f}"),
    (("seed",), lambda value: value < 2**32, "must be below 2**32"),
    (("momentum", "local_momentum", "dropout"), lambda value: 0 <= value < 1, "must be in [0, 1)"),
    (RESOURCES, lambda value: 0 <= value <= MOST_DEVICES, f"must be in [0, {MOST_DEVICES}]"),
    (
        ("worker_gpus", "worker_tpus"),
        lambda value: value <= 1 or value % 1 == 0,
        "must be a whole number, or a fraction below 1",
    ),
    (
        ("address",),
        lambda value: (found := ADDRESS.fullmatch(value)) and int(found[1] or 1) < 1 << 16,
        "must be auto or HOST:PORT",
    ),
    (("decay_factor",), lambda value: 0 < value <= 1, "must be in (0, 1]"),
    (("width", "eval_seconds"), lambda value: 0 < value < math.inf, "must be positive and finite"),
    (("variation",), lambda value: 1e-6 <= value <= 10, "must be between 1e-6 and 10"),
    (("deadline",), lambda value: 0 < value < math.inf, "must be a positive number of seconds"),
    (
        ("outer_learning_rate", "strength", "weight_decay", "warmup_epochs"),
        lambda value: 0 <= value < math.inf,
        "must be finite and not negative",
    ),
    (
        ("learning_rate", "outer_learning_rate", "kappa", "strength", "weight_decay"),
        lambda value: value <= LARGEST,
        f"must be at most {LARGEST:.2g}, the largest number of float32",
    ),
)  # fmt: skip
# Flags that act with some values of another flag only.
NEEDS = [
    ("cluster", "engine", ["simulate"]),
    ("variation", "engine", ["simulate"]),
    ("dynamic_periods", "cluster", ["tiered", "tiered_barrier"]),
    ("local_momentum", "local_optimizer", ["sgd"]),
    ("worker_devices", "engine", ["devices"]),
    *((name, "engine", ["cluster"]) for name in ("address", "min_workers", "compression", "central_hosts", *RESOURCES)),
    *((name, "engine", ["devices", "cluster"]) for name in (
        "central", "central_devices", "max_staleness", "interrupt", "quorum", "grace", "deadline", "retries",
    )),
    *((name, "method", methods_with(name)) for name in ("kappa", "reading", "variant", "strength", *LOCAL_FLAGS)),
]  # fmt: skip


KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text without control characters"}


def one_of(name: str, choices: Iterable[str]) -> str:
    """Return the `choices` in words, and the one that was probably meant by `name`.

    >>> one_of("gemm", ["asgd", "gem"])
    'one of asgd, gem (did you mean gem?)'
    >>> one_of("gemm", METHODS)
    'gem or another name that --help lists'
    """
    choices = list(choices)
    near = difflib.get_close_matches(str(name), choices, n=1)
    if len(choices) > MOST_LISTED:
        return f"{near[0]} or another name that --help lists" if near else "a name that --help lists"
    return f"one of {', '.join(choices)}" + (f" (did you mean {near[0]}?)" if near else "")


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def changed(options: Any) -> set[str]:
    """Return the names of the fields that do not have their defaults."""
    return {field.name for field in dataclasses.fields(options) if getattr(options, field.name) != field.default}


@functools.cache
def _hints(options: type) -> dict[str, Any]:
    return get_type_hints(options)


def check_types(options: Any) -> None:
    """Check that every value is of the type of its field; a number without fraction may be an int.

    Raises:
      ValueError: if not; with the flag and its value.
    """
    for name, hint in _hints(type(options)).items():
        value = getattr(options, name)
        if wrong := _misfit(hint, value):
            raise ValueError(f"{flag(name)} must be {wrong}; got {ascii(value)[:60]}")


def _misfit(hint: Any, value: Any) -> str | None:
    """Return what a value must be, if it is not of a type."""
    members = get_args(hint)
    if get_origin(hint) is Literal:
        return None if isinstance(value, str) and value in members else one_of(str(value)[:60], members)
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            return f"a list, each value {_misfit(members[0], None)}"
        return next((f"a list, each value {wrong}" for one in value if (wrong := _misfit(members[0], one))), None)
    if members:  # A type or None.
        return None if value is None else _misfit(members[0], value)
    if hint is str:
        fits = isinstance(value, str) and min(value, default=" ") >= " " and "\x7f" not in value
    elif hint is bool:
        fits = isinstance(value, bool)
    else:
        whole = isinstance(value, int) and not isinstance(value, bool)
        fits = whole if hint is int else isinstance(value, float) or (whole and abs(value) <= 2**53)
    return None if fits else KINDS[hint]


def check(config: Any) -> None:
    """Check that every value is possible and can act.

    Raises:
      ValueError: if not; with the flag, its value and the values that it may have.
    """
    for names, possible, words in RANGES:
        for name in names:
            if (value := getattr(config, name)) is not None and not possible(value):
                raise ValueError(f"{flag(name)} {words}; got {value}")
    given = changed(config)
    for name, other, values in NEEDS:
        if name in given and getattr(config, other) not in values:
            raise ValueError(
                f"{flag(name)} acts only with {flag(other)} {either(values)}; {flag(other)} is {getattr(config, other)}"
            )
    facts = DATASETS.get(config.dataset)
    networks.check(config, networks.pooled(facts.shape, config.pool) if facts else None, given & {"dropout", "width"})
    _check_schedule(config, given)
    _check_policy(config)
    if config.min_workers > config.workers:
        raise ValueError(f"--min-workers must be at most --workers, {config.workers}; got {config.min_workers}")
    if config.engine == "cluster" and config.central == "colocated":
        raise ValueError("--central must be auto, host or dedicated with --engine cluster; got colocated")
    if config.central_hosts and config.compression != "none":
        raise ValueError(
            f"--compression does not go with --central-hosts; give one of the two, got {config.compression} and "
            f"{config.central_hosts}"
        )
    most = METHODS[config.method].most_strength
    if config.strength is not None and most is not None and config.strength > most:
        raise ValueError(f"--strength must be in [0, {most:g}] with {config.method}; got {config.strength}")
    if config.eval_seconds is not None and config.engine != "simulate":
        raise ValueError(
            "--eval-seconds counts virtual time, which only --engine simulate has; otherwise use --eval-every"
        )
    if config.eval_seconds is not None and config.eval_every:
        raise ValueError(f"give --eval-seconds or --eval-every, not both; --eval-every is {config.eval_every}")


def check_acts(options: Any, methods: Iterable[str], momentum: str) -> None:
    """Check further flags that act with some others only; folders of earlier versions may have them.

    Args:
      options: a configuration, or a sweep.
      methods: its methods.
      momentum: name of the field with its momentum.

    Raises:
      UsageError: if one cannot act.
    """
    given, able = changed(options), methods_with("momentum")
    if momentum in given and not {*methods} & {*able}:
        raise UsageError(
            f"{flag(momentum)} acts only with a method that has one, {either(able)}; got {', '.join(methods)}"
        )
    if "variation" in given and options.cluster == "round_robin":
        raise UsageError("--variation does not act with --cluster round_robin, whose workers commit in turn")


def _check_policy(config: Any) -> None:
    waits = config.quorum is not None and config.quorum > 1
    if config.quorum is not None and config.quorum > config.workers:
        raise ValueError(f"--quorum must be at most --workers, {config.workers}; got {config.quorum}")
    if config.max_staleness is not None and waits:
        raise ValueError(f"give --max-staleness or --quorum, not both; --max-staleness is {config.max_staleness}")
    if config.interrupt is not None and (config.max_staleness is not None or waits):
        raise ValueError(f"give one of --interrupt, --max-staleness and --quorum; --interrupt is {config.interrupt}")
    if config.interrupt is not None and METHODS[config.method].local and config.worker_devices > 1:
        raise ValueError(
            f"--interrupt with the local steps of {config.method} needs one device per worker; --worker-devices is "
            f"{config.worker_devices}"
        )
    if config.grace and not waits:
        raise ValueError(f"--grace is the time after a quorum and acts only with --quorum; got {config.grace}")


def _check_schedule(config: Any, given: set[str]) -> None:
    epochs = config.decay_epochs
    if any(not 0 < epoch < math.inf for epoch in epochs) or sorted(set(epochs)) != list(epochs):
        raise ValueError(f"--decay-epochs must be positive and rise; got {' '.join(map(str, epochs))}")
    if config.schedule == "cosine" and epochs:
        raise ValueError(f"give --schedule cosine or --decay-epochs, not both; got {' '.join(map(str, epochs))}")
    if not epochs and "decay_factor" in given:
        raise ValueError("--decay-factor acts only with --decay-epochs, which are not given")
