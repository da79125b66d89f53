"""Checks of arguments, and of what a rule returns; methods of your own may use them.

Traced numbers pass, except in ``integer``, because ``optax.inject_hyperparams`` and sweeps trace hyper-parameters.
"""

import math
import operator
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.protocol import PyTree

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # Such as gs://bucket, which pathlib shortens to gs:/bucket.
KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)  # A number of each can be one of the next.


def check_learning_rate(value: Any) -> None:
    """Check that ``value`` is a finite number >= 0, or a schedule."""
    if not callable(value):
        check_at_least("learning_rate", value, 0.0)


def check_momentum(name: str, value: Any) -> None:
    """Check that ``value`` is in [0, 1)."""
    _check(name, value, "in [0, 1)", lambda: 0 <= value < 1)


def check_at_least(name: str, value: Any, lowest: float) -> None:
    """Check that ``value`` is a finite number >= ``lowest``."""
    _check(name, value, f"finite and at least {lowest:g}", lambda: math.isfinite(value) and value >= lowest)


def check_positive(name: str, value: Any) -> None:
    """Check that ``value`` is a finite number > 0."""
    _check(name, value, "positive and finite", lambda: math.isfinite(value) and value > 0)


def check_between(name: str, value: Any, lowest: float, highest: float) -> None:
    """Check that ``value`` is in [``lowest``, ``highest``]."""
    if not isinstance(highest, jax.core.Tracer):  # Only the clamp of gem has one that may be traced.
        _check(name, value, f"between {lowest:g} and {highest:g}", lambda: lowest <= value <= highest)


def check_positive_int(name: str, value: Any) -> None:
    """Check that ``value`` is an integer >= 1."""
    _check(name, value, "a positive int", lambda: operator.index(value) >= 1)


def integer(name: str, value: Any, lowest: int, most: int = 2**31 - 1) -> int:
    """Return ``value`` as an int.

    Raises:
      ValueError: if it is no int in ``lowest`` … ``most``.
    """
    _check(name, value, f"an int in {lowest} … {most}", lambda: lowest <= operator.index(value) <= most)
    return operator.index(value)


def check_bool(name: str, value: Any) -> None:
    """Check that ``value`` is ``True`` or ``False``; any text would be taken for ``True``."""
    _check(name, value, "True or False", lambda: isinstance(value, (bool, np.bool_)))


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Check that ``value`` is one of ``choices``."""
    _check(name, value, f"one of {', '.join(map(repr, choices))}", lambda: value in choices)


def _check(name: str, value: Any, expected: str, is_valid: Callable[[], Any]) -> None:
    if isinstance(value, jax.core.Tracer):
        return
    try:
        if is_valid():
            return
    except (TypeError, ValueError):  # Of another kind, such as a text or a vector.
        pass
    raise ValueError(f"{name} must be {expected}, got {shown(value)}")


def shown(value: Any) -> str:
    """Return the ``repr`` of a value in one short line.

    >>> shown(np.eye(2))
    'array([[1., 0.], [0., 1.]])'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"


def check_path(name: str, value: str | os.PathLike) -> None:
    """Refuse an address, such as gs://bucket, which would otherwise become a local folder of that name."""
    if wrong := told_of_address(value):
        raise ValueError(f"{name} {wrong}")


def told_of_address(path: str | os.PathLike) -> str:
    """Return why ``path`` is refused if it is an address, to follow the argument's name; "" if it is a path on this host."""
    text = os.fsdecode(path)
    if not ADDRESS.match(text) or os.path.lexists(text.partition("/")[0]):
        return ""
    return (
        f"is the address {text}, but gemjax reads and writes files of this host; give a path, such as that at which a bucket "
        "is mounted"
    )


def check_worker(worker: Any, num_workers: int) -> Any:
    """Return ``worker`` if it is an index into ``num_workers`` slots; 0 if it is missing and N is 1.

    A traced index cannot be checked, so engines check a whole trace before they compile it.

    Raises:
      ValueError: if it is missing with several workers, or out of range: JAX would clamp it.
    """
    if worker is None and num_workers == 1:
        return 0
    if isinstance(worker, jax.core.Tracer):
        return worker if worker.dtype.itemsize >= 4 else worker.astype(jnp.int32)  # Too narrow to count all rows.
    return integer("worker", worker, 0, num_workers - 1)


