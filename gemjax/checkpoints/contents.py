"""Contents of a checkpoint: metadata and arrays, described when they are saved and checked when they are loaded."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.checkpoints.errors import CheckpointError, damage
from gemjax.checkpoints.files import HAS_DIGESTS
from gemjax.checkpoints.parts import not_finite
from gemjax.engines.checks import WIDE
from gemjax.engines.devices.hardware import keys
from gemjax.engines.transition import RunState, check_led_to, rows_of_trace
from gemjax.protocol.trace import COLUMNS, Trace

FORMAT = "gemjax.run.2"  # Increases whenever RunState or the columns of a trace change.
IN_PARTS = f"{FORMAT} in parts"  # With arrays in folders of their own, which earlier versions do not read.
UNWRITTEN = {
    "uint2": "uint8",
    "uint4": "uint8",
    "float8_e4m3": "float8_e4m3fn",
}  # Dtypes, and what to take in their place.
KINDS = {name: np.float64 if name == "time" else np.int32 for name in COLUMNS}


def check_state(name: str, state: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``state`` is the state of one run."""
    if not isinstance(state, RunState):
        advice = "result.state" if hasattr(state, "state") else "that of a result, or gemjax.initial_state(tx, params)"
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


def metadata_of(state: Any, trace: Trace, user: Any, parts: Sequence[Iterable[str]] = ()) -> dict[str, Any]:
    """Return the metadata of a checkpoint, with those of the user.

    They describe what arrays of numbers do not: generators of typed keys, arrays without elements, and, if other processes
    write parts of the checkpoint, the part and the description of each of their arrays.

    Args:
      state: the state.
      trace: its trace.
      user: metadata of the user.
      parts: per part, the numbers of its leaves in the state.

    Raises:
      TypeError: if ``user`` is neither ``None`` nor a dict that can be written as JSON, or Orbax cannot write a dtype.
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
    method = parts_of_method(state)
    state = storable(state)
    described, name_of = _described(keys.as_data(state)), names(state)
    for name, array in described.items():
        if (dtype := array.partition("[")[0]) in UNWRITTEN:
            raise TypeError(f"the state has {name} of {dtype}, which Orbax cannot write; keep it as {UNWRITTEN[dtype]}")
    return {
        "format": IN_PARTS if parts else FORMAT,
        "commits": len(trace),
        "num_workers": trace.num_workers,
        HAS_DIGESTS: True,
        "generators": _generators(state),
        "method": method,
        "empty": {name: array for name, array in described.items() if _is_empty(array)},
        "parts": {
            name_of[int(leaf)]: [part, leaf, described[name_of[int(leaf)]]]
            for part, leaves in enumerate(parts)
            for leaf in leaves
        },
        "user": json.loads(json.dumps(user or {})),  # A copy: it may be written later.
    }


def check_finite(params: Any, state: str, newest: int | None) -> None:
    """Raise :class:`CheckpointError` if ``params`` are not finite; ``state`` begins the message."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and (count := not_finite(leaf)):
            kept = "there is no other" if newest is None else f"that of {newest} commits is kept"
            raise CheckpointError(
                f"{state} is not saved, because params{jax.tree_util.keystr(path)} has {count} of {leaf.size} numbers that are "
                f"not finite; {kept}; continue from an earlier state with a lower learning rate or clipped gradients"
            )


def check_metadata(found: Any, checkpoint: str, commits: int) -> dict[str, Any]:
    """Return the metadata of :func:`metadata_of` that were found in a checkpoint.

    Raises:
      CheckpointError: if they are of another format, or were changed; ``checkpoint`` begins the message.
    """
    form = found.get("format") if isinstance(found, dict) else None
    if form not in (FORMAT, IN_PARTS):
        raise CheckpointError(
            f"{checkpoint} is of the format {str(form)[:60]!a}, but this version of gemjax reads {FORMAT!r}; continue with "
            "the version that wrote it, or start a new run"
        )
    if type(found.get("commits")) is not int or found["commits"] != commits:
        raise damaged(checkpoint, "commits", found.get("commits"), commits)
    found = {"generators": None, "empty": {}, "parts": {}} | found  # Older versions did not write these.
    for name, kind in (("user", dict), ("empty", dict), ("parts", dict), ("generators", dict | None)):
        if not isinstance(found.get(name), kind):
            raise damaged(checkpoint, name, found.get(name), "an object")
    return found


