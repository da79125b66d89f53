"""Commits at the driver of a Ray cluster, and the exchange of views and gradients with its actors."""

import contextlib
import dataclasses
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from gemjax.batches.base import RowsError
from gemjax.engines.cluster.actor import Job, NotBegunError, Reply, Request, arrived
from gemjax.engines.cluster.cluster import PATIENCE, Cluster
from gemjax.engines.cluster.compression import packers_of_messages
from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.cluster.pieces import Pieces
from gemjax.engines.devices.hardware.packing import Packed, unpacked_report
from gemjax.engines.devices.hardware.placement import Placement, spare
from gemjax.engines.devices.hardware.prefetch import Selections
from gemjax.engines.devices.hardware.programs.commits import CentralPrograms
from gemjax.engines.devices.hardware.programs.gradients import Packers
from gemjax.engines.devices.hardware.sharding import Place
from gemjax.engines.devices.hardware.waiters import Finished, WorkerLostError
from gemjax.engines.running import keys
from gemjax.engines.running.interrupts import Held
from gemjax.engines.transition import RunState, Transition
from gemjax.engines.worker import WorkerStep
from gemjax.protocol import PyTree
from gemjax.protocol.hooks import Sends
from gemjax.protocol.local_steps import PeriodsEndError
from gemjax.protocol.nodes import in_front, with_errors
from gemjax.protocol.slots import Slots

Times = tuple[float, float]  # time.perf_counter() before and after a copy to host memory.
MEASURED = ("network", "to_host", "wire", "to_device")  # Seconds per gradient; the first is the sum of the others.
LARGE = 100 * 1024  # Bytes; Ray sends smaller arguments with the call itself.


class Hosts(NamedTuple):
    """The actors of the workers, and the place of the central variable on the driver's host."""

    workers: tuple[int, ...]
    central: Place
    parts: int  # Of the central variable, in actors; 0 if it is on the driver's host.
    devices: list[str]  # Names, once the actors have begun the run.
    sizes: dict[str, int]  # Bytes of a view and of a gradient.

    def names(self) -> dict[str, Any]:
        """Return the devices by name, as in an event log: ``host:cpu:0``."""
        central = Placement((self.central,), self.central).names()["central"]
        central = f"{self.parts} actors and {central}" if self.parts else central
        return {"devices": self.devices, "central": central} | self.sizes


class Outcome(NamedTuple):
    """The errors of a worker's messages: ``after`` a commit if that was applied, otherwise those of ``before``."""

    report: PyTree
    after: Any
    before: Any


