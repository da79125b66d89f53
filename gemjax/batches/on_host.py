"""Data that stay in host memory: batches are gathered there and sent to the device."""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from gemjax.batches.rows import Rows, is_shared, select

PyTree = Any


@dataclasses.dataclass(frozen=True)
class OnHost:
    """The same batches, but their data are left in host memory; for data that a device cannot hold.

    The rows of a batch are gathered on the host, from NumPy arrays or ``np.memmap``, and sent to the device. The simulator
    gathers and sends the rows of a whole chunk while the device computes the chunk before, so that those of two chunks are
    on the device at a time; :func:`gemjax.run_on_devices` gathers a worker's batch when it sends the worker on. The program
    is that of data on the device and so are the results, bit for bit (of toy problems, where all rows of a chunk are some
    hundred bytes, up to rounding: XLA compiles the smallest loops in another way).

    Engines take this by themselves where the data do not fit beside the state of a run; take it by hand where they leave too
    little for computing. It is a wrapper and no option of each class, so that it fits whatever selects rows.

    Args:
      batches: :class:`gemjax.Epochs`, :class:`gemjax.Shards`, :class:`gemjax.Stream`, or a class of your own that derives
        from :class:`gemjax.batches.Rows`; with data in NumPy arrays or ``np.memmap``.

    Raises:
      TypeError: if ``batches`` are not rows of data.

    >>> import gemjax
    >>> epochs = gemjax.Epochs({"x": np.arange(10) * 1.5}, batch_size=2)
    >>> loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(50)
    >>> one = gemjax.simulate(gemjax.asgd(0.1, 4), loss_fn, 0.0, epochs, trace)
    >>> other = gemjax.simulate(gemjax.asgd(0.1, 4), loss_fn, 0.0, OnHost(epochs), trace)
    >>> one.params == other.params
    Array(True, dtype=bool)
    """

    batches: Any
    data: ClassVar[PyTree] = ()

    def __repr__(self) -> str:
        return f"OnHost({self.batches!r})"

    def __post_init__(self):
        if not isinstance(self.batches, Rows):
            raise TypeError(
                "OnHost needs batches that are rows of data: gemjax.Epochs, gemjax.Shards, gemjax.Stream, or a class that "
                f"derives from gemjax.batches.Rows; got {type(self.batches).__name__}"
            )

    @property
    def shared(self) -> bool:
        return is_shared(self.batches)

    @property
    def num_workers(self) -> int | None:
        """Workers that the batches were made for, if they were for some number."""
        return getattr(self.batches, "num_workers", None)

    def select(self, worker: np.ndarray, step: np.ndarray, draw: Any = None) -> np.ndarray:
        """Numbers of rows, as ``batches`` select them."""
        return select(self.batches, worker, step, draw)

    def part(self, selection: np.ndarray) -> tuple[PyTree, np.ndarray]:
        """The rows that are selected, one behind the other, and their numbers among them."""
        # The program is then that of data on the device, which rounds in the same way.
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[selection.ravel()], self.batches.data)
        return rows, np.arange(selection.size, dtype=np.int32).reshape(selection.shape)

    def batch(self, data: PyTree, selection: PyTree) -> PyTree:
        return self.batches.batch(data, selection)