def check_arrays(saved: Any, like: Any, checkpoint: str, metadata: dict[str, Any]) -> None:
    """Check names, dtypes and shapes of the saved arrays, and the generators of typed keys.

    Args:
      saved: shapes and dtypes of the saved arrays.
      like: those of the state to load, with typed keys.
      checkpoint: the beginning of messages.
      metadata: as :func:`check_metadata` returns them.

    Raises:
      CheckpointError: if the columns of the trace have not one row per commit, or the state differs from ``like``.
    """
    columns = {name: [metadata["commits"]] for name in KINDS} if metadata["commits"] else {}
    if not isinstance(saved, dict) or "state" not in saved:
        raise damage(checkpoint, "it holds no state")
    lengths = {name: list(column.shape) for name, column in saved.get("trace", {}).items()}
    if lengths != columns:
        raise damage(checkpoint, f"its trace has columns {lengths}, expected {columns}")
    like = storable(like)
    generators = _generators(like)
    for name, found in (metadata["generators"] or {}).items():
        if generators.get(name, found) != found:
            raise CheckpointError(
                f"{checkpoint} has PRNG keys of the implementation {str(found)!a} at {name!a}, but those of this run are "
                f"{generators[name]!a}, which draw other numbers; make the keys with jax.random.key(seed, impl={str(found)!a})"
            )
    parts = {name: described for name, (_, _, described) in metadata["parts"].items()}
    found, expected = _described(saved["state"]) | metadata["empty"] | parts, _described(keys.as_data(like))
    if found != expected:
        different = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise CheckpointError(
            f"{checkpoint} is of another method, schedule, model or number of workers, or of another version of gemjax; arrays "
            f"that differ: {len(different)}, the first is {different[0]!r}: saved {found.get(different[0])}, "
            f"expected {expected.get(different[0])}"
        )


def parts_of_method(state: Any) -> list[str]:
    """Return the kinds of the parts of the method's state, in order: names of named tuples, without those of parameters."""
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


def other_method(checkpoint: str, saved: Any, like: Any) -> CheckpointError | None:
    """Return the error for a checkpoint of a method whose state has other parts than that of ``like``; ``None`` if it has not.

    ``saved`` is the list of :func:`parts_of_method`; checkpoints of earlier versions have none.
    """
    expected = parts_of_method(like)
    if not isinstance(saved, list) or saved == expected:
        return None
    return CheckpointError(
        f"{checkpoint} is of another method: its state is made of {', '.join(map(str, saved))}, but that of this run of "
        f"{', '.join(expected)}; continue with the method that wrote it, or start a new run"
    )


def damaged(checkpoint: str, name: str, found: Any, expected: Any) -> CheckpointError:
    """Make the error for metadata that have the value ``found`` instead of ``expected``."""
    return damage(checkpoint, f"its {name} is {ascii(found)[:60]}, expected {expected}")


def without_empty(tree: Any) -> Any:
    """Return ``tree`` with ``None`` in place of arrays without elements, which Orbax cannot write."""
    return jax.tree.map(lambda leaf: leaf if leaf.size else None, tree)


def readable(leaf: Any) -> Any:
    """Return a NumPy array in place of numbers of 64 bits, which Orbax's threads would put on a device in 32.

    ``with jax.enable_x64():`` holds in the calling thread alone.
    """
    return np.empty(leaf.shape, leaf.dtype) if leaf.dtype.itemsize == 8 else leaf


def storable(tree: Any) -> Any:
    """Return ``tree``, or the list of its arrays if two of them have one name.

    Orbax joins keys with dots, as here, so that ``{"a": {"b": x}, "a.b": y}`` would be one array in its files.
    """
    return tree if len(set(found := names(tree))) == len(found) else jax.tree.leaves(tree)


def names(tree: Any) -> list[str]:
    """Return the name of each array."""
    return [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _described(tree: Any) -> dict[str, str]:
    """Return dtype and shape of each array by its name."""
    return {
        _name(path): f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _is_empty(described: str) -> bool:
    return 0 in json.loads(described[described.index("[") :])


def _generators(state: Any) -> dict[str, str]:
    """Return the PRNG implementation of each array of typed keys by its name."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {_name(path): str(keys.implementation(leaf)) for path, leaf in leaves if keys.is_key(leaf)}


def _name(path: tuple) -> str:
    """Join a path with dots; the result is the same whether a node was saved as an object or as a dict."""
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)
