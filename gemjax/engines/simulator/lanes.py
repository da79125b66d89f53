"""The runs of a sweep, computed as one batch or one by one."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.memory import default_device
from gemjax.engines.programs import Kept, Program
from gemjax.engines.result import as_column
from gemjax.engines.transition import RunState
from gemjax.protocol import PyTree

PROGRAMS = Kept()
Lane = tuple[Any, list]  # Seed and hyper-parameters of a run, as numbers or traced.
BATCHED_ON_CPU = 3_000  # Largest number of parameters whose runs are one batch on a CPU.


def is_faster_batched(params: PyTree) -> bool:
    """Return True if runs with these parameters are faster as one batch than one by one on the default device."""
    return default_device().platform != "cpu" or sum(map(np.size, jax.tree.leaves(params))) <= BATCHED_ON_CPU


def in_one_batch(
    begin: Callable, step: Callable, lanes: list[Lane], starts: list, model_state: PyTree, same: tuple
) -> tuple[RunState, Callable]:
    """Return the state of all runs and the function of a chunk for :func:`in_chunks`: the ``vmap`` of ``step``.

    Inputs that differ between seeds get an axis of runs, in which seeds vary fastest. Other inputs are in memory once.
    ``same`` holds the objects that decide ``begin`` and ``step``: a later sweep of the same objects compiles nothing.
    """
    runs = len(lanes)

    def spread(ones: list) -> tuple[PyTree, int | None]:
        of_run = np.arange(runs) % len(ones)
        return (ones[0], None) if len(ones) == 1 else (jax.tree.map(lambda *each: jnp.stack(each)[of_run], *ones), 0)

    def begin_all(lanes, starts, model_state):
        params, axis = spread(starts)
        return jax.vmap(begin, (0, axis, None))(lanes, params, model_state)

    def step_all(lanes, state, data, inputs):
        (rows, _, *columns), axis = spread(inputs)
        return jax.vmap(step, (0, 0, None, axis, None, axis))(lanes, state, data, rows, inputs[0][1], columns)

    all_lanes = jax.tree.map(lambda *numbers: jnp.stack([jnp.asarray(number) for number in numbers]), *lanes)
    begin_all, step_all = _programs(begin_all, step_all, (same, runs))
    return begin_all(all_lanes, starts, model_state), functools.partial(step_all, all_lanes)


def _programs(begin: Callable, step: Callable, same: tuple) -> tuple[Program, Program]:
    """Return the programs of the first state and of a chunk, in which the state is the second argument and donated."""
    make = lambda: (Program(begin), Program(step, donate_argnums=1))
    return PROGRAMS.get(same, make)


def one_by_one(
    begin: Callable, step: Callable, lanes: list[Lane], starts: list, model_state: PyTree, same: tuple
) -> tuple[list, Callable]:
    """Return the same as :func:`in_one_batch`, with lists of states and reports: ``step`` is compiled once, called per run."""
    first, each = _programs(begin, step, same)

    def run_chunk(states, data, inputs):
        reports = []
        for run, lane in enumerate(lanes):
            rows, length, *columns = inputs[run % len(inputs)]
            states[run], report = each(lane, states[run], data, rows, length, columns)
            reports.append(report)
        return states, reports

    return [first(lane, starts[run % len(starts)], model_state) for run, lane in enumerate(lanes)], run_chunk


def joined(states: Any) -> RunState:
    """Return a list of states as one with an axis of runs. Empties the list, so that only one leaf is in memory twice."""
    structure = jax.tree.structure(states[0])
    columns = [list(column) for column in zip(*map(jax.tree.leaves, states), strict=True)]
    states.clear()
    return jax.tree.unflatten(structure, [jnp.stack(columns.pop(0)) for _ in range(len(columns))])


def first_rows(reports: Any, count: int) -> Any:
    """Return the first ``count`` rows of each column, with a leading axis of runs."""
    if isinstance(reports, list):
        return jax.tree.map(
            lambda *each: np.stack([as_column(np.asarray(column)[:count]) for column in each]), *reports
        )
    return jax.tree.map(lambda column: as_column(np.asarray(column)[:, :count]), reports)
