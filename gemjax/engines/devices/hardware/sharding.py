"""Layout of arrays on a place: one device, or several devices that share the work or the memory."""

import dataclasses
import functools

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gemjax.batches.local import Minibatches
from gemjax.protocol import PyTree

Place = jax.Device | tuple[jax.Device, ...]
AXIS = "shard"


def devices_of(place: Place) -> tuple[jax.Device, ...]:
    """Return the devices of a place."""
    return place if isinstance(place, tuple) else (place,)


def whole(place: Place) -> Sharding:
    """Return the sharding of an array that is whole on every device of ``place``."""
    return NamedSharding(_mesh(place), PartitionSpec()) if isinstance(place, tuple) else SingleDeviceSharding(place)


def in_parts(place: Place, shape: tuple[int, ...]) -> Sharding:
    """Return the sharding in equal parts over the devices of ``place``, cut along the longest divisible axis.

    An array without a divisible axis, such as a scalar or a short vector, is whole on every device.

    >>> device = jax.devices()[0]
    >>> in_parts(device, (64, 3)) == whole(device)
    True
    """
    axis = cut_along(shape, len(devices_of(place)))
    if axis is None:
        return whole(place)
    return NamedSharding(_mesh(place), PartitionSpec(*[AXIS if i == axis else None for i in range(len(shape))]))


def cut_along(shape: tuple[int, ...], parts: int) -> int | None:
    """Return the longest axis that divides into ``parts``, the first of several; ``None`` if none does, or for one part.

    >>> cut_along((10, 64, 32), 8), cut_along((5, 5, 1, 10), 8), cut_along((4, 4), 1)
    (1, None, None)
    """
    divisible = [axis for axis, size in enumerate(shape) if size and size % parts == 0]
    return max(divisible, key=lambda axis: shape[axis], default=None) if parts > 1 else None


def is_cut(place: Place, shape: tuple[int, ...]) -> bool:
    """Return True if an array of that shape is cut over the devices of ``place``."""
    return cut_along(shape, len(devices_of(place))) is not None


def shardings(place: Place, tree: PyTree) -> PyTree:
    """Return the sharding of each array of ``tree`` on ``place``, in parts if possible."""
    return jax.tree.map(lambda leaf: in_parts(place, tuple(leaf.shape)), tree)


def split_batch(place: Place | None, batch: PyTree) -> PyTree:
    """Let each device of ``place`` compute a part of the batch, or all of it if its rows cannot be divided; traced."""
    if not isinstance(place, tuple):
        return batch
    if isinstance(batch, Minibatches):  # The batches of local steps.
        return dataclasses.replace(batch, at=lambda j: split_batch(place, batch.at(j)))

    def split(leaf):
        if not isinstance(leaf, jax.Array):  # A number of Python or NumPy.
            return leaf
        rows = leaf.ndim and leaf.shape[0] and leaf.shape[0] % len(place) == 0
        return jax.lax.with_sharding_constraint(
            leaf, NamedSharding(_mesh(place), PartitionSpec(AXIS) if rows else PartitionSpec())
        )

    return jax.tree.map(split, batch)


@functools.lru_cache(maxsize=64)
def _mesh(devices: tuple[jax.Device, ...]) -> Mesh:
    # Programs are written for one device, and the compiler divides them.
    return Mesh(np.array(devices, object), (AXIS,), axis_types=(AxisType.Auto,))
