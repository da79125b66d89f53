"""What is wrong with the arguments of a run, said before anything is computed."""

import io
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.per_seed import PerSeed

PyTree = Any


def check_given(loss_fn: Callable, params: PyTree, model_state: PyTree, where: str = "") -> None:
    """Raises ``TypeError`` if arguments stand in each other's places, or are none of what engines take.

    Args:
      loss_fn: what was given as such.
      params: likewise.
      model_state: likewise.
      where: name of an argument that may be a :class:`gemjax.PerSeed`.
    """
    given = {"loss_fn": loss_fn, "params": params, "model_state": model_state}
    if wrong := [name for name, value in given.items() if isinstance(value, PerSeed) and name != where]:
        raise TypeError(
            f"{wrong[0]} is a gemjax.PerSeed, which may stand for params, batches and trace of gemjax.sweep only; give the "
            "value itself"
        )
    if not callable(loss_fn):
        swapped = " and params a function: change their places" if callable(params) else ""
        raise TypeError(
            f"loss_fn is of type {type(loss_fn).__name__}{swapped}; engines are called as (tx, loss_fn, params, batches, …) "
            "with loss_fn(params, batch) -> loss"
        )
    _check_no_module(params)
    for name, tree in (("params", params), ("model_state", model_state)):
        if name != where:
            _check_leaves(name, tree)


def check_tx(tx: Any) -> None:
    """Raises ``TypeError`` unless ``tx`` is a transformation."""
    if not isinstance(tx, type) and all(callable(getattr(tx, name, None)) for name in ("init", "update")):
        return
    if callable(tx):
        name = getattr(tx, "__name__", type(tx).__name__)
        raise TypeError(
            f"tx is the function {name}, which is not called; give {name}(learning_rate, …), what it returns"
        )
    raise TypeError(
        f"tx is {_described(tx)}, but engines take an optax transformation; give one, such as "
        "gemjax.gem(0.1, num_workers=8)"
    )


def check_make(make: Any) -> None:
    """Raises ``TypeError`` unless ``make``, the first argument of a sweep, can be called."""
    if not callable(make):
        raise TypeError(
            f"make is {_described(make)}, but a sweep takes a function that makes the transformation; give one, such as "
            "lambda rate: gemjax.gem(rate, num_workers=8)"
        )


def check_params(params: PyTree) -> None:
    """Raises ``ValueError`` unless ``params`` are float arrays, at least one."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params holds no array; there is nothing to train")
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"params at {_place(path)} is {leaf.dtype}, but only floats can be trained; "
                "keep integers and keys in model_state or in the loss function"
            )


def check_metrics(metrics: Any, reserved: set[str]) -> None:
    """Raises ``TypeError`` or ``ValueError`` unless ``metrics`` is a dict of numbers with names of its own.

    Args:
      metrics: what a loss function returned as such.
      reserved: names of what the engines report themselves.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"the metrics of loss_fn are {_described(metrics)}; return a dict of numbers, or {{}} for none")
    if clash := metrics.keys() & reserved:
        raise ValueError(
            f"loss_fn returns metrics called {sorted(clash)}, which the engines report themselves; rename them"
        )
    for name, value in metrics.items():
        if not _is_numeric(value):
            raise TypeError(
                f"the metric {name!r} of loss_fn is {_described(value)}; every metric must be one number, so return several "
                "under names of their own"
            )
        if jnp.shape(value):
            raise ValueError(
                f"the metric {name!r} of loss_fn has the shape {list(jnp.shape(value))}, but every metric must be one number; "
                "take its mean, or compute it where you evaluate"
            )


