"""Contents of a checkpoint: metadata and arrays, described when they are saved and checked when they are loaded."""

import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.checks import WIDE
from gemjax.engines.result import History, Progress, Result
from gemjax.engines.running import keys
from gemjax.engines.running.checkpoints.errors import CheckpointError
from gemjax.engines.transition import RunState, check_led_to, rows_of_trace
from gemjax.protocol.trace import COLUMNS, Trace

FORMAT = "gemjax.run.6"  # Increases whenever the metadata, RunState or the columns of a trace change.
KINDS = {name: np.float64 if name == "time" else np.int32 for name in COLUMNS}


def check_state(name: str, state: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``state`` is the state of one run."""
    if not isinstance(state, RunState):
        known = {Result: "result.state", Progress: "progress.state()"}
        advice = known.get(type(state), "that of a result, or gemjax.initial_state(tx, params)")
        raise TypeError(f"{name} is of type {type(state).__name__}, but must be a gemjax.RunState; give {advice}")
    if runs := jnp.shape(state.commits):
        raise ValueError(
            f"{name} is that of all {runs[0]} runs of a sweep, but must be that of one; give "
            "jax.tree.map(lambda leaf: leaf[run], result.state)"
        )


def check_enabled(like: RunState) -> None:
    """Raise ``TypeError`` if ``like`` has numbers of 64 bits that would be rounded to 32 here."""
    if jnp.result_type(float) == np.float64:
        return
    for name, leaf in zip(names(like), jax.tree.leaves(like), strict=True):
        if str(leaf.dtype) in WIDE:
            raise TypeError(
                f"like has {leaf.dtype} numbers ({name}), and numbers of 64 bits are not enabled here, so that JAX would round "
                "them; load with jax_enable_x64, as the run was"
            )


def check_trace_of(state: RunState, trace: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``trace`` may have led to ``state``."""
    if not isinstance(trace, Trace):
        raise TypeError(f"trace is of type {type(trace).__name__}, but must be a gemjax.Trace; give result.trace")
    rows = rows_of_trace(state)
    if trace.num_workers != state.step.num_workers or len(trace) not in rows:
        lost = f" (rejected or dropped besides: {len(rows) - 1})" if len(rows) > 1 else ""
        raise ValueError(
            f"the state has {rows.start} commits{lost} of {state.step.num_workers} workers, but trace has {len(trace)} of "
            f"{trace.num_workers}; give the trace of that state, result.trace or progress.trace()"
        )
    check_led_to(state, trace)


def metadata_of(state: Any, trace: Trace, user: Any, records: dict[str, History]) -> dict[str, Any]:
    """Return the metadata of a checkpoint, with those of the user.

    They describe the arrays of the state in order: the name, dtype and shape of each, and the generator of typed keys.

    Args:
      state: the state.
      trace: its trace.
      user: metadata of the user.
      records: its history and its evaluations, as ``"history"`` and ``"evaluations"``.

    Raises:
      TypeError: if ``user`` is neither ``None`` nor a dict that can be written as JSON.
    """
    if not isinstance(user, dict | None):
        raise TypeError(
            f"metadata is of type {type(user).__name__}, expected a dict; put the value under a name in one"
        )
    for name, value in (user or {}).items():
        try:
            json.dumps({name: value})
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"metadata[{name!r}] is of type {type(value).__name__} and cannot be written as JSON ({error}); give numbers, "
                "strings, truth values, None, and lists and dicts of them, as by float(x) or x.tolist()"
            ) from None
    return {
        "format": FORMAT,
        "commits": len(trace),
        "num_workers": trace.num_workers,
        "num_blocks": 0 if trace.read_at is None else trace.read_at.shape[1],
        "method": parts_of_method(state),
        "arrays": _described(state),
        "records": {
            name: [[column, str(numbers.dtype), len(numbers)] for column, numbers in record.items()]
            for name, record in records.items()
        },
        "user": json.loads(json.dumps(user or {})),  # A copy: it may be written later.
    }


def by_number(record: History) -> dict[str, np.ndarray]:
    """Return columns by their numbers, because names of metrics need not be names of files; none if there are no rows."""
    return {str(number): column for number, column in enumerate(record.values()) if len(column)}


