"""Programs of a run on the devices of one host: gradients on those of the workers, commits on those of the central variable."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import jax

from gemjax.batches.local import LocalBatches
from gemjax.batches.threads import SECONDS_AT_EXIT, each
from gemjax.engines.devices.hardware.central import event_of
from gemjax.engines.devices.hardware.packing import Packed, send
from gemjax.engines.devices.hardware.placement import Placement
from gemjax.engines.devices.hardware.prefetch import Selections
from gemjax.engines.devices.hardware.programs.commits import CentralPrograms
from gemjax.engines.devices.hardware.programs.gradients import Stepwise, packed_gradient
from gemjax.engines.devices.hardware.sharding import Place, devices_of, whole
from gemjax.engines.programs import Program
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import PyTree


class Programs(CentralPrograms):
    """Programs for gradients on the workers' devices, and for commits on those of the central variable.

    Args:
      transition, batches, placement, state: as for :class:`CentralPrograms`.
      retries: attempts after the first one to read a batch before the run.
      interruptible: True if local steps are to end early when asked (:meth:`interrupt`).
    """

    def __init__(
        self, transition: Transition, batches: Any, placement: Placement, state: RunState, *, retries: int = 0,
        interruptible: bool = False,
    ):  # fmt: skip
        self._selections = Selections(batches, transition.num_workers, retries)
        self.prefetcher = self._selections.prefetcher
        self._data = {place: jax.device_put(batches.data, whole(place)) for place in dict.fromkeys(placement.workers)}
        super().__init__(transition, batches, placement, state, placement.workers, self._selections.example())
        # Programs outlive the run, so they close over the batches without their data.
        traced = batches._traced()
        interruptible = interruptible and transition.local is not None
        if interruptible:
            _check_apart(placement)
            compiled = lambda place: Stepwise(transition, traced, self.packers, place, packed_gradient)
        else:
            compute = packed_gradient(transition.gradient, traced, self.packers)
            compiled = lambda place: Program(functools.partial(compute, place=place))
        # All single devices share one program; workers of several devices have one each.
        places = {place: place if isinstance(place, tuple) else None for place in placement.workers}
        programs = {
            shared: self.once(
                f"gradient on {shared}, interruptible: {interruptible}", functools.partial(compiled, shared)
            )
            for shared in dict.fromkeys(places.values())
        }
        self._compute: dict[Place, Callable] = {place: programs[shared] for place, shared in places.items()}
        self._interrupted = [threading.Event() for _ in placement.workers]  # One per gradient in flight.

    def warm_up(self) -> None:
        """Compile all programs: those of the workers, one per device, and the commit.

        First batches are read in parallel. Programs are compiled in parallel too, except on accelerators, where autotuning in
        two threads can deadlock, and on groups of devices that overlap, where collectives can.
        """
        first = {device: worker for worker, device in reversed(list(enumerate(self.placement.workers)))}
        batches = {}

        def read(worker):
            batches[worker] = self._selections.example(worker, lambda: self.select(worker))

        def run_once(worker):
            gradient = self.compute(worker, batches.pop(worker))
            gradient = jax.block_until_ready(gradient() if callable(gradient) else gradient)
            self._settled(worker)
            return gradient

        devices = [device for place in first for device in devices_of(place)]
        in_turn = any(device.platform != "cpu" for device in devices) or len(set(devices)) < len(devices)
        # More compilations at a time than cores would be slower.
        at_once = min(len(first), os.cpu_count() or 1)
        each(read, first.values(), at_once, SECONDS_AT_EXIT)
        gradients = each(run_once, first.values(), 1 if in_turn else at_once)
        self.central.warm_up(self.central.bring(gradients[0][0]))

    def is_ready(self, worker: int) -> bool:
        """Return True if :meth:`select` would not wait for data that have to be read; begin to read them otherwise."""
        return self._selections.is_ready(worker, self.steps[worker], self.draws.of(worker))

    def select(self, worker: int) -> PyTree:
        """Return ``(data, selection)`` of the worker's next batch; ``data`` is ``None`` if on the device."""
        return self._selections.take(worker, self.steps[worker], self.draws.of(worker), self.draws.following)

    def view(self, worker: int) -> PyTree:
        """Return the view on which the worker computes, packed; it may still be in transfer."""
        return self._views[worker]

    def compute(self, worker: int, selected: PyTree) -> PyTree:
        """Dispatch the worker's gradient on its view; return at once.

        Returns:
          The packed gradient and the new state of the local optimizer. If local steps can be interrupted: a function that makes
          them and returns that, or ``None`` after an interruption; it is called in the worker's thread.
        """
        place = self.placement.workers[worker]
        data, selection = selected
        data = self._data[place] if data is None else jax.device_put(data, whole(place))
        view, local, event = self._views[worker], self._local[worker], event_of(worker, self.steps[worker])
        compute, arguments = self._compute[place], (view, local, data, selection, event)
        if isinstance(compute, Program):  # Its compiled function is found at the first call.
            compute = self._compute[place] = compute.at(*arguments)
        if not isinstance(compute, Stepwise):
            return compute(*arguments)
        self._interrupted[worker] = interrupted = threading.Event()
        return lambda: compute(interrupted.is_set, LocalBatches.count_of(selection), arguments)

    def interrupt(self, worker: int) -> None:
        self._interrupted[worker].set()

    def bring(self, gradient: tuple[Packed, PyTree]) -> tuple[Packed, PyTree]:
        packed, moved = gradient
        if isinstance(self.placement.central, tuple):
            return self.central.bring(packed), moved
        return send(packed, self.placement.central), moved

    def send(self, worker: int, packed_view: Packed) -> Packed:
        return send(packed_view, self.placement.workers[worker])

    def close(self) -> None:
        """Prefetch no more data, and let no local steps go on."""
        self._selections.close()
        for interrupted in self._interrupted:
            interrupted.set()


def _check_apart(placement: Placement) -> None:
    """Check that no two threads would start programs with collectives on the same devices, which can deadlock.

    Raises:
      ValueError: if local steps that can be interrupted share devices with other programs of several devices.
    """
    several = [set(place) for place in (*placement.workers, placement.central) if isinstance(place, tuple)]
    if sum(map(len, several)) > len(set().union(*several)):
        raise ValueError(
            "Policy(interrupt=) with local steps needs a group of devices of its own for each worker, apart from those of the "
            "central variable, because each worker's steps are started by a thread of its own; place fewer workers, or one "
            "device per worker"
        )
