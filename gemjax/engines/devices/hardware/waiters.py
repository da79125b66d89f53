"""Waiting threads, one per worker, and one queue of the workers that have finished."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import jax

from gemjax.batches.threads import no_threads, start_thread
from gemjax.protocol.compat import settings_here


class Arrival(NamedTuple):
    """A worker that has finished, or failed."""

    worker: int
    number: int  # Of its dispatch.
    step: int
    dispatched: float  # Seconds since the run began.
    began: float | None  # time.perf_counter() when its view arrived; None if that was before the dispatch.
    ready: float  # time.perf_counter().
    gradient: Any  # Packed; on the worker's device.
    error: BaseException | None = None
    measured: Mapping[str, float] = {}  # Columns of the history that the transport or the scheduler knows.


class Finished(NamedTuple):
    """A gradient that has been waited for."""

    gradient: Any
    began: float | None  # As in an arrival.
    measured: Mapping[str, float] = {}


class WorkerLostError(RuntimeError):
    """The process or the host of a worker has ended or cannot be reached."""


class Waiters:
    """Queue of workers in the order in which their gradients are finished.

    First finished, first served: no worker is overtaken by one that finished later, so none starves. The threads are daemons.
    They wait for devices, which releases the interpreter's lock, and dispatch local steps that can be interrupted. The end of
    the interpreter waits for them (:func:`gemjax.batches.threads.start_thread`).
    """

    def __init__(
        self,
        num_workers: int,
        gate: Callable[[int, int], Any] | None = None,
        wait: Callable[[list[jax.Array], Any], Finished] | None = None,
    ):
        self._gate, self._wait_for = gate, wait or wait_for_arrays
        self._ready: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._watched = [False] * num_workers  # Set by the scheduler, reset by the worker's thread.
        self._closed = False
        self._settings = settings_here()  # Those of the calling thread: local steps and gates compute.
        self._inboxes = [queue.SimpleQueue() for _ in range(num_workers)]

    def watch(self, worker: int, number: int, step: int, dispatched: float, view: Any, gradient: Any) -> None:
        """Let the worker's thread wait for ``view``, if it is still in transfer, and for ``gradient``, and queue the latter."""
        in_transfer = [part for part in jax.tree.leaves(view) if not part.is_ready()]
        self._watched[worker] = True
        self._inboxes[worker].put((worker, number, step, dispatched, in_transfer, gradient))

    def failed(self, worker: int, number: int, step: int, dispatched: float, error: Exception) -> None:
        """Queue a worker whose computation could not start."""
        self._ready.put(Arrival(worker, number, step, dispatched, None, time.perf_counter(), None, error))

    def next(self, timeout: float | None = None) -> Arrival | None:
        """Return the worker that finished first; wait if there is none.

        The result is ``None`` after ``timeout`` seconds, and after :meth:`wake`.
        """
        try:
            return self._ready.get(timeout=None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None

    @property
    def is_empty(self) -> bool:
        """True if :meth:`next` would wait."""
        return self._ready.empty()

    def watches(self, worker: int) -> bool:
        """Return True if the worker's last gradient is not in the queue yet."""
        return self._watched[worker]

    def wake(self) -> None:
        """Let :meth:`next` return although no worker has finished; callable in any thread."""
        self._ready.put(None)

    def _serve(self, inbox: queue.SimpleQueue) -> None:
        with self._settings():
            while (item := inbox.get()) is not None and not self._closed:
                worker, number, step, dispatched, in_transfer, gradient = item
                error, began, measured = None, None, {}
                try:
                    gradient, began, measured = self._wait_for(in_transfer, gradient)
                    if self._gate is not None:
                        change = self._gate(worker, step)
                        if change is not None and gradient is not None:  # None: the worker was called back.
                            gradient = change(gradient)
                except BaseException as raised:  # The scheduler handles it, and the thread goes on.
                    error = raised
                # Reset first: once the worker is queued, the scheduler may dispatch it again.
                self._watched[worker] = False
                ready = time.perf_counter()
                self._ready.put(Arrival(worker, number, step, dispatched, began, ready, gradient, error, measured))
                del item, in_transfer, gradient  # So that they are not kept until the next gradient.

    def __enter__(self) -> Self:
        try:
            for worker, inbox in enumerate(self._inboxes):
                start_thread(self._serve, inbox, name=f"gemjax-waiter-{worker}")
        except BaseException as error:  # Also Ctrl-C.
            self.__exit__()
            if isinstance(error, RuntimeError):
                raise no_threads(error) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for inbox in self._inboxes:
            inbox.put(None)


def wait_for_arrays(in_transfer: list[jax.Array], gradient: Any) -> Finished:
    """Wait for the view, which the commit before it may not have made yet, and for the gradient, on devices of this host."""
    began = None
    # One by one: a single array, the usual case, takes a third of the time of jax.block_until_ready.
    for array in in_transfer:
        array.block_until_ready()
        began = time.perf_counter()
    gradient = gradient() if callable(gradient) else gradient  # Local steps, made in this thread.
    for array in jax.tree.leaves(gradient):
        array.block_until_ready()
    return Finished(gradient, began)
