"""Threads that only wait: one a worker, and one queue of those that have finished."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax

from gemjax.engines.devices.hardware import shutdown as at_exit
from gemjax.engines.devices.hardware.compat import enable_x64


class Arrival(NamedTuple):
    """A worker has finished, or failed."""

    worker: int
    step: int
    dispatched: float  # Seconds since the run began.
    began: float | None  # time.perf_counter() when the worker had its view; none if it had it when dispatched.
    ready: float  # time.perf_counter().
    gradient: Any  # Packed; on the worker's device.
    error: BaseException | None = None


class Waiters:
    """Puts workers into a queue in the order in which their gradients are finished.

    First finished, first served: no worker can be overtaken by one that finished later, so none can starve. The threads
    are daemons and never touch a device except to wait for it, which releases the interpreter; its end waits for
    those that do (:func:`gemjax.engines.devices.hardware.shutdown.wait_for`).
    """

    def __init__(self, num_workers: int, gate: Callable[[int, int], Any] | None = None):
        self._gate = gate
        self._ready: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._watched = [False] * num_workers  # Set by the scheduler, taken back by the worker's thread.
        self._inside = [False] * num_workers  # Whether the worker's thread waits for a device.
        self._closed = False
        self._x64 = jax.config.read("jax_enable_x64")  # As the caller has it: a gate may compute.
        self._inboxes = [queue.SimpleQueue() for _ in range(num_workers)]
        self._threads = [
            threading.Thread(target=self._wait, args=(inbox,), name=f"gemjax-waiter-{w}", daemon=True)
            for w, inbox in enumerate(self._inboxes)
        ]

    def watch(self, worker: int, step: int, dispatched: float, view: Any, gradient: Any) -> None:
        """Has the worker's thread wait for ``gradient`` and report it; and for ``view`` if that is still on its way."""
        on_its_way = [part for part in jax.tree.leaves(view) if not part.is_ready()]
        self._watched[worker] = True
        self._inboxes[worker].put((worker, step, dispatched, on_its_way, gradient))

    def failed(self, worker: int, step: int, dispatched: float, error: Exception) -> None:
        """Queues a worker whose computation could not even be started."""
        self._ready.put(Arrival(worker, step, dispatched, None, time.perf_counter(), None, error))

    def next(self, timeout: float | None = None) -> Arrival | None:
        """The worker that has been finished longest; waits for one if there is none.

        ``None`` after ``timeout`` seconds, or when woken.
        """
        try:
            return self._ready.get(timeout=timeout)
        except queue.Empty:
            return None

    def watches(self, worker: int) -> bool:
        """Whether what the worker was last watched for is still to be put into the queue."""
        return self._watched[worker]

    def are_inside(self) -> bool:
        """Whether a thread waits for a device."""
        return any(self._inside)

    def wake(self) -> None:
        """Has :meth:`next` return though nobody has finished; from any thread."""
        self._ready.put(None)

    def _wait(self, inbox: queue.SimpleQueue) -> None:
        with enable_x64(self._x64):
            self._wait_for_each(inbox)

    def _wait_for_each(self, inbox: queue.SimpleQueue) -> None:
        while (item := inbox.get()) is not None:
            worker, step, dispatched, on_its_way, gradient = item
            if self._closed:
                break
            error = began = None
            try:
                self._inside[worker] = True
                if on_its_way:
                    _wait_for(on_its_way)  # The commit before it is queued at the centre still.
                    began = time.perf_counter()
                _wait_for(jax.tree.leaves(gradient))
                self._inside[worker] = False
                if self._gate is not None:
                    change = self._gate(worker, step)
                    gradient = gradient if change is None else change(gradient)
            except BaseException as raised:  # Whatever is raised here is the scheduler's to handle: the thread goes on.
                error = raised
                self._inside[worker] = False
            self._watched[worker] = (
                False  # First: who is no longer watched is in the queue as soon as somebody looks there.
            )
            self._ready.put(Arrival(worker, step, dispatched, began, time.perf_counter(), gradient, error))
            del item, on_its_way, gradient  # Not kept until the worker's next one.

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        at_exit.wait_for(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for inbox in self._inboxes:
            inbox.put(None)


def _wait_for(arrays: list[jax.Array]) -> None:
    # Of each by itself: for a tree of one, as it mostly is, in a third of the time of jax.block_until_ready.
    for array in arrays:
        array.block_until_ready()
