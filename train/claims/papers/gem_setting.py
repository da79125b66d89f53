"""What the claims of GEM's paper have in common: its MNIST experiment, and a stand-in on digits."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from train.config.config import Config, Method

MNIST = Config(dataset="mnist", engine="simulate", epochs=1.0, batch_size=64, learning_rate=0.05)
DIGITS = Config(dataset="digits", engine="simulate", epochs=5.0, batch_size=32, learning_rate=0.1)


def mnist(method: Method, workers: int, **changes: Any) -> Config:
    """The paper's MNIST experiment: batches of 64 rows, η = 0.05, μ = 0.9, one epoch of data (937 commits) a worker."""
    return dataclasses.replace(MNIST, method=method, workers=workers, **changes)


def digits(method: Method, workers: int, **changes: Any) -> Config:
    """The small scale: digits, five epochs of 44 batches a worker, at a rate at which staleness hurts."""
    return dataclasses.replace(DIGITS, method=method, workers=workers, **changes)


def words(values: Sequence[float], form: str = ".3g") -> str:
    """Numbers in one line, as tables of papers have them."""
    return " / ".join(f"{value:{form}}" for value in values)
