"""Checks of arrays of NumPy that JAX would silently narrow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDER = {"float96": "float64", "float128": "float64", "complex192": "complex128", "complex256": "complex128"}


def fits(array: Any) -> bool:
    """Return False for integers of NumPy that JAX would silently take for others: those beyond its 32 bits."""
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return True
    if not array.size or (kind := jax.dtypes.canonicalize_dtype(array.dtype)) == array.dtype:
        return True
    limits = jnp.iinfo(kind)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def check_range(name: str, array: Any, error: type[Exception] = TypeError) -> None:
    """Raise ``error`` for integers of NumPy that do not fit."""
    if not fits(array):
        kind, most = jax.dtypes.canonicalize_dtype(array.dtype), array.max()
        raise error(
            f"{name} has the integer {most if most > jnp.iinfo(kind).max else array.min()}, which does not fit into JAX's "
            f"{kind.name}; give floats or smaller integers, leave it out, or enable integers of 64 bits, "
            'jax.config.update("jax_enable_x64", True)'
        )


def check_width(name: str, array: Any) -> None:
    """Raise ``TypeError`` for floats of more bits than JAX has."""
    if isinstance(array, (np.ndarray, np.generic)) and array.dtype.name in WIDER:
        raise TypeError(
            f"{name} is of {array.dtype}, and JAX has floats of 64 bits at most; give x.astype({WIDER[array.dtype.name]!r})"
        )
