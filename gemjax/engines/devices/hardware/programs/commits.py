"""Commits at the central variable and the pulls that follow, for workers on any transport."""

import abc
import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gemjax.engines.devices.hardware.central import Central, event_of
from gemjax.engines.devices.hardware.packing import Packed, unpacked_report, with_outcome
from gemjax.engines.devices.hardware.placement import spare
from gemjax.engines.devices.hardware.programs.gradients import Packers, packers
from gemjax.engines.devices.hardware.sharding import Place, whole
from gemjax.engines.memory import here
from gemjax.engines.programs import Kept, Program
from gemjax.engines.result import RunFailedError, with_numbers, without_numbers
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import PyTree, slots
from gemjax.protocol.slots import Slots
from gemjax.protocol.trace import Draws


class CentralPrograms(abc.ABC):
    """Commits at the central variable and the pulls that follow, for workers on any transport.

    Views and gradients are one vector per dtype, so that a transfer is one call. Arrays that are cut over the devices of the
    central variable are apart, each part on its device.

    Args:
      transition: the run's transition, bound.
      placement: has ``workers``, ``central`` and ``names()``, as a :class:`gemjax.Placement`.
      state: the state to begin with.
      homes: per worker, the place that keeps the state of its local optimizer.
      example: the data and the selection of one batch, arrays or shapes.
      batches: the run's batches.

    Attributes:
      steps: per worker, the step that it computes.
      draws: the draws of workers from a shared stream.
      num_blocks: blocks in which a worker reads its view, one after another; 0 if it reads all at once.
      behind: per worker, the commits since its pull when the run begins.
      late: workers that are not there yet after :meth:`warm_up`; :meth:`returned` names them when they are.
      prefetcher: prefetches batches that have to be read on this host; ``None`` if there are none.
      reported: names of the numbers of a report, in order, with their dtypes.
      largest_packed: bytes of the largest array that is packed with others.
      measured: names of what an arrival has measured.
      lends_views: True if arrays of a view may be those of its worker's slot, which the worker's next commit overwrites.
    """

    late: Sequence[int] = ()
    prefetcher: Any = None
    _selections: Any = None  # Of batches, where they are selected on this host.
    measured: Sequence[str] = ()
    largest_packed = math.inf
    lends_views = False

    def __init__(
        self, transition: Transition, batches: Any, placement: Any, state: RunState, homes: Sequence[Place], example: PyTree
    ):  # fmt: skip
        self.placement, self.num_workers, self._periods = placement, transition.num_workers, transition.local
        self.num_blocks = transition.num_blocks
        self.steps, self.draws = state.step.value.tolist(), Draws(state.draw.value.tolist())
        self.behind = (state.commits - state.pulled_at.value).tolist()
        locals_ = Slots(here(state.view.value.local), self.num_workers)
        self._local = [
            jax.device_put(slots.take(locals_, worker).value, whole(place)) for worker, place in enumerate(homes)
        ]
        self._moved = list(self._local)  # After the step in progress; kept if its commit is applied.
        self._keeps_local = bool(jax.tree.leaves(locals_))
        self._undelivered: dict[int, Packed] = {}  # Pulled views on the devices of the central variable.
        state = without_numbers(state._replace(view=Slots(state.view.value._replace(local=()), self.num_workers)))
        # What earlier runs have made for the same functions and devices, and for arrays of the same kinds.
        same = transition, batches._traced(), tuple(placement.workers), self._cut_over
        self._known = KNOWN.get(same, dict, (state, self._local[0], example, batches.data))
        packed_as = functools.partial(self._packers, transition, batches, state, example)
        self.packers: Packers = self.once(f"packers of {self.largest_packed} bytes", packed_as)
        settle = functools.partial(_settle, self.packers.views)
        self._settle: Any = self.once(f"settle of {self.largest_packed} bytes", lambda: Program(settle))
        self.central = self._make_central(transition, state)
        self.reported = self.central.reported
        first = map(self.central.first_view, range(self.num_workers))
        self._views: list[Any] = [self.send(worker, view) for worker, view in enumerate(first)]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what an earlier run of the same objects has made under this name, or make it."""
        return self._known.setdefault(name, make()) if name not in self._known else self._known[name]

    @property
    def _cut_over(self) -> Place:
        """The devices over which arrays of views and gradients are cut."""
        return self.placement.central

    def _packers(self, transition: Transition, batches: Any, state: RunState, example: PyTree) -> Packers:
        """Return the packers that the transport uses."""
        view_of = lambda state: transition.view_of(slots.take(state, 0))
        view = jax.eval_shape(lambda state: with_outcome(view_of(state), jnp.array(False), self._keeps_local), state)
        return packers(transition, batches, self._cut_over, view, self._local[0], example, self.largest_packed)

    def _make_central(self, transition: Transition, state: RunState) -> Any:
        return Central(
            transition, state, self.placement.central, *self.packers, self._keeps_local, lend=self.lends_views
        )

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
        arguments = self._views[worker], self._local[worker], self._moved[worker]
        if isinstance(self._settle, Program):  # Its compiled function is found at the first call.
            self._settle = self._settle.at(*arguments)
        return self._settle(*arguments)

    def commit(self, worker: int, brought: tuple[Any, PyTree]) -> PyTree:
        """Dispatch the commit of a gradient and the pull that follows; return the report's arrays at once.

        The commit holds from then on, even if the worker is lost. :meth:`deliver` sends the pulled view.

        Raises:
          RunFailedError: if the devices of the central variable fail.
        """
        packed, self._moved[worker] = brought
        event = event_of(worker, self.steps[worker])
        with self._may_fail(f" at a commit of worker {worker}"):
            self._undelivered[worker], report = self.central.commit(worker, packed, event)
        if self._selections is not None:
            self._selections.drop(worker, self.steps[worker], self.draws.of(worker))
        self.steps[worker] += 1
        self.draws.use(worker)
        return report

    def deliver(self, worker: int) -> None:
        """Send a worker the view that it pulled, once; return at once. May be called again after an exception."""
        if worker in self._undelivered:
            self._views[worker] = self.send(worker, self._undelivered[worker])
            self._local[worker] = self._settled(worker)
            del self._undelivered[worker]

    def pull_again(self, worker: int) -> None:
        """Let the worker pull without a commit; it keeps its step. A view of blocks is sent by :meth:`read_block`.

        Raises:
          RunFailedError: if the devices of the central variable fail; any other exception is a fault of the worker.
        """
        self.deliver(worker)  # With the outcome of the last commit, which the local optimizer needs.
        nothing, event = self.central.no_gradient(), event_of(worker, self.steps[worker], commits=False)
        with self._may_fail(f" at a pull of worker {worker}"):
            self._undelivered[worker], _ = self.central.commit(worker, nothing, event)
        if not self.num_blocks:
            self.deliver(worker)

    def read_block(self, worker: int, block: int) -> None:
        """Let the worker read a block of its view anew, from 1; after the last one the view is sent. Return at once.

        Raises:
          RunFailedError: if the devices of the central variable fail; any other exception is a fault of the worker.
        """
        with self._may_fail(f" at a read of worker {worker}"):
            self._undelivered[worker] = self.central.read(worker, block, self._undelivered[worker])
        if block == self.num_blocks - 1:
            self.deliver(worker)

    def read(self, report: PyTree) -> list:
        """Wait for the numbers of a report and return them, in the order of ``reported``.

        Raises:
          RunFailedError: if the commit has failed on the devices of the central variable.
        """
        with self._may_fail():
            return unpacked_report(report, self.reported)

    @contextlib.contextmanager
    def _may_fail(self, at: str = "") -> Iterator[None]:
        """Turn an exception of the central variable's devices into a ``RunFailedError`` that says where they failed."""
        try:
            yield
        except Exception as error:
            raise RunFailedError(f"{self._central_in_words} failed{at}: {error!r}") from error

    @property
    def _central_in_words(self) -> str:
        return f"the central variable's devices ({self.placement.names()['central']})"

    def copy(self) -> tuple[PyTree, PyTree]:
        """Return a copy of parameters and model state on the evaluator; later commits leave it alone."""
        return jax.device_put(_copied(self.central.params()), self.evaluator)

    @functools.cached_property
    def evaluator(self) -> jax.Device:
        """The device on which parameters are evaluated."""
        return self.placement.evaluator or spare(self.placement.workers, self.placement.central)

    def gather(self) -> RunState:
        """Return the whole state, per-worker slots stacked; valid until the next commit.

        It is in the host's memory if the devices of the central variable have no room for it beside what the run keeps there.
        """
        try:
            return jax.block_until_ready(self._gathered())  # A GPU tells only then that it has no room.
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        return jax.block_until_ready(self._gathered(jax.local_devices(backend="cpu")[0]))

    def _gathered(self, to: jax.Device | None = None) -> RunState:
        state = self.central.gather(to)
        locals_ = [self._local_at(worker, to) for worker in range(self.num_workers)]
        local = jax.tree.map(lambda *leaves: jnp.stack(leaves), *locals_)
        state = with_numbers(state, self.steps, self.draws.per_worker(self.num_workers), self._periods)
        return state._replace(view=Slots(state.view.value._replace(local=local), self.num_workers))

    def reached(self) -> RunState:
        """Return the state of a result."""
        return self.gather()

    def _local_at(self, worker: int, to: jax.Device | None) -> PyTree:
        """Return the state of a worker's local optimizer on device ``to``; default: on those of the central variable."""
        bring = self.central.bring if to is None else functools.partial(jax.device_put, device=to)
        local = bring(self._local[worker])
        if not self._keeps_local or worker not in self._undelivered:
            return local
        view = self._undelivered[worker]
        return self._settle(view if to is None else bring(view), local, bring(self._moved[worker]))


# Compiled, because each eager copy of a leaf takes some microseconds.
_copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
KNOWN = Kept()


def _settle(views, packed, local, moved):
    _, applied = views.unpack(packed)
    return jax.tree.map(lambda new, old: jnp.where(applied > 0, new, old), moved, local)
