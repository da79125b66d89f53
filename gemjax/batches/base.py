"""Base class of batch sources, and the adapter for sources that do not derive from it."""

import dataclasses
import mmap
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_range

DEFAULTS: dict[str, Any] = {"data": (), "shared": False, "threads": 0, "num_workers": None}  # Of a source's attributes.


class Batches:
    """Base of all batch sources: which batch a worker computes on, and its data.

    Derive from it for batches that are not rows of arrays; for rows, :class:`gemjax.batches.Rows` needs ``select`` alone. A
    subclass sets ``data`` and defines

    - ``select(worker, step)``, called on the host with int vectors [batches]: the worker that computes each batch, and its own
      step (its gradients, counted from 0; local steps, where it has some). It returns a pytree of small arrays with the same
      leading axis, which identify the batches. It must be a pure function, so that a run can be continued and replayed;
      several threads may call it at once.
    - ``batch(data, selection)``, traced on the device: the batch for one entry of that pytree.

    Attributes:
      data: arrays that are put once on every device that computes gradients; default none.
      shared: True if all workers draw from one sequence, so that the order of commits matters. ``select`` then takes a third
        vector ``draw``, the column of :class:`gemjax.Trace`, which numbers the batches in the order in which workers draw
        them (:class:`gemjax.Stream`). Default ``False``.
      threads: threads that may read batches ahead of their workers; default 0, nothing is read.
      num_workers: number of workers that the batches are made for; engines check it. Default ``None``: any number.

    >>> import gemjax, jax
    >>> class Windows(gemjax.batches.Batches):
    ...     def __init__(self, text, length):
    ...         self.data, self.length = text, length
    ...     def select(self, worker, step):                       # Where each window begins.
    ...         return ((7 * step + worker) % (len(self.data) - self.length)).astype(np.int32)
    ...     def batch(self, data, selection):
    ...         return jax.lax.dynamic_slice(data, (selection,), (self.length,))
    >>> loss_fn = lambda params, batch: ((params - batch) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(100)
    >>> gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, 0.0, Windows(np.ones(50), length=8), trace).params.round(2)
    Array(1., dtype=float32)
    """

    data: PyTree
    shared: bool
    threads: int
    num_workers: int | None
    select: Any
    batch: Any

    if not TYPE_CHECKING:  # Defaults as class attributes would be those of the fields of derived dataclasses.

        def __getattr__(self, name: str) -> Any:
            """Return the default of an attribute that the source lacks."""
            if name in DEFAULTS and not hasattr(type(self), name):
                return DEFAULTS[name]
            return object.__getattribute__(self, name)  # Raises again, also an error within a property.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make ``gather`` and ``part``, its former name, the same method in a class that defines one of them."""
        super().__init_subclass__(**kwargs)
        for name, other in (("gather", "part"), ("part", "gather")):
            if name in vars(cls) and other not in vars(cls):
                setattr(cls, other, vars(cls)[name])

    def gather(self, selection: PyTree) -> tuple[PyTree, PyTree]:
        """Return the host data that a selection needs, and the selection within them; ``None`` if no data stay on the host."""
        return None, selection

    def _traced(self) -> "Batches":
        """Return a source with the same ``batch``; a program that is kept keeps it, so it lacks data that it does not need."""
        return self

    def _gathers(self) -> bool:
        """Return True if the source gathers its data on the host, and may change them there."""
        return type(self).gather is not Batches.gather

    def _check_data(self) -> None:
        """Raise an error if the data cannot make batches."""

    def _check_range(self, in_files: bool = False) -> None:
        """Raise ``TypeError`` for integers that JAX would take for others: those in memory, or those in files."""
        if not self._gathers():
            for path, leaf in jax.tree.leaves_with_path(self.data):
                if _is_mapped(leaf) == in_files:
                    check_range(f"data{jax.tree_util.keystr(path)}", leaf)

    def _check_selection(self, selection: PyTree, worker: np.ndarray, step: np.ndarray, draw: Any) -> None:
        """Raise an error if a batch cannot be made of its selection, where that can be seen on the host."""


class RowsError(ValueError):
    """Rows that the data do not have, or that make no batch: they differ, or JAX does not hold their integers.

    A retry would meet the same ones.
    """


class Wrapper(Batches):
    """Base of frozen dataclasses that store or group the batches of another source, their field ``batches``, differently."""

    def _adopt(self: Any, *names: str) -> None:
        """Take over attributes of ``batches``, or the default of one that it lacks."""
        for name in names:
            object.__setattr__(self, name, getattr(self.batches, name, DEFAULTS[name]))

    def select(self: Any, worker: np.ndarray, step: np.ndarray, draw: Any = None) -> PyTree:
        """Return the selection of the wrapped source, such as numbers of rows."""
        return self.batches.select(worker, step, draw) if self.shared else self.batches.select(worker, step)

    def batch(self: Any, data: PyTree, selection: PyTree) -> PyTree:
        return self.batches.batch(data, selection)

    def _traced(self: Any):
        is_same = type(self).batch is Wrapper.batch and isinstance(self.batches, Batches)
        return self.batches._traced() if is_same else self

    def _check_data(self: Any):
        if isinstance(self.batches, Batches):
            self.batches._check_data()

    def _check_selection(self: Any, selection, worker, step, draw):
        if isinstance(self.batches, Batches):
            self.batches._check_selection(selection, worker, step, draw)


@dataclasses.dataclass(frozen=True)
class Adapter(Wrapper):
    """A source whose class does not derive from :class:`Batches`."""

    batches: Any

    def __post_init__(self):
        self._adopt("data", "shared", "threads", "num_workers")

    def gather(self, selection):
        return (self._own_gather() or super().gather)(selection)

    def _gathers(self):
        return self._own_gather() is not None

    def _own_gather(self) -> Any:
        return getattr(self.batches, "gather", None) or getattr(self.batches, "part", None)


def _is_mapped(array: Any) -> bool:
    """Return True for an array in a file that is mapped into memory."""
    while array is not None:
        if isinstance(array, (np.memmap, mmap.mmap)):
            return True
        array = getattr(array, "base", getattr(array, "obj", None))  # That of a memoryview.
    return False


def adapt(batches: Any) -> Batches:
    """Return ``batches`` itself if its class derives from :class:`Batches`, else an adapter of it."""
    return batches if isinstance(batches, Batches) else Adapter(batches)


def select(batches: Any, worker: np.ndarray, step: np.ndarray, draw: Any) -> PyTree:
    """Return the selections, such as numbers of rows, for vectors of (worker, that worker's step, draw of the trace).

    Raises:
      RowsError: if the data lack a selected row, or there is not one selection per batch.
    """
    batches = adapt(batches)
    selection = batches.select(worker, step, draw) if batches.shared else batches.select(worker, step)
    batches._check_selection(selection, worker, step, draw)
    for leaf in jax.tree.leaves(selection):
        if np.shape(leaf)[:1] != np.shape(worker):
            raise RowsError(
                f"select returned an array of shape {np.shape(leaf)} for {np.size(worker)} batches; each array must have one "
                "entry per batch: worker and step are vectors"
            )
    return selection
