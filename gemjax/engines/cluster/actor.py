"""The process of a worker on a Ray cluster, which computes gradients at the views that it is sent."""

import dataclasses
import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from gemjax.batches.local import LocalBatches
from gemjax.engines.cluster.compression import packed_message
from gemjax.engines.cluster.pieces import joined, split
from gemjax.engines.devices.hardware.central import event_of
from gemjax.engines.devices.hardware.packing import Packed
from gemjax.engines.devices.hardware.prefetch import Selections
from gemjax.engines.devices.hardware.programs.gradients import Packers, Stepwise, packed_gradient
from gemjax.engines.devices.hardware.sharding import Place, devices_of, whole
from gemjax.engines.memory import offload_if_needed
from gemjax.engines.running import keys
from gemjax.engines.worker import WorkerStep
from gemjax.protocol import PyTree
from gemjax.protocol.slots import Slots


class Job(NamedTuple):
    """The computation that all workers of a run share."""

    step: WorkerStep
    batches: Any
    packers: Packers
    local: PyTree  # Shapes of the state of a local optimizer.
    part: Any  # What makes a message of a gradient, a Sends with shapes; None if gradients are sent.
    interruptible: bool  # True if local steps end early when the worker is called back.


class Request(NamedTuple):
    """The gradient that one worker is asked for."""

    worker: int
    step: int
    draw: int
    attempt: int  # Number of the call, as a request may be repeated.

    @property
    def batch(self) -> tuple[int, int, int]:
        """Worker, step and draw, which decide the batch."""
        return self.worker, self.step, self.draw


class Reply(NamedTuple):
    """A gradient in host memory, with the times that it took; durations need no common clock."""

    gradient: Any  # Packed; ``()`` if its pieces follow, at the driver Pieces; ``None`` if the worker was called back.
    local: PyTree  # State of the local optimizer, with keys as integers.
    seconds: float  # In the actor,
    waited: float  # and of these for data,
    to_device: float = 0.0  # for copies onto the device before the gradient
    to_host: float = 0.0  # and off it afterwards.
    error: Any = None  # What the messages have left out; at the driver a reference, as it stays on the worker's host.


class NotBegunError(RuntimeError):
    """Raised by an actor that was restarted since the run began."""


def arrived(arrays: PyTree, place: Place) -> PyTree:
    """Return a copy on ``place`` of what Ray returned: read-only views of its memory, which JAX would use as its own.

    A program that does not donate its arguments may take them without a copy.
    """
    return jax.device_put(arrays, whole(place), may_alias=False)


