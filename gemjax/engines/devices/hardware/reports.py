"""The numbers of a report in as few arrays as they can be exact in: one, but for metrics of wide types."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

OF_ENGINES = ("loss", "staleness", "applied", "dropped")  # Counts of commits are exact up to 16 million.


def packed(named: Mapping[str, Any], stack: Callable[[list], Any] = jnp.stack) -> Any:
    """Return the numbers in one vector of floats, and if that could not hold all, a vector for each type that it cannot hold.

    >>> packed({"loss": jnp.float32(0.5), "tokens": jnp.int32(20_000_001)})[1]
    {'int32': Array([20000001], dtype=int32)}
    """
    common = _common(named["loss"].dtype)
    vector = [value.astype(common) for name, value in named.items() if _fits(name, value.dtype, common)]
    others: dict[str, list] = {}
    for name, value in named.items():
        if not _fits(name, value.dtype, common):
            others.setdefault(np.dtype(value.dtype).name, []).append(value)
    return (stack(vector), {kind: stack(values) for kind, values in others.items()}) if others else stack(vector)


def unpacked(report: Any, reported: Mapping[str, np.dtype]) -> list:
    """Return the numbers of :func:`packed` in the order of ``reported``, their names and types, after a wait for them."""
    if not isinstance(report, tuple):
        return np.asarray(report).tolist()
    common = _common(reported["loss"])
    vector = iter(np.asarray(report[0]).tolist())
    others = {kind: iter(np.asarray(values).tolist()) for kind, values in report[1].items()}
    return [next(vector if _fits(name, kind, common) else others[kind.name]) for name, kind in reported.items()]


def is_ready(report: Any) -> bool:
    """Return True if :func:`unpacked` would not wait."""
    return all(part.is_ready() for part in jax.tree.leaves(report))


def _common(loss: Any) -> Any:
    return jnp.promote_types(loss, jnp.float32)


def _fits(name: str, kind: Any, common: Any) -> bool:
    """Return True if a type's numbers are exact in floats of type ``common``."""
    if name in OF_ENGINES or jnp.issubdtype(kind, jnp.bool_):
        return True
    if jnp.issubdtype(kind, jnp.integer):
        return jnp.iinfo(kind).bits <= jnp.finfo(common).nmant
    return jnp.promote_types(kind, common) == common
