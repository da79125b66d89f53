"""Groups of the leaves of a tree: by number, by prefixes of their paths, or by a function."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from gemjax.protocol import PyTree
from gemjax.protocol.checks import integer, shown

Groups = int | Sequence[str | Sequence[str]] | Callable[[str, jax.Array], int]


def checked_groups(name: str, groups: Any) -> Any:
    """Return ``groups`` in a form that has a hash.

    Raises:
      ValueError: if they are no groups of leaves; ``name`` is that of the argument.
    """
    if callable(groups):
        return groups
    if isinstance(groups, Sequence) and not isinstance(groups, str) and len(groups):
        several = tuple(
            (one,) if isinstance(one, str) or not isinstance(one, Iterable) else tuple(one) for one in groups
        )
        if all(isinstance(one, str) for group in several for one in group):
            return several
    elif not isinstance(groups, (str, Sequence)):
        return integer(name, groups, 1)
    raise ValueError(f"{name} must be an int, prefixes of paths or a function, got {shown(groups)}")


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """Groups that a function has chosen for the leaves of a tree: equal to those of another function with the same choice.

    States of methods made anew are equal by it. Without a leaf, as ``optax.tree.map_params`` asks for a state, the functions
    are compared.
    """

    function: Callable[[str, Any], int]
    numbers: tuple[tuple[str, int], ...]  # Path and number of each leaf.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chosen):
            return NotImplemented
        return self.numbers == other.numbers if self.numbers and other.numbers else self.function is other.function

    def __hash__(self) -> int:
        return hash(Chosen)

    def __call__(self, path: str, leaf: Any) -> int:
        """Return the number of the leaf at ``path``."""
        found = dict(self.numbers).get(path)
        return self.function(path, leaf) if found is None else found


def chosen(groups: Any, params: PyTree) -> Any:
    """Return ``groups`` as a state of ``params`` has them."""
    if not callable(groups):
        return groups
    numbers, _ = number_leaves(groups, params, all_used=False)
    return Chosen(groups, tuple(zip(_paths(params), jax.tree.leaves(numbers), strict=True)))


def _paths(params: PyTree) -> list[str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return ["/".join(str(_name(key)) for key in path) for path, _ in leaves]


def number_leaves(groups: Any, params: PyTree, *, all_used: bool = True) -> tuple[PyTree, int]:
    """Return a tree like ``params`` with the number of each leaf's group, and the number of groups.

    Args:
      groups: an int: at most that many groups of consecutive leaves, the largest as small as possible; a sequence of tuples of
        prefixes of paths, one per group, of which the first that fits counts; or a function from the path and the leaf to the
        number of the group.
      params: the tree, or one of shapes.
      all_used: True (default) if each number up to the largest must have a leaf.

    Raises:
      ValueError: if a leaf belongs to no group, or a group has no leaf.

    >>> import jax.numpy as jnp
    >>> params = {"a": jnp.zeros(3), "b": jnp.zeros(2), "c": jnp.zeros(1)}
    >>> number_leaves(2, params), number_leaves((("c",), ("",)), params)
    (({'a': 0, 'b': 1, 'c': 1}, 2), ({'a': 1, 'b': 1, 'c': 0}, 2))
    """
    leaves, structure = jax.tree.flatten(params)
    if not leaves:
        return params, 1
    paths = _paths(params)
    if isinstance(groups, Chosen) and paths == [path for path, _ in groups.numbers]:
        found = [number for _, number in groups.numbers]  # In order: a key with a slash may give two leaves one path.
    elif isinstance(groups, int):
        found = _even_groups(tuple(max(1, leaf.size) for leaf in leaves), groups)
    elif callable(groups):
        ones = [groups(path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
        found = [integer(f"the group of {path!r}", one, 0) for path, one in zip(paths, ones, strict=True)]
    else:
        found = [_first_that_fits(path, groups) for path in paths]
    count = len(groups) if isinstance(groups, tuple) and all_used else max(found) + 1
    if all_used and (missing := {*range(count)} - {*found}):
        raise ValueError(f"group {min(missing)} of {count} has no leaf; the leaves are {', '.join(map(repr, paths))}")
    return jax.tree.unflatten(structure, found), count


def _name(key: Any) -> Any:
    """Return the name of a step of a path: that of the attribute, the key or the index, or a name that a class gave itself."""
    return next((getattr(key, part) for part in ("name", "key", "idx") if hasattr(key, part)), key)


def _first_that_fits(path: str, groups: Sequence[Sequence[str]]) -> int:
    for number, prefixes in enumerate(groups):
        if any(not one or path == one or path.startswith(one + "/") for one in prefixes):
            return number
    raise ValueError(f"no prefix fits the leaf {path!r}; the prefix '' fits all leaves that are left")


@functools.lru_cache(maxsize=64)
def _even_groups(sizes: tuple[int, ...], count: int) -> list[int]:
    """Return the group of each of consecutive leaves, at most ``count`` of them; the largest is as small as possible."""
    count = min(count, len(sizes))

    def fill(limit):
        groups: list[int] = []
        total = 0
        for place, size in enumerate(sizes):
            current = groups[-1] if groups else -1
            # Every further group needs a leaf.
            begins = current < 0 or total + size > limit or len(sizes) - place <= count - 1 - current
            groups.append(current + begins)
            total = size if begins else total + size
        return groups

    low, high = max(sizes, default=1), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fill(middle)[-1] < count else (middle + 1, high)
    return fill(high)