class Actor:
    """A worker. Between two gradients of a run it keeps data, programs and a prefetched batch, but no state.

    Args:
      paths: folders from which the driver imports; those that exist here are added to ``sys.path``.
    """

    def __init__(self, paths: list[str]):
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))
        self._run: str | None = None
        self._failure = "it has not begun the run"  # Reason why a gradient is refused.

    def ping(self) -> None:
        """Return at once."""

    def begin(self, run: str, config: Mapping[str, Any], pickled: bytes) -> tuple[str, str]:
        """Prepare for a run; return "device" and the name of this one, or "missing" and a module that cannot be imported."""
        self.end()
        for name, value in config.items():
            jax.config.update(name, value)
        try:
            return self._begin(run, pickle.loads(pickled))
        except ModuleNotFoundError as error:
            self._failure = str(error)
            return "missing", error.name or str(error)
        except Exception as error:
            self._failure = repr(error)
            raise

    def end(self, run: str | None = None) -> None:
        """Read no more data for ``run``, or for the present run, free its memory, and refuse its gradients."""
        if self._run is not None and run in (None, self._run):
            self._selections.close()
            del self._selections, self._data, self._memory, self._compute, self._stepwise
            self._run, self._failure = None, "the run has ended"

    def _begin(self, run: str, job: Job) -> tuple[str, str]:
        devices = jax.local_devices()
        several = len(devices) > 1 and devices[0].platform != "cpu"
        self._place: Place = tuple(devices) if several else devices[0]
        batches = offload_if_needed(job.batches, {}, devices[0])
        batches = batches if job.step.local is None else LocalBatches(batches, job.step.local)
        self._view = jax.eval_shape(job.packers.views.zeros)
        self._local, self._keeps_local = job.local, bool(jax.tree.leaves(job.local))
        self._shared = batches.shared
        self._selections = Selections(batches, 1)
        self._data = jax.device_put(batches.data, whole(self._place))
        self._last: tuple[int, int, int] | None = None
        self._interrupted = -1  # The last attempt that was called back.
        place = self._place if several else None
        self._part = job.part
        finish = packed_gradient if job.part is None else packed_message
        interruptible = job.interruptible and job.step.local is not None
        self._stepwise = Stepwise(job.step, batches, job.packers, place, finish) if interruptible else None
        compute = finish(job.step.gradient, batches, job.packers)
        self._compute = jax.jit(
            lambda memory, *arguments: compute(*arguments, place=place), donate_argnums=0, keep_unused=True
        )
        # The memory of a gradient holds the next one. A failed one has lost it, and several devices may divide it differently.
        make_memory = (lambda: None) if several else job.packers.gradients.zeros
        self._make_memory = jax.jit(make_memory, out_shardings=whole(self._place))
        self._memory: Packed | None = None
        self._run = run
        names = "+".join(f"{device.platform}:{device.id}" for device in devices_of(self._place))
        return "device", f"{socket.gethostname()}:{names}"

    def message(self, run: str, view: Packed, local: PyTree, error: PyTree, request: Request) -> tuple[Reply, PyTree]:
        """Do what :meth:`gradient` does, with a message in place of the gradient; return the error after it, too."""
        reply = self.gradient(run, view, local, request, error)
        return reply._replace(error=None), reply.error

    def gradient(self, run: str, view: Packed, local: PyTree, request: Request, error: PyTree = None) -> Reply:
        """Compute the gradient of a request at a view."""
        began = time.perf_counter()
        if run != self._run:
            raise NotBegunError(self._failure)
        data, selection = self._select(request)
        waited = (selected := time.perf_counter()) - began
        data = self._data if data is None else jax.device_put(data, whole(self._place))
        view = arrived(view, self._place) if isinstance(self._place, tuple) else jax.device_put(view, self._place)
        local = keys.as_keys(arrived(local, self._place), self._local) if self._keeps_local else self._local
        own = () if self._part is None else (arrived(dataclasses.replace(self._part, error=Slots(error)), self._place),)
        jax.block_until_ready((view, local, data, own))
        to_device = time.perf_counter() - selected
        arguments = view, local, data, selection, event_of(request.worker, request.step)
        interrupted = lambda: self._interrupted >= request.attempt
        if interrupted():  # Before it began.
            found = None
        elif self._stepwise is not None:
            found = self._stepwise(interrupted, LocalBatches.count_of(selection), arguments, *own)
        else:
            memory, self._memory = self._make_memory() if self._memory is None else self._memory, None
            found = jax.block_until_ready(self._compute(memory, *arguments, *own))
            self._memory = None if isinstance(self._place, tuple) else found[0]
        if found is None or interrupted():
            return Reply(None, (), time.perf_counter() - began, waited)
        packed, local, *after = jax.block_until_ready(found)
        computed = time.perf_counter()
        local = keys.as_data(local) if self._keeps_local else ()
        sent, local, errors = jax.tree.map(np.asarray, (packed, local, [part.error.value for part in after]))
        ended = time.perf_counter()
        return Reply(sent, local, ended - began, waited, to_device, ended - computed, *errors)

    def interrupt(self, run: str, attempt: int) -> None:
        """Let the gradient of an attempt, or an earlier one, end early; called beside it, in another thread."""
        if run == self._run:
            self._interrupted = max(self._interrupted, attempt)

    def gradient_in_pieces(self, run: str, local: PyTree, request: Request, *pieces: Packed) -> tuple:
        """Do what :meth:`gradient` does, from the pieces of a view, for a central variable over several hosts.

        Returns:
          A reply without the gradient, and the piece of it for each host.
        """
        if run != self._run:
            raise NotBegunError(self._failure)
        reply = self.gradient(run, joined(pieces, self._view), local, request)
        if reply.gradient is None:
            return (reply, *[None] * len(pieces))
        return (reply._replace(gradient=()), *split(reply.gradient, len(pieces)))

    def _select(self, request: Request) -> PyTree:
        """Return the data and the selection of the request's batch; prefetch the next one, unless other workers may take it."""
        if self._shared:
            return self._selections.read(*request.batch)
        if self._last is not None and self._last != request.batch:
            self._selections.drop(*self._last)
        self._last = request.batch
        return self._selections.take(*request.batch)
