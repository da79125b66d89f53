"""Compiled programs that are kept between runs, found by the objects that they are made of, or by their text."""

import collections
import dataclasses
import hashlib
import re
import threading
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from gemjax.protocol import PyTree
from gemjax.protocol.compat import SETTINGS

KEPT = 8  # The newest values of each kind that are kept.
# Parts of a program that its text does not show: functions of Python, and constants that JAX passes as arguments.
UNTOLD = re.compile(r"custom_call @\w*callback|stablehlo\.(send|recv)\b|\bjax\.const\b")


class Kept:
    """A cache of the newest values, keyed by identity.

    >>> kept = Kept(most=2)
    >>> [kept.get(key, lambda: made) for made, key in enumerate("abacab")]
    [0, 1, 0, 3, 0, 5]
    """

    def __init__(self, most: int = KEPT):
        self._most, self._lock = most, threading.Lock()
        self._values: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()

    def get(self, same: Any, make: Callable[[], Any], like: PyTree = ()) -> Any:
        """Return the value of ``same`` and of the kinds of arrays in ``like``; make it if it is not kept.

        Other settings of JAX are another key. Unhashable keys are not cached.
        """
        key = Same(same), kind_of(like), settings()
        if not has_hash(key):
            return make()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()  # Outside of the lock: it may take minutes, and call get.
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


def has_hash(value: Any) -> bool:
    """Return True if ``value`` can be looked up in a cache; an object of a class that has == but no hash cannot."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


class Same:
    """A key that is equal only for the same object, whatever its ``==`` says; it keeps the object alive.

    Two bound methods are the same if object and function are; two tuples or frozen gemjax dataclasses if all compared parts
    are.

    >>> fn = lambda x: x
    >>> Same((fn, 3)) == Same((fn, 3)), Same((fn, 3)) == Same((fn, 3.0)), Same([]) == Same([])
    (True, False, False)
    """

    __slots__ = ("_identity", "value")

    def __init__(self, value: Any):
        self.value, self._identity = value, _identity(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def _identity(value: Any) -> Hashable:
    if value is None or isinstance(value, (bool, int, str)):
        return type(value), value
    if isinstance(value, types.MethodType):  # Python makes a new one at each access.
        return types.MethodType, id(value.__self__), id(value.__func__)
    if isinstance(value, tuple):
        return type(value), *map(_identity, value)
    options = getattr(type(value), "__dataclass_params__", None)
    if options is not None and options.frozen and type(value).__module__.startswith("gemjax."):
        fields = [field for field in dataclasses.fields(value) if field.compare]
        return type(value), *(_identity(getattr(value, field.name)) for field in fields)
    return id(value)


def settings() -> tuple:
    """Return the settings of JAX on which traced functions depend, some of which its own caches leave out."""
    return jax.config.read("jax_enable_x64"), *(getattr(jax.config, f"jax_{name}") for name in SETTINGS)


def kind_of(tree: PyTree) -> tuple:
    """Return the structure of a tree, and the shape and type of each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    kind = lambda leaf: (np.shape(leaf), getattr(leaf, "dtype", type(leaf)), getattr(leaf, "weak_type", False))
    return structure, *map(kind, leaves)


class Program:
    """A jitted function that reuses the compilation of an equal program.

    It is traced once for arguments of the same kinds, as by ``jax.jit``. What it has compiled is found by equal programs as
    long as one of them exists. A program that calls back to Python, or has constants that its text does not show, equals none.

    Args:
      fn: the function.
      **options: those of ``jax.jit``.

    >>> double, twice = Program(lambda x: 2 * x), Program(lambda y: 2 * y)
    >>> float(double(1.0)), twice.at(1.0) is double.at(3.0)
    (2.0, True)
    """

    def __init__(self, fn: Callable, **options: Any):
        self._own, self._options = jax.jit(fn, **options), options
        self._lock = threading.RLock()
        self._found: dict[int, tuple[Any, _Compiled]] = {}  # By the id of the traced program, which is kept with it.

    def __call__(self, *arguments: Any) -> Any:
        return self.at(*arguments)(*arguments)

    def at(self, *arguments: Any) -> Callable:
        """Return the compiled function for arguments of the kinds of these."""
        with self._lock:  # Threads warm up devices: one of them traces for all.
            traced = self._own.trace(*arguments)
            if id(traced.jaxpr) not in self._found:
                self._found[id(traced.jaxpr)] = traced.jaxpr, self._equal(traced, arguments)
            return self._found[id(traced.jaxpr)][1].call

    def _equal(self, traced: Any, arguments: tuple) -> "_Compiled":
        lowered, own = traced.lower(), _Compiled(self._own, traced.jaxpr)
        text = lowered.as_text()
        leaves, structure = jax.tree.flatten(self._options)
        trees = lowered.in_tree, lowered.out_tree, structure, tuple(leaves)
        types_ = tuple(traced.jaxpr.in_avals), tuple(traced.jaxpr.out_avals)  # With weak types, which no text shows.
        # Nor does it show the devices of a mesh, which are those of the arguments.
        places = tuple(leaf.sharding for leaf in jax.tree.leaves(arguments) if _is_spread(leaf))
        key = hashlib.sha256(text.encode()).digest(), trees, types_, places
        if UNTOLD.search(text) or not has_hash(key):
            return own
        found = _EQUAL.get(key)
        # After jax.clear_caches() the kept function would be traced anew, and the program may differ.
        if found is None or found.call.trace(*arguments).jaxpr is not found.traced:
            _EQUAL[key] = found = own
        return found


def _is_spread(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and len(leaf.sharding.device_set) > 1


@dataclasses.dataclass(eq=False)
class _Compiled:
    """A jitted function, and the program that it was traced to."""

    call: Any
    traced: Any


_EQUAL: weakref.WeakValueDictionary[Hashable, _Compiled] = weakref.WeakValueDictionary()
