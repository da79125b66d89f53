"""Values that a configuration may have, and the flags that act with some others only."""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from typing import Any

from train.common.errors import either
from train.config import networks
from train.config.datasets import DATASETS, is_own
from train.config.methods import LOCAL_FLAGS, methods_with
from train.config.policy import POLICY

MOST_LISTED = 20  # Choices in a message; more are in the help.
RESOURCES = ("worker_cpus", "worker_gpus", "worker_tpus")  # What Ray reserves per worker.
# Ranges of fields whose wrong values nothing else would refuse at the start; None always passes.
RANGES = (
    (
        ("workers", "batch_size", "period", "pool", "image_size", "central_devices", "worker_devices"),
        lambda value: value >= 1,
        "must be at least 1",
    ),
    (
        ("learning_rate", "outer_learning_rate", "weight_decay", "warmup_epochs", "seed", "eval_every", "checkpoint_every",
         "checkpoint_seconds", "keep_checkpoints", "central_hosts", "transfer"),
        lambda value: 0 <= value < math.inf,
        "must be finite and not negative",
    ),
    (("epochs", "width", "eval_seconds", "variation"), lambda value: 0 < value < math.inf, "must be positive and finite"),
    (("decay_epochs",), lambda epochs: all(0 <= epoch < math.inf for epoch in epochs), "must be finite and not negative"),
    (("decay_factor",), lambda value: 0 < value <= 1, "must be in (0, 1]"),
    (("test_share",), lambda value: 0 < value < 1, "must be in (0, 1)"),
    (("momentum", "local_momentum", "dropout"), lambda value: 0 <= value < 1, "must be in [0, 1)"),
)  # fmt: skip
# Flags that act with some values of another flag only.
NEEDS = [
    ("cluster", "engine", ["simulate"]),
    *((name, "engine", ["simulate"]) for name in ("variation", "transfer")),
    *((name, "cluster", ["homogeneous", "heterogeneous", "tiered", "barrier", "heterogeneous_barrier", "tiered_barrier"])
      for name in ("variation", "transfer")),
    ("eval_seconds", "engine", ["simulate"]),
    ("eval_every", "eval_seconds", [None]),
    ("decay_epochs", "schedule", ["constant"]),
    ("dynamic_periods", "cluster", ["tiered", "tiered_barrier"]),
    ("local_momentum", "local_optimizer", ["sgd"]),
    ("worker_devices", "engine", ["devices"]),
    ("compression", "central_hosts", [0]),
    *((name, "engine", ["cluster"]) for name in ("address", "min_workers", "compression", "central_hosts", *RESOURCES)),
    *((name, "engine", ["devices", "cluster"]) for name in ("central", "central_devices", *POLICY) if name != "quorum"),
    *((name, "method", methods_with(name)) for name in (
        "momentum", "kappa", "reading", "variant", "strength", *LOCAL_FLAGS,
    )),
]  # fmt: skip


def one_of(name: str, choices: Iterable[str]) -> str:
    """Return the `choices` in words, and the one that was probably meant by `name`.

    >>> one_of("gemm", ["asgd", "gem"])
    'one of asgd, gem (did you mean gem?)'
    >>> one_of("10", map(str, range(100)))
    '10 or another name that --help lists'
    """
    choices = list(choices)
    near = difflib.get_close_matches(name, choices, n=1)
    if len(choices) > MOST_LISTED:
        return f"{near[0]} or another name that --help lists" if near else "a name that --help lists"
    return f"one of {', '.join(choices)}" + (f" (did you mean {near[0]}?)" if near else "")


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def changed(options: Any) -> set[str]:
    """Return the names of the fields that do not have their defaults."""
    return {field.name for field in dataclasses.fields(options) if getattr(options, field.name) != field.default}


def check_values(config: Any) -> None:
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
        if name in given and (found := getattr(config, other)) not in values:
            able = f"with {flag(other)} {either([str(value) for value in values])}"
            able = f"without {flag(other)}" if values == [None] else able
            raise ValueError(f"{flag(name)} acts only {able}; {flag(other)} is {found}")
    if "quorum" in given and config.engine == "simulate" and not config.cluster.endswith("barrier"):
        able = "--cluster barrier, heterogeneous_barrier or tiered_barrier"
        raise ValueError(f"--quorum acts in a simulation only with {able}; --cluster is {config.cluster}")
    if (useless := given & {"test_share", "image_size"}) and not is_own(config.dataset):
        raise ValueError(
            f"{flag(min(useless))} acts only with a file or folder of your own; --dataset is {config.dataset}"
        )
    facts = DATASETS.get(config.dataset)
    networks.check_network(config, networks.pooled(facts.shape, config.pool) if facts else None)
