"""Who takes part in a run: workers join and leave while it goes on."""

import contextlib
import queue
from collections.abc import Callable, Iterable, Iterator

from gemjax.protocol.slots import check_worker
from gemjax.protocol.staleness import check_num_workers


class Members:
    """Lets workers join and leave a run on devices; its methods may be called from any thread, callbacks included.

    A worker that leaves is not waited for, and what it is computing is thrown away. One that joins pulls and goes on with its
    next step; what the method remembers of it is what it left behind. N is fixed: it is how many workers there can be at once.
    A run that everybody has left waits for somebody to join, and says so after a minute; :meth:`close` ends it. When a run has
    ended, ``absent`` are those who had left by then: a run that continues it with the same members begins without them.

    Args:
      num_workers: number of workers N, positive.
      absent: those that are not there at the start.

    >>> members = Members(4, absent=[3])
    >>> members.leave(0)
    >>> members.join(3)
    """

    def __init__(self, num_workers: int, absent: Iterable[int] = ()):
        check_num_workers(num_workers)
        self.num_workers = num_workers
        self._absent = {int(check_worker(worker, num_workers)) for worker in absent}
        self._requests: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._closed = False
        self._wake: Callable[[], None] = _nobody

    @property
    def absent(self) -> frozenset[int]:
        """Those that are not there, as far as the run has heard."""
        return frozenset(self._absent)

    def join(self, worker: int) -> None:
        """Has ``worker`` take part from now on, one that was given up, too; nothing happens if it does.

        Raises:
          RuntimeError: after :meth:`close`.
        """
        if self._closed:
            raise RuntimeError(f"worker {worker} cannot join: these members are closed")
        self._request("join", worker)

    def leave(self, worker: int) -> None:
        """Has ``worker`` take part no longer; nothing happens if it does not."""
        self._request("leave", worker)

    def look(self) -> None:
        """Has the run's callback called now, though nothing has happened; from a signal handler, say, that wants it ended.

        In a run that is still being compiled it is called as soon as the run begins.
        """
        self._requests.put(("look", -1))
        self._wake()

    def close(self) -> None:
        """Says that nobody joins any more: a run that everybody has left fails then, with what it has reached."""
        self._closed = True
        self._wake()

    @property
    def closed(self) -> bool:
        """Whether nobody joins any more, and what was asked for before is done."""
        return self._closed and self._requests.empty()

    def _request(self, kind: str, worker: int) -> None:
        self._requests.put((kind, int(check_worker(worker, self.num_workers))))
        self._wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Has the scheduler woken at each request, until its run ends."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = _nobody

    def requests(self) -> Iterable[tuple[str, int]]:
        """What has been asked for since the last time, in order: ``"join"``, ``"leave"`` or ``"look"``, and the worker."""
        while not self._requests.empty():
            kind, worker = self._requests.get()
            if kind == "join":
                self._absent.discard(worker)
            elif kind == "leave":
                self._absent.add(worker)
            yield kind, worker


def _nobody() -> None:
    pass