class ClusterPrograms(CentralPrograms):
    """Commits at the central variable on this host, for workers that are actors of Ray.

    Args:
      transition, state: as for :class:`gemjax.engines.devices.hardware.programs.commits.CentralPrograms`.
      batches: the run's batches, not yet grouped for local steps.
      grouped: the same, grouped for local steps.
      central: the place of the central variable.
      retries: attempts after the first one to read a batch before the run.
      parts: number of actors of the central variable, if there are any.
      interruptible: True if local steps are to end early when asked (:meth:`interrupt`).

    Raises:
      TypeError: if an argument of the run cannot be pickled.
    """

    measured, lends_views = MEASURED, True
    largest_packed = 2**16  # Packing copies an array at both ends; one that is sent apart costs Ray some microseconds.

    def __init__(
        self, transition: Transition, batches: Any, grouped: Any, central: Place, state: RunState, *, retries: int = 0,
        parts: int = 0, interruptible: bool = False,
    ):  # fmt: skip
        num_workers = transition.num_workers
        # Actors with a part of the central variable each do what the method says when a gradient has arrived.
        part = None if parts else in_front(state.opt_state)
        self._errors: list[Any] = []  # Per worker: arrays, the reference to those on its host, or a choice of two.
        if part is not None:
            assert part.error is not None
            errors = jax.tree.map(np.asarray, part.error.value)
            self._errors = [jax.tree.map(lambda leaf, w=w: leaf[w], errors) for w in range(num_workers)]
            part = dataclasses.replace(part, error=Slots(jax.eval_shape(lambda: self._errors[0])))
            state = state._replace(opt_state=with_errors(state.opt_state, None))
        self._part: Sends | None = part
        self._lost: set[int] = set()  # Workers whose errors may be lost with their host.
        example = Selections(grouped, num_workers, retries).example()
        hosts = Hosts(tuple(range(num_workers)), central, parts, [], {})
        super().__init__(transition, grouped, hosts, state, [central] * num_workers, example)
        self._span = None if transition.local is None else transition.local.span
        for name, packer in (("view", self.packers.views), ("gradient", self.packers.gradients)):
            leaves = jax.tree.leaves(jax.eval_shape(packer.zeros))
            hosts.sizes[f"{name}_bytes"] = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        step = WorkerStep(loss_fn=transition.loss_fn, seed=transition.seed, local=transition.local)
        local = jax.eval_shape(lambda: self._local[0])
        self._job = Job(step, batches, self.packers, local, part, interruptible)
        self._attempts = [0] * num_workers
        self._retries, self._version = retries, 0  # The version counts commits.
        self._putting = threading.Lock()
        self._run = ""
        self._put: tuple[int, Any] = -1, None  # Version and reference of the last large view.
        self._pickled_job()  # Refuses what cannot be pickled before anything starts.

    def _pickled_job(self) -> bytes:
        step = self._job.step
        return pickled(self._job, loss_fn=step.loss_fn, batches=self._job.batches, local=step.local)

    def _packers(self, transition: Transition, batches: Any, state: RunState, example: PyTree) -> Packers:
        packed_as = super()._packers(transition, batches, state, example)
        if self._part is None:
            return packed_as
        return packers_of_messages(packed_as, self._part, self.placement.central, self.largest_packed)

    @functools.cached_property
    def evaluator(self) -> jax.Device:
        """A device of the central variable's kind on this host, where there are no workers."""
        return spare((self.placement.central,), self.placement.central)

    def connect(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        """Use the actors of ``cluster``."""
        self.cluster, self._wake = cluster, wake

    def warm_up(self) -> None:
        """Compile all programs: those of the actors, at the same time, and the commit."""
        self._run, names = self.cluster.begin(self._pickled_job, by_value)
        self.placement.devices.extend(names.get(worker, f"later:{worker}") for worker in range(self.num_workers))
        self.late = [worker for worker in range(self.num_workers) if worker not in names]
        for worker in self.late:
            self.recover(worker)
        waiting = dict.fromkeys(filter(self._has_periods, names), self._retries)
        with Held() as held:
            while waiting:
                calls = {worker: self.compute(worker, None)() for worker in waiting}
                for worker, (reference, _) in calls.items():
                    try:
                        with held.interruptible():
                            _reply(reference)
                    except WorkerLostError:  # It leaves when it is dispatched.
                        del waiting[worker]
                    except Exception as error:
                        held.raise_again()
                        if not waiting[worker] or isinstance(error, RowsError):
                            raise
                        waiting[worker] -= 1
                    else:
                        del waiting[worker]
        empty, central = jax.tree.map(np.asarray, self.central.no_gradient()), self.placement.central
        self.central.warm_up(self.central.bring(empty) if isinstance(central, tuple) else empty)
        self._settled(0)

    def select(self, worker: int) -> None:
        """Raise ``PeriodsEndError`` if the worker has no more periods of local steps; the actor selects its batch."""
        if self._span is not None:
            self._span(np.array([worker]), np.array([self.steps[worker]]))

    def _has_periods(self, worker: int) -> bool:
        try:
            self.select(worker)
        except PeriodsEndError:
            return False
        return True

    def view(self, worker: int) -> None:
        """Return nothing to wait for: the view travels with the call."""

    def send(self, worker: int, packed_view: Packed) -> Packed:
        return packed_view

    def compute(self, worker: int, selected: None) -> Callable[[], tuple[Any, Times]]:
        """Return a function that sends the view. The worker's waiter calls it, because it waits for the commit before.

        It returns the ``ray.ObjectRef`` of a :class:`Reply`, and the times of the copy of the view.
        """
        view, local = self._views[worker], self._local[worker]
        version, request = self._version, self._next_request(worker)

        def send() -> tuple[Any, Times]:
            actor, error = self.cluster.actors[worker], self._error_of(worker) if self._part is not None else None
            (view_, local_), times = on_host((view, keys.as_data(local) if self._keeps_local else ()))
            outgoing = self._outgoing(view_, version)
            if self._part is None:
                return actor.gradient.remote(self._run, outgoing, local_, request), times
            call = actor.message.options(num_returns=2)
            return call.remote(self._run, outgoing, local_, error, request), times

        return send

    def _error_of(self, worker: int, *, here: bool = False) -> Any:
        """Return the errors of the messages of a worker's applied commits; with ``here`` the arrays, in any case.

        They are where Ray keeps them: on the host that computed them. With that host they are lost, and begin at 0.
        """
        error = self._errors[worker]
        if isinstance(error, Outcome):
            applied = unpacked_report(error.report, self.reported)[list(self.reported).index("applied")] > 0
            error = self._errors[worker] = error.after if applied else error.before
        if (here or worker in self._lost) and isinstance(error, imported_ray().ObjectRef):
            try:
                error = imported_ray().get(error, timeout=PATIENCE)
            except imported_ray().exceptions.RayError:
                assert self._part is not None and self._part.error is not None  # noqa: PT018
                error = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._part.error.value)
                self._lost.add(worker)
        if worker in self._lost:  # Otherwise the next call would send them again.
            self._errors[worker] = error
            self._lost.discard(worker)
        return error

    def _next_request(self, worker: int) -> Request:
        self._attempts[worker] += 1
        return Request(worker, self.steps[worker], self.draws.of(worker), self._attempts[worker])

    def interrupt(self, worker: int) -> None:
        with contextlib.suppress(Exception):  # A worker that is lost computes nothing.
            self.cluster.actors[worker].interrupt.remote(self._run, self._attempts[worker])

    def _outgoing(self, view: Packed, version: int) -> Any:
        """Return a view as an argument of a call: itself if it is small, else a reference, one for equal views of a version."""
        arrays = jax.tree.leaves(view)
        if sum(array.nbytes for array in arrays) <= LARGE:
            return view
        with self._putting:
            ray, (before, reference) = imported_ray(), self._put
            if before != version or not all(map(np.array_equal, arrays, jax.tree.leaves(ray.get(reference)))):
                self._put = version, ray.put(view)
            return self._put[1]

    def bring(self, gradient: Reply) -> tuple:
        """Send a gradient, and the state of its worker's local optimizer, to the devices of the central variable."""
        packed = gradient.gradient
        if isinstance(self.placement.central, tuple):
            packed = self.central.bring(packed)
        return packed, self._local_of(gradient), gradient.error

    def _local_of(self, gradient: Reply) -> PyTree:
        """Return the state of the worker's local optimizer, on the devices of the central variable."""
        local = self._job.local
        return keys.as_keys(arrived(gradient.local, self.placement.central), local) if self._keeps_local else local

    def commit(self, worker: int, brought: tuple) -> PyTree:
        self._version += 1
        packed, local, error = brought
        report = super().commit(worker, (packed, local))
        if self._part is not None:
            self._errors[worker] = Outcome(report, error, self._errors[worker])
        return report

    def _gathered(self, to: jax.Device | None = None) -> RunState:
        state = super()._gathered(to)
        if self._part is None:
            return state
        errors = [self._error_of(worker, here=True) for worker in range(self.num_workers)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *errors)
        stacked = self.central.bring(stacked) if to is None else jax.device_put(stacked, to)
        return state._replace(opt_state=with_errors(state.opt_state, Slots(stacked, self.num_workers)))

    def returned(self) -> Iterable[int]:
        return self.cluster.restarted(self._run)

    def recover(self, worker: int) -> None:
        self._lost.add(worker)
        self.cluster.restart(worker, self._wake)

    def abandon(self, worker: int) -> None:
        self.cluster.kill(worker)

    def close(self) -> None:
        """Keep no view in Ray's object store, and let the actors read no more data."""
        self._put = -1, None
        if self._run:
            for actor in self.cluster.actors:
                with contextlib.suppress(Exception):  # It may be lost.
                    actor.end.remote(self._run)


