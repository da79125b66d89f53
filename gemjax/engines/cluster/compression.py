"""Gradients in fewer bits, whose rounding errors their workers add to the next gradient."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gemjax.engines.devices.hardware.packing import Packed, Packer
from gemjax.engines.devices.hardware.programs.gradients import Packers, gradient_at
from gemjax.engines.running import keys
from gemjax.engines.worker import Gradient

PyTree = Any
COMPRESSIONS = (None, "bfloat16", "int8")
LARGE = 2**16  # Numbers in a leaf that is not packed, because copying it into a vector takes longer.


class RoundingPacker:
    """Packer of gradients that rounds ``grads``; loss, metrics and model state keep their precision.

    Args:
      example: shapes and dtypes of a gradient.
      compression: ``"bfloat16"``, or ``"int8"``: multiples of the largest number of each leaf over 127.

    >>> one = lambda grads: Gradient(jnp.float32(1), grads, (), {}, jnp.float32(1))
    >>> packer = RoundingPacker(one(jnp.zeros(3)), "int8")
    >>> packer.unpack(packer.pack(one(jnp.array([10.0, -127.0, 0.4])))).grads
    Array([  10., -127.,    0.], dtype=float32)
    """

    def __init__(self, example: Gradient, compression: str):
        self._example, self._compression = example, compression
        rounded = jax.eval_shape(self._rounded, example)
        leaves = jax.tree.leaves(keys.as_data(rounded))
        self._packer = Packer(rounded, [leaf.size > LARGE for leaf in leaves])

    @property
    def example(self) -> Gradient:
        """Shapes and dtypes of the gradients that it packs."""
        return self._example

    def __reduce__(self) -> tuple:
        return RoundingPacker, (self._example, self._compression)

    def _rounded(self, gradient: Gradient) -> Gradient:
        if self._compression == "bfloat16":
            return gradient._replace(grads=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), gradient.grads))
        leaves = jax.tree.leaves(gradient.grads)
        largest = [jnp.max(jnp.abs(leaf), initial=0) / 127 for leaf in leaves]
        scales = [
            jnp.where(scale > 0, scale, 1).astype(leaf.dtype) for scale, leaf in zip(largest, leaves, strict=True)
        ]
        whole = [jnp.round(leaf / scale).astype(jnp.int8) for leaf, scale in zip(leaves, scales, strict=True)]
        return gradient._replace(grads=(whole, scales))

    def pack(self, tree: Gradient) -> Packed:
        """Return the rounded gradient, packed."""
        return self._packer.pack(self._rounded(tree))

    def zeros(self) -> Packed:
        """Return a packed gradient of zeros."""
        return self._packer.zeros()

    def unpack(self, packed: Packed) -> Gradient:
        """Return a gradient with the numbers that were sent, in its own dtypes."""
        rounded = self._packer.unpack(packed)
        if self._compression == "bfloat16":
            grads = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), rounded.grads, self._example.grads)
        else:
            leaves = [whole.astype(scale.dtype) * scale for whole, scale in zip(*rounded.grads, strict=True)]
            grads = jax.tree.unflatten(jax.tree.structure(self._example.grads), leaves)
        return rounded._replace(grads=grads)


def with_feedback(gradient: Callable, batches: Any, packed_as: Packers) -> Callable:
    """Return ``compute(packed, local, data, selection, event, residual, place) -> (packed gradient, new local, new residual)``.

    The residual, a tree like the gradient, is what earlier gradients lost by rounding. It is added to this gradient, and what
    that loses is the next residual if the commit is applied; otherwise the residual stays as it was.
    """

    def compute(packed, local, data, selection, event, residual, place):
        sent = gradient_at(gradient, batches, place, packed_as.views.unpack(packed)[0], local, data, selection, event)
        total = sent._replace(grads=jax.tree.map(jnp.add, sent.grads, residual), local=())
        rounded = packed_as.gradients.pack(total)
        lost = jax.tree.map(jnp.subtract, total.grads, packed_as.gradients.unpack(rounded).grads)
        return rounded, sent.local, lost

    return compute
