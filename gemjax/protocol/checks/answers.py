"""Checks of what a rule returns: it keeps structure, shapes and dtypes, and its updates can be added to the parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.protocol.checks.ranges import check_range

PyTree = Any


def check_alike(what: str, found: PyTree, expected: PyTree) -> None:
    """Check that both trees have the same structure, shapes and dtypes.

    Raises:
      ValueError: if they differ; the message names the first difference.
    """
    if jax.tree.structure(found) != jax.tree.structure(expected):
        raise ValueError(
            f"the tree of {what} differs from that of params: got {jax.tree.structure(found)}, "
            f"expected {jax.tree.structure(expected)}; a wrapper that changes the tree, such as optax.flatten, belongs inside "
            "of gemjax.asynchronous"
        )
    with_paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, wanted), leaf in zip(with_paths, jax.tree.leaves(found), strict=True):
        got = (jnp.result_type(leaf), jnp.shape(leaf))
        want = (jnp.result_type(wanted), jnp.shape(wanted))
        if got != want:
            raise ValueError(
                f"{what} at {jax.tree_util.keystr(path) or 'the root'} is {got[0]}{list(got[1])}, but the parameter there "
                f"is {want[0]}{list(want[1])}; give it the same shape and dtype"
            )


def check_kept(
    what: str,
    found: PyTree,
    expected: PyTree,
    may_be: Callable[[Any, Any], bool] = lambda leaf, wanted: False,
    keeps: str = "structure, shapes and dtypes",
) -> None:
    """Check that a rule returned a tree with the structure, shapes and dtypes of ``expected``.

    Weak types are not compared. A leaf may have another dtype if ``may_be(leaf, expected leaf)``.

    Raises:
      ValueError: if they differ; the message names the first difference.
    """
    path, got, want = _unlike(found, expected)
    if path is None:
        pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True)
        for (place, wanted), leaf in pairs:
            check_range(f"{what} at {jax.tree_util.keystr(place) or 'the root'}", leaf, ValueError)
            # A Python int may be too large for any dtype.
            is_kept = type(leaf) is not int and jnp.result_type(leaf) == jnp.result_type(wanted)
            if not (is_kept or may_be(leaf, wanted)) or jnp.shape(leaf) != jnp.shape(wanted):
                path, got, want = place, _described(leaf), _described(wanted)
                break
        else:
            return
    raise ValueError(
        f"{what} at {jax.tree_util.keystr(path) or 'the root'} is {got}, expected {want}; a rule keeps {keeps}"
    )


def _described(leaf: Any) -> str:
    return repr(leaf) if type(leaf) is int else f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def is_wider(leaf: Any, than: Any) -> bool:
    """Return True if the dtype of the second is promoted to that of the first, and none or both are complex."""
    if type(leaf) is int:
        return jnp.issubdtype(jnp.result_type(than), jnp.number) and _holds(jnp.result_type(int), leaf)
    return jnp.iscomplexobj(leaf) == jnp.iscomplexobj(than) and _are_promoted(leaf, than, jnp.result_type(leaf))


def check_can_be_added(what: str, updates: PyTree, grads: PyTree) -> None:
    """Check that ``optax.apply_updates`` adds ``updates`` as they are, up to rounding, to real parameters like ``grads``.

    It would spread a scalar over an array, and drop an imaginary part.

    Raises:
      ValueError: if a structure or shape differs, or an update is complex or no number.
    """

    def loses_no_part(update, grad):
        if type(update) is int:
            return is_wider(update, grad)
        return _are_promoted(update, grad) and not jnp.iscomplexobj(update)

    check_kept(
        what,
        updates,
        grads,
        loses_no_part,
        "structure and shapes, and gives real numbers that can be added to the parameters",
    )


def kept(what: str, found: PyTree, expected: PyTree, *, or_narrower: bool = False) -> PyTree:
    """Return the tree that a rule returned, as arrays in the precision of ``expected``.

    A hyper-parameter that is an array, as with ``optax.inject_hyperparams``, widens half precision; a Python number does not.
    With ``or_narrower`` other dtypes are accepted, too, if the expected one can hold all their numbers.

    Raises:
      ValueError: if other things differ, as from :func:`check_kept`.
    """

    def is_kept(new, state):
        dtype = jnp.result_type(state)
        if isinstance(new, (int, np.integer)) and not isinstance(new, bool):
            return _holds(dtype, int(new))
        is_float = all(jnp.issubdtype(one, jnp.inexact) for one in (jnp.result_type(new), dtype))
        return (is_float and is_wider(new, state)) or (or_narrower and _is_narrower(new, state))

    check_kept(what, found, expected, is_kept)
    return jax.tree.map(_in_dtype_of, found, expected)


def _are_promoted(one: Any, other: Any, dtype: Any = None) -> bool:
    """Return True if JAX promotes two leaves to this dtype, or to any. It promotes a number and a random key to none."""
    try:
        found = jnp.promote_types(jnp.result_type(one), jnp.result_type(other))
    except (TypeError, ValueError):
        return False
    return dtype is None or found == dtype


def _is_narrower(leaf: Any, than: Any) -> bool:
    """Return True if the dtype of the second leaf can hold each number of that of the first exactly."""
    narrow, wide = jnp.result_type(leaf), jnp.result_type(than)
    if jnp.issubdtype(narrow, jnp.integer):  # JAX promotes uint32 to int32, and int32 to float32.
        return all(_holds(wide, int(limit)) for limit in (jnp.iinfo(narrow).min, jnp.iinfo(narrow).max))
    return _are_promoted(leaf, than, wide)


def _holds(dtype: Any, number: int) -> bool:
    """Return True if an array of integers or floats of this dtype can hold a Python int exactly."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min <= number <= jnp.iinfo(dtype).max
    is_float = jnp.issubdtype(dtype, jnp.inexact) and abs(number) <= float(jnp.finfo(dtype).max)
    return is_float and int(np.asarray(number, dtype).real) == number


def _in_dtype_of(new: Any, old: Any) -> Any:
    """Return ``new`` as an array of the dtype of ``old``."""
    dtype = jnp.result_type(old)
    return new if isinstance(new, jax.Array) and new.dtype == dtype else jnp.asarray(new, dtype)


def _unlike(found: PyTree, expected: PyTree, path: tuple = ()) -> tuple:
    """Return the path and both descriptions of the first node where two structures differ; the path is None if they agree."""
    if jax.tree.structure(found) == jax.tree.structure(expected):
        return None, "", ""
    (children, kind), (wanted, other) = (
        jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node, tree=tree: node is not tree)
        for tree in (found, expected)
    )
    if kind == other:
        for (key, child), (_, its) in zip(children, wanted, strict=True):
            below = _unlike(child, its, (*path, *key))
            if below[0] is not None:
                return below
    got, want = (
        _described(tree) if jax.tree_util.all_leaves([tree]) else type(tree).__name__ for tree in (found, expected)
    )
    return path, *((got, want) if got != want else (kind, other))
