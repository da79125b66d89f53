"""Checks of arguments. Traced values pass, because ``optax.inject_hyperparams`` makes hyper-parameters traced."""

import dataclasses
import inspect
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

PyTree = Any
MOST_WORKERS = 1 << 20  # Of methods, traces and event logs; some need time or memory for each, even if few commit.
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # As of a bucket, gs://name, of which a Path keeps one slash.
WIDER = {"float96": "float64", "float128": "float64", "complex192": "complex128", "complex256": "complex128"}


def _concrete(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def check_learning_rate(value: Any) -> None:
    """Check that ``value`` is a finite number >= 0, or a schedule."""
    if not callable(value):
        check_at_least("learning_rate", value, 0.0)


def check_momentum(name: str, value: Any) -> None:
    """Check that ``value`` is in [0, 1)."""
    if _concrete(value) and not 0 <= number(name, value) < 1:
        # num_workers is the second argument of some methods, and the third of those with a momentum.
        counts = name == "momentum" and isinstance(value, (int, np.integer)) and value >= 1
        raise ValueError(
            f"{name} must be in [0, 1), got {value}" + (f"; did you mean num_workers={value}?" if counts else "")
        )


def check_at_least(name: str, value: Any, lowest: float) -> None:
    """Check that ``value`` is a finite number >= ``lowest``."""
    if _concrete(value) and not (math.isfinite(found := number(name, value)) and found >= lowest):
        raise ValueError(f"{name} must be finite and at least {lowest:g}, got {value}")


def check_between(name: str, value: Any, lowest: float, highest: Any) -> None:
    """Check that ``value`` is in [``lowest``, ``highest``]."""
    if _concrete(value) and _concrete(highest) and not lowest <= number(name, value) <= highest:
        raise ValueError(f"{name} must be between {lowest:g} and {highest:g}, got {value}")


def check_positive_int(name: str, value: Any, most: int = 2**31 - 1) -> None:
    """Check that ``value`` is an integer in [1, ``most``]; by default it must fit into int32."""
    if _concrete(value):
        try:
            valid = operator.index(value) >= 1 and not isinstance(value, bool)
        except TypeError:
            valid = False
        if not valid:
            raise ValueError(f"{name} must be a positive int, got {shown(value)}")
        if operator.index(value) > most:
            largest = ", the largest int32" if most == 2**31 - 1 else ""
            raise ValueError(f"{name} must be at most {most}{largest}, got {shown(value)}")
        check_not_narrow(name, value)


def check_not_narrow(name: str, value: Any) -> None:
    """Raise ``ValueError`` for an integer of NumPy or JAX that wraps around in arithmetic with other small numbers."""
    dtype = value.dtype if isinstance(value, (np.ndarray, np.generic, jax.Array)) else None
    if dtype is not None and (dtype.kind == "u" or dtype.itemsize < 4):
        raise ValueError(f"{name} is {shown(value)}, whose {dtype} wraps around in sums and products; give int({name})")


def with_plain_numbers(instance: Any) -> None:
    """Replace scalars of NumPy and JAX in a dataclass by numbers of Python, which compute in 64 bits and do not wrap around."""
    for field in dataclasses.fields(instance):
        value: Any = getattr(instance, field.name, None)
        if (
            not isinstance(value, (np.ndarray, np.generic, jax.Array))
            or value.ndim
            or isinstance(value, jax.core.Tracer)
        ):
            continue
        kind = value.dtype
        plain = int if jnp.issubdtype(kind, jnp.integer) else float if jnp.issubdtype(kind, jnp.floating) else None
        if plain is not None:
            object.__setattr__(instance, field.name, plain(value))


def check_count(name: str, value: Any) -> None:
    """Check that ``value``, which decides shapes, is a positive int, and no traced one."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} cannot be traced; under optax.inject_hyperparams name it in static_args")
    check_positive_int(name, value)


def check_bool(name: str, value: Any) -> None:
    """Check that ``value`` is ``True`` or ``False``."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_path(name: str, value: Any) -> None:
    """Check that ``value`` is the name of a file or folder of this host; an int would be that of an open file."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path (a str or an os.PathLike), got {shown(value)}")
    if value in ("", b""):
        raise ValueError(f"{name} is empty; for the current folder give '.'")
    if wrong := told_of_address(value):
        raise ValueError(f"{name} {wrong}")


def told_of_address(path: str | os.PathLike) -> str:
    """Return what to say of the address of a bucket or the like; "" for other paths, as those from a folder here."""
    text = os.fsdecode(path)
    if not ADDRESS.match(text) or os.path.lexists(text.partition("/")[0]):
        return ""
    return (
        f"is the address {text}, but gemjax reads and writes files of this host; give a path, such as that at which a bucket "
        "is mounted"
    )


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")


def check_method(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` has the functions of an optax transformation."""
    if isinstance(value, type) or not all(callable(getattr(value, part, None)) for part in ("init", "update")):
        raise TypeError(f"{name} must be an optax transformation, such as optax.sgd(0.1), got {shown(value)}")


def check_of_staleness(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` can be called with a staleness."""
    if not callable(value):
        called = f"; if optax.inject_hyperparams has called it, name {name!r} in static_args" * isinstance(
            value, jax.Array
        )
        raise TypeError(
            f"{name} must be a function of the staleness, such as gemjax.polynomial_weight(0.5), got {shown(value)}{called}"
        )


def at_staleness(name: str, function: Any, staleness: Any) -> Any:
    """Return ``function(staleness)``.

    Raises:
      TypeError: if it is no real scalar.
    """
    found = function(staleness)
    try:
        array = jnp.asarray(found)
        shape, dtype = array.shape, array.dtype
    except (TypeError, ValueError):
        shape, dtype = (), None
    if (
        dtype is None
        or not any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
        or shape
    ):
        got = f"an array of shape {list(shape)}" if shape else shown(found)
        raise TypeError(f"{name} must return one number for a staleness, got {got}")
    return found


PASSED = {
    "worker",
    "staleness",
    "stale_params",
    "value",
    "observe",
    "anchors",
    "local_losses",
    "local_steps",
    "commits",
    "local_step",
}


def with_extra_args(tx: Any) -> optax.GradientTransformationExtraArgs:
    """Return ``tx`` so that it accepts extra arguments, which ``optax.MultiSteps`` passes on although its type hides that."""
    if isinstance(getattr(tx.update, "__self__", None), optax.MultiSteps):
        return optax.GradientTransformationExtraArgs(tx.init, tx.update)
    if isinstance(tx, optax.GradientTransformationExtraArgs) and _takes_none(tx.update):
        raise TypeError(
            f"{getattr(tx.update, '__qualname__', 'update')} refuses extra arguments, though its type is "
            "GradientTransformationExtraArgs; let it accept **extra_args, or give optax.GradientTransformation(tx.init, "
            "tx.update), which gets none, as for optax.contrib.sam without opaque_mode"
        )
    return optax.with_extra_args_support(tx)


def _takes_none(function: Any) -> bool:
    """Return True if ``function`` has neither ``**extra_args`` nor any name that commits or local steps pass."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return False
    has_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return not has_rest and PASSED.isdisjoint(parameters)


def number(name: str, value: Any) -> float:
    """Return ``value`` as a float, for JAX to compute with.

    Raises:
      ValueError: if it is not a number, or an int that JAX cannot represent.
    """
    found = real(name, value)
    if isinstance(value, int) and abs(value) >= 2**31:
        raise ValueError(f"{name} must fit into int32, got {shown(value)}; give a float")
    return found


def real(name: str, value: Any) -> float:
    """Return ``value`` as a float.

    Raises:
      ValueError: if it is not a number.
    """
    try:
        # A Decimal or a Fraction has a float, but JAX cannot compute with it.
        unfit = not isinstance(value, int) and np.asarray(value).dtype.kind in "bO"
        if unfit or isinstance(value, (bool, str, bytes)) or getattr(value, "ndim", 0):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {shown(value)}") from None


def numbers(name: str, values: Any) -> tuple[Any, ...]:
    """Return a sequence of numbers as floats; traced ones stay as they are.

    Raises:
      ValueError: if it is not that.
    """
    try:
        several = [] if isinstance(values, (str, bytes)) else list(values)
    except TypeError:
        raise ValueError(f"{name} must be a sequence of numbers, got {shown(values)}") from None
    return tuple(number(f"each of {name}", value) if _concrete(value) else value for value in several)


def integer(name: str, value: Any, lowest: int, most: int = 2**31 - 1) -> int:
    """Return ``value`` as an int.

    Raises:
      ValueError: if it is no int in ``lowest`` … ``most``.
    """
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if not lowest <= found <= most:
        raise ValueError(f"{name} must be an int in {lowest} … {most}, got {shown(value)}")
    return found


def shown(value: Any) -> str:
    """Return the ``repr`` of a value in one short line.

    >>> shown(np.eye(2))
    'array([[1., 0.], [0., 1.]])'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"


def check_worker(worker: Any, num_workers: int, of: str = "this state is kept for") -> Any:
    """Return ``worker`` if it is an index into ``num_workers`` slots; 0 if it is missing and N is 1.

    A traced index cannot be checked, so engines check a whole trace before they compile it.

    Raises:
      ValueError: if it is missing with several workers, or out of range.
      TypeError: if it is not an integer scalar.
    """
    if worker is None:
        if num_workers == 1:
            return 0
        raise ValueError(
            f"worker= is missing: this state is kept for {num_workers} workers, so give the worker that pulls or commits "
            f"(worker=0 … worker={num_workers - 1})"
        )
    if isinstance(worker, jax.core.Tracer):
        if worker.ndim or not jnp.issubdtype(worker.dtype, jnp.integer):
            raise TypeError(f"worker must be one integer, got {worker.dtype}{list(worker.shape)}")
        return worker.astype(jnp.int32) if worker.dtype.itemsize < 4 else worker
    try:
        index = np.asarray(worker)
    except ValueError:  # A ragged list.
        index = np.zeros(1)
    if index.ndim or not np.issubdtype(index.dtype, np.integer):
        raise TypeError(f"worker must be one integer, got {shown(worker)}")
    if not 0 <= index < num_workers:
        raise ValueError(f"worker={int(index)} is out of range: {of} {num_workers} workers, 0 … {num_workers - 1}")
    # Rows are counted in the type of their index, which may be too narrow for N.
    return int(index) if index.dtype.itemsize < 4 else worker


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


def check_width(name: str, array: Any) -> None:
    """Raise ``TypeError`` for floats of more bits than JAX has."""
    if isinstance(array, (np.ndarray, np.generic)) and array.dtype.name in WIDER:
        raise TypeError(
            f"{name} is of {array.dtype}, and JAX has floats of 64 bits at most; give x.astype({WIDER[array.dtype.name]!r})"
        )
