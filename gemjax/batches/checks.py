"""Checks of data and of the kind of ``batches=``; error messages say what to give instead."""

import contextlib
import inspect
import operator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gemjax.protocol.checks import check_width

PyTree = Any


def check_kind(batches: Any) -> None:
    """Raise ``TypeError`` that names the class to use if ``batches`` are data, a dataset, an iterator, or no batches at all.

    Datasets are recognised by their methods, so no library is imported.
    """
    advice = _advice(batches)
    if advice is not None:
        raise TypeError(
            "batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got "
            f"{'the class ' + batches.__name__ if isinstance(batches, type) else type(batches).__name__}{advice}"
        )


def _advice(batches: Any) -> str | None:
    """Return the rest of the error message; ``None`` for a function or an object that implements ``Batches``."""
    if isinstance(batches, type):
        return "; call it, as in gemjax.Epochs(data, batch_size)"
    implements = all(hasattr(batches, name) for name in ("data", "select", "batch"))
    if implements and not hasattr(batches, "with_format"):  # Hugging Face's Dataset has methods of these names.
        return None
    if _takes_two(batches) and not inspect.isgeneratorfunction(batches):
        return None  # A function, even if it also has rows.
    if is_dataset(batches):
        return ", a dataset with rows by number; give gemjax.FromSource(dataset, batch_size=...)"
    if has_splits(batches):
        return " of splits; take one of them and give gemjax.FromSource(dataset['train'], batch_size=...)"
    if isinstance(batches, list):
        return (
            "; a list does not say which batch a worker takes at which step, so give the rows of all batches as arrays: "
            "gemjax.Epochs(data, batch_size)"
        )
    if isinstance(batches, (Mapping, tuple)) or _is_array(batches):
        return "; data need a batch size and an order, so give gemjax.Epochs(data, batch_size)"
    if is_dataset(getattr(batches, "dataset", None)):
        return f": {NO_ITERATOR}; give its rows as gemjax.FromSource(loader.dataset, batch_size=...)"
    if hasattr(batches, "__iter__") and not callable(batches) and not isinstance(batches, (str, bytes)):
        return f": {NO_ITERATOR}; {INSTEAD_OF_ITERATOR}"
    if inspect.isgeneratorfunction(batches):
        return f" that yields: {NO_ITERATOR}; {INSTEAD_OF_ITERATOR}"
    return None if callable(batches) else ""


def _takes_two(batches: Any) -> bool:
    """Return True if ``batches(worker, step)`` is a valid call."""
    if not callable(batches):
        return False
    try:
        inspect.signature(batches).bind(0, 0)
    except (TypeError, ValueError):  # Other arguments; or a builtin, some of which have no signature.
        return False
    return True


NO_ITERATOR = (
    "an iterator gives each batch once, but a run can be replayed and resumed only if any batch can be computed again from "
    "worker and step"
)
INSTEAD_OF_ITERATOR = (
    "give arrays as gemjax.Epochs(data, batch_size), or a dataset with rows by number as "
    "gemjax.FromSource(dataset, batch_size=...)"
)


def is_dataset(value: Any) -> bool:
    """Return True if ``value`` has a length and rows by number, and is neither an array nor a container of Python."""
    found = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return found and not _is_array(value) and not isinstance(value, (Mapping, list, tuple, str, bytes, type))


def has_splits(value: Any) -> bool:
    """Return True if ``value`` is a dict of datasets, such as Hugging Face's ``load_dataset`` returns without ``split=``."""
    return isinstance(value, Mapping) and len(value) > 0 and all(is_dataset(split) for split in value.values())


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and (hasattr(value, "dtype") or hasattr(value, "dtypes"))  # A DataFrame has dtypes.


