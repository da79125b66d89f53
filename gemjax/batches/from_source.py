"""Batches that are read from a dataset with random access, such as one on disk."""

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gemjax.batches.base import RowsError, Wrapper
from gemjax.batches.rows import Epochs, check_plain
from gemjax.batches.threads import READERS, SECONDS_AT_EXIT, each
from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_range, fits, integer, shown


@dataclasses.dataclass(frozen=True, eq=False)
class FromSource(Wrapper):
    """Batches whose rows are read from a source with random access when they are needed; for data that do not fit in memory.

    ``batch_size`` draws the rows in epochs, as :class:`gemjax.Epochs` does. For another order give ``batches``:
    :class:`gemjax.Shards` or :class:`gemjax.Stream` of row numbers in place of the rows. Either way the rows of any batch
    follow from a seed, so a resumed run or a replay reads the same rows. Results are those of the same rows in memory, bit
    for bit (in toy problems up to rounding, see :class:`gemjax.OnHost`).

    :func:`gemjax.run_on_devices` prefetches a worker's next batch in a thread while the worker computes the current one. A late
    batch delays its own worker only, and the policy's deadline starts when the batch has arrived. A failed read is retried as
    often as the policy allows. The next batches of a :class:`gemjax.Stream` are prefetched, too, for whichever workers draw
    them. Local steps on a stream, and other rows that are ``shared``, are read in threads but not prefetched.
    :func:`gemjax.simulate` reads the rows of a chunk while it computes the previous chunk.

    Recipes for the datasets of other libraries follow. A row is a pytree of NumPy arrays, numbers, or tensors on the CPU. The
    loss function gets the rows of a batch stacked, in the same structure.

    PyTorch's map-style ``Dataset`` can be passed unchanged; its rows ``(image, label)`` make batches ``(images, labels)``. Do
    not wrap it in a ``DataLoader``, which is an iterator::

        dataset = torchvision.datasets.MNIST("data", download=True, transform=torchvision.transforms.ToTensor())
        batches = gemjax.FromSource(dataset, batch_size=32)

    Hugging Face ``datasets`` return lists unless they are asked for NumPy arrays, and columns of text must be left out::

        dataset = datasets.load_dataset("ylecun/mnist", split="train").with_format("numpy")
        batches = gemjax.FromSource(dataset.select_columns(["image", "label"]), batch_size=32)

    TensorFlow Datasets have data sources, which are read without TensorFlow::

        source = tfds.data_source("mnist", split="train")          # Rows {"image": ..., "label": ...}.
        batches = gemjax.FromSource(source, batch_size=32)

    Grain's ``MapDataset`` decodes, augments or changes rows of any of these. gemjax decides the order and the batches, so
    leave out ``shuffle``, ``repeat``, ``batch`` and ``to_iter_dataset``:

    >>> import gemjax, grain
    >>> dataset = grain.MapDataset.source(np.arange(10)).map(lambda number: {"x": number * 1.5})
    >>> batches = FromSource(dataset, batch_size=2)

    Args:
      source: an object with ``len(source)`` and ``source[number]``, and preferably ``__getitems__(numbers)``, which gets a
        list of row numbers and returns a list of those rows, unstacked. The content of a row must depend on its number alone,
        and be in arrays of its own: a buffer that is filled again changes rows of the same batch.
      batches: the order of the rows: batches whose ``data`` are ``np.arange(len(source))``, of gemjax or of a class of your
        own that derives from :class:`gemjax.batches.Rows`. Leave ``None`` when ``batch_size`` is given.
      threads: largest number of batches read at the same time; positive, default 16. Use 1 if the source is not thread-safe.
      batch_size: rows per batch; short for ``batches=gemjax.Epochs(np.arange(len(source)), batch_size, seed)``.
      seed: seed of these epochs, a non-negative int; ``None`` (default) is 0.

    Raises:
      TypeError: if ``batches`` are not rows of data, or have a ``batch`` of their own; if ``source`` has no length or no rows.
      ValueError: if the data of ``batches`` are not ``np.arange(len(source))``, both ``batches`` and ``batch_size`` are given,
        or ``threads`` is not positive; when rows are read, if their structure, shapes or dtypes differ from those of the first.
      RuntimeError: when rows are read, if the source raises. Errors of reading name the row.

    >>> loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(50)
    >>> one = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, 0.0, batches, trace)
    >>> in_memory = gemjax.Epochs({"x": np.arange(10) * 1.5}, batch_size=2)
    >>> other = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, 0.0, in_memory, trace)
    >>> one.params == other.params
    Array(True, dtype=bool)
    """

    source: Any
    batches: Any = None
    threads: int = 16  # pyrefly: ignore[bad-override] (frozen)
    _: dataclasses.KW_ONLY
    batch_size: dataclasses.InitVar[int | None] = None
    seed: dataclasses.InitVar[int | None] = None
    # Number and shapes of the first row read.
    _first: list[tuple[int, PyTree]] = dataclasses.field(init=False, default_factory=list)
    # Turns of further threads that read, by the number of ``READERS``; by 0 the lock of a single thread.
    _turns: dict[int, threading.Semaphore] = dataclasses.field(init=False, default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FromSource):
            return NotImplemented
        return self.source is other.source and (self.batches, self.threads) == (other.batches, other.threads)

    def __hash__(self) -> int:
        return hash((id(self.source), self.batches, self.threads))  # A list of rows has no hash.

    def __repr__(self) -> str:
        return f"FromSource({type(self.source).__name__}, {self.batches!r}, threads={self.threads})"

    def __post_init__(self, batch_size, seed):
        _check_source(self.source)
        if batch_size is not None and self.batches is None:
            object.__setattr__(
                self, "batches", Epochs(np.arange(len(self.source)), batch_size, 0 if seed is None else seed)
            )
        elif batch_size is not None or seed is not None:
            raise ValueError("batch_size= and seed= stand for batches=gemjax.Epochs(...); give either these or batches")
        check_plain("FromSource", self.batches)
        if not np.array_equal(self.batches.data, np.arange(len(self.source))):
            raise ValueError(
                f"the data of batches= must be np.arange(len(source)), the numbers of the source's {len(self.source)} rows in "
                f"order, got {shown(self.batches.data)}"
            )
        integer("threads", self.threads, 1)
        self._adopt("shared", "num_workers")

    def gather(self, selection: np.ndarray) -> tuple[PyTree, np.ndarray]:
        """Return the selected rows in order, and their indices among them."""
        numbers = np.asarray(selection)
        wanted = numbers.reshape(-1, numbers.shape[-1]).tolist()
        # Local steps repeat the last batch of a worker that makes fewer than others.
        distinct = list(dict.fromkeys(map(tuple, wanted)))
        if self.threads == 1:
            # A thread of an earlier run may still read, and the source may not be made for two.
            with self._turns.setdefault(0, threading.Semaphore(1)):
                batches = [read_rows(self.source, rows) for rows in distinct]
        elif len(distinct) == 1:
            batches = [read_rows(self.source, distinct[0])]
        else:
            # The reads of one worker, which may never return, leave a thread to each of the others.
            turns = threading.Semaphore(max(0, self.threads - READERS.get()))
            turns = self._turns.setdefault(READERS.get(), turns)
            read = functools.partial(read_rows, self.source)
            batches = each(read, distinct, self.threads, SECONDS_AT_EXIT, turns)
        for (number, *_), batch in zip(distinct, batches, strict=True):
            row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
            if not self._first:
                self._first.append((number, row))
            _check_alike(number, row, *self._first[0])
        known = dict(zip(distinct, batches, strict=True))
        rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(known[tuple(one)] for one in wanted))
        return rows, np.arange(numbers.size, dtype=np.int32).reshape(numbers.shape)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_turns": {}}


