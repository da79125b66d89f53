"""Per-worker state: written for one worker, stored for all of them.

A rule keeps what belongs to a worker in a :class:`Slots` node and is written as if there were only that worker.
Stacking the nodes on a leading ``[N]`` axis, taking one worker's slot out and putting it back happen here and nowhere
else, so that an engine can do the same by itself where the order of reads and writes matters (a compiled loop that
reads and writes one stacked array in the same iteration copies the whole stack).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

PyTree = Any


@jax.tree_util.register_pytree_with_keys_class
class Slots:
    """Memory that each worker has of its own, inside the state of a rule.

    Write a rule as if there were one worker: ``init`` puts ``Slots(value)`` in the state, and at a commit ``update`` finds in
    ``state.memory.value`` what the worker that commits has there, and returns ``Slots(new_value)``. What is not in
    ``Slots`` is shared by all workers. :func:`gemjax.asynchronous` keeps a copy of the value for each worker, begun with the
    same value, and engines leave those of other workers untouched.

    Args:
      value: the state of one worker (``num_workers is None``), or that of all of them with a leading ``[N]`` axis on
        every leaf.
      num_workers: N once stacked; ``None`` for the slot of a single worker, which is the only form a rule sees.

    >>> import gemjax, optax
    >>> def count_own_commits():                         # Divides each update by how many its worker has made.
    ...     def update(updates, state, params=None, **extra_args):
    ...         count = state.value + 1
    ...         return jax.tree.map(lambda u: u / count, updates), gemjax.Slots(count)
    ...     return optax.GradientTransformationExtraArgs(lambda params: gemjax.Slots(jnp.zeros([])), update)
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
        """What worker ``worker`` keeps."""
        if self.num_workers is None:
            raise TypeError("these Slots hold the slot of one worker already; read `.value`")
        return take(self, check_worker(worker, self.num_workers)).value

    def __repr__(self) -> str:
        return f"Slots({self.value!r}, num_workers={self.num_workers})"

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.num_workers

    @classmethod
    def tree_unflatten(cls, num_workers, children):
        return cls(children[0], num_workers)


def is_slots(node: PyTree) -> bool:
    """Whether ``node`` is a :class:`Slots`."""
    return isinstance(node, Slots)


def _map_slots(fn: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
    return jax.tree.map(
        lambda node, *others: fn(node, *others) if is_slots(node) else node, tree, *rest, is_leaf=is_slots
    )


def stack(tree: PyTree, num_workers: int) -> PyTree:
    """Gives every worker its own copy of each slot in ``tree`` (nodes already stacked are left as they are)."""

    def repeat(x):
        x = jnp.asarray(x)
        return jnp.tile(x[None], (num_workers,) + (1,) * x.ndim)

    def stack_one(node):
        if node.num_workers is not None:
            if node.num_workers != num_workers:
                raise ValueError(
                    f"a state for {node.num_workers} workers stands inside one for {num_workers}; "
                    "give both the same num_workers"
                )
            return node
        return Slots(jax.tree.map(repeat, node.value), num_workers)

    return _map_slots(stack_one, tree)


def take(tree: PyTree, worker: jax.typing.ArrayLike) -> PyTree:
    """``tree`` as worker ``worker`` sees it: every stacked node replaced by that worker's slot."""

    def read(x):
        return lax.dynamic_index_in_dim(x, worker, keepdims=False, allow_negative_indices=False)

    return _map_slots(lambda node: node if node.num_workers is None else Slots(jax.tree.map(read, node.value)), tree)


def put(tree: PyTree, taken: PyTree, worker: jax.typing.ArrayLike) -> PyTree:
    """``taken`` with worker ``worker``'s slots written back into the stacks of ``tree``."""

    def write(all_workers, one):
        return lax.dynamic_update_index_in_dim(all_workers, one, worker, 0, allow_negative_indices=False)

    def put_one(new, old):
        if not is_slots(new) or old.num_workers is None:
            return new
        return Slots(jax.tree.map(write, old.value, new.value), old.num_workers)

    return jax.tree.map(put_one, taken, tree, is_leaf=is_slots)


def split(tree: PyTree) -> tuple[list[Slots], Callable[[list[Slots], list], PyTree], list]:
    """Separates per-worker from shared state.

    Returns:
      ``(slots, join, shared)``: the :class:`Slots` nodes in order; the shared leaves as a list; and ``join(slots,
      shared)``, which builds a tree of the same structure from others of each (the join is static: it can be closed
      over by a compiled function).
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


def check_worker(worker: Any, num_workers: int) -> Any:
    """``worker`` if it can be an index into ``num_workers`` slots.

    Concrete values are checked here, where the message can say what is wrong; a traced index cannot be, so engines check
    a whole trace before they compile it.

    Raises:
      ValueError: if the index is missing or out of range.
      TypeError: if it is not an integer scalar.
    """
    if worker is None:
        if num_workers == 1:
            return 0
        raise ValueError(
            f"worker= is missing: this state is kept for {num_workers} workers, so say which one pulls or commits "
            f"(worker=0 … worker={num_workers - 1})"
        )
    if isinstance(worker, jax.core.Tracer):
        if worker.ndim or not jnp.issubdtype(worker.dtype, jnp.integer):
            raise TypeError(f"worker must be one integer, got {worker.dtype}{list(worker.shape)}")
        return worker
    index = np.asarray(worker)
    if index.ndim or not np.issubdtype(index.dtype, np.integer):
        raise TypeError(f"worker must be one integer, got {worker!r}")
    if not 0 <= index < num_workers:
        raise ValueError(
            f"worker={int(index)} is out of range: this state is kept for {num_workers} workers, 0 … {num_workers - 1}"
        )
    return worker


def like(tree: PyTree, reference: PyTree) -> PyTree:
    """``tree`` with the holes that ``optax.masked`` left in ``reference``.

    ``masked`` and ``partition`` cut parameters and gradients but pass extra arguments whole; rules call this before they
    map over both.
    """

    def is_hole(node):
        return isinstance(node, optax.MaskedNode)

    return jax.tree.map(lambda ref, node: ref if is_hole(ref) else node, reference, tree, is_leaf=is_hole)
