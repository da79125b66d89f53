"""Checks of hyper-parameters at construction; traced and array values pass, as ``inject_hyperparams`` needs."""

import math
import operator
from typing import Any

import jax
import numpy as np


def _concrete(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def check_learning_rate(value: Any) -> None:
    """A finite number >= 0, or a schedule."""
    if not callable(value):
        check_at_least("learning_rate", value, 0.0)


def check_momentum(value: Any, name: str = "momentum") -> None:
    """A number in [0, 1)."""
    if _concrete(value) and not 0 <= _number(name, value) < 1:
        # The number of workers is the second argument of some methods and the third of those with a momentum.
        counts = name == "momentum" and isinstance(value, (int, np.integer)) and value >= 1
        raise ValueError(
            f"{name} must be in [0, 1), got {value}" + (f"; did you mean num_workers={value}?" if counts else "")
        )


def check_at_least(name: str, value: Any, lowest: float) -> None:
    """A finite number >= ``lowest``."""
    if _concrete(value):
        number = _number(name, value)
        if not (math.isfinite(number) and number >= lowest):
            raise ValueError(f"{name} must be finite and at least {lowest:g}, got {value}")


def check_between(name: str, value: Any, lowest: float, highest: Any) -> None:
    """A number in [``lowest``, ``highest``]."""
    if _concrete(value) and _concrete(highest) and not lowest <= _number(name, value) <= highest:
        raise ValueError(f"{name} must be between {lowest:g} and {highest:g}, got {value}")


def check_positive_int(name: str, value: Any) -> None:
    """An integer >= 1."""
    if _concrete(value):
        try:
            valid = operator.index(value) >= 1 and not isinstance(value, bool)
        except TypeError:
            valid = False
        if not valid:
            raise ValueError(f"{name} must be a positive int, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """One of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str)) or np.ndim(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except TypeError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None
