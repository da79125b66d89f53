"""Checks of numbers. Traced values pass, because ``optax.inject_hyperparams`` makes hyper-parameters traced."""

import dataclasses
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MOST_WORKERS = 1 << 20  # Of methods, traces and event logs; some need time or memory for each, even if few commit.


def _concrete(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def check_learning_rate(value: Any) -> None:
    """Check that ``value`` is a finite number >= 0, or a schedule."""
    if not callable(value):
        check_at_least("learning_rate", value, 0.0)


def check_momentum(name: str, value: Any) -> None:
    """Check that ``value`` is in [0, 1)."""
    if _concrete(value) and not 0 <= number(name, value) < 1:
        # num_workers is the second argument of some methods, and the third of those with a momentum.
        counts = name == "momentum" and isinstance(value, (int, np.integer)) and value >= 1
        raise ValueError(
            f"{name} must be in [0, 1), got {value}" + (f"; did you mean num_workers={value}?" if counts else "")
        )


def check_at_least(name: str, value: Any, lowest: float) -> None:
    """Check that ``value`` is a finite number >= ``lowest``."""
    if _concrete(value) and not (math.isfinite(found := number(name, value)) and found >= lowest):
        raise ValueError(f"{name} must be finite and at least {lowest:g}, got {value}")


def check_between(name: str, value: Any, lowest: float, highest: Any) -> None:
    """Check that ``value`` is in [``lowest``, ``highest``]."""
    if _concrete(value) and _concrete(highest) and not lowest <= number(name, value) <= highest:
        raise ValueError(f"{name} must be between {lowest:g} and {highest:g}, got {value}")


def check_positive_int(name: str, value: Any, most: int = 2**31 - 1) -> None:
    """Check that ``value`` is an integer in [1, ``most``]; by default it must fit into int32."""
    if _concrete(value):
        try:
            valid = operator.index(value) >= 1 and not isinstance(value, bool)
        except TypeError:
            valid = False
        if not valid:
            raise ValueError(f"{name} must be a positive int, got {shown(value)}")
        if operator.index(value) > most:
            largest = ", the largest int32" if most == 2**31 - 1 else ""
            raise ValueError(f"{name} must be at most {most}{largest}, got {shown(value)}")
        check_not_narrow(name, value)


def check_count(name: str, value: Any) -> None:
    """Check that ``value``, which decides shapes, is a positive int, and no traced one."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} cannot be traced; under optax.inject_hyperparams name it in static_args")
    check_positive_int(name, value)


def check_not_narrow(name: str, value: Any) -> None:
    """Raise ``ValueError`` for an integer of NumPy or JAX that wraps around in arithmetic with other small numbers."""
    dtype = value.dtype if isinstance(value, (np.ndarray, np.generic, jax.Array)) else None
    if dtype is not None and (dtype.kind == "u" or dtype.itemsize < 4):
        raise ValueError(f"{name} is {shown(value)}, whose {dtype} wraps around in sums and products; give int({name})")


def with_plain_numbers(instance: Any) -> None:
    """Replace scalars of NumPy and JAX in a dataclass by numbers of Python, which compute in 64 bits and do not wrap around."""
    for field in dataclasses.fields(instance):
        value: Any = getattr(instance, field.name, None)
        if (
            not isinstance(value, (np.ndarray, np.generic, jax.Array))
            or value.ndim
            or isinstance(value, jax.core.Tracer)
        ):
            continue
        kind = value.dtype
        plain = int if jnp.issubdtype(kind, jnp.integer) else float if jnp.issubdtype(kind, jnp.floating) else None
        if plain is not None:
            object.__setattr__(instance, field.name, plain(value))


def number(name: str, value: Any) -> float:
    """Return ``value`` as a float, for JAX to compute with.

    Raises:
      ValueError: if it is not a number, or an int that JAX cannot represent.
    """
    found = real(name, value)
    if isinstance(value, int) and abs(value) >= 2**31:
        raise ValueError(f"{name} must fit into int32, got {shown(value)}; give a float")
    return found


def real(name: str, value: Any) -> float:
    """Return ``value`` as a float.

    Raises:
      ValueError: if it is not a number.
    """
    try:
        # A Decimal or a Fraction has a float, but JAX cannot compute with it.
        unfit = not isinstance(value, int) and np.asarray(value).dtype.kind in "bO"
        if unfit or isinstance(value, (bool, str, bytes)) or getattr(value, "ndim", 0):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {shown(value)}") from None


def numbers(name: str, values: Any) -> tuple[Any, ...]:
    """Return a sequence of numbers as floats; traced ones stay as they are.

    Raises:
      ValueError: if it is not that.
    """
    try:
        several = [] if isinstance(values, (str, bytes)) else list(values)
    except TypeError:
        raise ValueError(f"{name} must be a sequence of numbers, got {shown(values)}") from None
    return tuple(number(f"each of {name}", value) if _concrete(value) else value for value in several)


def integer(name: str, value: Any, lowest: int, most: int = 2**31 - 1) -> int:
    """Return ``value`` as an int.

    Raises:
      ValueError: if it is no int in ``lowest`` … ``most``.
    """
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if not lowest <= found <= most:
        raise ValueError(f"{name} must be an int in {lowest} … {most}, got {shown(value)}")
    return found


def shown(value: Any) -> str:
    """Return the ``repr`` of a value in one short line.

    >>> shown(np.eye(2))
    'array([[1., 0.], [0., 1.]])'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"
