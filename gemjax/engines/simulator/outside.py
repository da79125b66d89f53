"""Values that functions read from outside of their arguments, by which compiled programs are told apart."""

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, np.generic)
MOST_ENTRIES = 1000  # Of a dict whose values are compared.


class Outside:
    """Values that some functions read from outside of their arguments, as they are now.

    A compiled program holds these values as they were when it was traced. Two of these objects are equal if no value has
    changed in between: numbers and texts are compared, and anything else must be the same object. Read are variables of the
    module and of enclosing functions, and default arguments; among these, the values of a dict, the attributes of an object
    that the function names, and what a function of the same module reads. Changes inside of an array, or deeper inside of an
    object, are not noticed.

    Args:
      functions: functions, methods, partial functions or objects that can be called.

    >>> rate = {"decay": 0.1}
    >>> loss = lambda x: rate["decay"] * x
    >>> before = Outside(loss)
    >>> before == Outside(loss)
    True
    >>> rate["decay"] = 0.2
    >>> before == Outside(loss)
    False
    """

    def __init__(self, *functions: Callable):
        self._values: list[Any] = []
        self._read: set[tuple[int, ...]] = set()
        for function in functions:
            self._add(function)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Outside)
            and len(self._values) == len(other._values)
            and all(map(_is_same, self._values, other._values))
        )

    def __hash__(self) -> int:
        return hash(len(self._values))

    def _add(self, called: Any) -> None:
        """Add what a function reads."""
        owners, function = _resolved(called)
        key = tuple(map(id, (function, *owners)))
        if function is None or key in self._read:
            return
        self._read.add(key)
        named = {name for code in _codes(function.__code__) for name in code.co_names}
        for value in (*owners, *_values(function)):
            self._values.append(value)
            if isinstance(value, dict):
                self._values += [*value.values()] if len(value) <= MOST_ENTRIES else []
                continue
            held = _attributes(value)
            self._values += [held[name] for name in sorted(named & held.keys())]
            inner = _resolved(value)[1] if callable(value) else None
            if inner is not None and inner.__globals__ is function.__globals__:
                self._add(value)


def _resolved(called: Any) -> tuple[list[Any], types.FunctionType | None]:
    """Return the objects that a call is bound to, and the Python function that it runs; `None` if there is none."""
    owners = []
    while not isinstance(called, types.FunctionType):
        if isinstance(called, functools.partial):
            owners += [*called.args, *called.keywords.values()]
            called = called.func
        elif isinstance(called, types.MethodType):
            owners.append(called.__self__)
            called = called.__func__
        elif (wrapped := getattr(called, "__wrapped__", None)) is not None:  # As of `jax.jit`.
            called = wrapped
        elif isinstance(own := inspect.getattr_static(type(called), "__call__", None), types.FunctionType):
            owners.append(called)
            called = own
        else:
            return owners, None
    return owners, called


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _values(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of a function's variables from outside, and its default arguments."""
    names = {
        instruction.argval
        for code in _codes(function.__code__)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL"
    }
    yield from (function.__globals__[name] for name in sorted(names & function.__globals__.keys()))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # It has no value yet.
            yield None
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object or a module; none if it has none of its own, or refuses, as some proxies do."""
    try:
        return vars(value)
    except Exception:
        return {}


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, PLAIN) and bool(one == other))
