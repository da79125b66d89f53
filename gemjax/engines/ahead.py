"""Batches that are read by threads, before their workers need them."""

import concurrent.futures
from collections.abc import Callable, Hashable, Iterable
from typing import Any

PyTree = Any


class ReadAhead:
    """What is being read and what has been, by the key of the batch.

    A batch is read once and kept until it is dropped, because a worker that fails tries the same one again.

    Args:
      read: ``read(key)`` reads a batch; called in threads.
      threads: how many at the same time, at most.
    """

    def __init__(self, read: Callable[[Any], PyTree], threads: int):
        self._read = read
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "gemjax-reader")
        self._known: dict[Hashable, concurrent.futures.Future] = {}
        self._when_read: Callable[[], None] = lambda: None

    def on_read(self, wake: Callable[[], None]) -> None:
        """Has ``wake`` called, in any thread, each time that a batch has been read or could not be."""
        self._when_read = wake

    def begin(self, keys: Iterable[Hashable]) -> None:
        """Begins to read what is not known."""
        for key in keys:
            if key not in self._known:
                self._known[key] = future = self._pool.submit(self._read, key)
                future.add_done_callback(lambda _: self._when_read())

    def is_there(self, key: Hashable) -> bool:
        """Whether the batch could be taken without waiting; begins to read it."""
        self.begin([key])
        return self._known[key].done()

    def take(self, key: Hashable) -> PyTree:
        """The batch; waits for it, and raises what reading it raised."""
        self.begin([key])
        return self._known[key].result()

    def drop(self, key: Hashable) -> None:
        """Forgets a batch."""
        self._known.pop(key, None)

    def close(self) -> None:
        """Reads nothing more; does not wait for what is being read."""
        self._pool.shutdown(wait=False, cancel_futures=True)
