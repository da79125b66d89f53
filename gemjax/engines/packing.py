"""Trees as few vectors: a call or transfer of one array costs a fraction of that of fifty."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


class Packer:
    """Packs trees like ``example`` into one vector a dtype, and back, bit for bit (both traceable).

    >>> packer = Packer({"w": jnp.zeros((2, 2)), "b": jnp.zeros(3)})
    >>> packed = packer.pack({"w": jnp.ones((2, 2)), "b": jnp.zeros(3)})
    >>> packed["float32"]
    Array([0., 0., 0., 1., 1., 1., 1.], dtype=float32)
    >>> packer.unpack(packed)["b"]
    Array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, example: PyTree):
        leaves, self._treedef = jax.tree.flatten(example)
        self._shapes = [(tuple(leaf.shape), jnp.dtype(leaf.dtype).name) for leaf in leaves]

    def pack(self, tree: PyTree) -> dict[str, jax.Array]:
        """One vector a dtype."""
        leaves = jax.tree.leaves(tree)
        by_dtype: dict[str, list] = {}
        for leaf, (_, dtype) in zip(leaves, self._shapes, strict=True):
            by_dtype.setdefault(dtype, []).append(jnp.ravel(leaf))
        return {dtype: jnp.concatenate(parts) for dtype, parts in by_dtype.items()}

    def zeros(self, device: jax.Device | None = None) -> dict[str, jax.Array]:
        """A packed tree of zeros."""
        sizes: dict[str, int] = {}
        for shape, dtype in self._shapes:
            sizes[dtype] = sizes.get(dtype, 0) + int(np.prod(shape))
        return {dtype: jnp.zeros(size, dtype, device=device) for dtype, size in sizes.items()}

    def unpack(self, packed: dict[str, jax.Array]) -> PyTree:
        """The tree that was packed."""
        offsets = dict.fromkeys(packed, 0)
        leaves = []
        for shape, dtype in self._shapes:
            size = int(np.prod(shape))
            leaves.append(packed[dtype][offsets[dtype] : offsets[dtype] + size].reshape(shape))
            offsets[dtype] += size
        return jax.tree.unflatten(self._treedef, leaves)