def receive(in_transfer: list, send: Callable) -> Finished:
    """Send a view and wait for the gradient; raise what :func:`_reply` raises."""
    reference, (began, sent) = send()
    reply = _reply(reference)
    ready = time.perf_counter()
    to_host, wire = sent - began + reply.to_host, max(0.0, ready - sent - reply.seconds)
    computing = reply.seconds - reply.waited - reply.to_device - reply.to_host
    seconds = to_host + wire + reply.to_device, to_host, wire, reply.to_device
    return Finished(reply, max(began, ready - computing), dict(zip(MEASURED, seconds, strict=True)))


def on_host(arrays: PyTree) -> tuple[PyTree, Times]:
    """Wait for arrays; return them in host memory, and the times of the copy."""
    jax.block_until_ready(arrays)
    began = time.perf_counter()
    return jax.tree.map(np.asarray, arrays), (began, time.perf_counter())


def _reply(reference: Any) -> Reply:
    """Wait for the reply of an actor.

    Raises:
      WorkerLostError: if the actor or its host has ended or cannot be reached.
      Exception: that of the actor, with its traceback as a note.
    """
    ray = imported_ray()
    try:
        if isinstance(reference, list):  # A gradient in pieces, or the errors of a message, which stay where they are.
            reply, rest = ray.get(reference[0]), reference[1:]
            if reply.gradient is None:
                return reply
            return reply._replace(gradient=Pieces(rest)) if reply.gradient == () else reply._replace(error=rest[0])
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NotBegunError):
            raise WorkerLostError(f"it was restarted: {error.cause}") from None
        if not isinstance(error.cause, Exception):
            raise
        error.cause.add_note(str(error))
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise WorkerLostError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


