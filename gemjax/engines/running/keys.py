"""Typed PRNG keys as plain integers for packed vectors and checkpoints, which hold numbers only."""

from typing import Any

import jax
import jax.numpy as jnp

from gemjax.engines.checks import is_key
from gemjax.protocol import PyTree


def as_data(tree: PyTree) -> PyTree:
    """Return ``tree`` with its typed keys as the unsigned integers behind them.

    Args:
      tree: arrays or ``jax.ShapeDtypeStruct``; both keep their shardings.

    >>> as_data({"key": jax.random.key(7), "mean": jnp.zeros(2)})["key"]
    Array([0, 7], dtype=uint32)
    """
    return jax.tree.map(lambda leaf: _data(leaf) if is_key(leaf) else leaf, tree)


def as_keys(tree: PyTree, like: PyTree) -> PyTree:
    """Undo :func:`as_data`: wrap the integers of ``tree`` wherever ``like`` has typed keys."""

    def wrap(leaf, reference):
        return jax.random.wrap_key_data(leaf, impl=implementation(reference)) if is_key(reference) else leaf

    return jax.tree.map(wrap, tree, like)


def _data(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.random.key_data(leaf)
    shape = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=leaf.sharding)


def implementation(leaf: Any) -> Any:
    """Return the PRNG implementation of typed keys, given as an array or a ``jax.ShapeDtypeStruct``."""
    return jax.random.key_impl(jnp.zeros([], leaf.dtype))