def check_method(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` has the functions of an optax transformation."""
    if isinstance(value, type) or not all(callable(getattr(value, part, None)) for part in ("init", "update")):
        is_function = callable(value) and hasattr(value, "__name__")
        found = f"the function {value.__name__} itself; call it and give its result" if is_function else shown(value)
        raise TypeError(f"{name} must be an optax transformation, such as optax.sgd(0.1), got {found}")


def with_extra_args(tx: Any) -> optax.GradientTransformationExtraArgs:
    """Return ``tx`` so that it accepts extra arguments. ``MultiSteps`` passes them to its rule, though its type hides that."""
    if isinstance(getattr(tx.update, "__self__", None), optax.MultiSteps):
        return optax.GradientTransformationExtraArgs(tx.init, tx.update)
    return optax.with_extra_args_support(tx)


def fits(array: Any) -> bool:
    """Return False for integers of NumPy that JAX would silently take for others: those beyond its 32 bits."""
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return True
    if not array.size or (kind := jax.dtypes.canonicalize_dtype(array.dtype)) == array.dtype:
        return True
    limits = jnp.iinfo(kind)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def check_range(name: str, array: Any, error: type[Exception] = TypeError) -> None:
    """Raise ``error`` for integers of NumPy that do not fit."""
    if not fits(array):
        kind, most = jax.dtypes.canonicalize_dtype(array.dtype), array.max()
        raise error(
            f"{name} has the integer {most if most > jnp.iinfo(kind).max else array.min()}, which does not fit into JAX's "
            f"{kind.name}; give floats or smaller integers, leave it out, or enable integers of 64 bits, "
            'jax.config.update("jax_enable_x64", True)'
        )


def check_alike(what: str, found: PyTree, expected: PyTree, may_be: Callable[[Any, Any], bool] | None = None) -> None:
    """Check that two trees have the same structure and shapes; JAX would spread a scalar over an array.

    Args:
      what: name of the first one.
      found: the first one.
      expected: the second one.
      may_be: ``may_be(leaf, expected)`` returns True if the leaf's dtype is accepted; default: any dtype is.

    Raises:
      ValueError: if they differ; the message names the first difference.
    """
    if (got := jax.tree.structure(found)) != (want := jax.tree.structure(expected)):
        raise ValueError(f"{what} is the tree {got}, expected {want}; give one of the same structure")
    for (path, wanted), leaf in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        if np.shape(leaf) != np.shape(wanted) or (may_be is not None and not may_be(leaf, wanted)):
            got, want = (f"{jnp.result_type(one)}{list(np.shape(one))}" for one in (leaf, wanted))
            place = jax.tree_util.keystr(path) or "the root"
            raise ValueError(f"{what} at {place} is {got}, expected {want}; give one of the same shape and dtype")


def kept(what: str, found: PyTree, expected: PyTree) -> PyTree:
    """Return the tree that a rule returned, as arrays in the precision of ``expected``.

    A hyper-parameter that is an array, as with ``optax.inject_hyperparams``, widens half precision; a Python number does not.

    Raises:
      ValueError: if a structure or shape differs, or one is of numbers that the other cannot hold, as floats for integers.
    """
    check_alike(what, found, expected, lambda new, old: _same(new, old) or 0 <= _rank(new) <= _rank(old))
    return jax.tree.map(
        lambda new, old: new if _same(new, old) else jnp.asarray(new, jnp.result_type(old)), found, expected
    )


def _same(new: Any, old: Any) -> bool:
    return isinstance(new, jax.Array) and new.dtype == jnp.result_type(old)


def _rank(leaf: Any) -> int:
    """Return the place of the type of a leaf in ``KINDS``; -1 for keys."""
    return next((place for place, kind in enumerate(KINDS) if jnp.issubdtype(jnp.result_type(leaf), kind)), -1)
