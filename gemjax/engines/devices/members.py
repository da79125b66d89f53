"""Workers that join and leave during a run."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from gemjax.protocol.checks import check_positive_int, integer


class Members:
    """Requests that workers join or leave a run on devices. All methods may be called from any thread and from callbacks.

    The run does not wait for a worker that leaves, and discards its gradient. A worker that joins pulls and continues with its
    next step and with the method's memory of it; one that has never committed begins at the central variable. N is fixed: it
    is the largest number of workers at a time. A run that all workers have left waits for one to join, and warns after a
    minute; :meth:`close` ends such a run. After a run, ``absent`` has the workers that had left: a run that continues it with
    the same members begins without them. Two runs at a time need members of their own.

    Args:
      num_workers: number of workers N, positive.
      absent: workers that do not take part at the start.

    >>> members = Members(4, absent=[3])
    >>> members.leave(0)
    >>> members.join(3)
    """

    def __init__(self, num_workers: int, absent: "Iterable[int]" = ()):
        check_positive_int("num_workers", num_workers)
        self.num_workers = num_workers
        self._absent = {integer("worker", worker, 0, num_workers - 1) for worker in absent}
        self._requests: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._closed = False
        self._in_use = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    @property
    def absent(self) -> frozenset[int]:
        """Workers that do not take part, according to the requests that the run has handled."""
        return frozenset(self._absent)

    def join(self, worker: int) -> None:
        """Let ``worker``, which may have been given up, take part from now on. Do nothing if it takes part already.

        One whose process or host is lost takes part by itself when it is back.

        Raises:
          RuntimeError: after :meth:`close`.
        """
        if self._closed:
            raise RuntimeError(f"worker {worker} cannot join: these members are closed")
        self._request("join", worker)

    def leave(self, worker: int) -> None:
        """Exclude ``worker`` from now on. Do nothing if it does not take part."""
        self._request("leave", worker)

    def look(self) -> None:
        """Request a call of the run's callback now, even without a commit; for example in a signal handler that ends the run.

        If the run is still being compiled, the callback is called as soon as it begins.
        """
        self._requests.put(("look", -1))
        self._wake()

    def close(self) -> None:
        """Accept no more workers: a run that all workers have left then fails, with the result up to there."""
        self._closed = True
        self._wake()

    @property
    def closed(self) -> bool:
        """True if no worker can join any more and the run has handled all requests."""
        return self._closed and self._requests.empty()

    def _request(self, kind: str, worker: int) -> None:
        self._requests.put((kind, integer("worker", worker, 0, self.num_workers - 1)))
        self._wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` at each request, until the run ends.

        Raises:
          RuntimeError: during another run, which would take the requests of this one.
        """
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError("these members are in use by another run; give each run members of its own")
        before, self._wake = self._wake, wake
        try:
            yield
        finally:
            self._wake = before
            self._in_use.release()

    def requests(self) -> Iterable[tuple[str, int]]:
        """Yield the requests since the last call, in order: ``"join"``, ``"leave"`` or ``"look"``, and the worker."""
        while not self._requests.empty():
            kind, worker = self._requests.get()
            if kind == "join":
                self._absent.discard(worker)
            elif kind == "leave":
                self._absent.add(worker)
            yield kind, worker
