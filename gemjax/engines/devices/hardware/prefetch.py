"""Selections of batches for the workers' steps, prefetched in threads if they have to be read."""

import concurrent.futures
import contextlib
import functools
import queue
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from gemjax.batches.base import RowsError, select
from gemjax.batches.rows import any_worker_takes
from gemjax.batches.threads import READERS, SECONDS_AT_EXIT, no_threads, start_thread
from gemjax.engines.checks import RunWarning
from gemjax.engines.running.interrupts import Held
from gemjax.protocol import PyTree
from gemjax.protocol.compat import settings_here
from gemjax.protocol.local_steps import PeriodsEndError

PATIENCE = 60.0  # Seconds without the first rows after which a run warns.


class Selections:
    """Selections of batches by (worker, step, draw), with their data if these are not on the devices.

    Args:
      batches: the run's batches.
      num_workers: number of workers N.
      retries: attempts after the first one to read a batch before the run; during the run the policy counts them.

    Attributes:
      prefetcher: prefetches batches that have to be read; ``None`` if there are none.
    """

    def __init__(self, batches: Any, num_workers: int, retries: int = 0):
        self.batches, self.num_workers, self._retries = batches, num_workers, retries
        self._any_worker = any_worker_takes(batches)
        threads = min(batches.threads, num_workers)
        self.prefetcher = Prefetcher(lambda key: self.read(*key), threads) if threads else None

    def is_ready(self, worker: int, step: int, draw: int) -> bool:
        """Return True if :meth:`take` would not wait; begins to read the batch otherwise."""
        return self.prefetcher is None or self.prefetcher.is_read(self._key(worker, step, draw))

    def take(
        self, worker: int, step: int, draw: int, following: Callable[[int], Iterable[int]] = lambda count: ()
    ) -> PyTree:
        """Return a selection and begin to read the next ones; ``following(count)`` returns the next draws of a stream."""
        if self.prefetcher is None:
            return self.read(worker, step, draw)
        selected = self.prefetcher.take(self._key(worker, step, draw))
        if not self.batches.shared:
            self.prefetcher.begin([(worker, step + 1, 0)])
        elif self._any_worker:
            self.prefetcher.begin((0, 0, later) for later in following(self.num_workers))
        return selected

    def drop(self, worker: int, step: int, draw: int) -> None:
        """Forget a batch whose gradient is committed."""
        if self.prefetcher is not None:
            self.prefetcher.drop(self._key(worker, step, draw))

    def example(self, worker: int = 0, read: Callable[[], PyTree] | None = None) -> PyTree:
        """Return ``read()`` before the run, with retries; by default and after its last period the worker's first selection."""
        try:
            return self._retried(read or functools.partial(self.read, worker, 0, 0))
        except PeriodsEndError:
            return self._retried(functools.partial(self.read, worker, 0, 0))

    def _retried(self, read: Callable[[], PyTree]) -> PyTree:
        with _late_warning() if self.prefetcher is not None else contextlib.nullcontext(), Held() as held:
            left = self._retries
            while True:
                try:
                    with held.interruptible():
                        return read()
                except Exception as error:
                    held.raise_again()
                    if not left or isinstance(error, (PeriodsEndError, RowsError)):
                        raise
                    left -= 1

    def read(self, worker: int, step: int, draw: int) -> PyTree:
        """Return a selection now, without prefetching."""
        selected = select(self.batches, *(np.array([number], np.int32) for number in (worker, step, draw)))
        return self.batches.gather(jax.tree.map(lambda column: column[0], selected))

    def _key(self, worker: int, step: int, draw: int) -> tuple[int, int, int]:
        """Return (worker, step, draw) with 0 for the parts that do not decide a batch."""
        if not self.batches.shared:
            return worker, step, 0
        return (0, 0, draw) if self._any_worker else (worker, step, draw)

    def close(self) -> None:
        """Prefetch nothing more."""
        if self.prefetcher is not None:
            self.prefetcher.close()


@contextlib.contextmanager
def _late_warning() -> Iterator[None]:
    """Warn if the first rows, which are read before a run looks at its clock, take long."""
    late = f"the first rows have not been read for {PATIENCE:g} s; the run waits for its source of data"
    timer = threading.Timer(PATIENCE, lambda: warnings.warn(late, RunWarning, stacklevel=2))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Prefetcher:
    """Batches that are being read in threads or have been read, by key.

    A batch is read once and kept until it is dropped, because a worker that fails repeats its step. :meth:`take` raises an
    error of reading once; then the batch is read anew.

    The threads are daemons and end after :meth:`close`. A read that never returns (from a lost file server, for example) does
    not delay the end of the run, and delays that of the interpreter by at most some seconds.

    Args:
      read: ``read(key)`` reads a batch; called in threads.
      threads: the maximum number of reads at the same time.
    """

    def __init__(self, read: Callable[[Any], PyTree], threads: int):
        self._read = read
        self._wanted: queue.SimpleQueue[tuple[Hashable, concurrent.futures.Future] | None] = queue.SimpleQueue()
        self._known: dict[Hashable, concurrent.futures.Future] = {}
        self._when_read: Callable[[], None] = lambda: None
        self._threads = threads
        self._begun = self._closed = False
        self._beginning = threading.Lock()  # The first batches are taken in several threads.
        self._settings = settings_here()  # Those of the calling thread: a source may compute its rows with JAX.

    def on_read(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in any thread, whenever a read has ended, with or without a batch."""
        self._when_read = wake

    def begin(self, keys: Iterable[Hashable]) -> None:
        """Begin to read batches, except those known already."""
        for key in keys:
            with self._beginning:
                if key not in self._known:
                    if not self._begun:
                        self._start()
                    self._known[key] = future = concurrent.futures.Future()
                    self._wanted.put((key, future))

    def is_read(self, key: Hashable) -> bool:
        """Return True if the batch can be taken without waiting; begin to read it otherwise."""
        self.begin([key])
        return self._known[key].done()

    def take(self, key: Hashable) -> PyTree:
        """Wait for the batch and return it; raise the exception of reading it."""
        self.begin([key])
        try:
            return self._known[key].result()
        except Exception:
            self.drop(key)
            raise

    def drop(self, key: Hashable) -> None:
        """Forget a batch."""
        self._known.pop(key, None)

    def close(self) -> None:
        """Read nothing more, without waiting for reads that are in progress."""
        self._closed = True
        for _ in range(self._threads):
            self._wanted.put(None)

    def _start(self) -> None:
        for number in range(self._threads):
            try:
                start_thread(self._read_wanted, name=f"gemjax-reader-{number}", seconds=SECONDS_AT_EXIT)
            except RuntimeError as error:
                if number == 0:
                    raise no_threads(error) from error
                break  # The others read all batches.
        self._begun = True

    def _read_wanted(self) -> None:
        READERS.set(self._threads)
        while (wanted := self._wanted.get()) is not None and not self._closed:
            key, future = wanted
            try:
                with self._settings():
                    read = self._read(key)
            except BaseException as error:  # Raised again in the thread that takes the batch.
                future.set_exception(error)
            else:
                future.set_result(read)
            del wanted, future, key
            read = None
            self._when_read()
