"""Trees as few vectors: a call or transfer of one array costs a fraction of that of fifty."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gemjax.engines import keys

PyTree = Any


class Packed(NamedTuple):
    """A tree on its way."""

    vectors: dict[str, Any]  # By dtype.
    apart: list[Any]


class Packer:
    """Packs trees like ``example`` into one vector a dtype, and back, bit for bit (both traceable).

    Typed PRNG keys travel as the integers behind them.

    Args:
      example: tree of arrays or of their shapes and dtypes.
      apart: which shapes are left as they are, because they are cut over devices at one of the ends. Default none.

    >>> packer = Packer({"w": jnp.zeros((2, 2)), "b": jnp.zeros(3)})
    >>> packed = packer.pack({"w": jnp.ones((2, 2)), "b": jnp.zeros(3)})
    >>> packed.vectors["float32"]
    Array([0., 0., 0., 1., 1., 1., 1.], dtype=float32)
    >>> packer.unpack(packed)["b"]
    Array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, example: PyTree, apart: Callable[[tuple[int, ...]], bool] = lambda shape: False):
        self._example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example)
        leaves, self._treedef = jax.tree.flatten(keys.as_data(self._example))
        self._shapes = [(tuple(leaf.shape), jnp.dtype(leaf.dtype).name) for leaf in leaves]
        self._apart = [apart(shape) for shape, _ in self._shapes]

    def pack(self, tree: PyTree) -> Packed:
        """One vector a dtype, and what travels apart."""
        leaves = jax.tree.leaves(keys.as_data(tree))
        by_dtype: dict[str, list] = {}
        for leaf, (_, dtype), apart in zip(leaves, self._shapes, self._apart, strict=True):
            if not apart:
                by_dtype.setdefault(dtype, []).append(jnp.ravel(leaf))
        alone = [leaf for leaf, apart in zip(leaves, self._apart, strict=True) if apart]
        return Packed({dtype: jnp.concatenate(parts) for dtype, parts in by_dtype.items()}, alone)

    def zeros(self) -> Packed:
        """A packed tree of zeros."""
        return self.pack(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._example))

    def unpack(self, packed: Packed) -> PyTree:
        """The tree that was packed."""
        offsets, alone = dict.fromkeys(packed.vectors, 0), iter(packed.apart)
        leaves = []
        for (shape, dtype), apart in zip(self._shapes, self._apart, strict=True):
            if apart:
                leaves.append(next(alone))
                continue
            size = math.prod(shape)
            leaves.append(packed.vectors[dtype][offsets[dtype] : offsets[dtype] + size].reshape(shape))
            offsets[dtype] += size
        return keys.as_keys(jax.tree.unflatten(self._treedef, leaves), self._example)