def _check_source(source: Any) -> None:
    has_rows = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if not has_rows or isinstance(source, dict):  # A dict has arrays, or the splits of a dataset.
        raise TypeError(
            "a source needs a length and rows by number, source[number], such as tfds.data_source, a grain.MapDataset, one "
            f"split of a dataset, or the dataset of a loader; got {type(source).__name__}; give arrays as "
            "gemjax.Epochs(data, batch_size)"
        )


def read_rows(source: Any, numbers: Sequence[int]) -> PyTree:
    """Return rows of a source, stacked; errors name the row.

    >>> read_rows([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}], [2, 0])
    {'x': array([3., 1.])}
    """
    try:
        rows = list(source.__getitems__(list(numbers)))
    except Exception:  # One by one finds the row that failed; if none fails now, the rows are complete.
        rows = [_read(source, number) for number in numbers]
    arrays: list[PyTree] = []
    for number, row in zip(numbers, rows, strict=True):
        arrays.append(jax.tree.map(np.asarray, row))
        _check_alike(number, arrays[-1], numbers[0], arrays[0])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *arrays)
    for path, leaf in jax.tree.leaves_with_path(stacked) if not all(map(fits, jax.tree.leaves(stacked))) else ():
        check_range(f"a row of the source: {jax.tree_util.keystr(path) or 'it'}", leaf, RowsError)
    return stacked


def _check_alike(number: int, row: PyTree, first: int, like: PyTree) -> None:
    """Raise ``RowsError`` if row ``number`` is not like row ``first``; the leaves of both have shapes and dtypes."""
    kinds = [jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), one) for one in (row, like)]
    if kinds[0] != kinds[1]:
        raise RowsError(
            f"row {number} of the source is {kinds[0]}, but row {first} is {kinds[1]}; rows must be alike: crop, resize or pad "
            "arrays, and convert them to one dtype"
        )


def _read(source: Any, number: int) -> PyTree:
    try:
        return source[number]
    except Exception as error:
        raise RuntimeError(f"row {number} of the source cannot be read: {type(error).__name__}: {error}") from error
