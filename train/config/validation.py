"""Which values of a configuration are possible, and which flags act with which."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

from train.config import networks

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
    "dynamic_periods": ("cluster", ("tiered", "tiered_barrier")),
    **dict.fromkeys(
        ("central", "central_devices", "worker_devices", "max_staleness", "quorum", "grace", "deadline", "retries"),
        ("engine", ("devices",)),
    ),
}


def one_of(name: str, choices: Iterable[str]) -> str:
    """The `choices` in words, and which of them somebody who wrote `name` may have meant.

    >>> one_of("gemm", ["asgd", "gem"])
    'one of asgd, gem (did you mean gem?)'
    """
    choices = list(choices)
    near = difflib.get_close_matches(str(name), choices, n=1)
    return f"one of {', '.join(choices)}" + (f" (did you mean {near[0]}?)" if near else "")


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def check(config: Any) -> None:
    """Raises `ValueError` with the flag, what it was and what it must be, if a value is impossible or cannot act."""
    for name in ("workers", "batch_size", "period", "central_devices", "worker_devices", "quorum"):
        if getattr(config, name) < 1:
            raise ValueError(f"{flag(name)} must be at least 1; got {getattr(config, name)}")
    for name in (
        "eval_every",
        "checkpoint_every",
        "checkpoint_seconds",
        "seed",
        "kappa",
        "learning_rate",
        "grace",
        "retries",
    ):
        if not getattr(config, name) >= 0:
            raise ValueError(f"{flag(name)} must not be negative; got {getattr(config, name)}")
    for name in ("learning_rate", "kappa", "epochs", "checkpoint_seconds", "grace"):
        if not math.isfinite(getattr(config, name)):
            raise ValueError(f"{flag(name)} must be finite; got {getattr(config, name)}")
    if config.seed >= 2**32:
        raise ValueError(f"--seed must be below 2**32; got {config.seed}")
    for name in ("momentum", "local_momentum", "dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{flag(name)} must be in [0, 1); got {getattr(config, name)}")
    if config.outer_learning_rate is not None and not 0 <= config.outer_learning_rate < math.inf:
        raise ValueError(f"--outer-learning-rate must be finite and not negative; got {config.outer_learning_rate}")
    for name, (other, values) in NEEDS.items():
        if (
            getattr(config, other) not in values
            and getattr(config, name) != type(config).__dataclass_fields__[name].default
        ):
            raise ValueError(
                f"{flag(name)} acts only with {flag(other)} {' or '.join(values)}; {flag(other)} is {getattr(config, other)}"
            )
    if config.method not in LOCAL:
        for name in ("period", "dynamic_periods", "local_momentum", "outer_learning_rate"):
            if getattr(config, name) != type(config).__dataclass_fields__[name].default:
                raise ValueError(
                    f"{flag(name)} is for methods with local steps ({', '.join(LOCAL)}); --method is {config.method}"
                )
    _check_network(config)
    _check_schedule(config)
    _check_policy(config)
    _check_strength(config)
    if config.eval_seconds is not None:
        _check_eval_seconds(config, config.eval_seconds)
    if not config.epochs > 0:
        raise ValueError(f"--epochs must be positive; got {config.epochs}")


def _check_policy(config: Any) -> None:
    if config.quorum > config.workers:
        raise ValueError(f"--quorum must be at most --workers, {config.workers}; got {config.quorum}")
    if config.max_staleness is not None and (config.max_staleness < 0 or config.quorum > 1):
        raise ValueError(f"--max-staleness must not be negative, nor stand beside --quorum; got {config.max_staleness}")
    if config.deadline is not None and not 0 < config.deadline < math.inf:
        raise ValueError(f"--deadline must be a positive number of seconds; got {config.deadline}")
    if config.grace and config.quorum == 1:
        raise ValueError(f"--grace is the time after a quorum and acts only with --quorum; got {config.grace}")


def _check_strength(config: Any) -> None:
    if config.strength is None:
        return
    if config.method not in STRONG:
        raise ValueError(f"--strength is for {', '.join(STRONG)}; --method is {config.method}")
    if not 0 <= config.strength < math.inf:
        raise ValueError(f"--strength must be finite and not negative; got {config.strength}")
    if config.method in PULLS and config.strength > 1:
        raise ValueError(f"--strength must be in [0, 1] with {config.method}; got {config.strength}")


def _check_network(config: Any) -> None:
    if not 0 < config.width < math.inf:
        raise ValueError(f"--width must be positive and finite; got {config.width}")
    if not 0 <= config.weight_decay < math.inf:
        raise ValueError(f"--weight-decay must be finite and not negative; got {config.weight_decay}")
    changed = {
        name
        for name in ("dropout", "width")
        if getattr(config, name) != type(config).__dataclass_fields__[name].default
    }
    networks.check(
        config.model, config.dataset, networks.SHAPES.get(config.dataset), changed, config.depth, config.augment
    )


def _check_schedule(config: Any) -> None:
    if not 0 <= config.warmup_epochs < math.inf:
        raise ValueError(f"--warmup-epochs must be finite and not negative; got {config.warmup_epochs}")
    epochs = config.decay_epochs
    if any(not 0 < epoch < math.inf for epoch in epochs) or sorted(set(epochs)) != list(epochs):
        raise ValueError(f"--decay-epochs must be positive and rise; got {' '.join(map(str, epochs))}")
    if config.schedule == "cosine" and epochs:
        raise ValueError(f"give --schedule cosine or --decay-epochs, not both; got {' '.join(map(str, epochs))}")
    if not 0 < config.decay_factor <= 1:
        raise ValueError(f"--decay-factor must be in (0, 1]; got {config.decay_factor}")
    if not epochs and config.decay_factor != type(config).__dataclass_fields__["decay_factor"].default:
        raise ValueError("--decay-factor acts only with --decay-epochs, which are not given")


def _check_eval_seconds(config: Any, seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise ValueError(f"--eval-seconds must be positive and finite; got {seconds}")
    if config.engine != "simulate":
        raise ValueError(
            "--eval-seconds counts virtual time, which only --engine simulate has; on devices use --eval-every"
        )
    if config.eval_every:
        raise ValueError(f"give --eval-seconds or --eval-every, not both; --eval-every is {config.eval_every}")
