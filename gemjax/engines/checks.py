"""What is wrong with the arguments of a run, said before anything is computed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gemjax.per_seed import PerSeed

PyTree = Any


def check_given(loss_fn: Callable, params: PyTree, model_state: PyTree, where: str = "") -> None:
    """Raises ``TypeError`` if arguments stand in each other's places, or a :class:`gemjax.PerSeed` where it may not.

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


def check_params(params: PyTree) -> None:
    """Raises ``ValueError`` unless ``params`` are float arrays, at least one."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params holds no array; there is nothing to train")
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"params at {jax.tree_util.keystr(path) or 'the root'} is {leaf.dtype}, but only floats can be trained; "
                "keep integers in model_state or in the loss function"
            )
