"""The loss function of a run: its two forms, and checks of what it returns."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_alike

# What engines report of every commit besides metrics and diagnostics, in a history, an event log or a timeline.
RESERVED = {
    "worker", "step", "time", "loss", "staleness", "pulled_at", "draw", "applied", "dropped", "dispatched", "began", "ready",
    "event", "network", "to_host", "wire", "to_device", "interrupted", "dispatch", "read_at",
}  # fmt: skip


def checked_loss(loss_fn: Callable) -> Callable:
    """Return ``loss_fn`` in the long form ``(params, model_state, batch, key) -> (loss, (model_state, metrics))``, checked.

    The number of positional arguments, 2 or 4, decides the form.

    Raises:
      TypeError: for any other number of arguments.
      ValueError: when called, if a metric is not one number or has the name of a column of the history, or the model state has
        another structure or dtype.
    """
    loss_fn = _long_form(loss_fn)

    def checked(*args):
        # The tree is rebuilt in the trace of the gradient: Flax NNX refuses to change a variable made in another trace.
        loss, (model_state, metrics) = loss_fn(*jax.tree.map(lambda leaf: leaf, args))
        if type(loss) is float:  # A constant, whose gradient is 0.
            loss = jnp.asarray(loss, jnp.result_type(float))
        same = lambda new, old: jnp.result_type(new) == jnp.result_type(old)
        check_alike("the model state that loss_fn returned", model_state, args[1], same)
        check_unreserved(metrics)
        for name, value in metrics.items():
            if jnp.shape(value):
                raise ValueError(
                    f"the metric {name!r} of loss_fn has the shape {list(jnp.shape(value))}, but every metric must be one "
                    "number; return its mean, or compute it in your evaluation"
                )
        # Engines read `.dtype`, so numbers become arrays; jax.tree takes a subclass of dict for a leaf.
        as_array = lambda leaf: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf, jnp.result_type(leaf))
        return loss, jax.tree.map(as_array, (model_state, dict(metrics)))

    return checked


def _long_form(loss_fn: Callable) -> Callable:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(loss_fn).parameters.values()
    positional = [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(positional) == 4:
        return lambda *args: _call(loss_fn, args, batch=args[2], model_state=args[1])
    if len(positional) != 2:
        raise TypeError(
            "loss_fn must be loss_fn(params, batch) -> loss, or loss_fn(params, model_state, batch, key) -> "
            f"(loss, (model_state, metrics)); got one with the arguments ({', '.join(positional)})"
        )

    def long(params, model_state, batch, key):
        del key
        return _call(loss_fn, (params, batch), batch, model_state), (model_state, {})

    return long


def _call(loss_fn: Callable, args: tuple, batch: PyTree, model_state: PyTree) -> Any:
    """Return ``loss_fn(*args)``; add notes about the batch and the model state to an exception."""
    try:
        return loss_fn(*args)
    except Exception as error:
        leaves = jax.tree_util.tree_leaves_with_path(batch)
        kinds = [
            f"{jax.tree_util.keystr(path)} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".strip()
            for path, leaf in leaves[:12]
        ]
        kinds += ["…"] * (len(leaves) > 12)
        error.add_note(f"loss_fn was called with a batch of {', '.join(kinds) or 'no arrays'}")
        if not jax.tree.leaves(model_state):
            error.add_note("the run was given no model_state=")
        raise


def check_unreserved(
    metrics: Collection[str], reserved: Collection[str] = RESERVED, subject: str = "loss_fn returns metrics"
) -> None:
    """Raise ``ValueError`` if a metric has the name of something else that a run reports."""
    if clash := {*metrics} & {*reserved}:
        raise ValueError(f"{subject} called {sorted(clash)}, which the engines report themselves; rename them")
