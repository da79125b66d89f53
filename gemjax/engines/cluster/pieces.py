"""Views and gradients in pieces, one per host of the central variable, as :func:`cut_along` cuts its arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from gemjax.engines.devices.hardware.packing import Packed
from gemjax.engines.devices.hardware.sharding import Place, cut_along, in_parts, whole


class Pieces(NamedTuple):
    """A view or a gradient: a reference to the piece of each host, none for zeros; of a view the report of its commit."""

    pieces: list[Any]
    report: Mapping[str, Any] | None = None


def split(packed: Packed, hosts: int) -> list[Packed]:
    """Return the piece of each host: its parts of arrays that are cut, and all of the others.

    >>> [piece.apart[0].shape for piece in split(Packed({}, [np.zeros((5, 4))]), 2)]
    [(5, 2), (5, 2)]
    """

    def of(leaf: Any) -> list[Any]:
        axis = cut_along(leaf.shape, hosts)
        return [leaf] * hosts if axis is None else np.split(leaf, hosts, axis)

    pieces = [of(leaf) for leaf in packed.apart]
    return [Packed(packed.vectors, [each[host] for each in pieces]) for host in range(hosts)]


def own_piece(packed: Packed, host: int, place: Place) -> Packed:
    """Return the piece of a host of arrays on ``place``; the first host has those that are whole on all of them."""
    number = lambda leaf: np.asarray(leaf.addressable_data(0))
    cut = lambda leaf: not leaf.is_fully_replicated
    vectors = jax.tree.map(number, packed.vectors) if host == 0 else {}
    return Packed(vectors, [number(leaf) if host == 0 or cut(leaf) else None for leaf in packed.apart])


def joined(pieces: tuple[Packed, ...], shapes: Packed) -> Packed:
    """Return an array of ``shapes`` for each of those of which :func:`own_piece` has returned the pieces."""

    def join(leaves: tuple, shape: tuple[int, ...]) -> np.ndarray:
        axis = cut_along(shape, len(pieces))
        return leaves[0] if axis is None else np.concatenate(leaves, axis)

    rows = zip(*(piece.apart for piece in pieces), strict=True)
    return Packed(pieces[0].vectors, [join(row, leaf.shape) for row, leaf in zip(rows, shapes.apart, strict=True)])


def together(place: Place, packed: Packed, shapes: Packed) -> Packed:
    """Return global arrays of the pieces that all hosts have; called by all of them."""

    def make(piece: Any, shape: tuple[int, ...]) -> jax.Array:
        sharding = whole(place) if piece.shape == shape else in_parts(place, shape)
        return jax.make_array_from_callback(shape, sharding, lambda index: np.array(piece))

    vectors = {dtype: make(vector, vector.shape) for dtype, vector in packed.vectors.items()}
    return Packed(vectors, [make(*pair) for pair in zip(packed.apart, (s.shape for s in shapes.apart), strict=True)])


def spread(place: Place, array: Any) -> jax.Array:
    """Return a global array of one that each host has whole; called by all of them."""
    shape = tuple(array.shape)
    return jax.make_array_from_callback(shape, in_parts(place, shape), lambda index: np.array(array[index]))
