"""Data that no memory holds: the rows of a batch are read when it is needed, and a little before."""

import concurrent.futures
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from gemjax.batches import Rows, count_rows, is_shared, select

PyTree = Any


class RandomAccess(Protocol):
    """What rows are read from: those of TFDS's data sources, of Grain's, of PyTorch's map-style datasets, or your own.

    One that has ``__getitems__(numbers) -> rows``, too, is asked for a whole batch at a time.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> PyTree:
        """A row: a pytree of arrays and numbers, of the same shapes for all rows."""


@dataclasses.dataclass(frozen=True)
class FromSource:
    """The same batches, but their rows are read from a source with random access; for data that do not fit memory.

    :class:`gemjax.Epochs`, :class:`gemjax.Shards` or :class:`gemjax.Stream`, of the numbers of the rows in place of the rows,
    say which rows a batch has, so that any batch can be read again: by a run that is continued, or replayed in another
    engine. Results are those of the same rows in memory, bit for bit, under the condition that :class:`gemjax.OnHost` names.

    :func:`gemjax.run_on_devices` reads a worker's next batch while it computes the present one, in threads; a worker whose
    batch is late waits for it alone, and the others go on. (A policy's deadline begins when the batch is there. What
    cannot be read is tried again, as often as the policy says. Local steps on
    a :class:`gemjax.Stream` are read in threads but not ahead: who draws what is known only when it is drawn.)
    :func:`gemjax.simulate` reads the rows of a chunk while the chunk before is computed.

    Args:
      source: an object with ``len(source)`` and ``source[number]``, such as ``tfds.data_source("mnist", split="train")`` or a
        ``grain.MapDataset`` (whose ``map`` changes rows); better still with ``__getitems__``. Rows are arrays and numbers in a
        pytree; text has to be left out. What a row holds must depend on its number alone.
      batches: which rows: batches whose ``data`` are ``np.arange(len(source))``, of gemjax or of a class of your own that
        derives from :class:`gemjax.batches.Rows`.
      threads: how many batches are read at the same time, at most; positive, default 16. 1 if the source cannot bear several.

    Raises:
      TypeError: if ``batches`` are not rows of data, or ``source`` has no length or no rows; when rows are read, if one holds
        something that is no number.
      ValueError: if ``batches`` have another number of rows, or ``threads`` is not positive; when rows are read, if one has
        other shapes than the others.
      RuntimeError: when rows are read, if the source raises. All of these name the row.

    >>> import gemjax
    >>> class Squares:                           # On a disk, say, or behind a network.
    ...     def __len__(self):
    ...         return 10
    ...     def __getitem__(self, number):
    ...         return {"x": number * 1.5}
    >>> batches = FromSource(Squares(), gemjax.Epochs(np.arange(10), batch_size=2))
    >>> loss_fn = lambda params, batch: ((params - batch["x"]) ** 2).mean()
    >>> trace = gemjax.arrivals.Gamma(4).trace(50)
    >>> one = gemjax.simulate(gemjax.asgd(0.1, 4), loss_fn, 0.0, batches, trace)
    >>> in_memory = gemjax.Epochs({"x": np.arange(10) * 1.5}, batch_size=2)
    >>> other = gemjax.simulate(gemjax.asgd(0.1, 4), loss_fn, 0.0, in_memory, trace)
    >>> one.params == other.params
    Array(True, dtype=bool)
    """

    source: Any
    batches: Any
    threads: int = 16
    data: ClassVar[PyTree] = ()

    def __repr__(self) -> str:
        return f"FromSource({type(self.source).__name__}, {self.batches!r}, threads={self.threads})"

    def __post_init__(self):
        if not isinstance(self.batches, Rows):
            raise TypeError(
                "FromSource needs batches that are rows: gemjax.Epochs, gemjax.Shards, gemjax.Stream of "
                "np.arange(len(source)), or a class that derives from gemjax.batches.Rows; got "
                f"{type(self.batches).__name__}"
            )
        if not (hasattr(self.source, "__len__") and hasattr(self.source, "__getitem__")):
            raise TypeError(
                "a source has a length and rows by their number, source[number], such as tfds.data_source or a "
                f"grain.MapDataset; got {type(self.source).__name__}"
            )
        if (rows := count_rows(self.batches.data)) != len(self.source):
            raise ValueError(
                f"the batches are made of {rows} rows, but the source has {len(self.source)}; make them of "
                "np.arange(len(source))"
            )
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            raise ValueError(f"threads must be a positive int, got {self.threads!r}")

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
        numbers = np.asarray(selection)
        wanted = numbers.reshape(-1, numbers.shape[-1]).tolist()
        if len(wanted) == 1 or self.threads == 1:
            read = [read_rows(self.source, rows) for rows in wanted]
        else:
            with concurrent.futures.ThreadPoolExecutor(min(len(wanted), self.threads)) as pool:
                read = list(pool.map(lambda rows: read_rows(self.source, rows), wanted))
        rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *read)
        return rows, np.arange(numbers.size, dtype=np.int32).reshape(numbers.shape)

    def batch(self, data: PyTree, selection: PyTree) -> PyTree:
        return self.batches.batch(data, selection)


def read_rows(source: Any, numbers: Sequence[int]) -> PyTree:
    """Rows of a source, stacked; errors name the row.

    >>> read_rows([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}], [2, 0])
    {'x': array([3., 1.])}
    """
    if hasattr(source, "__getitems__"):
        try:
            rows = list(source.__getitems__(numbers))
        except Exception:  # Which row it was comes to light one by one; one that is well by then has its answer, too.
            rows = [_read(source, number) for number in numbers]
        if len(rows) != len(numbers):
            raise RuntimeError(f"__getitems__ of the source was asked for {len(numbers)} rows and gave {len(rows)}")
    else:
        rows = [_read(source, number) for number in numbers]
    like, structure = jax.tree.flatten_with_path(rows[0])
    columns: list[list[np.ndarray]] = [[] for _ in like]
    for number, row in zip(numbers, rows, strict=True):
        leaves, found = jax.tree.flatten(row)
        if found != structure:
            raise ValueError(f"row {number} of the source is {found}, but row {numbers[0]} is {structure}")
        for (path, _), leaf, column in zip(like, leaves, columns, strict=True):
            column.append(leaf := np.asarray(leaf))
            name = jax.tree_util.keystr(path) or "it"
            if leaf.dtype.kind not in "biufcV" or leaf.dtype.fields:  # V: bfloat16 and its like.
                raise TypeError(
                    f"row {number} of the source: {name} is {type(leaf.item() if not leaf.ndim else leaf).__name__} "
                    f"({leaf.dtype}), and devices take numbers only; leave it out, as a source of your own or Grain's "
                    "MapDataset.map does"
                )
            if leaf.shape != column[0].shape:
                raise ValueError(
                    f"row {number} of the source: {name} has the shape {leaf.shape}, but that of row {numbers[0]} has "
                    f"{column[0].shape}; rows of a batch must be alike: crop, resize or pad them"
                )
    return jax.tree.unflatten(structure, [np.stack(column) for column in columns])


def _read(source: Any, number: int) -> PyTree:
    try:
        return source[number]
    except Exception as error:
        raise RuntimeError(f"row {number} of the source cannot be read: {type(error).__name__}: {error}") from error
