"""Data that stay in host memory: batches are gathered there and sent to the device."""

import dataclasses
from typing import Any

import jax
import numpy as np

from gemjax.batches.base import RowsError, Wrapper
from gemjax.batches.rows import check_plain
from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_range, fits


@dataclasses.dataclass(frozen=True)
class OnHost(Wrapper):
    """The same batches, with their data left in host memory; for data that a device cannot hold.

    The rows of a batch are gathered on the host, from NumPy arrays or ``np.memmap``, and sent to the device. The simulator
    gathers and sends the rows of a whole chunk while the device computes the previous chunk, so the device holds the rows of
    two chunks at a time. :func:`gemjax.run_on_devices` gathers a worker's batch when it dispatches the worker. The compiled
    program is that of data on the device, and so are the results, bit for bit. (In toy problems, where all rows of a chunk
    are a few hundred bytes, results agree up to rounding: XLA compiles the smallest loops differently.)

    Engines use this wrapper themselves where the data do not fit beside the state of a run. Use it yourself where the data
    would leave too little memory for computing. It wraps any class that selects rows and makes no batches of its own of them.

    Args:
      batches: :class:`gemjax.Epochs`, :class:`gemjax.Shards`, :class:`gemjax.Stream`, or a class of your own that derives
        from :class:`gemjax.batches.Rows`; with data in NumPy arrays or ``np.memmap``.

    Raises:
      TypeError: if ``batches`` are not rows of data, or have a ``batch`` or ``gather`` of their own.

    >>> import gemjax
    >>> epochs = gemjax.Epochs({"x": np.arange(10) * 1.5}, batch_size=2)
    >>> loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(50)
    >>> one = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, 0.0, epochs, trace)
    >>> other = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, 0.0, OnHost(epochs), trace)
    >>> one.params == other.params
    Array(True, dtype=bool)
    """

    batches: Any

    def __repr__(self) -> str:
        return f"OnHost({self.batches!r})"

    def __post_init__(self):
        check_plain("OnHost", self.batches)
        self._adopt("shared", "num_workers")

    def gather(self, selection: np.ndarray) -> tuple[PyTree, np.ndarray]:
        """Return the selected rows in order, and their indices among them."""
        # The device then takes rows by index, as from whole data: the same program, which rounds in the same way.
        rows = jax.tree.map(lambda leaf: _rows_of(np.asarray(leaf), selection.ravel()), self.batches.data)
        for path, leaf in jax.tree.leaves_with_path(rows) if not all(map(fits, jax.tree.leaves(rows))) else ():
            check_range(f"data{jax.tree_util.keystr(path)}", leaf, RowsError)
        return rows, np.arange(selection.size, dtype=np.int32).reshape(selection.shape)


def _rows_of(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return rows of an array; one of a single row is the same for all. `np.take` would copy a strided array whole."""
    return array[np.zeros_like(rows) if len(array) == 1 else rows]
