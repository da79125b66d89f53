"""Trees packed in few vectors: a call or transfer of one array costs a fraction of that of fifty."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.devices.hardware.sharding import Place, is_cut, whole
from gemjax.engines.running import keys
from gemjax.engines.transition import View
from gemjax.protocol import PyTree


class Packed(NamedTuple):
    """A tree as one vector per dtype, and the leaves that are not in a vector."""

    vectors: dict[str, Any]  # By dtype.
    apart: list[Any]


class Packer:
    """Packs trees like ``example`` into one vector per dtype, and back, bit for bit (both traceable).

    Typed PRNG keys are packed as the integers behind them.

    Args:
      example: tree of arrays or of their shapes and dtypes.
      apart: per leaf, True if it is not packed. Default: all leaves are packed.

    Attributes:
      example: shapes and dtypes of the trees that it packs.

    >>> packer = Packer({"w": jnp.zeros((2, 2)), "b": jnp.zeros(3)})
    >>> packed = packer.pack({"w": jnp.ones((2, 2)), "b": jnp.zeros(3)})
    >>> packed.vectors["float32"]
    Array([0., 0., 0., 1., 1., 1., 1.], dtype=float32)
    >>> packer.unpack(packed)["b"]
    Array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, example: PyTree, apart: Sequence[bool] | None = None):
        self.example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example)
        leaves, self._treedef = jax.tree.flatten(keys.as_data(self.example))
        self._shapes = [(tuple(leaf.shape), jnp.dtype(leaf.dtype).name) for leaf in leaves]
        self._apart = [False] * len(leaves) if apart is None else list(apart)

    def __reduce__(self) -> tuple:  # A structure of some registered classes cannot be pickled.
        return Packer, (self.example, self._apart)

    def pack(self, tree: PyTree) -> Packed:
        """Return one vector per dtype, and the leaves that stay apart."""
        leaves = jax.tree.leaves(keys.as_data(tree))
        by_dtype: dict[str, list] = {}
        for leaf, (_, dtype), apart in zip(leaves, self._shapes, self._apart, strict=True):
            if not apart:
                # A weak dtype becomes a strong one.
                by_dtype.setdefault(dtype, []).append(jnp.ravel(leaf).astype(dtype))
        return Packed({dtype: jnp.concatenate(parts) for dtype, parts in by_dtype.items()}, self.apart_of(leaves))

    def apart_of(self, values: Iterable[Any]) -> list[Any]:
        """Return those of ``values``, one per leaf, whose leaves stay apart."""
        return [value for value, apart in zip(values, self._apart, strict=True) if apart]

    def zeros(self) -> Packed:
        """Return a packed tree of zeros."""
        return self.pack(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.example))

    def unpack(self, packed: Packed) -> PyTree:
        """Return the tree that was packed."""
        return self.merge(self.parts(packed.vectors), packed.apart)

    def parts(self, vectors: dict[str, Any]) -> list[Any]:
        """Return the leaves that are in the vectors, in order."""
        offsets, parts = dict.fromkeys(vectors, 0), []
        for (shape, dtype), apart in zip(self._shapes, self._apart, strict=True):
            if not apart:
                begin, offsets[dtype] = offsets[dtype], offsets[dtype] + math.prod(shape)
                parts.append(vectors[dtype][begin : offsets[dtype]].reshape(shape))
        return parts

    def merge(self, parts: Iterable[Any], apart: Iterable[Any]) -> PyTree:
        """Return the tree of ``parts``, the leaves from vectors, and ``apart``, the others."""
        parts, alone = iter(parts), iter(apart)
        leaves = [next(alone if is_apart else parts) for is_apart in self._apart]
        return keys.as_keys(jax.tree.unflatten(self._treedef, leaves), self.example)


def packer_of(tree: PyTree, central: Place, largest: float = math.inf) -> Packer:
    """Return a packer of all leaves except those that are cut over the devices of ``central`` or exceed ``largest`` bytes."""

    def is_apart(leaf):
        return is_cut(central, leaf.shape) or leaf.size * leaf.dtype.itemsize > largest

    return Packer(tree, [is_apart(leaf) for leaf in jax.tree.leaves(keys.as_data(tree))])