def count_rows(data: PyTree, batch_size: int = 1) -> int:
    """Return the length of the leading axis that all arrays of the data have in common.

    Raises:
      TypeError: if a leaf is not an array of numbers, or ``batch_size`` is not an int.
      ValueError: if the leading axes differ, or there are fewer rows than ``batch_size``.
    """
    if isinstance(data, (int, np.integer)):
        raise TypeError(
            f"the data come first and the batch size second, gemjax.Epochs(data, batch_size); got {data} as data"
        )
    rows: dict[int | None, str] = {}
    for path, leaf in jax.tree.leaves_with_path(data):
        name = jax.tree_util.keystr(path) or "the data"
        _check_leaf(name, leaf)
        rows.setdefault(leaf.shape[0] if leaf.ndim else None, name)
    if len(rows) != 1 or None in rows:
        found = [f"{name} with {'none (a scalar)' if count is None else count}" for count, name in rows.items()]
        raise ValueError(
            f"all arrays of the data must have the same number of rows, got {' and '.join(found) or 'no arrays'}"
        )
    num_rows, batch_size = int(next(iter(rows)) or 0), whole("batch_size", batch_size)
    if not num_rows:
        raise ValueError(f"the data have no rows; the shape of {next(iter(rows.values()))} begins with 0")
    if not 1 <= batch_size <= num_rows:
        raise ValueError(f"batch_size must be in 1 … {num_rows} (the rows of the data), got {batch_size}")
    return num_rows


def _check_leaf(name: str, leaf: Any) -> None:
    if not isinstance(leaf, (np.ndarray, jax.Array)):
        kind = type(leaf).__name__
        if hasattr(leaf, "columns"):
            advice = "give {name: frame[name].to_numpy() for name in frame}"
        elif isinstance(leaf, (str, bytes)):
            advice = "encode it as numbers or leave it out"
        elif (hasattr(leaf, "__iter__") and not _is_array(leaf)) or is_dataset(leaf):
            advice = "gemjax.FromSource(dataset, batch_size=...) takes a dataset with rows by number"
        else:
            advice = "np.asarray makes one of a list, a tensor or a column of a table"
        raise TypeError(
            f"the leaves of the data must be NumPy or JAX arrays, but {name} is of the type {kind}; {advice}"
        )
    check_numbers(name, leaf)


def masked(name: str) -> TypeError:
    """Make the error for an array with a mask."""
    return TypeError(
        f"{name} is a masked array, and a batch has no mask; give its filled(…), or its mask as an array, too"
    )


def check_numbers(name: str, leaf: Any) -> None:
    """Raise ``TypeError`` for an array of NumPy that devices do not take, or of which they would ignore a part."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise masked(name)
    check_width(name, leaf)
    if isinstance(leaf, np.ndarray) and not is_numeric(leaf.dtype):
        raise TypeError(
            f"devices take numbers only, but {name} is an array of {leaf.dtype}; encode it as numbers or leave it out"
        )
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        raise TypeError(
            f"devices take numbers in this machine's order of bytes, but {name} is an array of {leaf.dtype}; give "
            "x.astype(x.dtype.newbyteorder('=')), or read it with gemjax.FromSource"
        )


def is_numeric(dtype: np.dtype) -> bool:
    """Return True if devices take arrays of ``dtype``; kind V includes bfloat16."""
    return dtype.kind in "biufcV" and not issubclass(dtype.type, np.void)


def checked_seed(value: Any) -> int:
    """Return the seed of an order of rows as an int.

    Raises:
      TypeError: if it is not an int.
      ValueError: if it is negative.
    """
    if (seed := whole("seed", value)) < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return seed


def checked_key_seed(value: Any) -> int:
    """Return the seed of PRNG keys as an int.

    Raises:
      TypeError: if it is not an int.
      ValueError: if ``jax.random.key`` does not take it, because it needs more than 64 bits.
    """
    if not -(2**63) <= (seed := whole("seed", value)) < 2**63:
        raise ValueError(f"seed must fit into 64 bits, as those of jax.random.key, got {seed}")
    return seed


def whole(name: str, value: Any) -> int:
    """Return ``value`` as an int, if it is one.

    Raises:
      TypeError: naming ``name``, if it is not.

    >>> whole("batch_size", np.int32(4))
    4
    >>> whole("batch_size", 4.0)
    Traceback (most recent call last):
    TypeError: batch_size must be an int, got 4.0
    """
    if not isinstance(value, (bool, np.bool_)):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise TypeError(f"{name} must be an int, got {' '.join(repr(value).split())}")
