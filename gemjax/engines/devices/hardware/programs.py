"""The compiled programs of a run on devices, and the arrays that they exchange."""

import abc
import concurrent.futures
import functools
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.devices.hardware.central import Central
from gemjax.engines.devices.hardware.compat import settings_here
from gemjax.engines.devices.hardware.packing import Packed, Packer, pack_whole, send
from gemjax.engines.devices.hardware.placement import Placement
from gemjax.engines.devices.hardware.prefetch import Selections
from gemjax.engines.devices.hardware.sharding import Place, devices_of, split_batch, whole
from gemjax.engines.devices.stepwise import Stepwise
from gemjax.engines.memory import here
from gemjax.engines.result import RunFailedError
from gemjax.engines.transition import RunState, Transition, View, view_of
from gemjax.engines.worker import WorkerStep
from gemjax.protocol import slots
from gemjax.protocol.slots import Slots

PyTree = Any


class CentralPrograms(abc.ABC):
    """Commits at the central variable and the pulls that follow, for workers on any transport.

    Views and gradients are one vector per dtype, so that a transfer is one call. Arrays that are cut over the devices of the
    central variable are apart, each part on its device. A subclass defines ``send``, which sends a packed view to its worker.

    Args:
      transition: the run's transition, bound.
      placement: has ``workers``, ``central`` and ``names()``, as a :class:`gemjax.Placement`.
      state: the state to begin with.
      homes: per worker, the place that keeps the state of its local optimizer.
      example: the data and the selection of one batch, arrays or shapes.
      batches: the run's batches.

    Attributes:
      steps: per worker, the step that it computes.
      draws: per worker, the index of its batch in a shared stream.
      behind: per worker, the commits since its pull when the run begins.
      prefetcher: prefetches batches that have to be read on this host; ``None`` if there are none.
      reported: names of the numbers of a report, in order, with their dtypes.
      largest_packed: bytes of the largest array that is packed with others.
      measures_network: True if an arrival has the network time of its gradient.
      lends_views: True if arrays of a view may be those of its worker's slot, which the worker's next commit overwrites.
    """

    prefetcher: Any = None
    measures_network = False
    largest_packed = math.inf
    lends_views = False

    def __init__(
        self, transition: Transition, batches: Any, placement: Any, state: RunState, homes: Sequence[Place], example: PyTree
    ):  # fmt: skip
        self.placement, self.num_workers = placement, transition.num_workers
        self.steps, self.draws = (column.value.tolist() for column in (state.step, state.draw))
        self.behind = (state.commits - state.pulled_at.value).tolist()
        self._drawn = 1 + max(self.draws)  # The next draw; the worker that arrived last has the newest one.
        locals_ = Slots(here(state.view.value.local), self.num_workers)
        self._local = [
            jax.device_put(slots.take(locals_, worker).value, whole(place)) for worker, place in enumerate(homes)
        ]
        self._moved = list(self._local)  # After the step in progress; kept if its commit is applied.
        self._keeps_local = bool(jax.tree.leaves(locals_))
        self._undelivered: dict[int, Packed] = {}  # Pulled views on the devices of the central variable.
        state = state._replace(view=Slots(state.view.value._replace(local=()), self.num_workers))
        outcome = lambda state: self._with_outcome(view_of(slots.take(state, 0)), jnp.array(False))
        view = jax.eval_shape(outcome, state)
        self.packers = self._pack(
            packers(transition, batches, placement.central, view, self._local[0], example, self.largest_packed)
        )
        self._settle: Any = jax.jit(functools.partial(_settle, self.packers.views))
        self.central = self._make_central(transition, state)
        self.reported = self.central.reported
        self._views: list[Any] = [self.send(worker, view) for worker, view in enumerate(self.central.first_views())]

    def _pack(self, packed_as: "Packers") -> "Packers":
        """Return the packers that the transport uses."""
        return packed_as

    def _make_central(self, transition: Transition, state: RunState) -> Any:
        """Return the central variable."""
        return Central(
            transition, state, self.placement.central, *self.packers, self._with_outcome, lend=self.lends_views
        )

    def _with_outcome(self, view: View, applied: jax.Array) -> tuple[View, Any]:
        return with_outcome(view, applied, self._keeps_local)

    @abc.abstractmethod
    def warm_up(self) -> None:
        """Compile all programs."""

    @abc.abstractmethod
    def select(self, worker: int) -> Any:
        """Return what :meth:`compute` needs to know of the batch of the worker's step."""

    @abc.abstractmethod
    def send(self, worker: int, packed_view: Packed) -> Packed:
        """Send a packed view to its worker; return at once."""

    @abc.abstractmethod
    def view(self, worker: int) -> PyTree:
        """Return the arrays of the worker's view that may still be in transfer."""

    @abc.abstractmethod
    def compute(self, worker: int, selected: Any) -> Any:
        """Dispatch the worker's gradient on its view; return at once."""

    @abc.abstractmethod
    def bring(self, gradient: Any) -> tuple[Any, PyTree]:
        """Send a gradient to the devices of the central variable; a failure leaves the latter untouched.

        Returns:
          What :meth:`commit` takes: the packed gradient there, and the state of the worker's local optimizer.
        """

    @abc.abstractmethod
    def interrupt(self, worker: int) -> None:
        """Ask the worker to end its computation early, if it can; what then arrives is no gradient."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the run does not need after its end."""

    def is_ready(self, worker: int) -> bool:
        """Return True if the worker's gradient can be dispatched without waiting for data."""
        return True

    def returned(self) -> Iterable[int]:
        """Return workers that were lost and answer again, once each."""
        return ()

    def recover(self, worker: int) -> None:
        """Let :meth:`returned` name a worker that is lost once it answers again. Workers on this host do not get lost."""
        del worker

    def abandon(self, worker: int) -> None:
        """Restart a worker that is silent beyond its deadline, if the transport can."""
        del worker

    def _settled(self, worker: int) -> PyTree:
        """Return the state of the worker's local optimizer after the outcome of its commit."""
        if not self._keeps_local:
            return self._local[worker]
        return self._settle(self._views[worker], self._local[worker], self._moved[worker])

    def commit(self, worker: int, brought: tuple[Any, PyTree]) -> jax.Array:
        """Dispatch the commit of a gradient and the pull that follows; return the report's array at once.

        The commit holds from then on, even if the worker is lost. :meth:`deliver` sends the pulled view.

        Raises:
          RunFailedError: if the devices of the central variable fail.
        """
        packed, self._moved[worker] = brought
        report = self._at_central(worker, packed, commits=True)
        self.steps[worker] += 1
        self.draws[worker], self._drawn = self._drawn, self._drawn + 1
        return report

    def deliver(self, worker: int) -> None:
        """Send a worker the view that it pulled, once; return at once. May be called again after an exception."""
        if worker in self._undelivered:
            self._views[worker] = self.send(worker, self._undelivered[worker])
            self._local[worker] = self._settled(worker)
            del self._undelivered[worker]

    def pull_again(self, worker: int) -> None:
        """Let the worker pull without a commit; it keeps its step.

        Raises:
          RunFailedError: if the devices of the central variable fail; any other exception is a fault of the worker.
        """
        self.deliver(worker)  # With the outcome of the last commit, which the local optimizer needs.
        self._at_central(worker, self.central.no_gradient(), commits=False)
        self.deliver(worker)

    def _at_central(self, worker: int, packed: Packed, *, commits: bool) -> jax.Array:
        try:
            self._undelivered[worker], report = self.run_commit(worker, packed, commits=commits)
        except Exception as error:
            what = f"a {'commit' if commits else 'pull'} of worker {worker}"
            raise RunFailedError(f"{self._central_in_words} failed at {what}: {error!r}") from error
        return report

    def run_commit(self, worker: int, packed: Packed, *, commits: bool = True) -> tuple[Packed, jax.Array]:
        """Dispatch the commit program alone; return the worker's packed next view, and the report."""
        return self.central.commit(worker, packed, event_of(worker, self.steps[worker], commits=commits))

    def read(self, report: jax.Array) -> list[float]:
        """Wait for the numbers of a report and return them, in the order of ``reported``.

        Raises:
          RunFailedError: if the commit has failed on the devices of the central variable.
        """
        try:
            return np.asarray(report).tolist()
        except Exception as error:
            raise RunFailedError(f"{self._central_in_words} failed: {error!r}") from error

    @property
    def _central_in_words(self) -> str:
        return f"the central variable's devices ({self.placement.names()['central']})"

    @property
    def params(self) -> PyTree:
        """The central variable."""
        return self.central.state().params

    @property
    def model_state(self) -> PyTree:
        """The model state of the central variable."""
        return self.central.state().model_state

    def gather(self) -> RunState:
        """Return the whole state, per-worker slots stacked; valid until the next commit."""
        state = self.central.gather()
        locals_ = [self._local_at_central(worker) for worker in range(self.num_workers)]
        local = jax.tree.map(lambda *leaves: jnp.stack(leaves), *locals_)
        return state._replace(view=Slots(state.view.value._replace(local=local), self.num_workers))

    def reached(self) -> RunState:
        """Return the state of a result."""
        return self.gather()

    def _local_at_central(self, worker: int) -> PyTree:
        local = self.central.bring(self._local[worker])
        if not self._keeps_local or worker not in self._undelivered:
            return local
        return self._settle(self._undelivered[worker], local, self.central.bring(self._moved[worker]))