def unread(described: list[list[Any]]) -> dict[str, np.ndarray]:
    """Return columns as :func:`by_number` does, of the shapes and dtypes that :func:`metadata_of` has noted."""
    return {str(number): np.empty(rows, dtype) for number, (_, dtype, rows) in enumerate(described) if rows}


def by_name(described: list[list[Any]], found: dict[str, np.ndarray]) -> History:
    """Undo :func:`by_number`."""
    return {
        name: np.asarray(found[str(number)]) if rows else np.empty(0, dtype)
        for number, (name, dtype, rows) in enumerate(described)
    }


def check_finite(params: Any, state: str, newest: int | None) -> None:
    """Raise :class:`CheckpointError` if ``params`` are not finite; ``state`` begins the message."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and (count := np.sum(~np.isfinite(np.asarray(leaf)))):
            kept = "there is no other" if newest is None else f"that of {newest} commits is kept"
            raise CheckpointError(
                f"{state} is not saved, because params{jax.tree_util.keystr(path)} has {count} of {leaf.size} numbers that are "
                f"not finite; {kept}; continue from an earlier state with a lower learning rate or clipped gradients"
            )


def check_metadata(found: Any, like: RunState, checkpoint: str, commits: int) -> None:
    """Check the metadata of :func:`metadata_of` that were found in a checkpoint.

    Args:
      found: the metadata.
      like: a state with the structure, shapes and dtypes of the one to load.
      checkpoint: the beginning of messages.
      commits: the commits by which the checkpoint is named.

    Raises:
      CheckpointError: if they are of another number of commits, method, model or number of workers than ``like``.
    """
    if (found["commits"], found["num_workers"]) != (commits, like.step.num_workers):
        raise CheckpointError(
            f"{checkpoint} has {found['commits']} commits of {found['num_workers']} workers, expected {commits} of "
            f"{like.step.num_workers}"
        )
    if found["method"] != (expected := parts_of_method(like)):
        raise CheckpointError(
            f"{checkpoint} is of another method: its state is made of {', '.join(map(str, found['method']))}, but that of this "
            f"run of {', '.join(expected)}; continue with the method that wrote it, or start a new run"
        )
    pairs = itertools.zip_longest(found["arrays"], _described(like))
    if different := [pair for pair in pairs if pair[0] != pair[1]]:
        here, there = (" ".join(filter(None, row or ["no array"])) for row in different[0])
        raise CheckpointError(
            f"{checkpoint} is of another method, schedule, model, number of workers or PRNG implementation, or of another "
            f"version of gemjax; the first array that differs: saved {here}, expected {there}"
        )


def check_format(found: Any, checkpoint: str) -> None:
    """Raise :class:`CheckpointError` if the metadata are of another format."""
    form = found.get("format") if isinstance(found, dict) else None
    if form != FORMAT:
        raise CheckpointError(
            f"{checkpoint} is of the format {str(form)[:60]!a}, but this version of gemjax reads {FORMAT!r}; continue with "
            "the version that wrote it, or start a new run"
        )


def parts_of_method(state: Any) -> list[str]:
    """Return the names of the named tuples in the method's state, in order, except for those inside copies of parameters."""
    params = jax.tree.structure(state.params)

    def parts(node):
        inner = jax.tree_util.default_registry.flatten_one_level(node)
        if inner is None or jax.tree.structure(node) == params:
            return
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            yield type(node).__name__
        for child in inner[0]:
            yield from parts(child)

    return list(parts(state.opt_state))


def readable(leaf: Any) -> Any:
    """Return what Orbax is to load for ``leaf``: a NumPy array if its numbers are of 64 bits.

    Orbax's threads would load a JAX array as 32 bits, because ``jax.enable_x64()`` holds in the calling thread alone.
    """
    return np.empty(leaf.shape, leaf.dtype) if str(leaf.dtype) in WIDE else leaf


def names(tree: Any) -> list[str]:
    """Return the name of each array."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(tree))
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]


def _described(state: Any) -> list[list[Any]]:
    """Return name, dtype and shape, and the PRNG implementation of typed keys, of each array."""
    leaves = zip(names(state), jax.tree.leaves(state), jax.tree.leaves(keys.as_data(state)), strict=True)
    return [
        [
            name,
            f"{np.dtype(data.dtype)}{list(data.shape)}",
            str(keys.implementation(leaf)) if keys.is_key(leaf) else None,
        ]
        for name, leaf, data in leaves
    ]