def check_option(name: str, value: Any, kind: type, example: str) -> None:
    """Raises ``TypeError`` unless ``value`` is ``None`` or of ``kind``.

    Args:
      name: the argument's name.
      value: what was given.
      kind: the class that it must be of.
      example: an expression that makes such a value.
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is {_described(value)}, but must be a gemjax.{kind.__name__}; give {example}")


def check_callback(callback: Any) -> None:
    """Raises ``TypeError`` unless ``callback`` is ``None``, a function, or an object that can be called."""
    if isinstance(callback, type):
        raise TypeError(f"callback is {_described(callback)}; give an instance of it, {callback.__name__}(…)")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is {_described(callback)}, but must be a function; give callback(progress) -> bool")


def check_log(log: Any) -> None:
    """Raises ``TypeError`` unless ``log`` is ``None``, a :class:`gemjax.EventLog` or an object with its method ``write``."""
    is_other = isinstance(log, (type, io.IOBase)) or not callable(getattr(log, "write", None))
    if log is not None and is_other:
        raise TypeError(f"log is {_described(log)}, but must be a gemjax.EventLog; give gemjax.EventLog('run.jsonl')")


def ends_run(answer: Any) -> bool:
    """Whether a callback that returned ``answer`` ends the run.

    Raises:
      TypeError: unless that is ``None``, or one truth value or number.
    """
    if answer is None or isinstance(answer, numbers.Number):
        return bool(answer)
    is_key = jax.dtypes.issubdtype(getattr(answer, "dtype", None), jax.dtypes.prng_key)
    if _is_numeric(answer) and not np.shape(answer) and not is_key:
        return bool(answer)
    raise TypeError(f"callback returned {_described(answer)}; return True to end the run, and False or None to go on")


def _check_no_module(params: PyTree) -> None:
    """Raises ``TypeError`` for what Flax calls a model, told by its class (Flax itself is not imported)."""
    kind = type(params)
    if any(base.__module__.startswith("flax.nnx") and base.__name__ == "Module" for base in kind.__mro__):
        raise TypeError(
            f"params is the Flax NNX module {kind.__name__}; give its parameters, as in graphdef, params, model_state = "
            "nnx.split(net, nnx.Param, ...), and put it together in the loss function with nnx.merge"
        )
    is_empty = not any(_is_numeric(leaf) for leaf in jax.tree.leaves(params))  # A registered class may hold arrays.
    if hasattr(kind, "init") and hasattr(kind, "apply") and is_empty:
        raise TypeError(
            f"params is the module {kind.__name__}, which holds no parameters; give those that its init returns "
            "(variables['params'] in Flax Linen), and call its apply in the loss function"
        )
    if hasattr(params, "apply_fn") and hasattr(params, "params"):
        raise TypeError(
            f"params is a {kind.__name__}; give its .params, and call its apply_fn in the loss function (engines keep the "
            "optimizer's state themselves)"
        )


def _check_leaves(name: str, tree: PyTree) -> None:
    """Raises ``TypeError`` for a leaf that is no array, with its place."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not _is_numeric(leaf):
            raise TypeError(
                f"{name} at {_place(path)} is {_described(leaf)}, but {name} may hold arrays only; keep it in the loss function"
            )


def _is_numeric(leaf: Any) -> bool:
    """Whether ``leaf`` is an array of numbers, truth values or typed keys, or one of them, or the shape of such an array."""
    if isinstance(leaf, numbers.Number):
        return True
    dtype = getattr(leaf, "dtype", None)
    kinds = (np.number, np.bool_, jax.dtypes.prng_key)
    return hasattr(leaf, "shape") and dtype is not None and any(jax.dtypes.issubdtype(dtype, kind) for kind in kinds)


def _place(path: tuple) -> str:
    return jax.tree_util.keystr(path) or "the root"


def _described(value: Any) -> str:
    """A value in words.

    >>> _described("gem"), _described(len), _described(np.zeros(3)), _described({})
    ("the str 'gem'", 'a function', 'an array of shape [3]', 'of type dict')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (str, int, float)):
        return f"the {type(value).__name__} {value!r:.40}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {list(np.shape(value))}"
    return "a function" if callable(value) else f"of type {type(value).__name__}"
