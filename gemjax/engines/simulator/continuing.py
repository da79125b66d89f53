"""The state and the rows that a simulation begins with, or continues from."""

import jax
import numpy as np

from gemjax.engines.result import History, checked_state
from gemjax.engines.transition import RunState, Transition, copied, first_shapes, first_state, rows_of_trace
from gemjax.protocol import PyTree
from gemjax.protocol.trace import Events, Trace


def begin(transition: Transition, params: PyTree, model_state: PyTree, state: RunState | None) -> RunState:
    """Return the state to begin with: a copy without shared arrays, so that it may be donated.

    A state to continue from is copied array by array, so that it is never in memory three times.
    """
    if state is None:
        return first_state(transition, params, model_state)
    state = checked_state(state, first_shapes(transition, params, model_state))
    leaves, structure = jax.tree.flatten(state)
    # A checkpoint is loaded to the devices of its `like`, whose counters need not be where its parameters are.
    places = [leaf.sharding for leaf in jax.tree.leaves((state.params, state)) if isinstance(leaf, jax.Array)]
    if len({frozenset(place.device_set) for place in places}) > 1 and len(places[0].device_set) == 1:
        leaves = [jax.device_put(leaf, places[0]) for leaf in leaves]
    for index in range(len(leaves)):
        leaves[index] = copied(leaves[index])
    return jax.tree.unflatten(structure, leaves)


def rows_of(state: RunState, earlier: Trace | None, history: History, trace: Trace, events: Events) -> tuple[int, int]:
    """Return the numbers of commits and of arrivals of ``trace`` already in ``state``; ``earlier`` is its trace, or ``None``.

    Raises:
      ValueError: if the state is not that of these first arrivals.
    """
    done = int(state.arrivals)
    commits = int(events.commits[:done].sum())
    if earlier is None:
        arrived = int(state.commits + state.dropped + state.rejected)
        agree = commits == arrived and _steps_agree(state, events, done)
        if not agree or any(_other_views(state, {}, trace, events, done)):
            raise ValueError(
                f"state= has {arrived} commits, applied or not, and is not the state after {done} arrivals of trace=: the "
                "trace is another one, or lacks rejected commits, as that of a run on devices does; give state=result, which "
                "has its trace, instead of result.state"
            )
        return commits, done
    # Rejected gradients and repeated pulls of a run on devices are arrivals, but have no row. So those of the trace are counted
    # anew: all until the last commit, and then the pulls that have been made.
    commits = len(earlier)
    least = int(np.searchsorted(np.cumsum(events.commits), commits)) + 1 if commits else 0
    has_pulled = ~events.commits & (~events.whole | (_pulled_at(state)[events.worker] == int(state.commits)))
    done = least + int(np.argmin(np.append(has_pulled[least:done], False)))
    if trace.first(commits) != earlier or commits not in rows_of_trace(state):
        raise ValueError(
            f"state= is a Result of another trace: its {len(earlier)} commits are not the first rows of trace=, which has "
            f"{len(trace)}; give the trace that it ran on, or one that begins with its trace"
        )
    missed, newer = _other_views(state, history, trace, events, done)
    if missed or newer:
        worker = [*missed, *newer][0]
        raise ValueError(
            f"state= is a Result of another run than trace=: worker {worker} has pulled after {_pulled_at(state)[worker]} "
            "commits, and its next commit in trace= is of another view; give the trace of a run that goes on from this state, "
            "or simulate trace= from its beginning and stop it there by a callback"
        )
    return commits, done


def _steps_agree(state: RunState, events: Events, done: int) -> bool:
    """Return True if each worker's next step follows from its last one among the first `done` arrivals, if it has any."""
    steps = np.asarray(state.step.value).copy()
    steps[events.worker[:done]] = events.step[:done] + events.commits[:done]  # The last one counts.
    return bool(np.array_equal(steps, state.step.value))


def _pulled_at(state: RunState) -> np.ndarray:
    return np.asarray(state.pulled_at.value)


def _other_views(
    state: RunState, history: History, trace: Trace, events: Events, done: int
) -> tuple[list[int], list[int]]:
    """Return the workers whose view is too old after the first `done` arrivals, and those whose view is too new.

    Too old: the worker pulled later among these arrivals. Too new: the worker's next row is of an earlier pull.
    """
    rows = np.cumsum(events.commits[:done])
    made = int(rows.max(initial=0))
    if len(applied := history.get("applied", ())) != made:
        # Otherwise the clock at each row is unknown: some were refused, and a bare state has no history of them.
        if int(state.commits) != made:
            return [], []
        applied = np.ones(made, bool)
    clock = np.concatenate([[0], np.cumsum(applied)])
    pulled_at = _pulled_at(state).copy()
    whole = events.whole[:done]
    pulled_at[events.worker[:done][whole]] = clock[rows[whole]]  # The last one counts.
    workers, first = np.unique(trace.worker[made:], return_index=True)
    of_next = trace.pulled_at[made:][first]
    known = of_next <= made  # Others pull again before their commit.
    newer = workers[known][clock[of_next[known]] < _pulled_at(state)[workers[known]]]
    return np.flatnonzero(pulled_at > state.pulled_at.value).tolist(), newer.tolist()
