"""The central variable with the workers' slots on its devices, and the program that commits and pulls."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.devices.hardware.packing import Packed, Packer, numbers_of, outcome_of, packed_report, with_outcome
from gemjax.engines.devices.hardware.sharding import Place, is_cut, shardings, whole
from gemjax.engines.programs import Kept, Program
from gemjax.engines.running import keys
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import PyTree, slots
from gemjax.protocol.slots import Slots

SMALL = 2**15  # Bytes of the largest leaf that is packed between commits.


def event_of(worker: int, step: int, *, commits: bool = True) -> np.ndarray:
    """Return worker, step and kind of an arrival as one array: every argument of a call costs some microseconds."""
    return np.array((worker, step, commits), np.int32)


EXAMPLE_EVENT = event_of(0, 0)


class CommitPrograms:
    """The compiled programs of a central variable, which hold no array of a run.

    A commit receives the shared state and the slot of its worker, and donates both. Every array that goes in or out costs the
    scheduler's thread some microseconds, so small leaves are packed between commits, and the program unpacks them. PRNG keys
    are always packed; any other leaf stays apart

    - if it is larger than ``SMALL``: copying it into the vector takes longer than passing it (on a CPU 30 leaves of 32 KiB took
      as long either way; smaller ones were faster in a vector, and larger ones slower);
    - if it is cut over the devices of the central variable: each part stays where it is;
    - if a commit returns it with a weak dtype: a vector would change how it is promoted.

    Args:
      transition: the run's transition, bound.
      state: the state to begin with, arrays or shapes, without the state of local optimizers.
      place: the devices of the central variable.
      view: packs what :attr:`commit` returns for the worker.
      gradient: packs the gradients that are committed.
      keeps_local: True if workers have a local optimizer with state; the worker then receives a number besides its next view: 1
        if the commit was applied.
      lend: True if arrays of a view that :attr:`commit` returns may be those of the worker's slot, instead of copies; its next
        commit overwrites them.

    Attributes:
      reported: names of the numbers of a report, in order, with their dtypes.
      lent: per apart leaf of a view, its index among the apart leaves of the slot; ``None`` if the slot does not have it.
      reads: per block after the first, if workers read block by block, the program by which a worker reads it again; that of
        the last block returns the view.
    """

    def __init__(
        self, transition: Transition, state: RunState, place: Place, view: Packer, gradient: Packer, keeps_local: bool,
        lend: bool,
    ):  # fmt: skip
        self.place = place
        if not isinstance(place, tuple):
            transition = dataclasses.replace(transition, joined_bytes=SMALL)
        self._transition, self._outcome = transition, functools.partial(with_outcome, keeps_local=keeps_local)
        slot, self.join, shared = slots.split(jax.eval_shape(lambda state: slots.take(state, 0), state))
        step = jax.jit(self._step, inline=True)  # Traced once, which sets reported and _kept.
        nothing = jax.eval_shape(gradient.zeros)
        after = jax.eval_shape(step, shared, slot, jax.eval_shape(gradient.unpack, nothing), EXAMPLE_EVENT)
        self.shared, self.slot = self._packer(shared, after[0]), self._packer(slot, after[1])
        apart = self.slot.apart_of(range(len(jax.tree.leaves(slot)))) if lend else []
        self.lent = [apart.index(leaf) if leaf in apart else None for leaf in view.apart_of(self._kept)]

        def commit(shared, slot, packed, event):
            shared, slot, sent, report = step(*self._unpack(shared, slot), gradient.unpack(packed), event)
            return self.shared.pack(shared), self.slot.pack(slot), own(view.pack(sent)), report

        def own(sent):
            """Return a packed view without the arrays of its slot."""
            return sent._replace(apart=[leaf for leaf, at in zip(sent.apart, self.lent, strict=True) if at is None])

        def read(shared, slot, vectors, event, block):
            """Read a block; ``vectors`` of the view that a commit has sent have the outcome of that commit."""
            state = self.join(*reversed(self._unpack(shared, slot)))
            state = transition.read(state, event[0], block)
            slot = self.slot.pack(slots.split(state)[0])
            if block < transition.num_blocks - 1:
                return [slot]
            applied = outcome_of(view, vectors) > 0 if keeps_local else jnp.array(False)
            return [slot, own(view.pack(self._outcome(transition.view_of(state), applied)))]

        def first_view(shared, slot):
            shared, slot = self._unpack(shared, slot)
            return view.pack(self._outcome(self._transition.view_of(self.join(slot, shared)), jnp.array(False)))

        packed = jax.eval_shape(self.shared.pack, shared), jax.eval_shape(self.slot.pack, slot)
        self.pack_shared = Program(self.shared.pack, out_shardings=self.shardings(packed[0]))
        self.pack_slot = Program(self.slot.pack, out_shardings=self.shardings(packed[1]))
        self.parts = Program(self.all_parts, out_shardings=whole(place))
        self.no_gradient = Program(gradient.zeros, out_shardings=self.shardings(nothing))
        options, of_view, of_read = {}, {}, {}
        if isinstance(place, tuple):
            of_view["out_shardings"] = self.shardings(jax.eval_shape(first_view, *packed))
            *trees, _ = jax.eval_shape(commit, *packed, nothing, EXAMPLE_EVENT)
            options["out_shardings"] = (*map(self.shardings, trees), whole(place))
            of_read = {
                block: {"out_shardings": list(map(self.shardings, trees[1 : 2 + (block == transition.num_blocks - 1)]))}
                for block in range(1, transition.num_blocks)
            }
        self.first_view = Program(first_view, **of_view)
        # Most methods do not read the last view in the slot, but its donated memory holds the next one.
        self.commit = Program(commit, donate_argnums=(0, 1), keep_unused=lend, **options)
        self.reads = [
            Program(functools.partial(read, block=block), donate_argnums=1, **of_read.get(block, {}))
            for block in range(1, transition.num_blocks)
        ]

    def _step(self, shared: list, slot: list, gradient: PyTree, event: jax.Array) -> tuple:
        """Commit and pull, traced, on unpacked trees."""
        state, (worker, step, commits) = self.join(slot, shared), event
        read_at = {"read_at": state.read_at.value} if self._transition.num_blocks else {}
        state, view, report = self._transition.commit_and_pull(state, gradient, worker, step, commits > 0)
        slot, _, shared = slots.split(state)
        named = numbers_of(report)
        self.reported = {name: np.dtype(value.dtype) for name, value in named.items()}
        sent = self._outcome(view, report.applied)
        # Which leaf of the slot each leaf of the view is: from JAX 0.11.2 on the caller of a jitted function cannot see it.
        kept = {id(leaf): number for number, leaf in enumerate(jax.tree.leaves(slot))}
        self._kept = [kept.get(id(leaf)) for leaf in jax.tree.leaves(sent)]
        return shared, slot, sent, packed_report(named) | read_at

    def _packer(self, tree: PyTree, after: PyTree) -> Packer:
        """Return the packer of ``tree``; a commit returns a tree like ``after``."""

        def is_apart(leaf, after):
            if keys.is_key(leaf):
                return False
            is_large = leaf.size * leaf.dtype.itemsize > SMALL
            return is_large or is_cut(self.place, leaf.shape) or after.weak_type

        return Packer(tree, jax.tree.leaves(jax.tree.map(is_apart, tree, after)))

    def _unpack(self, shared: Packed, slot: Packed) -> tuple[list, list]:
        return self.shared.unpack(shared), self.slot.unpack(slot)

    def shardings(self, tree: PyTree) -> PyTree:
        """Return the sharding of each array of ``tree``; vectors are whole on each device."""
        if isinstance(tree, Packed):
            return Packed(dict.fromkeys(tree.vectors, whole(self.place)), shardings(self.place, tree.apart))
        return shardings(self.place, tree)

    def all_parts(self, shared: dict[str, Any], slot: dict[str, Any]) -> tuple[list, list]:
        """Return the leaves that are in the vectors of the shared state and of a slot, in order."""
        return self.shared.parts(shared), self.slot.parts(slot)


PROGRAMS = Kept()


class Central:
    """The central variable and one slot per worker, at the place of the central variable.

    Args:
      transition, place, view, gradient, keeps_local, lend: as for :class:`CommitPrograms`.
      state: the state to begin with, without the state of local optimizers; copied.
    """

    def __init__(
        self, transition: Transition, state: RunState, place: Place, view: Packer, gradient: Packer, keeps_local: bool,
        *, lend: bool = False,
    ):  # fmt: skip
        self.place, self.num_workers = place, transition.num_workers
        same = transition, place, view, gradient, keeps_local, lend
        made = lambda: CommitPrograms(transition, state, place, view, gradient, keeps_local, lend)
        self.programs = programs = PROGRAMS.get(same, made, state)
        # Compiled programs return new arrays, so commits, which donate theirs, leave those of the caller alone.
        self.shared = programs.pack_shared(self.bring(slots.split(state)[2]))
        # One worker at a time, so that no two copies of the slots exist.
        self.slots = [
            programs.pack_slot(self.bring(slots.split(slots.take(state, worker))[0]))
            for worker in range(self.num_workers)
        ]
        self.no_gradient, self.reported = programs.no_gradient, programs.reported
        self._commit: Callable = programs.commit
        self._reads: list[Callable] = list(programs.reads)

    def bring(self, tree: PyTree) -> PyTree:
        """Send arrays to the devices of the central variable."""
        return jax.device_put(tree, self.programs.shardings(tree))

    def first_view(self, worker: int) -> Packed:
        """Return the packed view of a worker, as the state has it."""
        return self.programs.first_view(self.shared, self.slots[worker])

    def commit(self, worker: int, packed: Packed, event: np.ndarray) -> tuple[Packed, jax.Array]:
        """Dispatch a commit and the pull that follows.

        Args:
          worker: the worker that commits.
          packed: its gradient, on the devices of the central variable.
          event: int32 [3]: worker, step, and 1 for a commit or 0 for a pull alone.

        Returns:
          The worker's next view, packed; and the report, as :func:`packed_report` returns it.
        """
        self.shared, slot, view, report = self._commit(self.shared, self.slots[worker], packed, event)
        self.slots[worker] = slot
        # On a GPU, a copy that began when the report is read would take 0.3 ms. An error is raised again there.
        with contextlib.suppress(Exception):
            for vector in report.values():
                vector.copy_to_host_async()
        own = iter(view.apart)
        apart = [next(own) if at is None else slot.apart[at] for at in self.programs.lent]
        return view._replace(apart=apart), report

    def read(self, worker: int, block: int, packed: Packed) -> Packed:
        """Dispatch the read of a block, a positive int, for a worker whose last commit has sent ``packed``.

        Returns:
          The worker's view, packed, if it is the last block; ``packed`` otherwise.
        """
        read, event = self._reads[block - 1], event_of(worker, 0)
        self.slots[worker], *view = read(self.shared, self.slots[worker], packed.vectors, event)
        return view[0] if view else packed

    def warm_up(self, packed: Packed) -> None:
        """Compile the commit, or find the program, by a call on a copy of the state."""
        scratch = jax.tree.map(jnp.copy, (self.shared, self.slots[0]))
        self._commit = self.programs.commit.at(*scratch, packed, EXAMPLE_EVENT)
        shared, slot, view, _ = jax.block_until_ready(self._commit(*scratch, packed, EXAMPLE_EVENT))
        for block, program in enumerate(self.programs.reads):
            self._reads[block] = program.at(shared, slot, view.vectors, EXAMPLE_EVENT)
            slot, *_ = jax.block_until_ready(self._reads[block](shared, slot, view.vectors, EXAMPLE_EVENT))

    def params(self) -> tuple[PyTree, PyTree]:
        """Return parameters and model state; valid until the next commit."""
        state = self._unpacked(self.shared, self.slots[0], self.programs.parts)
        return state.params, state.model_state

    def gather(self, to: jax.Device | None = None) -> RunState:
        """Return the state with the slots of all workers stacked; valid until the next commit.

        Args:
          to: device that gets all of it, without more memory on those of the central variable; default: the latter.
        """
        move = (lambda tree: tree) if to is None else functools.partial(jax.device_put, device=to)
        parts = self.programs.parts if to is None else jax.jit(self.programs.all_parts)
        shared, found, rest = move(self.shared), [], []
        for slot in self.slots:
            own, _, rest = slots.split(self._unpacked(shared, move(slot), parts))
            found.append(own)
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
        return self.programs.join([Slots(slot.value, self.num_workers) for slot in together], rest)

    def _unpacked(self, shared: Packed, slot: Packed, parts: Callable) -> RunState:
        of_shared, of_slot = parts(shared.vectors, slot.vectors)
        return self.programs.join(
            self.programs.slot.merge(of_slot, slot.apart), self.programs.shared.merge(of_shared, shared.apart)
        )
