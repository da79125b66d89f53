"""Batches that are read by threads, before their workers need them."""

import concurrent.futures
import queue
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from gemjax.engines.devices.hardware import shutdown as at_exit

PyTree = Any
SECONDS_AT_EXIT = 5.0  # For which the interpreter's end waits for a read: one that takes longer may never end.


class ReadAhead:
    """What is being read and what has been, by the key of the batch.

    A batch is read once and kept until it is dropped, because a worker that fails tries the same one again; one that could
    not be read is forgotten when that is told, and so read anew.

    The threads are daemons, and end for good when it is closed: a read that never ends, of a lost file server, say, holds up
    neither the end of the run nor, for long, that of the interpreter.

    Args:
      read: ``read(key)`` reads a batch; called in threads.
      threads: how many at the same time, at most.
    """

    def __init__(self, read: Callable[[Any], PyTree], threads: int):
        self._read = read
        self._wanted: queue.SimpleQueue[tuple[Hashable, concurrent.futures.Future] | None] = queue.SimpleQueue()
        self._known: dict[Hashable, concurrent.futures.Future] = {}
        self._when_read: Callable[[], None] = lambda: None
        self._reading = [False] * threads
        self._begun = self._closed = False

    def on_read(self, wake: Callable[[], None]) -> None:
        """Has ``wake`` called, in any thread, each time that a batch has been read or could not be."""
        self._when_read = wake

    def begin(self, keys: Iterable[Hashable]) -> None:
        """Begins to read what is not known."""
        for key in keys:
            if key not in self._known:
                if not self._begun:
                    self._start()
                self._known[key] = future = concurrent.futures.Future()
                self._wanted.put((key, future))

    def is_there(self, key: Hashable) -> bool:
        """Whether the batch could be taken without waiting; begins to read it."""
        self.begin([key])
        return self._known[key].done()

    def take(self, key: Hashable) -> PyTree:
        """The batch; waits for it, and raises what reading it raised."""
        self.begin([key])
        try:
            return self._known[key].result()
        except Exception:
            self.drop(key)
            raise

    def drop(self, key: Hashable) -> None:
        """Forgets a batch."""
        self._known.pop(key, None)

    def are_inside(self) -> bool:
        """Whether a thread reads."""
        return any(self._reading)

    def close(self) -> None:
        """Reads nothing more; does not wait for what is being read."""
        self._closed = True
        for _ in self._reading:
            self._wanted.put(None)

    def _start(self) -> None:
        self._begun = True
        for number in range(len(self._reading)):
            name = f"gemjax-reader-{number}"
            threading.Thread(target=self._read_wanted, args=(number,), name=name, daemon=True).start()
        at_exit.wait_for(self, SECONDS_AT_EXIT)

    def _read_wanted(self, number: int) -> None:
        while (wanted := self._wanted.get()) is not None and not self._closed:
            key, future = wanted
            self._reading[number] = True
            try:
                read = self._read(key)
            except BaseException as error:  # Whatever it is, whoever takes the batch is to hear of it.
                future.set_exception(error)
            else:
                future.set_result(read)
            self._reading[number] = False
            del wanted, future, key
            read = None
            self._when_read()