class Programs(CentralPrograms):
    """Programs for gradients on the workers' devices, and for commits on those of the central variable.

    Args:
      transition: the run's transition, bound.
      batches, placement, state: its batches, its devices, and the state to begin with.
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
        if interruptible and transition.local is not None:
            _check_apart(placement)
            compiled = lambda place: stepwise(transition, batches, self.packers, place, packed_gradient)
        else:
            compute = packed_gradient(transition.gradient, batches, self.packers)
            compiled = lambda place: jax.jit(functools.partial(compute, place=place))
        # All single devices share one program; workers of several devices have one each.
        alone = compiled(None)
        self._compute = {place: compiled(place) if isinstance(place, tuple) else alone for place in placement.workers}
        self._interrupted = [threading.Event() for _ in placement.workers]  # One per gradient in flight.

    def warm_up(self) -> None:
        """Compile all programs: those of the workers, one per device, and the commit.

        Those of CPU devices are compiled in parallel; accelerators follow one after the other, so that no two threads start
        collectives on the same devices.
        """
        first = {device: worker for worker, device in reversed(list(enumerate(self.placement.workers)))}
        settings = settings_here()

        def run_once(worker):
            with settings():
                batch = self._selections.example(worker, lambda: self.select(worker))
                gradient = self.compute(worker, batch)
                gradient = jax.block_until_ready(gradient() if callable(gradient) else gradient)
                self._settled(worker)
                return gradient

        accelerated = any(device.platform != "cpu" for place in first for device in devices_of(place))
        # More compilations at a time than cores would be slower.
        at_once = 1 if accelerated else min(len(first), os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            gradients = list(pool.map(run_once, first.values()))
        self.central.warm_up(self.central.bring(gradients[0][0]))

    def is_ready(self, worker: int) -> bool:
        """Return True if :meth:`select` would not wait for data that have to be read; begin to read them otherwise."""
        return self._selections.is_ready(worker, self.steps[worker], self.draws[worker])

    def select(self, worker: int) -> PyTree:
        """Return the selection of the batch of the worker's step, and its data if these are not on the device."""
        return self._selections.take(worker, self.steps[worker], self.draws[worker], self._drawn)

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
        if not isinstance(compute, Stepwise):
            return compute(*arguments)
        self._interrupted[worker] = interrupted = threading.Event()
        return lambda: compute(interrupted.is_set, int(selection[1]), arguments)

    def interrupt(self, worker: int) -> None:
        self._interrupted[worker].set()

    def bring(self, gradient: tuple[Packed, PyTree]) -> tuple[Packed, PyTree]:
        packed, moved = gradient
        if isinstance(self.placement.central, tuple):
            return self.central.bring(packed), moved
        return send(packed, self.placement.central), moved

    def send(self, worker: int, packed_view: Packed) -> Packed:
        """Send a packed view to its worker; return at once."""
        return send(packed_view, self.placement.workers[worker])

    def commit(self, worker: int, brought: tuple[Packed, PyTree]) -> jax.Array:
        step, draw = self.steps[worker], self.draws[worker]
        report = super().commit(worker, brought)
        self._selections.drop(worker, step, draw)
        return report

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


