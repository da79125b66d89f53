"""Per-worker state: a rule is written for one worker, and its state is stored for all of them.

A rule keeps what belongs to a worker in a :class:`Slots` node and is written as if there were only that worker. This file
alone stacks the nodes on a leading ``[N]`` axis, takes one worker's slot out and puts it back. An engine can therefore choose
the order of reads and writes: a compiled loop that reads and then writes one stacked array in the same iteration copies the
whole stack.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_worker

WORKERS = 0x67656D  # Folded in first, so that workers' keys differ from a rule's own fold_in(key, i).


@jax.tree_util.register_pytree_with_keys_class
class Slots:
    """Per-worker memory inside the state of a rule.

    Write a rule as if there were one worker: ``init`` puts ``Slots(value)`` in the state, and at a commit ``update`` finds in
    ``state.memory.value`` the value of the worker that commits, and returns ``Slots(new_value)``. All workers share the rest
    of the state. :func:`gemjax.asynchronous` keeps a copy of the value per worker, with the same initial value, except that
    PRNG keys are folded with the worker, and a commit leaves the copies of other workers untouched. If a worker pulls before
    its first commit, leaves that ``init`` copied from the parameters are refreshed from the central variable; a result of
    arithmetic, such as ``params + 0``, is no copy.

    Args:
      value: the state of one worker (``num_workers is None``), or that of all of them with a leading ``[N]`` axis on
        every leaf.
      num_workers: N once stacked; ``None`` for the slot of a single worker, which is the only form a rule sees.

    >>> import gemjax, optax
    >>> def count_own_commits():                         # Divides each update by the number of its worker's commits.
    ...     def update(updates, state, params=None, **extra_args):
    ...         count = state.value + 1
    ...         return jax.tree.map(lambda u: u / count, updates), gemjax.rules.Slots(count)
    ...     return optax.GradientTransformationExtraArgs(lambda params: gemjax.rules.Slots(jnp.zeros([])), update)
    >>> tx = gemjax.asynchronous(count_own_commits(), num_workers=3)
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 2):
    ...     updates, state = tx.update(jnp.ones(1), state, jnp.zeros(1), worker=worker)
    >>> updates, state.inner_state[0]                    # Of worker 0.
    (Array([1.], dtype=float32), Array(2., dtype=float32))

    >>> store = stack(Slots(jnp.zeros(2)), num_workers=3)
    >>> store = put(store, Slots(jnp.ones(2)), worker=1)
    >>> store[1]
    Array([1., 1.], dtype=float32)
    """

    __slots__ = ("num_workers", "value")

    def __init__(self, value: PyTree, num_workers: int | None = None):
        self.value = value
        self.num_workers = num_workers

    def __getitem__(self, worker: int) -> PyTree:
        """Return the value of worker ``worker``."""
        return take(self, check_worker(worker, self.num_workers or 1)).value

    def __repr__(self) -> str:
        return f"Slots({self.value!r}, num_workers={self.num_workers})"

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.num_workers

    @classmethod
    def tree_unflatten(cls, num_workers, children):
        return cls(children[0], num_workers)


@jax.tree_util.register_pytree_with_keys_class
class SharedRows:
    """Shared state in rows, of which a commit writes one.

    A slot is visible to its worker alone. What a rule must see of other workers (such as a leader's parameters) is kept here,
    with a row per worker. Read rows after the write: then compiled loops copy no stack. The write of a commit that is not
    applied is undone. A commit writes at most one row, once.

    Args:
      rows: a tree with a leading ``[N]`` axis on every leaf.
      replaced: during a commit, the index of the row that it wrote (N if none), the row that was there, and False if the write
        is to be undone. ``None`` (default) between commits.
      known: the committing worker, if ``replaced`` already has its old row; else ``None``.
    """

    __slots__ = ("known", "replaced", "rows")

    def __init__(
        self, rows: PyTree, replaced: tuple[jax.Array, PyTree, jax.Array] | None = None,
        known: jax.typing.ArrayLike | None = None,
    ):  # fmt: skip
        self.rows = rows
        self.replaced = replaced
        self.known = known  # No part of the tree; where it is lost, the row is read.

    @classmethod
    def of(cls, params: PyTree, num_workers: int) -> "SharedRows":
        """Return rows that all equal ``params``."""
        return cls(jax.tree.map(lambda p: jnp.tile(p[None], (num_workers,) + (1,) * jnp.ndim(p)), params))

    def write(self, worker: jax.typing.ArrayLike, row: PyTree, *, in_turn: bool = False) -> "SharedRows":
        """Replace the row of ``worker``.

        Pass ``in_turn=True`` if the index is not that of the worker, but what ``next_row()`` of the node around the rows
        returned before the commit; engines then know which row is replaced.
        """
        rows = _put_row(self.rows, worker, row)
        if self.replaced is None:
            return SharedRows(rows)
        before = self.to_be_replaced(worker, in_turn=in_turn)
        return SharedRows(rows, (jnp.asarray(worker, jnp.int32), before, self.replaced[2]))

    def to_be_replaced(self, worker: jax.typing.ArrayLike, *, in_turn: bool = False) -> PyTree:
        """Return the row that :meth:`write` with these arguments would replace; compiled loops have read it before."""
        is_known = self.known is not None and (in_turn or worker is self.known)
        return self.replaced[1] if self.replaced is not None and is_known else self.read(worker)

    def change(self) -> tuple[PyTree, PyTree]:
        """Return the row that the commit replaced and the one that it wrote; twice the same if it wrote none."""
        assert self.replaced is not None
        index, before, stays = self.replaced
        wrote = stays & (index < self._beyond())
        return before, jax.tree.map(lambda new, old: jnp.where(wrote, new, old), self.read(index), before)

    def settle(self, applied: jax.Array, *, is_last: bool) -> "SharedRows":
        """Return the rows after a commit, whose write is undone unless ``applied``.

        Only the last call of a commit undoes it: a write before the last read of the rows would copy them all.
        """
        if self.replaced is None:
            return SharedRows(self.rows)
        index, before, stays = self.replaced
        if not is_last:
            return SharedRows(self.rows, (index, before, stays & applied))
        # An index beyond the end writes nothing.
        return SharedRows(_put_row(self.rows, jnp.where(stays & applied, self._beyond(), index), before))

    def _beyond(self) -> int:
        return jax.tree.leaves(self.rows)[0].shape[0]

    def read(self, worker: jax.typing.ArrayLike) -> PyTree:
        """Return the row of ``worker``."""
        return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, worker, keepdims=False), self.rows)

    def __repr__(self) -> str:
        return f"SharedRows({self.rows!r})"

    def tree_flatten_with_keys(self):
        # The replaced row is no part of the tree between commits, nor of checkpoints.
        names = ("rows",) if self.replaced is None else ("rows", "replaced")
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def _put_row(rows: PyTree, index: jax.typing.ArrayLike, row: PyTree) -> PyTree:
    return jax.tree.map(lambda all_rows, new: all_rows.at[index].set(new, mode="drop"), rows, row)


def begin_commit(tree: PyTree, worker: Any = None, own_rows: list | None = None) -> PyTree:
    """Return ``tree`` with :class:`SharedRows` whose write can be undone.

    A compiled loop that reads a row right before it writes that row copies all rows. It gives ``own_rows`` instead, which it
    has read right after the previous commit (:func:`read_own_rows`).
    """
    rows = iter(own_rows or [])

    def begin(node):
        if not is_rows(node) or node.replaced is not None:
            return node
        row = next(rows, None)
        known = None if row is None else worker
        if row is None:
            row = jax.tree.map(lambda rows: jnp.zeros(rows.shape[1:], rows.dtype), node.rows)
        return SharedRows(node.rows, (jnp.int32(node._beyond()), row, jnp.array(True)), known)

    return jax.tree.map(begin, tree, is_leaf=is_rows)


def read_own_rows(tree: PyTree, worker: jax.typing.ArrayLike, num_workers: int) -> list:
    """Return the row of each :class:`SharedRows` in ``tree`` that a commit of ``worker`` replaces, ``None`` if unknown.

    It is that of the worker, or, inside a node with a method ``next_row()``, the one whose index that returns. Rows inside of
    :class:`Slots` are unknown.
    """
    found: list = []
    is_leaf = lambda node: is_rows(node) or is_slots(node) or hasattr(type(node), "next_row")
    for node in jax.tree.leaves(tree, is_leaf=is_leaf):
        if is_slots(node):
            found += [None for rows in jax.tree.leaves(node, is_leaf=is_rows) if is_rows(rows)]
        elif is_rows(node):
            found.append(node.read(worker) if node._beyond() == num_workers else None)
        elif hasattr(type(node), "next_row"):
            inside = jax.tree.leaves(node, is_leaf=is_rows)
            found += [rows.read(node.next_row()) for rows in inside if is_rows(rows)]
    return found


def select(applied: jax.Array, new: PyTree, old: PyTree, joined_bytes: int = 0) -> PyTree:
    """Return ``new`` if ``applied``, else ``old``.

    If no array is larger than ``joined_bytes``, one operation chooses for all arrays of a dtype. :class:`SharedRows` are those
    of ``new``, because a choice would copy all rows; unless ``applied``, their write is undone.
    """
    leaves, treedef = jax.tree.flatten(new, is_leaf=is_rows)
    before, changed = treedef.flatten_up_to(old), []
    for at, (n, o) in enumerate(zip(leaves, before, strict=True)):
        if is_rows(n):
            leaves[at] = n.settle(applied, is_last=o.replaced is None)
        elif n is not o:
            changed.append(at)
    new_arrays, old_arrays = ([jnp.asarray(side[at]) for at in changed] for side in (leaves, before))
    alike = [
        o.dtype if o.shape == n.shape and not o.weak_type else None for n, o in zip(new_arrays, old_arrays, strict=True)
    ]
    # XLA:CPU copies arrays into a vector; if it fuses a slice with that, number by number, which is slow for large arrays.
    largest = max((array.nbytes for array in new_arrays if isinstance(array.dtype, np.dtype)), default=0)
    for group in joinable(new_arrays, alike, joined_bytes if largest <= joined_bytes else 0):
        n, o = (joined([side[index] for index in group]) for side in (new_arrays, old_arrays))
        chosen, end = jnp.where(applied, n, o), 0
        for index in group:
            shape, begin = new_arrays[index].shape, end
            end += new_arrays[index].size
            leaves[changed[index]] = chosen if len(group) == 1 else chosen[begin:end].reshape(shape)
    return jax.tree.unflatten(treedef, leaves)


def joinable(arrays: list[jax.Array], alike: list[Any], joined_bytes: int) -> list[list[int]]:
    """Group the indices of small arrays of one dtype, which together cost one operation of XLA:CPU instead of one each.

    Args:
      arrays: any arrays.
      alike: per array, what else those of a group have in common; ``None`` for an array that stays alone.
      joined_bytes: the size of the largest array that is in a group with others.
    """
    groups: dict[Any, list[int]] = {}
    for index, (array, kind) in enumerate(zip(arrays, alike, strict=True)):
        # A vector has no weak dtype, and holds no typed keys.
        is_plain = kind is not None and not array.weak_type and isinstance(array.dtype, np.dtype)
        is_small = is_plain and array.nbytes <= joined_bytes
        groups.setdefault((array.dtype, kind) if is_small else index, []).append(index)
    return list(groups.values())


def joined(arrays: list[jax.Array]) -> jax.Array:
    """Return several arrays as one vector, and a single one as it is."""
    return arrays[0] if len(arrays) == 1 else jnp.concatenate([jnp.ravel(array) for array in arrays])


def is_rows(node: PyTree) -> bool:
    """Return True for a node of shared rows."""
    return isinstance(node, SharedRows)


def is_slots(node: PyTree) -> bool:
    """Return True for a node of per-worker state."""
    return isinstance(node, Slots)


def stack(tree: PyTree, num_workers: int) -> PyTree:
    """Give each worker its own copy of each slot in ``tree``, with its own PRNG keys; nodes that are stacked already stay."""

    def repeat(x):
        x = jnp.asarray(x)
        if _is_key(x):
            return jax.vmap(functools.partial(_folded, x))(jnp.arange(num_workers))
        return jnp.tile(x[None], (num_workers,) + (1,) * x.ndim)

    def stack_one(node):
        if not is_slots(node):
            return node
        if node.num_workers is not None:
            check_same_num_workers(node.num_workers, num_workers)
            return node
        return Slots(jax.tree.map(repeat, node.value), num_workers)

    return jax.tree.map(stack_one, tree, is_leaf=is_slots)


def with_own_keys(tree: PyTree, worker: jax.typing.ArrayLike) -> PyTree:
    """Fold the PRNG keys in ``tree`` with the worker, so that no two workers draw the same numbers; worker 0 keeps them.

    Keys are typed ones, and, as for JAX, all arrays of uint32 whose last axis is as long as a ``jax.random.PRNGKey``.
    """
    return jax.tree.map(lambda leaf: _folded(leaf, worker) if _is_key(leaf) else leaf, tree)


def _is_key(leaf: Any) -> bool:
    dtype = jnp.result_type(leaf)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return True
    return dtype == jnp.uint32 and jnp.shape(leaf)[-1:] == jax.eval_shape(jax.random.PRNGKey, 0).shape


def _folded(keys: jax.Array, worker: jax.typing.ArrayLike) -> jax.Array:
    # jax.random.split(key)[1] is fold_in(key, 1), the key of worker 1 if it were folded with that number alone.
    fold = lambda key, worker: jax.random.fold_in(jax.random.fold_in(key, WORKERS), worker)
    for _ in range(keys.ndim - (not jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key))):
        fold = jax.vmap(fold, (0, None))
    return jnp.where(worker == 0, keys, fold(keys, worker))


def check_same_num_workers(inside: int, num_workers: int) -> None:
    """Raise ``ValueError`` if a part for ``inside`` workers is in a state for another number of them."""
    if inside != num_workers:
        raise ValueError(
            f"a state for {inside} workers is inside one for {num_workers}; give both the same num_workers"
        )


def take(tree: PyTree, worker: jax.typing.ArrayLike) -> PyTree:
    """Check out worker ``worker``: return ``tree`` with every stacked node replaced by that worker's slot."""

    def read(x):
        return lax.dynamic_index_in_dim(x, worker, keepdims=False, allow_negative_indices=False)

    def take_one(node):
        return Slots(jax.tree.map(read, node.value)) if is_slots(node) and node.num_workers is not None else node

    return jax.tree.map(take_one, tree, is_leaf=is_slots)


def put(tree: PyTree, taken: PyTree, worker: jax.typing.ArrayLike) -> PyTree:
    """Check worker ``worker`` in: return ``taken`` with its slots written into the stacks of ``tree``."""

    def write(all_workers, one):
        return lax.dynamic_update_index_in_dim(all_workers, one, worker, 0, allow_negative_indices=False)

    def put_one(new, old):
        if not is_slots(new) or old.num_workers is None:
            return new
        return Slots(jax.tree.map(write, old.value, new.value), old.num_workers)

    return jax.tree.map(put_one, taken, tree, is_leaf=is_slots)


def split(tree: PyTree) -> tuple[list[Slots], Callable[[list[Slots], list], PyTree], list]:
    """Separate per-worker from shared state.

    Returns:
      ``(slots, join, shared)``: the :class:`Slots` nodes in order; ``join(slots, shared)``, which builds a tree of the same
      structure from other nodes and leaves and can be closed over by a compiled function; and the shared leaves as a list.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_slots)
    per_worker = [is_slots(leaf) for leaf in leaves]

    def join(slots, shared):
        slots, shared = iter(slots), iter(shared)
        return jax.tree.unflatten(treedef, [next(slots) if mine else next(shared) for mine in per_worker])

    return (
        [leaf for leaf in leaves if is_slots(leaf)],
        join,
        [leaf for leaf in leaves if not is_slots(leaf)],
    )


def match_mask(tree: PyTree, reference: PyTree) -> PyTree:
    """Return ``tree`` with the leaves removed that ``optax.masked`` removed from ``reference``.

    ``masked`` and ``partition`` remove leaves of parameters and gradients, but pass extra arguments whole. Call this before a
    map over both.

    Raises:
      ValueError: from JAX, if another wrapper gave ``reference`` another tree.
    """
    is_hole = lambda node: isinstance(node, optax.MaskedNode)
    return jax.tree.map(lambda ref, node: ref if is_hole(ref) else node, reference, tree, is_leaf=is_hole)
