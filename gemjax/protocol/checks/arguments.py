"""Checks of arguments that are no numbers: choices, paths, workers, transformations and functions."""

import inspect
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.protocol.checks.scalars import shown

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # As of a bucket, gs://name, of which a Path keeps one slash.
PASSED = {
    "worker",
    "staleness",
    "stale_params",
    "value",
    "observe",
    "anchors",
    "local_losses",
    "local_steps",
    "commits",
    "local_step",
}


def check_bool(name: str, value: Any) -> None:
    """Check that ``value`` is ``True`` or ``False``."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")


def check_path(name: str, value: Any) -> None:
    """Check that ``value`` is the name of a file or folder of this host; an int would be that of an open file."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path (a str or an os.PathLike), got {shown(value)}")
    if value in ("", b""):
        raise ValueError(f"{name} is empty; for the current folder give '.'")
    if wrong := told_of_address(value):
        raise ValueError(f"{name} {wrong}")


def told_of_address(path: str | os.PathLike) -> str:
    """Return what to say of the address of a bucket or the like; "" for other paths, as those from a folder here."""
    text = os.fsdecode(path)
    if not ADDRESS.match(text) or os.path.lexists(text.partition("/")[0]):
        return ""
    return (
        f"is the address {text}, but gemjax reads and writes files of this host; give a path, such as that at which a bucket "
        "is mounted"
    )


def check_worker(worker: Any, num_workers: int, of: str = "this state is kept for") -> Any:
    """Return ``worker`` if it is an index into ``num_workers`` slots; 0 if it is missing and N is 1.

    A traced index cannot be checked, so engines check a whole trace before they compile it.

    Raises:
      ValueError: if it is missing with several workers, or out of range.
      TypeError: if it is not an integer scalar.
    """
    if worker is None:
        if num_workers == 1:
            return 0
        raise ValueError(
            f"worker= is missing: this state is kept for {num_workers} workers, so give the worker that pulls or commits "
            f"(worker=0 … worker={num_workers - 1})"
        )
    if isinstance(worker, jax.core.Tracer):
        if worker.ndim or not jnp.issubdtype(worker.dtype, jnp.integer):
            raise TypeError(f"worker must be one integer, got {worker.dtype}{list(worker.shape)}")
        return worker.astype(jnp.int32) if worker.dtype.itemsize < 4 else worker
    try:
        index = np.asarray(worker)
    except ValueError:  # A ragged list.
        index = np.zeros(1)
    if index.ndim or not np.issubdtype(index.dtype, np.integer):
        raise TypeError(f"worker must be one integer, got {shown(worker)}")
    if not 0 <= index < num_workers:
        raise ValueError(f"worker={int(index)} is out of range: {of} {num_workers} workers, 0 … {num_workers - 1}")
    # Rows are counted in the type of their index, which may be too narrow for N.
    return int(index) if index.dtype.itemsize < 4 else worker


def check_method(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` has the functions of an optax transformation."""
    if isinstance(value, type) or not all(callable(getattr(value, part, None)) for part in ("init", "update")):
        raise TypeError(f"{name} must be an optax transformation, such as optax.sgd(0.1), got {shown(value)}")


def with_extra_args(tx: Any) -> optax.GradientTransformationExtraArgs:
    """Return ``tx`` so that it accepts extra arguments, which ``optax.MultiSteps`` passes on although its type hides that."""
    if isinstance(getattr(tx.update, "__self__", None), optax.MultiSteps):
        return optax.GradientTransformationExtraArgs(tx.init, tx.update)
    if isinstance(tx, optax.GradientTransformationExtraArgs) and _takes_none(tx.update):
        raise TypeError(
            f"{getattr(tx.update, '__qualname__', 'update')} refuses extra arguments, though its type is "
            "GradientTransformationExtraArgs; let it accept **extra_args, or give optax.GradientTransformation(tx.init, "
            "tx.update), which gets none"
        )
    return optax.with_extra_args_support(tx)


def _takes_none(function: Any) -> bool:
    """Return True if ``function`` has neither ``**extra_args`` nor any name that commits or local steps pass."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return False
    has_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return not has_rest and PASSED.isdisjoint(parameters)


def check_of_staleness(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` can be called with a staleness."""
    if not callable(value):
        called = f"; if optax.inject_hyperparams has called it, name {name!r} in static_args" * isinstance(
            value, jax.Array
        )
        raise TypeError(
            f"{name} must be a function of the staleness, such as gemjax.polynomial_weight(0.5), got {shown(value)}{called}"
        )


def at_staleness(name: str, function: Any, staleness: Any) -> Any:
    """Return ``function(staleness)``.

    Raises:
      TypeError: if it is no real scalar.
    """
    found = function(staleness)
    try:
        array = jnp.asarray(found)
        shape, dtype = array.shape, array.dtype
    except (TypeError, ValueError):
        shape, dtype = (), None
    if (
        dtype is None
        or not any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
        or shape
    ):
        got = f"an array of shape {list(shape)}" if shape else shown(found)
        raise TypeError(f"{name} must return one number for a staleness, got {got}")
    return found