def pickled(job: Any, **parts: Any) -> bytes:
    """Return a pickled job; functions of the main module travel by value.

    Args:
      job: what is to be pickled.
      parts: the user's objects in it, by the name of their argument.

    Raises:
      TypeError: in one line with the object that cannot be pickled.
    """
    cloudpickle = imported_ray().cloudpickle
    try:
        return cloudpickle.dumps(job)
    except Exception as error:
        for name, part in parts.items():
            if (culprit := _unpicklable(name, part)) is not None:
                raise TypeError(
                    f"{name} cannot be sent to the workers, because {culprit} cannot be pickled; use arrays and plain values, "
                    "or make it inside of the function"
                ) from error
        raise


def _unpicklable(name: str, part: Any, depth: int = 4) -> str | None:
    """Return the innermost object in ``part`` that cannot be pickled, in words."""
    try:
        imported_ray().cloudpickle.dumps(part)
    except Exception:
        if depth and inspect.isfunction(part):
            variables = inspect.getclosurevars(part)
            inner = {**variables.nonlocals, **variables.globals}
        else:
            inner = getattr(part, "__dict__", {}) if depth else {}
        found = (_unpicklable(key, value, depth - 1) for key, value in inner.items())
        return next(filter(None, found), f"{name} ({type(part).__name__})")
    return None


def by_value(name: str) -> bool:
    """Let cloudpickle send a module of this process by value from now on; return False if it did so before or cannot."""
    cloudpickle, module = imported_ray().cloudpickle, sys.modules.get(name)
    if module is None or name in cloudpickle.list_registry_pickle_by_value():
        return False
    cloudpickle.register_pickle_by_value(module)
    return True
