"""The program of a commit and the pull that follows, divided over places, and one place's share of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from gemjax.engines.cluster.central.division import Division
from gemjax.engines.cluster.central.program import Program
from gemjax.engines.devices.hardware import keys
from gemjax.engines.devices.hardware.packing import Packed, numbers_of, with_outcome
from gemjax.engines.devices.hardware.programs.gradients import Packers
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import slots

PyTree = Any
Arrays = Mapping[int, Any]  # By the number of their value in the program.


class Recipe(NamedTuple):
    """Picklable description from which every process divides a run's commits in the same way."""

    transition: Transition
    state: RunState  # Shapes, with the slots of all workers.
    packers: Packers  # They pack no leaf with others.
    keeps_local: bool
    parts: int
    small: int  # As for a Division.


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of the state, by the number of its value; a stacked one has a row per worker."""

    number: int
    stacked: bool


class Layout(NamedTuple):
    """The numbers of a program's values by their role, each in the order of its leaves."""

    shared: list[int]
    slot: list[int]
    gradient: list[int]
    event: list[int]
    shared_after: list[int]
    slot_after: list[int]
    view: list[int]
    report: list[int]


class Commit:
    """The divided program of a commit.

    Attributes:
      taken: shapes of the state with the slot of one worker.
      reported: names of the numbers of a report, in order, with their dtypes.
      view_places, gradient_places: the place of each leaf.
      digest: equal in two processes that have divided the program in the same way.

    Raises:
      ValueError: as for :class:`gemjax.engines.cluster.central.division.Division`.
    """

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.taken = jax.eval_shape(lambda state: slots.take(state, 0), recipe.state)
        slot, self.join, shared = slots.split(self.taken)
        self._kept = shared, slot
        event = (jax.ShapeDtypeStruct((), "int32"),) * 3
        gradient = jax.eval_shape(recipe.packers.gradients.zeros).apart
        given = (*keys.as_data((shared, slot)), gradient, event)
        program = Program(self._step, *given)
        sizes = [len(jax.tree.leaves(tree)) for tree in given]
        kept = sum(sizes[:2])
        self.division = Division(
            program, recipe.parts, tied=[(n, n) for n in range(kept)], names=self._names(), small=recipe.small
        )
        ins, outs = iter(program.inputs), iter(program.outputs)
        take = lambda values, count: [next(values) for _ in range(count)]
        views = len(jax.eval_shape(recipe.packers.views.zeros).apart)
        given = [take(ins, size) for size in sizes]
        self.layout = Layout(*given, *(take(outs, size) for size in (*sizes[:2], views, len(self.reported))))
        returned = self.division.returned[kept : kept + views]
        self.view_places = [place for _, place, _ in returned]
        self.gradient_places = [self.division.place[number] for number in self.layout.gradient]
        self.digest = self.division.describe()

    def _names(self) -> list[str | None]:
        """Return, per input of the program, the path of the parameter that it is, or of which it is the gradient."""
        shared, slot = self._kept
        parameters = self.join(slot, list(range(len(shared)))).params
        gradient = self.recipe.packers.gradients.example
        grads = jax.tree.unflatten(jax.tree.structure(gradient), range(len(jax.tree.leaves(gradient)))).grads
        found: list[str | None] = []
        for tree, count in ((parameters, len(shared)), ((), len(jax.tree.leaves(slot))), (grads, None)):
            paths = {leaf: jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
            found += [paths.get(index) for index in range(len(jax.tree.leaves(gradient)) if count is None else count)]
        return found

    def _step(self, shared: list, slot: list, gradient: list, event: tuple) -> tuple:
        recipe, (worker, step, commits) = self.recipe, event
        state = self.join(*reversed(keys.as_keys((shared, slot), self._kept)))
        committed = recipe.packers.gradients.unpack(Packed({}, gradient))
        state, view, report = recipe.transition.commit_and_pull(
            state, recipe.transition.view_of(state).params, committed, worker, step, commits > 0
        )
        slot, _, shared = slots.split(state)
        named = numbers_of(report)
        self.reported = {name: value.dtype for name, value in named.items()}  # Set by tracing.
        sent = recipe.packers.views.pack(with_outcome(view, report.applied, recipe.keeps_local)).apart
        return (*keys.as_data((shared, slot)), sent, list(named.values()))

    def first_views(self) -> list[int | None]:
        """Return, per leaf of a view, the kept value that it is before the first commit; ``None`` if it is none of them."""

        def first_view(shared, slot):
            state = self.join(*reversed(keys.as_keys((shared, slot), self._kept)))
            view = self.recipe.transition.view_of(state)
            outcome = with_outcome(view, jax.numpy.array(False), self.recipe.keeps_local)
            return self.recipe.packers.views.pack(outcome).apart

        program = Program(first_view, *keys.as_data(self._kept))
        known = dict(zip(program.inputs, (*self.layout.shared, *self.layout.slot), strict=True))
        for equation in program.equations:
            # Typed keys as integers, and back; a number of commits as a float.
            converts = equation.primitive.name in ("random_wrap", "random_unwrap", "convert_element_type")
            if converts and equation.ins[0] in known:
                known[equation.outs[0]] = known[equation.ins[0]]
        return [known.get(out) for out in program.outputs]

    def leaves(self) -> RunState:
        """Return a state with a :class:`Leaf` in place of each array."""
        each, join, _ = slots.split(self.recipe.state)
        numbers = iter(self.layout.slot)
        each = jax.tree.map(lambda _: Leaf(next(numbers), stacked=True), each)
        return join(each, [Leaf(number, stacked=False) for number in self.layout.shared])

    def view_at(self, place: int) -> list[int]:
        """Return the leaves of a view that are at a place."""
        return [number for number, at in zip(self.layout.view, self.view_places, strict=True) if at == place]

    def gradient_at(self, place: int) -> list[int]:
        """Return the leaves of a gradient that are at a place."""
        return [number for number, at in zip(self.layout.gradient, self.gradient_places, strict=True) if at == place]

    def at(self, place: int, arrays: Arrays) -> dict[int, Any]:
        """Return those of ``arrays`` whose place this is."""
        return {number: array for number, array in arrays.items() if self.division.place[number] == place}


class Part:
    """The arrays of one place, and its pieces of the program.

    A commit computes on copies: :meth:`finish` replaces the arrays, after every place has computed all rounds.

    Args:
      commit: the divided program.
      place: the place.
      shared: its leaves of what all workers share.
      slots: per worker, its leaves of the slot.
    """

    def __init__(self, commit: Commit, place: int, shared: Arrays, slots: Sequence[Arrays]):
        self._commit, self.place = commit, place
        self.shared, self.slots = dict(shared), [dict(slot) for slot in slots]
        self._pieces = [pieces.get(place) for pieces in commit.division.pieces]
        self._compiled = [jax.jit(piece.__call__) if piece else None for piece in self._pieces]
        self._worker, self.values = 0, {}

    def begin(self, worker: int, given: Arrays) -> None:
        """Begin a commit of ``worker`` with its gradient; one that was not finished is forgotten."""
        self._worker, self.values = worker, {**self.shared, **self.slots[worker], **given}

    def run(self, level: int, received: Arrays) -> dict[int, Any]:
        """Compute the piece of a round; return what other places need of it."""
        piece, compiled = self._pieces[level], self._compiled[level]
        if piece is None or compiled is None:
            return {}
        kept = [self.values[number] for number in piece.kept]
        computed = compiled([received[number] for number in piece.received], kept)
        self.values.update(zip(piece.computed, computed, strict=True))
        return {number: self.values[number] for number in piece.sent}

    def finish(self) -> dict[int, Any]:
        """Replace the state by that after the commit; return the leaves of the view, and of the report, that are here."""
        layout, division = self._commit.layout, self._commit.division
        values = division.program.constants | self.values
        here = {out for out, place, _ in division.returned if place == self.place}
        shared, slot = (
            {n: values[out] for n, out in zip(before, after, strict=True) if n in kept}
            for kept, before, after in (
                (self.shared, layout.shared, layout.shared_after),
                (self.slots[self._worker], layout.slot, layout.slot_after),
            )
        )
        self.shared.update(shared)  # Both or none.
        self.slots[self._worker].update(slot)
        self.values = {}
        return {out: values[out] for out in (*layout.view, *layout.report) if out in here}
