"""Settings and published curves of the claims of GEM's paper: its MNIST experiment and a small version on digits."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from train.config.config import Config

# The paper's: one epoch (937 commits) per worker, μ = 0.9.
MNIST = Config(dataset="mnist", engine="simulate", epochs=1.0, batch_size=64, learning_rate=0.05)
# The small scale: five epochs of 44 batches per worker, at a rate at which staleness hurts.
DIGITS = Config(dataset="digits", engine="simulate", epochs=5.0, batch_size=32, learning_rate=0.1)
CURVES = Path(__file__).with_name("gem_curves.json")


def curve(figure: str, name: float | str) -> tuple[np.ndarray, np.ndarray]:
    """Return a published curve as horizontal and vertical values.

    Args:
      figure: its number, such as "1a".
      name: a number of workers, κ, or the name of a method.
    """
    found = _curves()[figure][name if isinstance(name, str) else f"{name:g}"]
    return np.array(found["x"]), np.array(found["y"])


def at_end(figure: str, name: float | str, steps: float = 100.0) -> float:
    """Return the mean of a published curve over its last `steps` worker steps; infinite if the curve ends before them.

    >>> round(at_end("6a", 5), 3)
    0.066
    """
    return between(figure, name, 937.0 - steps, np.inf)


def between(figure: str, name: float | str, begin: float, end: float) -> float:
    """Return the mean of a published curve between two worker steps; infinite if the curve has no point there."""
    x, y = curve(figure, name)
    inside = (begin <= x) & (x <= end)
    return float(y[inside].mean()) if inside.any() else np.inf


@functools.cache
def _curves() -> dict[str, Any]:
    return json.loads(CURVES.read_text(encoding="utf-8"))["curves"]
