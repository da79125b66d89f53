"""The first state of a run, which each place makes for itself: the program of ``Transition.init``, cut to its leaves."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from gemjax.engines.cluster.central.commit import Arrays, Commit
from gemjax.engines.cluster.central.division import Piece
from gemjax.engines.cluster.central.program import Program
from gemjax.engines.devices.hardware import keys
from gemjax.engines.result import without_numbers
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import slots
from gemjax.protocol.slots import Slots

PyTree = Any


def first_state(transition: Transition, params: PyTree, model_state: PyTree) -> RunState:
    """Return the state before the first commit, with shapes in place of the method's arrays, which :class:`First` makes.

    Counters and the states of local optimizers are arrays. A method whose ``init`` cannot be traced gets all arrays.
    """
    params, model_state = jax.tree.map(jax.numpy.asarray, (params, model_state))

    def known(params, model_state):
        state = transition.init(params, model_state)
        return state._replace(params=(), opt_state=(), model_state=(), view=state.view.value.local)

    try:
        shapes = jax.eval_shape(transition.init, params, model_state)
    except jax.errors.JAXTypeError:
        return transition.init(params, model_state)
    counters = jax.jit(known)(params, model_state)  # Compiled, it makes no array that it does not return.
    view = Slots(shapes.view.value._replace(local=counters.view), transition.num_workers)
    return counters._replace(params=params, model_state=model_state, opt_state=shapes.opt_state, view=view)


def is_unmade(state: RunState) -> bool:
    """Return True for a state of :func:`first_state`."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))


class First:
    """The program from the leaves of parameters and model state, as integers if they are keys, to those of the first state.

    There are no rounds: a place computes all that its leaves depend on, for most methods the parameters' leaves that are there.

    Args:
      commit: the divided program of the commits.
    """

    def __init__(self, commit: Commit):
        transition, state = commit.recipe.transition, commit.recipe.state
        given = state.params, state.model_state

        def first(data, worker):
            begin = without_numbers(transition.init(*keys.as_keys(data, given)))
            slot, _, shared = slots.split(slots.take(begin, worker))
            return keys.as_data((shared, slot))

        self._program = Program(first, keys.as_data(given), jax.ShapeDtypeStruct((), "int32"))
        self._commit, layout = commit, commit.layout
        self._outputs = dict(zip((*layout.shared, *layout.slot), self._program.outputs, strict=True))

    def inputs(self, place: int) -> list[int]:
        """Return the indices of the leaves of parameters and model state that a place needs."""
        layout = self._commit.layout
        _, needed = self._program.needed_for(self._at(place, (*layout.shared, *layout.slot)).values())
        return [index for index, number in enumerate(self._program.inputs[:-1]) if number in needed]

    def make(self, place: int, given: Sequence[Any], num_workers: int) -> tuple[Arrays, list[Arrays]]:
        """Return the leaves of a place that all workers share, and its leaves of each worker's slot.

        Args:
          place: the place.
          given: the leaves of :meth:`inputs`.
          num_workers: number of workers N.
        """
        layout, inputs = self._commit.layout, self._program.inputs
        known = dict(zip([inputs[index] for index in self.inputs(place)], given, strict=True))
        make_shared, shared = self._compiled(place, layout.shared)
        make_slot, slot = self._compiled(place, layout.slot)
        each = [make_slot(known | {inputs[-1]: np.int32(worker)}) for worker in range(num_workers)]
        return dict(zip(shared, make_shared(known), strict=True)), [dict(zip(slot, one, strict=True)) for one in each]

    def _at(self, place: int, numbers: Iterable[int]) -> dict[int, int]:
        """Return the outputs at a place, by the number of the kept value."""
        return self._commit.at(place, {number: self._outputs[number] for number in numbers})

    def _compiled(self, place: int, numbers: Iterable[int]) -> tuple[Callable[[Arrays], list], list[int]]:
        """Return a function that computes those of the kept values that are at a place, and their numbers."""
        program, outputs = self._program, self._at(place, numbers)
        equations, needed = program.needed_for(outputs.values())
        kept = [number for number in program.inputs if number in needed]
        constants = {number: value for number, value in program.constants.items() if number in needed}
        avals = {n: jax.ShapeDtypeStruct(program.avals[n].shape, program.avals[n].dtype) for n in kept}
        piece = Piece(equations, constants, (), tuple(kept), tuple(outputs.values()), (), avals)
        compiled = jax.jit(piece.__call__)
        return lambda known: compiled([], [known[number] for number in kept]), list(outputs)