class Packers(NamedTuple):
    """The packing of views and gradients."""

    views: Packer
    gradients: Packer


def packers(
    step: WorkerStep, batches: Any, central: Place, view: PyTree, local: PyTree, example: PyTree, largest: float
) -> Packers:
    """Return the packers of views with outcomes, and of gradients, from arrays or shapes; larger leaves are apart."""
    data, selection = example
    data = batches.data if data is None else data
    compute = functools.partial(gradient_at, step.gradient, batches, None)
    shapes = jax.eval_shape(compute, view[0], local, data, selection, event_of(0, 0))
    return Packers(pack_whole(view, central, largest), pack_whole(shapes._replace(local=()), central, largest))


def packed_gradient(gradient: Callable, batches: Any, packed_as: Packers) -> Callable:
    """Return ``compute(packed, local, data, selection, event, place) -> (packed gradient, new local)``.

    ``gradient`` is :meth:`gemjax.engines.worker.WorkerStep.gradient`.
    """

    def compute(packed, local, data, selection, event, place):
        sent = gradient_at(gradient, batches, place, packed_as.views.unpack(packed)[0], local, data, selection, event)
        return packed_as.gradients.pack(sent._replace(local=())), sent.local

    return compute


def gradient_at(gradient, batches, place, view, local, data, selection, event):
    """Compute a gradient from the selection of its batch."""
    batch = split_batch(place, batches.batch(data, selection))
    return gradient(view._replace(local=local), batch, event[0], event[1])


def stepwise(step: WorkerStep, batches: Any, packed_as: Packers, place: Place | None, finish: Callable) -> Stepwise:
    """Return local steps that can be interrupted; ``finish`` is :func:`packed_gradient` or another one like it."""

    def at(function, packed, *arguments):
        return gradient_at(function, batches, place, packed_as.views.unpack(packed)[0], *arguments)

    def send_off(function, *arguments):
        return finish(function, batches, packed_as)(*arguments, place=place)

    return Stepwise(step, at, send_off)


def with_outcome(view: View, applied: jax.Array, keeps_local: bool) -> tuple[View, Any]:
    """Return a view, and, if its worker has a local optimizer, 1 if the worker's last commit was applied, else 0."""
    return view, applied.astype(jnp.result_type(float)) if keeps_local else ()


def _settle(views, packed, local, moved):
    _, applied = views.unpack(packed)
    return jax.tree.map(lambda new, old: jnp.where(applied > 0, new, old), moved, local)


def event_of(worker: int, step: int, *, commits: bool = True) -> np.ndarray:
    """Return worker, step and kind of an arrival as one array: every argument of a call costs some microseconds."""
    return np.array((worker, step, commits), np.int32)
