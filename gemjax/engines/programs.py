"""The compiled programs of a run on devices, and the arrays they pass around."""

import concurrent.futures
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax import slots
from gemjax.batches import part, select
from gemjax.engines.packing import Packer
from gemjax.engines.transition import RunState, Transition, View, view_of
from gemjax.placement import Placement
from gemjax.slots import Slots

PyTree = Any


class Programs:
    """Gradients on the workers' devices, commits on the central one.

    Per-worker state is kept as one slot a worker, never stacked: a commit is handed the slot it needs and donates it. What
    crosses devices is packed into one vector a dtype, so that a transfer is one call.
    """

    def __init__(self, transition: Transition, batches: Any, placement: Placement, state: RunState):
        self.transition, self.batches, self.placement = transition, batches, placement
        self.num_workers = transition.num_workers
        locals_ = state.view.value.local
        # Copied, because commits donate what they replace and device_put to the same device would alias the caller's.
        state = jax.device_put(
            jax.tree.map(lambda x: jnp.array(x, copy=True), _without_local(state)), placement.central
        )
        _, self._join, self._shared = slots.split(state)
        taken = [slots.take(state, worker) for worker in range(self.num_workers)]
        self._slots = [slots.split(mine)[0] for mine in taken]
        self.steps = [int(mine.step.value) for mine in taken]
        self.draws = [int(mine.draw.value) for mine in taken]
        self._drawn = 1 + max(self.draws)  # Whoever arrived last holds the newest.
        self._local = [
            jax.device_put(slots.take(Slots(locals_, self.num_workers), worker).value, device)
            for worker, device in enumerate(placement.workers)
        ]
        self._moved = list(self._local)  # After the step at hand; kept if its commit is applied.
        self._keeps_local = bool(jax.tree.leaves(locals_))
        self._data = {device: jax.device_put(batches.data, device) for device in dict.fromkeys(placement.workers)}
        self._define(taken[0])
        pack_view = jax.jit(lambda mine: self._view.pack(self._with_outcome(view_of(mine), jnp.array(False))))
        self._views = [self._to_worker(worker, pack_view(mine)) for worker, mine in enumerate(taken)]

    def _with_outcome(self, view: View, applied: jax.Array) -> tuple[View, Any]:
        """What is sent to a worker; one with a local optimizer must know whether its last commit was applied."""
        return view, applied.astype(jnp.result_type(float)) if self._keeps_local else ()

    def _define(self, mine: RunState) -> None:
        view_shapes = jax.eval_shape(lambda mine: self._with_outcome(view_of(mine), jnp.array(False)), mine)
        self._view = Packer(view_shapes)

        def gradient(view, local, data, selection, who):
            worker, step = who[0], who[1]
            batch = self.batches.batch(data, selection)
            return self.transition.gradient(view._replace(local=local), batch, worker, step)

        local = self._local[0]
        data, selection = self._selection(0, 0, 0)
        data = self.batches.data if data is None else data
        shapes = jax.eval_shape(gradient, view_shapes[0], local, data, selection, np.zeros(3, np.int32))
        self._gradient = Packer(shapes._replace(local=()))

        def compute(packed, local, data, selection, who):
            sent = gradient(self._view.unpack(packed)[0], local, data, selection, who)
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
            self._reported = {name: np.dtype(value.dtype) for name, value in named.items()}
            dtype = jnp.promote_types(report.loss.dtype, jnp.float32)
            sent = self._view.pack(self._with_outcome(view, report.applied))
            return shared, mine, sent, jnp.stack([v.astype(dtype) for v in named.values()])

        self._compute, self._settle = jax.jit(compute), jax.jit(settle)
        self._commit = jax.jit(commit, donate_argnums=(0, 1))

    def warm_up(self) -> None:
        """Compiles everything: the workers' programs in parallel, one a device, and the commit."""
        first = {device: worker for worker, device in reversed(list(enumerate(self.placement.workers)))}
        x64 = jax.config.read(
            "jax_enable_x64"
        )  # As the calling thread has it: `with jax.enable_x64():` does not reach others.

        def run_once(worker):
            with jax.enable_x64(x64):
                gradient = jax.block_until_ready(self.compute(worker, self.select(worker)))
                self._settled(worker)
                return gradient

        # More compilations at a time than cores only slow each other down.
        with concurrent.futures.ThreadPoolExecutor(min(len(first), os.cpu_count() or 1)) as pool:
            gradients = list(pool.map(run_once, first.values()))
        scratch = jax.tree.map(jnp.copy, (self._shared, self._slots[0]))
        packed = jax.device_put(gradients[0], self.placement.central)
        jax.block_until_ready(self._commit(*scratch, packed, _who(0, 0, commits=True)))

    def select(self, worker: int) -> PyTree:
        """What singles out the batch of the worker's step, and the data for it if they are not on the device."""
        return self._selection(worker, self.steps[worker], self.draws[worker])

    def compute(self, worker: int, selected: PyTree) -> PyTree:
        """Dispatches the worker's gradient on the view it holds; returns at once."""
        device = self.placement.workers[worker]
        data, selection = selected
        data = self._data[device] if data is None else jax.device_put(data, device)
        who = _who(worker, self.steps[worker])
        gradient, self._moved[worker] = self._compute(self._views[worker], self._local[worker], data, selection, who)
        return gradient

    def _settled(self, worker: int) -> PyTree:
        """State of the worker's local optimizer, now that it knows what became of its commit."""
        if not self._keeps_local:
            return self._local[worker]
        return self._settle(self._views[worker], self._local[worker], self._moved[worker])

    def commit(self, worker: int, packed: PyTree) -> jax.Array:
        """Dispatches the commit of a packed gradient and the pull that follows; returns the report's array at once."""
        packed = jax.device_put(packed, self.placement.central)
        view, report = self.run_commit(worker, packed)
        self._views[worker] = self._to_worker(worker, view)
        self._local[worker] = self._settled(worker)
        self.steps[worker] += 1
        self.draws[worker], self._drawn = self._drawn, self._drawn + 1
        return report

    def pull_again(self, worker: int) -> None:
        """Has the worker pull without a commit; it keeps its step."""
        nothing = self._gradient.zeros(self.placement.central)
        view, _ = self.run_commit(worker, nothing, commits=False)
        self._views[worker] = self._to_worker(worker, view)

    def read(self, report: jax.Array) -> dict[str, Any]:
        """The numbers of a report by name; waits until they are there."""
        values = np.asarray(report)
        return {name: value.astype(dtype) for (name, dtype), value in zip(self._reported.items(), values, strict=True)}

    @property
    def params(self) -> PyTree:
        """The central variable."""
        return self._join(self._slots[0], self._shared).params

    def gather(self) -> RunState:
        """The whole state, per-worker slots stacked; valid until the next commit."""
        state = self._join(self._stacked([[s.value for s in mine] for mine in self._slots]), self._shared)
        local = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *[jax.device_put(one, self.placement.central) for one in self._local]
        )
        return state._replace(view=Slots(state.view.value._replace(local=local), self.num_workers))

    def _stacked(self, values: list[list[PyTree]]) -> list[Slots]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
        return [Slots(value, self.num_workers) for value in stacked]

    def run_commit(self, worker: int, packed: PyTree, *, commits: bool = True) -> tuple[PyTree, jax.Array]:
        """The commit program alone, on what is at the centre already: the worker's packed next view, and the report."""
        self._shared, self._slots[worker], view, report = self._commit(
            self._shared, self._slots[worker], packed, _who(worker, self.steps[worker], commits=commits)
        )
        return view, report

    def _to_worker(self, worker: int, packed_view: PyTree) -> PyTree:
        return jax.device_put(packed_view, self.placement.workers[worker])

    def _selection(self, worker: int, step: int, draw: int) -> PyTree:
        selected = select(self.batches, *(np.array([number], np.int32) for number in (worker, step, draw)))
        return part(self.batches, jax.tree.map(lambda column: column[0], selected))


def _without_local(state: RunState) -> RunState:
    """``state`` as the centre keeps it: local optimizers live with their workers."""
    return state._replace(view=Slots(state.view.value._replace(local=()), state.view.num_workers))


def _who(worker: int, step: int, *, commits: bool = True) -> np.ndarray:
    """Whose step it is, as one array: every argument of a call costs some microseconds."""
    return np.array((worker, step, commits), np.int32)
