"""Threads that may never return: work in several of them, and the end of the interpreter, which compiled code would abort."""

import atexit
import contextvars
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from gemjax.protocol.compat import settings_here

AT_MOST = 60.0  # Seconds; a gradient may take long.
SECONDS_AT_EXIT = 5.0  # For a read, which may never return.
# Number of threads that read, this one included, each for a worker of its own.
READERS: contextvars.ContextVar[int] = contextvars.ContextVar("READERS", default=1)
_all: weakref.WeakKeyDictionary[threading.Thread, float] = weakref.WeakKeyDictionary()
_adding = threading.Lock()


def start_thread(function: Callable[..., Any], *args: Any, name: str, seconds: float = AT_MOST) -> threading.Thread:
    """Call a function in a daemon thread whose end the interpreter waits for before it ends itself.

    A daemon thread that requests the interpreter's lock during the end is stopped at once. Below the frames of compiled
    code (``block_until_ready``, readers of data, the release of an array on a device) this is an exception that nothing may
    catch: "FATAL: exception not rethrown", status 134, after a successful run. So a thread counts until it has ended, whatever
    it does: user code may compute, and the thread's last references may be those of arrays.

    Args:
      function: called with ``args``; it has to return once its work is not wanted any more.
      args: its arguments.
      name: name of the thread.
      seconds: time that the end of the interpreter waits for the thread, at most.

    Returns:
      The thread, which has begun.

    Raises:
      RuntimeError: if the system allows no more threads; :func:`no_threads` says what a run can do.

    >>> start_thread(print, "in another thread", name="printer").join()
    in another thread
    """
    thread = threading.Thread(target=function, args=args, name=name, daemon=True)
    with _adding:
        _all[thread] = seconds
    thread.start()
    return thread


def no_threads(error: RuntimeError) -> OSError:
    """Return what a run raises if a thread cannot be started."""
    return OSError(
        f"the system allows no more threads ({error}), and a run needs one per worker and more to read data; take fewer "
        "workers or threads, or raise the limit, as by ulimit -u or that of the container"
    )


def _alive() -> dict[threading.Thread, float]:
    """Return the threads that have not ended, with the seconds to wait for each."""
    with _adding:  # A thread that has not ended may begin others.
        return {thread: seconds for thread, seconds in _all.items() if thread.is_alive()}


@atexit.register
def _wait() -> None:
    began = time.perf_counter()
    while alive := _alive():
        thread = max(alive, key=alive.__getitem__)
        left = began + alive[thread] - time.perf_counter()
        if left <= 0:
            print(
                f"gemjax: threads are still busy {alive[thread]:g} s after the end; not waiting any longer",
                file=sys.stderr,
            )
            return
        thread.join(left)


class _Crew:
    """Threads that compute the values of some items."""

    def __init__(self, function: Callable[[Any], Any], items: list):
        self._function, self._left = function, iter(enumerate(items))
        self.found: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self.dismissed = False
        self._lock = threading.Lock()
        self._settings = settings_here()  # Those of the calling thread: sources and programs compute with JAX.

    def help(self, turns: threading.Semaphore | None) -> None:
        """Compute in another thread, and then release the turn that it took, if any."""
        try:
            self.work()
        finally:
            if turns is not None:
                turns.release()

    def work(self) -> None:
        """Compute until no item is left."""
        with self._settings():
            while not self.dismissed:
                with self._lock:
                    number, item = next(self._left, (None, None))
                    if number is None:
                        return
                value, error = None, None
                try:
                    value = self._function(item)
                except BaseException as raised:  # Raised again in the calling thread; items before this one have begun.
                    error, self.dismissed = raised, True
                self.found.put((number, value, error))
                del value, error


def each(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    threads: int,
    seconds: float = AT_MOST,
    turns: threading.Semaphore | None = None,
) -> list:
    """Return the values of all items, computed in daemon threads, or raise the exception of the first item that has one.

    An item that takes without end holds up neither an exception such as Ctrl-C nor the end of the interpreter.

    Args:
      function: called with one item in a thread, with the settings of JAX of the calling thread.
      items: the items.
      threads: items to compute at a time, at most.
      seconds: time that the end of the interpreter waits for threads that still compute, at most.
      turns: a semaphore of all calls that share their threads. The first thread of a call takes no turn. By default ``threads``
        alone limits.

    >>> each(lambda number: 10 * number, [1, 2, 3], threads=2)
    [10, 20, 30]
    """
    items = list(items)
    crew = _Crew(function, items)
    known: dict[int, Any] = {}
    try:
        for number in range(min(len(items), threads)):
            if number and turns is not None and not turns.acquire(blocking=False):
                break
            own = None if number == 0 else turns
            try:
                start_thread(crew.help, own, name=f"gemjax-worker-{number}", seconds=seconds)
            except RuntimeError as error:
                if number == 0:
                    raise no_threads(error) from error
                if own is not None:
                    own.release()
                break
        for number in range(len(items)):
            while number not in known:
                found, *outcome = crew.found.get()
                known[found] = outcome
            if (error := known[number][1]) is not None:
                raise error
    finally:
        crew.dismissed = True
    return [known[number][0] for number in range(len(items))]
