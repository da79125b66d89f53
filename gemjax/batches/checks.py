"""Checks of data and of the kind of ``batches=``; error messages say what to give instead."""

from typing import Any

import jax
import numpy as np

from gemjax.batches.base import Batches
from gemjax.protocol import PyTree
from gemjax.protocol.checks import integer


def is_source(batches: Any) -> bool:
    """Return True for a source of batches, False for a function; raise ``TypeError`` for data, a dataset or an iterator."""
    if isinstance(batches, Batches):
        if lacking := [name for name in ("select", "batch") if not hasattr(batches, name)]:
            raise TypeError(f"{type(batches).__name__} must define {' and '.join(lacking)}; see gemjax.batches.Batches")
        return True
    implements = all(hasattr(batches, name) for name in ("data", "select", "batch"))
    is_dataset = hasattr(batches, "with_format")  # Hugging Face's Dataset has methods of these names.
    if not (callable(batches) or (implements and not is_dataset)):
        raise TypeError(
            "batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got "
            f"{type(batches).__name__}; give arrays as gemjax.Epochs(data, batch_size), and a dataset with rows by number as "
            "gemjax.FromSource(dataset, batch_size=...). An iterator gives each batch once, but a run can be replayed and "
            "resumed only if any batch can be computed again from worker and step"
        )
    return implements


def count_rows(data: PyTree, batch_size: int = 1) -> int:
    """Return the length of the leading axis that all arrays of the data have in common.

    Raises:
      TypeError: if a leaf is not an array.
      ValueError: if the leading axes differ or have no rows, or ``batch_size`` is not an int in 1 … that length.
    """
    rows: dict[int | None, str] = {}
    for path, leaf in jax.tree.leaves_with_path(data):
        name = jax.tree_util.keystr(path) or "the data"
        if not isinstance(leaf, (np.ndarray, jax.Array)):
            raise TypeError(
                f"the leaves of the data must be NumPy or JAX arrays, but {name} is of the type {type(leaf).__name__}; "
                "np.asarray makes one of a list, a tensor or a column of a table; for a dataset with rows by number give "
                "gemjax.FromSource(dataset, batch_size=...)"
            )
        rows.setdefault(leaf.shape[0] if leaf.ndim else None, name)
    if len(rows) != 1 or not all(rows):
        found = [f"{name} with {'none (a scalar)' if count is None else count}" for count, name in rows.items()]
        raise ValueError(
            f"all arrays of the data must have the same number of rows, at least 1, got {' and '.join(found) or 'no arrays'}"
        )
    num_rows = int(next(iter(rows)) or 0)
    integer("batch_size", batch_size, 1, num_rows)
    return num_rows
