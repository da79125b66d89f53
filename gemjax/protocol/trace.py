"""Traces: the order of commits, the version of the central variable that each was computed on, and the draws of a stream."""

import contextlib
import dataclasses
import heapq
import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemjax.protocol.checks import integer
from gemjax.protocol.delays import rows_of_commits, rows_of_table

MOST_WORKERS = 1 << 20  # A trace needs memory for each worker, even if few commit.
COLUMNS = ("worker", "pulled_at", "step", "time", "draw")


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Trace:
    """The order of events of an asynchronous run: data, no mathematics.

    Row t is the commit made at clock t. A trace comes from an arrival model (:mod:`gemjax.arrivals`), from a run on
    devices, or from hand-written arrays, and drives :func:`gemjax.simulate`. It is checked when made.

    Args:
      worker: int32 [T]; the worker that commits, in ``range(num_workers)``.
      pulled_at: int32 [T]; the clock when that worker pulled the view of this commit, so ``pulled_at[t] <= t``. Default: each
        worker pulls right after its own commit, and all of them before the first.
      step: int32 [T]; that worker's own step, which selects its batch and key; strictly increasing for each worker (a
        step may be missing, as that of a rejected gradient). Default: 0, 1, 2, … for each worker.
      time: float64 [T]; the time of the commit, in units of the model or seconds; not decreasing. Default: t + 1.
      num_workers: number of workers N. Default: the largest worker plus one.
      draw: int32 [T]; the batch, of a stream that all workers share (:class:`gemjax.Stream`), that the commit was computed
        on; no two rows are equal. Default: all workers take part from the beginning. Each draws one before the first commit,
        in the order of their numbers, and the next right after each of its commits. Models with absent workers and runs on
        devices record their draws: that of an absent or lost worker goes to the worker that draws next, and a rejected or
        dropped commit draws a batch but has no row.
      read_at: int32 [T, B]; the clock at which the worker read each of B blocks of the parameters, as where workers read shared
        memory without a lock (:class:`gemjax.arrivals.Sweep`). Then ``pulled_at``, and so ``staleness``, is that of the oldest
        block. :func:`gemjax.rules.spread_blocks` says which numbers a block has. ``None`` (default): all at ``pulled_at``.

    Raises:
      ValueError: if the arrays differ in length, a worker is out of range, a pull is later than its commit or earlier than its
        worker's previous commit, a worker's step or a draw repeats, time decreases, or a block is read after the commit or
        before ``pulled_at``. The message names the first bad row.

    >>> import gemjax
    >>> trace = gemjax.Trace(worker=[0, 1, 1, 0])
    >>> trace.staleness
    array([0, 1, 0, 2], dtype=int32)
    """

    worker: np.ndarray
    pulled_at: np.ndarray
    step: np.ndarray
    time: np.ndarray
    num_workers: int
    draw: np.ndarray
    read_at: np.ndarray | None

    def __init__(
        self,
        worker: "npt.ArrayLike",
        pulled_at: "npt.ArrayLike | None" = None,
        step: "npt.ArrayLike | None" = None,
        time: "npt.ArrayLike | None" = None,
        num_workers: int | None = None,
        draw: "npt.ArrayLike | None" = None,
        read_at: "npt.ArrayLike | None" = None,
    ):
        worker = _integers("worker", worker)
        if num_workers is None:
            num_workers = int(worker.max(initial=0)) + 1
        num_workers = integer("num_workers", num_workers, 1, MOST_WORKERS)
        _check_rows(worker, (worker >= 0) & (worker < num_workers), "worker {} is not in range({})", num_workers)
        previous, count = previous_commits(worker)
        if read_at is not None:
            read_at = _integers("read_at", read_at, ndim=2)
            pulled_at = read_at.min(axis=1) if pulled_at is None else pulled_at
        values = {
            "worker": worker,
            "pulled_at": _integers("pulled_at", previous + 1 if pulled_at is None else pulled_at),
            "step": _integers("step", count if step is None else step),
            "time": np.arange(1.0, len(worker) + 1) if time is None else np.array(time, np.float64).ravel(),
            "num_workers": num_workers,
            "draw": _integers("draw", np.where(previous < 0, worker, num_workers + previous) if draw is None else draw),
            "read_at": read_at,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._validate(previous)

    @classmethod
    def from_delays(cls, delays: npt.ArrayLike) -> "Trace":
        """Return a trace with recorded delays, such as those that a server or a paper published.

        Args:
          delays: int [T], the staleness of each commit; workers are not recorded, so the trace has as few as possible. Or
            int [T, N], the age in steps of each worker's gradient in a server's table. Each entry of row 0 is a commit, and
            in row t each one whose version, t minus its age, differs from that in the row before.

        Returns:
          A trace of T commits with these delays, or of the commits of the table.

        Raises:
          ValueError: if no run has such delays: one is negative, or reaches back before the beginning.

        >>> trace = Trace.from_delays([0, 1, 1, 0, 2])
        >>> trace.staleness, trace.num_workers
        (array([0, 1, 1, 0, 2], dtype=int32), 2)
        """
        delays = np.asarray(delays)
        rows = rows_of_table(delays) if delays.ndim == 2 else rows_of_commits(delays)
        return cls(*rows)

    def _validate(self, previous: np.ndarray) -> None:
        lengths = {name: len(column) for name, column in self._columns().items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a trace must be equally long, got {lengths}")
        now = np.arange(len(self))
        _check_rows(
            self.pulled_at, self.pulled_at <= now, "it pulls the future: pulled_at is {}, the clock only {}", now
        )
        _check_rows(self.pulled_at, self.pulled_at >= 0, "pulled_at is {}, but the clock begins at {}", 0)
        _check_rows(
            self.pulled_at,
            self.pulled_at > previous,
            "it repeats a commit: pulled_at is {}, but the same worker committed that view at row {}; a worker pulls after "
            "each of its commits",
            previous,
        )
        last = np.where(previous >= 0, self.step[previous], -1)
        _check_rows(
            self.step, self.step > last, "it repeats a commit: step {} of a worker whose last step was {}", last
        )
        _check_rows(self.draw, self.draw >= 0, "draw is {}, but draws begin at {}", 0)
        first = np.unique(self.draw, return_index=True)[1]
        _check_rows(self.draw, np.isin(now, first), "draw {} is used by an earlier row", 0)
        if self.read_at is not None:
            oldest, newest = self.read_at.min(axis=1), self.read_at.max(axis=1)
            _check_rows(newest, newest <= now, "a block is read at {}, the clock is only {}", now)
            _check_rows(self.pulled_at, self.pulled_at == oldest, "pulled_at is {}, its oldest block is of {}", oldest)
        before = np.concatenate([self.time[:1], self.time[:-1]])
        ordered = np.isfinite(self.time) & (self.time >= before)
        _check_rows(self.time, ordered, "time {} is not finite, or earlier than the row before ({})", before)

    def __len__(self) -> int:
        return len(self.worker)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return self.num_workers == other.num_workers and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in (*COLUMNS, "read_at")
        )

    def __repr__(self) -> str:
        workers = f"{self.num_workers} worker{'s' * (self.num_workers != 1)}"
        if not len(self):
            return f"Trace(0 commits of {workers})"
        return (
            f"Trace({len(self):,} commits of {workers}, staleness median {np.median(self.staleness):g}, "
            f"time {self.time[0]:.4g} to {self.time[-1]:.4g})"
        )

    @property
    def staleness(self) -> np.ndarray:
        """Commits between the pull and the commit, int32 [T]."""
        return np.arange(len(self), dtype=np.int32) - self.pulled_at

    @property
    def num_blocks(self) -> int:
        """Number of blocks B of ``read_at``; 0 if every view is read at once."""
        if self.read_at is None or (self.read_at == self.pulled_at[:, None]).all():
            return 0
        return self.read_at.shape[1]

    def _columns(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in COLUMNS}
        return columns if self.read_at is None else columns | {"read_at": self.read_at}

    def first(self, count: int) -> "Trace":
        """Return the first ``count`` commits, a non-negative int."""
        columns = {name: column[:count] for name, column in self._columns().items()}
        return Trace(**columns, num_workers=self.num_workers)

    def events(self) -> "Events":
        """Return the arrivals in the order of execution, both those that commit and pull, and those that only pull.

        A worker normally pulls right after its commit. If it pulled later (it was retried, or its gradient was rejected), an
        arrival without a commit represents that pull; others represent the blocks that it read later. The trace does not store
        arrivals instead, for two reasons: ``step`` and ``draw`` may have gaps that no order of rejected gradients explains, as
        in files without draws; and gradients that a worker loses after its last commit leave no mark in these columns.
        """
        previous, _ = previous_commits(self.worker)
        late = np.flatnonzero(self.pulled_at > previous + 1)
        again, clock, blocks = self._late_reads()
        # An arrival of row t sorts at (t, 1); a late pull at clock c comes after commit c - 1, so at (c, 0).
        row = np.concatenate([np.arange(len(self)), late, again])
        position = np.concatenate([np.arange(len(self)), self.pulled_at[late], clock])
        is_commit = np.arange(len(row)) < len(self)
        blocks = np.concatenate([np.ones((len(row) - len(again), self.num_blocks), bool), blocks])
        order = np.lexsort((row, is_commit, position))
        row, is_commit, blocks = row[order], is_commit[order], blocks[order]
        return Events(self.worker[row], self.step[row], is_commit, row, self.draw[row], blocks)

    def _late_reads(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows and clocks at which blocks are read after the pull, and which blocks, bool [., B]."""
        if self.read_at is None or not self.num_blocks:
            return np.zeros(0, int), np.zeros(0, int), np.zeros((0, 0), bool)
        rows, block = np.nonzero(self.read_at > self.pulled_at[:, None])
        reads = np.stack([rows, self.read_at[rows, block]], axis=1)
        reads, index = np.unique(reads, axis=0, return_inverse=True)
        blocks = np.zeros((len(reads), self.num_blocks), bool)
        blocks[index.reshape(-1), block] = True
        return reads[:, 0], reads[:, 1], blocks

    def save(self, path: str | os.PathLike) -> None:
        """Write the trace to ``path`` (.npz, no pickle). If that fails, a file that was there is as before."""
        content = io.BytesIO()
        np.savez_compressed(content, num_workers=np.array(self.num_workers), **self._columns())
        write_or_leave(path, content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Trace":
        """Read a trace that :meth:`save` wrote, and check it.

        Raises:
          ValueError: if the file is not a trace, is damaged, or holds an impossible trace.
        """
        with open(path, "rb") as file:
            try:
                with np.load(file, allow_pickle=False) as archive:
                    columns = {name: archive[name] for name in (*COLUMNS, "read_at") if name in (*COLUMNS, *archive)}
                    return cls(**columns, num_workers=int(archive["num_workers"]))
            except Exception as error:  # Damaged bytes make zipfile, zlib and NumPy raise almost anything.
                raise ValueError(f"{os.fspath(path)} is not a gemjax trace, or is damaged: {error}") from error


def write_or_leave(path: str | os.PathLike, content: bytes) -> None:
    """Write a file. If that fails, one that was there is as before; a pipe or a device takes the content, too."""
    before = None
    if os.path.isfile(path):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            before = file.read()
    try:
        _write(path, content, over=before is not None)
    except BaseException:
        if before is not None:
            _write(path, before, over=True)
        raise


def _write(path: str | os.PathLike, content: bytes, *, over: bool) -> None:
    """Write a file, over what it has: its place on a disk that is full stays its own."""
    with open(path, "r+b" if over else "wb") as file:
        file.write(content)
        file.flush()
        if over:
            file.truncate()


def check_trace(trace: object) -> None:
    """Raise ``TypeError`` unless ``trace`` is a :class:`Trace`."""
    if not isinstance(trace, Trace):
        is_model = hasattr(trace, "trace") and not hasattr(trace, "shape")  # Arrays have another `trace`.
        advice = "call its .trace(num_commits)" if is_model else "make one with gemjax.Trace(worker=…)"
        raise TypeError(f"trace must be a gemjax.Trace, got {type(trace).__name__}; {advice}")


class Events(NamedTuple):
    """Arrivals in the order of execution; ``row`` is the row of the trace that an arrival belongs to."""

    worker: np.ndarray  # int32 [E]
    step: np.ndarray  # int32 [E]
    commits: np.ndarray  # bool [E]; False: the worker discards its gradient and pulls again.
    row: np.ndarray  # int [E]
    draw: np.ndarray  # int32 [E]
    blocks: np.ndarray  # bool [E, B]; the blocks that the worker reads: all, or some of an earlier pull.

    @property
    def whole(self) -> np.ndarray:
        """Return False for the arrivals that only read some blocks, bool [E]."""
        return np.asarray(self.blocks.all(axis=1))


class Draws:
    """The draws that workers hold: a worker draws a batch when it is to compute, and holds it until its commit.

    A draw that was given back goes to the worker that draws next; only if there is none, that worker gets a new number. So
    the draws of all commits have no gap for long.

    Args:
      held: per worker, the draw that it holds. New numbers begin after the largest one.

    >>> draws = Draws([0, 1, 2])
    >>> draws.give_back(1)                               # Worker 1 is absent.
    >>> draws.use(0)
    >>> draws.of(0), draws.of(1)
    (1, 3)
    """

    def __init__(self, held: Sequence[int]):
        self._held = dict(enumerate(held))
        self._free: list[int] = []  # A heap.
        self._next = 1 + max(held)
        self._failed: set[int] = set()  # Draws with which a worker has failed.

    def of(self, worker: int) -> int:
        """Return the draw of a worker, which draws if it holds none."""
        if worker not in self._held:
            self._held[worker] = self.following(1)[0]
            if self._free:
                heapq.heappop(self._free)
            else:
                self._next += 1
        return self._held[worker]

    def use(self, worker: int) -> None:
        """Note that a worker has committed on its draw."""
        self._failed.discard(self._held.pop(worker))

    def give_back(self, worker: int, *, failed: bool = False) -> None:
        """Take the draw of a worker back, if it holds one.

        If two workers in turn have ``failed`` with a draw, its batch may be the reason: no worker draws it again.
        """
        draw = self._held.pop(worker, None)
        if draw is None:
            return
        if failed and draw in self._failed:
            self._failed.remove(draw)
            return
        heapq.heappush(self._free, draw)
        if failed:
            self._failed.add(draw)

    def following(self, count: int) -> list[int]:
        """Return the next ``count`` draws."""
        free = heapq.nsmallest(count, self._free)
        return [*free, *range(self._next, self._next + count - len(free))]

    def per_worker(self, num_workers: int) -> list[int]:
        """Return the draw of each worker: the one that it holds, or one that it may draw."""
        following = iter(self.following(num_workers))
        return [self._held[worker] if worker in self._held else next(following) for worker in range(num_workers)]


def draws_after(draws: np.ndarray, worker: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the draws of all workers, int [N], after commits of ``worker`` on ``drawn``, from those before.

    They are the first N that no commit has used, and the worker that has committed last has the newest.

    >>> draws_after(np.arange(3), np.array([0, 1, 0]), np.array([0, 1, 3]))
    array([5, 4, 2])
    """
    known = np.append(draws, draws.max() + 1 + np.arange(len(drawn)))
    last = np.full(len(draws), -1)
    last[worker] = np.arange(len(worker))  # The last one counts.
    after = np.empty_like(draws)
    after[np.lexsort((draws, last))] = np.setdiff1d(known, drawn)[: len(draws)]
    return after


def previous_commits(worker: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, per row, the row of the same worker's previous commit (-1: none), and the number of its earlier commits."""
    order = np.argsort(worker, kind="stable")
    same = np.concatenate([[False], worker[order][1:] == worker[order][:-1]])[: len(worker)]
    previous = np.full(len(worker), -1, np.int32)
    previous[order[1:]] = np.where(same[1:], order[:-1], -1)
    starts = np.maximum.accumulate(np.where(same, 0, np.arange(len(worker)))) if len(worker) else np.arange(0)
    count = np.empty(len(worker), np.int32)
    count[order] = np.arange(len(worker)) - starts
    return previous, count


def _integers(name: str, values, ndim: int = 1) -> np.ndarray:
    array = np.asarray(values)
    fits = np.issubdtype(array.dtype, np.integer) and (array == array.astype(np.int32)).all()
    if array.ndim != ndim or not (fits or array.size == 0):
        kind = "vector" if ndim == 1 else "matrix"
        raise ValueError(f"{name} must be a {kind} of integers that fit 32 bits, got {array.dtype}{list(array.shape)}")
    return array.astype(np.int32)


def _check_rows(found: np.ndarray, valid: np.ndarray, message: str, expected) -> None:
    if valid.all():
        return
    row = int(np.argmin(valid))
    wanted = expected if np.ndim(expected) == 0 else expected[row]
    raise ValueError(f"row {row} of the trace cannot happen: " + message.format(found[row], wanted))