def send(packed: Packed, place: Place) -> Packed:
    """Send ``packed`` whole to ``place``; a single array, the usual case, takes half the time of a tree."""
    there = whole(place) if isinstance(place, tuple) else place
    if packed.apart or len(packed.vectors) != 1:
        return jax.device_put(packed, there)
    ((dtype, vector),) = packed.vectors.items()
    # Even if the vector is there already, a call of JAX takes 16 µs, 80 on a GPU.
    is_there = isinstance(vector, jax.Array) and vector.committed and vector.device == there
    return packed if is_there else Packed({dtype: jax.device_put(vector, there)}, [])


def with_outcome(view: View, applied: jax.Array, keeps_local: bool) -> tuple[View, Any]:
    """Return a view, and, if its worker has a local optimizer with state, 1 if the worker's last commit was applied, else 0.

    The numbers are floats, so that they are packed with the rest; that of commits is exact up to 16 million in float32.
    """
    commits = jax.tree.map(lambda count: count.astype(jnp.result_type(float)), view.commits)
    return view._replace(commits=commits), applied.astype(jnp.result_type(float)) if keeps_local else ()


def outcome_of(view: Packer, vectors: dict[str, Any]) -> jax.Array:
    """Return the number that :func:`with_outcome` adds to a view, from the vectors of the packed view."""
    return view.parts(vectors)[-1]


# Numbers of a commit's report besides metrics; counts of commits are exact in float32 up to 16 million.
OF_ENGINES = ("loss", "staleness", "applied", "dropped")
FLOATS = ""  # Key of the vector of floats, which holds all numbers that are exact in it.


def numbers_of(report: Any) -> dict[str, jax.Array]:
    """Return the numbers of a commit's :class:`gemjax.engines.transition.CommitReport` by name."""
    return {name: getattr(report, name) for name in OF_ENGINES} | report.metrics


def packed_report(named: Mapping[str, Any], stack: Callable[[list], Any] = jnp.stack) -> dict[str, Any]:
    """Return the numbers in one vector of floats, and those that are not exact in it in a vector per type.

    >>> packed_report({"loss": jnp.float32(0.5), "tokens": jnp.int32(20_000_001)})
    {'': Array([0.5], dtype=float32), 'int32': Array([20000001], dtype=int32)}
    """
    common = _float_of(named["loss"].dtype)
    vectors: dict[str, list] = {}
    for name, value in named.items():
        key = _vector_of(name, value.dtype, common)
        vectors.setdefault(key, []).append(value if key else value.astype(common))
    return {key: stack(values) for key, values in vectors.items()}


def unpacked_report(report: Mapping[str, Any], reported: Mapping[str, np.dtype]) -> list:
    """Wait for the numbers of :func:`packed_report`; return them in the order of ``reported``, their names and types."""
    vectors = {key: iter(np.asarray(vector).tolist()) for key, vector in report.items()}
    common = _float_of(reported["loss"])
    return [next(vectors[_vector_of(name, kind, common)]) for name, kind in reported.items()]


def has_arrived(report: Mapping[str, Any]) -> bool:
    """Return True if :func:`unpacked_report` would wait for no computation."""
    return all(vector.is_ready() for vector in report.values())


def _float_of(loss: Any) -> Any:
    return jnp.promote_types(loss, jnp.float32)


def _vector_of(name: str, kind: Any, common: Any) -> str:
    """Return the key of the vector for a number: that of the floats of type ``common``, if all of its type are exact there."""
    if name in OF_ENGINES or jnp.issubdtype(kind, jnp.bool_):
        return FLOATS
    if jnp.issubdtype(kind, jnp.integer):
        is_exact = jnp.iinfo(kind).bits <= jnp.finfo(common).nmant
    else:
        is_exact = jnp.finfo(kind).nmant <= jnp.finfo(common).nmant
    return FLOATS if is_exact else np.dtype(kind).name
