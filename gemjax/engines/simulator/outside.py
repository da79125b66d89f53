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
        self._read: set[int] = set()
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

    def _add(self, function: Any) -> None:
        """Add what a function reads."""
        owner = None
        while not isinstance(function, types.FunctionType):
            if isinstance(function, functools.partial):
                self._values += [*function.args, *function.keywords.values()]
                function = function.func
            elif isinstance(function, types.MethodType):
                owner, function = function.__self__, function.__func__
            elif (wrapped := getattr(function, "__wrapped__", None)) is not None:  # As of `jax.jit`.
                function = wrapped
            elif isinstance(called := inspect.getattr_static(type(function), "__call__", None), types.FunctionType):
                owner, function = function, called
            else:
                return
        if id(function) in self._read:
            return
        self._read.add(id(function))
        attributes = {name for code in _codes(function.__code__) for name in code.co_names}
        for value in (owner, *_values(function)):
            self._values.append(value)
            if isinstance(value, dict):
                self._values += [*value.values()] if len(value) <= MOST_ENTRIES else []
            elif isinstance(value, (types.FunctionType, types.MethodType)):
                if value.__globals__ is function.__globals__:
                    self._add(value)
            else:
                held = _attributes(value)
                self._values += [held[name] for name in sorted(attributes & held.keys())]


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
