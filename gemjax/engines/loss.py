"""The loss function of a run: its two forms, and checks of what it returns."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from gemjax.engines.checks import described, is_key, is_numeric

PyTree = Any

# What engines report of every commit besides metrics and diagnostics, in a history, an event log or a timeline.
COLUMNS = {
    "worker", "step", "time", "loss", "staleness", "pulled_at", "draw", "applied", "dropped", "dispatched", "began", "ready",
    "event", "network", "interrupted", "dispatch",
}  # fmt: skip


def checked_loss(loss_fn: Callable) -> Callable:
    """Return ``loss_fn`` in the long form ``(params, model_state, batch, key) -> (loss, (model_state, metrics))``, checked.

    The number of positional arguments, 2 or 4, decides the form.

    Raises:
      TypeError: for any other number of arguments; when called, for any other kind of return value.
      ValueError: when called, if the loss or a metric is not one number, or the model state has another structure or dtype.
    """
    loss_fn = _long_form(loss_fn)

    def checked(*args):
        # The tree is rebuilt in the trace of the gradient: Flax NNX refuses to change a variable made in another trace.
        returned = loss_fn(*jax.tree.map(lambda leaf: leaf, args))
        _check_names(returned)  # Trees with other names cannot be flattened.
        _check_no_gradient(returned, args[0])
        if not _is_pair(returned) or not _is_pair(returned[1]):
            raise TypeError(
                "loss_fn(params, model_state, batch, key) must return (loss, (model_state, metrics)), got "
                f"{_in_words(returned)}"
            )
        loss, (model_state, metrics) = returned
        if type(loss) is float:  # A constant, whose gradient is 0.
            loss = jnp.asarray(loss, jnp.result_type(float))
        if jnp.shape(loss):
            raise ValueError(f"the loss has shape {jnp.shape(loss)}, a scalar was expected; take its mean")
        if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
            raise TypeError(
                f"loss_fn returned a loss of {jnp.result_type(loss)}, expected a real float; others have no gradient"
            )
        _check_model_state(model_state, args[1])
        _check_metrics(metrics)
        # Engines ask all numbers for their dtype; and JAX knows no classes derived from dict.
        return loss, jax.tree.map(_array, (model_state, dict(metrics)))

    return checked


def _array(leaf: Any) -> Any:
    """Return an array in place of a number of Python."""
    return leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf, jnp.result_type(leaf))


def _long_form(loss_fn: Callable) -> Callable:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(loss_fn).parameters.values()
    positional = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if named := [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]:
        raise TypeError(
            f"loss_fn needs {', '.join(named)} by name, which engines do not give; use functools.partial, or a default"
        )
    if len(positional) == 4:
        return lambda *args: _call(loss_fn, args, batch=args[2], model_state=args[1])
    if len(positional) != 2:
        raise TypeError(
            "loss_fn must be loss_fn(params, batch) -> loss, or loss_fn(params, model_state, batch, key) -> "
            f"(loss, (model_state, metrics)); got one with the arguments ({', '.join(p.name for p in positional)})"
        )

    def long(params, model_state, batch, key):
        del key
        loss = _call(loss_fn, (params, batch), batch, model_state)
        _check_no_gradient(loss, params)
        if not jax.tree_util.all_leaves([loss]):
            raise TypeError(
                f"a loss_fn(params, batch) must return one number, got {_in_words(loss)}; for metrics use "
                "loss_fn(params, model_state, batch, key) -> (loss, (model_state, metrics))"
            )
        return loss, (model_state, {})

    return long


def _call(loss_fn: Callable, args: tuple, batch: PyTree, model_state: PyTree) -> Any:
    """Return ``loss_fn(*args)``; add notes about the batch and the model state to an exception."""
    try:
        return loss_fn(*args)
    except Exception as error:
        leaves = jax.tree_util.tree_leaves_with_path(batch)
        kinds = [f"{jax.tree_util.keystr(path)} {_kind(leaf)}".strip() for path, leaf in leaves[:12]]
        kinds += ["…"] * (len(leaves) > 12)
        error.add_note(f"loss_fn was called with a batch of {', '.join(kinds) or 'no arrays'}")
        if not jax.tree.leaves(model_state):
            error.add_note("the run was given no model_state=")
        raise


def _check_no_gradient(returned: Any, params: PyTree) -> None:
    """Raise ``TypeError`` for a gradient in place of a loss: a tree like ``params``, or a pair that contains one."""
    kind = lambda tree: (jax.tree.structure(tree), [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(tree)])
    if kind(params) == kind(0.0):
        return  # The gradient of one number looks like a loss.
    found = [kind(part) == kind(params) for part in (returned, *(returned if _is_pair(returned) else ()))]
    if any(found):
        given, what = ("grad", "a gradient") if found[0] or found[1] else ("value_and_grad", "(loss, gradient)")
        cause = f"loss_fn returned {what}, as jax.{given}(loss) does; give the loss itself, which engines differentiate"
        if given == "grad" and jax.tree_util.all_leaves([params]):  # Losses per row may have the shape of one array.
            cause = f"the loss has shape {jnp.shape(params)}, a scalar was expected; take its mean, unless {cause}"
        raise TypeError(cause)


def _check_model_state(returned: PyTree, given: PyTree) -> None:
    """Raise ``ValueError`` unless both model states have the same structure, shapes and dtypes."""
    what = "loss_fn returned another model state than it was given"
    found, wanted = jax.tree.structure(returned), jax.tree.structure(given)
    if found != wanted:
        if not wanted.num_leaves:
            what = f"the run was given no model_state=, but {what}"
        raise ValueError(f"{what}: the tree {found}, expected {wanted}; return a tree like the one given")
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(returned), strict=True):
        if _kind(new) != _kind(old):
            raise ValueError(
                f"{what}: {jax.tree_util.keystr(path) or 'the root'} is {_kind(new)}, expected {_kind(old)}; return the same "
                "shapes and dtypes"
            )


def _check_names(returned: Any) -> None:
    """Raise ``TypeError`` unless the names of metrics, if any are returned, are text."""
    metrics = returned[1][1] if _is_pair(returned) and _is_pair(returned[1]) else None
    for name in metrics if isinstance(metrics, dict) else ():
        if not isinstance(name, str):
            raise TypeError(
                f"the metrics of loss_fn have a name that is no text, {name!r}; names are columns of the history"
            )


def check_unreserved(
    metrics: Collection[str], reserved: Collection[str] = COLUMNS, whose: str = "loss_fn returns metrics"
) -> None:
    """Raise ``ValueError`` if a metric is called like something else that a run reports."""
    if clash := {*metrics} & {*reserved}:
        raise ValueError(f"{whose} called {sorted(clash)}, which the engines report themselves; rename them")


def _check_metrics(metrics: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``metrics`` is a dict of single numbers with unreserved names."""
    if not isinstance(metrics, dict):
        raise TypeError(f"the metrics of loss_fn are {described(metrics)}; return a dict of numbers, or {{}} for none")
    check_unreserved(metrics)
    for name, value in metrics.items():
        if not is_numeric(value) or is_key(value):
            raise TypeError(
                f"the metric {name!r} of loss_fn is {described(value)}; every metric must be one number, so return several "
                "numbers under several names"
            )
        if jnp.issubdtype(jnp.result_type(value), jnp.complexfloating):
            raise TypeError(
                f"the metric {name!r} of loss_fn is complex; return its real and imaginary parts under two names"
            )
        if jnp.shape(value):
            raise ValueError(
                f"the metric {name!r} of loss_fn has the shape {list(jnp.shape(value))}, but every metric must be one number; "
                "return its mean, or compute it in your evaluation"
            )


def _kind(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ if isinstance(part, (tuple, dict, list)) else 'array' for part in value)})"
    return type(value).__name__ if isinstance(value, (dict, list, type(None))) else "an array"
