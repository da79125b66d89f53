"""The compiled programs of a run on devices, and the arrays they pass around."""

import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.local import LocalBatches, Minibatches
from gemjax.batches.rows import is_shared, part, select, threads_that_read
from gemjax.engines.devices.hardware.compat import enable_x64
from gemjax.engines.devices.hardware.packing import Packed, Packer
from gemjax.engines.devices.hardware.placement import Placement
from gemjax.engines.devices.hardware.prefetch import ReadAhead
from gemjax.engines.devices.hardware.sharding import Place, cut_along, devices_of, shardings, split_batch, whole
from gemjax.engines.result import RunFailedError
from gemjax.engines.transition import RunState, Transition, View, view_of
from gemjax.protocol import slots
from gemjax.protocol.local_steps import PeriodsEndError
from gemjax.protocol.slots import Slots

PyTree = Any


class Programs:
    """Gradients on the workers' devices, commits on the central one.

    Per-worker state is kept as one slot a worker, never stacked: a commit is handed the slot it needs and donates it. What
    crosses devices is packed into one vector a dtype, so that a transfer is one call; arrays that are cut over the devices
    of the centre travel by themselves, each part to where it belongs.
    """

    def __init__(
        self, transition: Transition, batches: Any, placement: Placement, state: RunState, *, retries: int = 0
    ):
        self.transition, self.batches, self.placement = transition, batches, placement
        self._retries = retries  # Of reading a batch before the run, when it is no worker's fault yet.
        self.num_workers = transition.num_workers
        locals_ = state.view.value.local
        state = _without_local(state)
        first, self._join, shared = slots.split(slots.take(state, 0))
        self._shared = self._moved_in(shared)
        # A worker at a time: nothing is there twice, and no device of the centre holds more than its part.
        self._slots = [
            self._moved_in(first if worker == 0 else slots.split(slots.take(state, worker))[0])
            for worker in range(self.num_workers)
        ]
        mine = [self._join(own, self._shared) for own in self._slots]
        self.steps = [int(one.step.value) for one in mine]
        self.draws = [int(one.draw.value) for one in mine]
        self._drawn = 1 + max(self.draws)  # Whoever arrived last holds the newest.
        # Commits since each one's pull.
        self.behind = [int(one.commits) - int(one.pulled_at.value) for one in mine]
        self._local = [
            jax.device_put(slots.take(Slots(locals_, self.num_workers), worker).value, whole(place))
            for worker, place in enumerate(placement.workers)
        ]
        self._undelivered: dict[int, Packed] = {}  # What workers have pulled, at the centre.
        self._moved = list(self._local)  # After the step at hand; kept if its commit is applied.
        self._keeps_local = bool(jax.tree.leaves(locals_))
        self._data = {place: jax.device_put(batches.data, whole(place)) for place in dict.fromkeys(placement.workers)}
        threads = min(threads_that_read(batches), self.num_workers)
        self.ahead = ReadAhead(lambda key: self._selection(*key), threads) if threads else None
        self._define(mine[0])
        pack_view = jax.jit(lambda mine: self._view.pack(self._with_outcome(view_of(mine), jnp.array(False))))
        self._views = [self.send(worker, pack_view(one)) for worker, one in enumerate(mine)]

    def _with_outcome(self, view: View, applied: jax.Array) -> tuple[View, Any]:
        """What is sent to a worker; one with a local optimizer must know whether its last commit was applied."""
        return view, applied.astype(jnp.result_type(float)) if self._keeps_local else ()

    def _define(self, mine: RunState) -> None:
        view_shapes = jax.eval_shape(lambda mine: self._with_outcome(view_of(mine), jnp.array(False)), mine)
        centre = self.placement.central
        apart = functools.partial(cut_along, parts=len(devices_of(centre)))
        self._view = Packer(view_shapes, lambda shape: apart(shape) is not None)

        def gradient(view, local, data, selection, who, place=None):
            worker, step = who[0], who[1]
            batch = _split(place, self.batches.batch(data, selection))
            return self.transition.gradient(view._replace(local=local), batch, worker, step)

        local = self._local[0]
        data, selection = self._again(lambda: self._selection(0, 0, 0))
        data = self.batches.data if data is None else data
        shapes = jax.eval_shape(gradient, view_shapes[0], local, data, selection, np.zeros(3, np.int32))
        self._gradient = Packer(shapes._replace(local=()), lambda shape: apart(shape) is not None)

        def compute(packed, local, data, selection, who, place):
            sent = gradient(self._view.unpack(packed)[0], local, data, selection, who, place)
            return self._gradient.pack(sent._replace(local=())), sent.local

        def settle(packed, local, moved):
            _, applied = self._view.unpack(packed)
            return jax.tree.map(lambda new, old: jnp.where(applied > 0, new, old), moved, local)

        def commit(shared, mine, packed, who):
            worker, step, commits = who[0], who[1], who[2] > 0
            state = self._join(mine, shared)
            gradient = self._gradient.unpack(packed)
            state, view, report = self.transition.commit_and_pull(
                state, view_of(state).params, gradient, worker, step, commits
            )
            mine, _, shared = slots.split(state)
            named = {
                name: getattr(report, name) for name in ("loss", "staleness", "applied", "dropped")
            } | report.metrics
            self.reported = {name: np.dtype(value.dtype) for name, value in named.items()}  # While it is traced.
            dtype = jnp.promote_types(report.loss.dtype, jnp.float32)
            sent = self._view.pack(self._with_outcome(view, report.applied))
            return shared, mine, sent, jnp.stack([v.astype(dtype) for v in named.values()])

        # One device is like another to a program; workers of several have each their own.
        self._compute = {
            place: jax.jit(functools.partial(compute, place=place)) if isinstance(place, tuple) else alone
            for alone in [jax.jit(functools.partial(compute, place=None))]
            for place in self.placement.workers
        }
        self._settle = jax.jit(settle)
        nothing = jax.eval_shape(self._gradient.zeros)
        self._no_gradient = jax.jit(self._gradient.zeros, out_shardings=self._lie(nothing))
        self._commit = jax.jit(commit, donate_argnums=(0, 1), out_shardings=self._out_shardings(mine))

    def _out_shardings(self, mine: RunState) -> Any:
        """Where a commit leaves what it computes: state and views as they lie, the report on every device of the centre."""
        if not isinstance(self.placement.central, tuple):
            return None
        slots_, _, shared = slots.split(mine)
        centre = self.placement.central
        view = jax.eval_shape(self._view.zeros)
        return (*(self._lie(tree) for tree in (shared, slots_, view)), whole(centre))

    def _lie(self, tree: PyTree) -> PyTree:
        """How ``tree`` lies at the centre."""
        if isinstance(tree, Packed):
            centre = self.placement.central
            return Packed(dict.fromkeys(tree.vectors, whole(centre)), shardings(centre, tree.apart))
        return shardings(self.placement.central, tree)

    def _moved_in(self, tree: PyTree) -> PyTree:
        """``tree`` at the centre, in memory of its own: commits donate what they replace, and device_put may alias."""
        return self._to_centre(jax.tree.map(_copy, tree))

    def _to_centre(self, tree: PyTree) -> PyTree:
        return jax.device_put(tree, self._lie(tree))

    def warm_up(self) -> None:
        """Compiles everything: the workers' programs in parallel, one a device, and the commit."""
        first = {device: worker for worker, device in reversed(list(enumerate(self.placement.workers)))}
        x64 = jax.config.read(
            "jax_enable_x64"
        )  # As the calling thread has it: `with jax.enable_x64():` does not reach others.

        def run_once(worker):
            with enable_x64(x64):
                gradient = jax.block_until_ready(self.compute(worker, self._any_batch(worker)))
                self._settled(worker)
                return gradient

        # More compilations at a time than cores only slow each other down.
        with concurrent.futures.ThreadPoolExecutor(min(len(first), os.cpu_count() or 1)) as pool:
            gradients = list(pool.map(run_once, first.values()))
        scratch = jax.tree.map(jnp.copy, (self._shared, self._slots[0]))
        jax.block_until_ready(self._commit(*scratch, self._to_centre(gradients[0]), _who(0, 0, commits=True)))

    def _any_batch(self, worker: int) -> PyTree:
        """The batch of the worker's step, or, if it has made all its commits, of its first one."""
        try:
            return self._again(lambda: self.select(worker))
        except PeriodsEndError:
            return self._again(lambda: self._selection(worker, 0, 0))

    def _again(self, read: Callable[[], PyTree]) -> PyTree:
        """What ``read`` returns, though it may raise a few times before."""
        for _ in range(self._retries):
            try:
                return read()
            except PeriodsEndError:
                raise
            except Exception:
                continue
        return read()

    def is_ready(self, worker: int) -> bool:
        """Whether :meth:`select` would not wait for data that have to be read; begins to read them."""
        return self.ahead is None or self.ahead.is_there(self._key(worker))

    def select(self, worker: int) -> PyTree:
        """What singles out the batch of the worker's step, and the data for it if they are not on the device."""
        if self.ahead is None:
            return self._selection(worker, self.steps[worker], self.draws[worker])
        selected = self.ahead.take(self._key(worker))
        self.ahead.begin(self._next_keys(worker))
        return selected

    def _key(self, worker: int) -> tuple[int, int, int]:
        """What the batch of the worker's step is read by: (worker, step, draw), as far as it depends on them."""
        if not is_shared(self.batches):
            return worker, self.steps[worker], 0
        return (worker, self.steps[worker], self.draws[worker]) if self._counts_steps else (0, 0, self.draws[worker])

    def _next_keys(self, worker: int) -> list[tuple[int, int, int]]:
        """What to read while the worker computes: its next batch, or those that anybody draws next."""
        if not is_shared(self.batches):
            return [(worker, self.steps[worker] + 1, 0)]
        if self._counts_steps:
            return []
        return [(0, 0, draw) for draw in range(self._drawn, self._drawn + self.num_workers)]

    @property
    def _counts_steps(self) -> bool:
        """Whether a draw from a shared stream comes with the worker's local steps, so that nobody else can take it."""
        return isinstance(self.batches, LocalBatches)

    def view(self, worker: int) -> PyTree:
        """What the worker computes on, packed; it may still be on its way."""
        return self._views[worker]

    def compute(self, worker: int, selected: PyTree) -> PyTree:
        """Dispatches the worker's gradient on the view it holds; returns at once."""
        place = self.placement.workers[worker]
        data, selection = selected
        data = self._data[place] if data is None else jax.device_put(data, whole(place))
        who = _who(worker, self.steps[worker])
        gradient, self._moved[worker] = self._compute[place](
            self._views[worker], self._local[worker], data, selection, who
        )
        return gradient

    def _settled(self, worker: int) -> PyTree:
        """State of the worker's local optimizer, now that it knows what became of its commit."""
        if not self._keeps_local:
            return self._local[worker]
        return self._settle(self._views[worker], self._local[worker], self._moved[worker])

    def bring(self, packed: Packed) -> Packed:
        """Sends a packed gradient to the centre; a failure here leaves the central variable untouched."""
        if isinstance(self.placement.central, tuple):
            return self._to_centre(packed)
        return _send(packed, self.placement.central)

    def send(self, worker: int, packed_view: Packed) -> Packed:
        """Sends a packed view to its worker; returns at once."""
        return _send(packed_view, self.placement.workers[worker])

    def commit(self, worker: int, packed: Packed) -> jax.Array:
        """Dispatches the commit of a gradient at the centre and the pull that follows; returns the report's array at once.

        The commit is made then, whatever becomes of the worker; :meth:`deliver` sends what it pulled.

        Raises:
          RunFailedError: if the centre cannot do it.
        """
        report = self._at_centre(worker, packed, commits=True)
        if self.ahead is not None:
            self.ahead.drop(self._key(worker))
        self.steps[worker] += 1
        self.draws[worker], self._drawn = self._drawn, self._drawn + 1
        return report

    def deliver(self, worker: int) -> None:
        """Sends a worker what it pulled, unless it has it; returns at once. If this raises, it can be tried again."""
        if worker in self._undelivered:
            self._views[worker] = self.send(worker, self._undelivered[worker])
            self._local[worker] = self._settled(worker)
            del self._undelivered[worker]

    def pull_again(self, worker: int) -> None:
        """Has the worker pull without a commit; it keeps its step.

        Raises:
          RunFailedError: if the centre cannot do it; anything else is the worker's fault.
        """
        self.deliver(worker)  # What became of its last commit, too, which its local optimizer has to know.
        self._at_centre(worker, self._no_gradient(), commits=False)
        self.deliver(worker)

    def _at_centre(self, worker: int, packed: Packed, *, commits: bool) -> jax.Array:
        try:
            self._undelivered[worker], report = self.run_commit(worker, packed, commits=commits)
        except Exception as error:
            raise RunFailedError(
                f"the central variable's devices ({self.placement.names()['central']}) failed at a "
                f"{'commit' if commits else 'pull'} of worker {worker}: {error!r}"
            ) from error
        return report

    def read(self, report: jax.Array) -> list[float]:
        """The numbers of a report, in the order of ``reported``; waits until they are there.

        Raises:
          RunFailedError: if the commit has failed at the centre.
        """
        try:
            return np.asarray(report).tolist()
        except Exception as error:
            raise RunFailedError(
                f"the central variable's devices ({self.placement.names()['central']}) failed: {error!r}"
            ) from error

    @property
    def params(self) -> PyTree:
        """The central variable."""
        return self._join(self._slots[0], self._shared).params

    @property
    def model_state(self) -> PyTree:
        """Its model state."""
        return self._join(self._slots[0], self._shared).model_state

    def gather(self) -> RunState:
        """The whole state, per-worker slots stacked; valid until the next commit."""
        state = self._join(self._stacked([[s.value for s in mine] for mine in self._slots]), self._shared)
        mine = [self._local_at_centre(worker) for worker in range(self.num_workers)]
        local = jax.tree.map(lambda *leaves: jnp.stack(leaves), *mine)
        return state._replace(view=Slots(state.view.value._replace(local=local), self.num_workers))

    def _local_at_centre(self, worker: int) -> PyTree:
        local = self._to_centre(self._local[worker])
        if not self._keeps_local or worker not in self._undelivered:
            return local
        return self._settle(self._undelivered[worker], local, self._to_centre(self._moved[worker]))

    def _stacked(self, values: list[list[PyTree]]) -> list[Slots]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
        return [Slots(value, self.num_workers) for value in stacked]

    def run_commit(self, worker: int, packed: PyTree, *, commits: bool = True) -> tuple[PyTree, jax.Array]:
        """The commit program alone, on what is at the centre already: the worker's packed next view, and the report."""
        self._shared, self._slots[worker], view, report = self._commit(
            self._shared, self._slots[worker], packed, _who(worker, self.steps[worker], commits=commits)
        )
        return view, report

    def close(self) -> None:
        """Reads no more data ahead."""
        if self.ahead is not None:
            self.ahead.close()

    def _selection(self, worker: int, step: int, draw: int) -> PyTree:
        selected = select(self.batches, *(np.array([number], np.int32) for number in (worker, step, draw)))
        return part(self.batches, jax.tree.map(lambda column: column[0], selected))


def _without_local(state: RunState) -> RunState:
    """``state`` as the centre keeps it: local optimizers live with their workers."""
    return state._replace(view=Slots(state.view.value._replace(local=()), state.view.num_workers))


def _split(place: Place | None, batch: PyTree) -> PyTree:
    """``batch`` over the devices of its worker; of local steps, each of their batches."""
    if isinstance(batch, Minibatches):
        return dataclasses.replace(batch, at=lambda j: split_batch(place, batch.at(j)))
    return split_batch(place, batch)


def _send(packed: Packed, place: Place) -> Packed:
    """``packed`` whole at ``place``; one array, the usual case, is sent in half of the time that a tree takes."""
    there = whole(place) if isinstance(place, tuple) else place
    if packed.apart or len(packed.vectors) > 1:
        return jax.device_put(packed, there)
    return Packed({dtype: jax.device_put(vector, there) for dtype, vector in packed.vectors.items()}, [])


def _copy(array: jax.Array) -> jax.Array:
    return jnp.array(array, copy=True)


def _who(worker: int, step: int, *, commits: bool = True) -> np.ndarray:
    """Whose step it is, as one array: every argument of a call costs some microseconds."""
    return np.array((worker, step, commits), np.int32)
