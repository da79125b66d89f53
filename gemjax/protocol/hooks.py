"""Nodes in a rule's state by which it takes part in the protocol.

A rule is an optax transformation. ``update`` receives ``worker``, ``staleness`` and more as extra arguments
(:func:`gemjax.asynchronous`). Anything else depends on what the state from its ``init`` contains:

===================================================  ===================================================================
The state contains                                   Effect
===================================================  ===================================================================
``Slots(value)``                                     One copy of ``value`` per worker; ``update`` sees that of the worker.
``SharedRows``                                       Rows that all workers read; a commit writes one, once.
a node with ``next_row()``                           Index of the row inside it that the next commit writes.
``ReadsStaleParams()``                               ``update`` receives ``stale_params``, the view that the worker pulled.
``NeedsLocalSteps()``                                Engines require ``local=``.
``NeedsRounds()``                                    The same; and workers wait for each other, unless a policy is given.
``MadeFor(num_workers)``                             With another number of workers ``init`` raises a ``ValueError``.
``Sends(error, code)``                               In front of all else, workers may send its messages; see ``Sends``.
a node with ``refuses(staleness)``                   It is asked before each commit; see ``Refusals``.
a node with ``on_pull(params, view, moved)``         It is called at each pull; see ``PullHook``.
===================================================  ===================================================================

``Slots`` and ``SharedRows`` are in :mod:`gemjax.protocol.slots`. All of these may be anywhere in the state, also inside
``optax.chain``, ``masked``, ``partition`` or ``inject_hyperparams``.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import optax

from gemjax.protocol import PyTree, diagnostics
from gemjax.protocol.checks import check_alike
from gemjax.protocol.slots import Slots


class ReadsStaleParams(NamedTuple):
    """Mark of a rule that compares the central variable with what the worker pulled.

    Put one, which is empty, anywhere in the state that ``init`` returns. :func:`gemjax.asynchronous` then keeps the view that
    each worker pulled (one copy of the parameters per worker) and passes it to ``update`` as ``stale_params``, a tree like
    ``params``. Without the mark ``stale_params`` is ``None``. The mark holds no arrays; return it as it is.

    >>> import gemjax, jax, jax.numpy as jnp, optax
    >>> def towards_the_view(weight):
    ...     def update(updates, state, params=None, *, stale_params=None, **extra_args):
    ...         return jax.tree.map(lambda u, p, s: u + weight * (s - p), updates, params, stale_params), state
    ...     return optax.GradientTransformationExtraArgs(lambda params: gemjax.rules.ReadsStaleParams(), update)
    >>> tx = gemjax.asynchronous(towards_the_view(0.5), num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> updates, state = tx.update(jnp.ones(1), state, jnp.full(1, 4.0), worker=1)   # Worker 1 pulled 0, and it is 4 now.
    >>> updates
    Array([-1.], dtype=float32)
    """


class NeedsLocalSteps(NamedTuple):
    """Mark of a rule that takes the displacement of local steps for a gradient; it is empty.

    Engines do not run such a rule without ``local=``, because it would receive gradients.
    """


class NeedsRounds(NeedsLocalSteps):
    """Mark of a rule that is defined in rounds: a step takes one displacement of each worker, all from the same view.

    With real workers a barrier is then the default of :class:`gemjax.Policy`, and simulations warn of a trace without rounds.
    """

    __slots__ = ()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class MadeFor:
    """Mark of a rule that works with this number of workers alone; it holds no arrays.

    Inside of ``Slots`` only :func:`gemjax.per_worker` looks at it, and compares it with 1.

    Args:
      num_workers: N.
      advice: what the error says; by default it asks for the same number in both.
    """

    num_workers: int
    advice: str = ""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Refusals:
    """Number of commits that a rule refused.

    A commit at which it rises is refused: it changes neither parameters nor clock nor any memory, and its worker pulls again. A
    rule that refuses commits has a node in its state with a method ``refuses(staleness)``, which is or contains this count:
    :func:`gemjax.asynchronous` asks it before each commit, and counts. A rule whose answer depends on more than its state and
    the staleness has this count without ``refuses``, and raises it in ``update``.
    """

    count: jax.Array  # int32 []


class Code(Protocol):
    """Lossy form in which an array is sent; hashable, and holds no arrays."""

    def encode(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """Return the arrays that are sent."""
        ...

    def decode(self, sent: tuple[jax.Array, ...], like: Any) -> jax.Array:
        """Return the array that the receiver makes of them, in shape and dtype of ``like``."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sends:
    """State of a rule that replaces a gradient by what can be sent of it, and adds what it left out to the next one.

    The rule may act where the commits are, or, if it is in front of all others, at the workers: an engine between hosts then
    keeps the errors there and sends messages. Both give the same numbers.

    Args:
      error: what the messages of the worker have left out, a tree like the gradient; ``None`` at a central variable if the
        workers keep their errors. The rule then changes no gradient.
      code: the form of each array of a message.
      decay: the factor of the error before a gradient is added.
    """

    error: Slots | None
    code: Code = dataclasses.field(metadata={"static": True})
    decay: float = dataclasses.field(default=1.0, metadata={"static": True})

    def message(self, grads: PyTree) -> tuple[list[tuple[jax.Array, ...]], "Sends"]:
        """Return the message for a gradient, and the node after it."""
        assert self.error is not None
        total = jax.tree.map(lambda g, e: g + jnp.asarray(self.decay, g.dtype) * e, grads, self.error.value)
        message = [self.code.encode(array) for array in jax.tree.leaves(total)]
        lost = jax.tree.map(jnp.subtract, total, self.read(message, grads))
        return message, dataclasses.replace(self, error=Slots(lost))

    def read(self, message: list[tuple[jax.Array, ...]], like: PyTree) -> PyTree:
        """Return the gradient of a message, a tree like ``like``."""
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(structure, map(self.code.decode, message, leaves))


class PullHook(Protocol):
    """Node of a rule's state that takes part in a pull."""

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple[Self, PyTree, tuple[PyTree, ...]]:
        """Answer a pull of the worker whose slot is checked out.

        Args:
          params: the central variable.
          view: the view so far: ``params``, or what a node before this one made of it.
          moved: bool scalar; False if nothing was committed since the worker's last pull.

        Returns:
          ``(node, view, anchors)``: the node after the pull, which is kept only where ``moved`` is true, because a trace
          records only one of two pulls at the same clock; the view; and points that attract local steps, often ``()``.
        """
        ...


def can_refuse(node: Any) -> bool:
    """Return True if ``node`` is asked before each commit."""
    return hasattr(type(node), "refuses")


def has_on_pull(node: Any) -> bool:
    """Return True if ``node`` is called at each pull."""
    return hasattr(type(node), "on_pull")


def answer_pull(node: Any, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
    """Return the node, the view and the anchors that ``node.on_pull`` returns."""
    node, shifted, anchors = node.on_pull(params, view, moved)
    check_alike(f"the view that {type(node).__name__}.on_pull returned", shifted, view)
    return node, shifted, anchors


class Position(NamedTuple):
    """The worker computes at a position of its own, which only its commits change."""

    params: PyTree  # Like the parameters that the rule sees.

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Return the position as the view."""
        return self, where_present(lambda own, _: own, self.params, view), ()


class LookAhead(NamedTuple):
    """The worker computes where a velocity will have carried the central variable."""

    velocity: PyTree  # Like the parameters that the rule sees.
    distance: jax.Array  # float []; the learning rate of the last commit times the number of velocities.

    def length(self) -> jax.Array:
        """Return the diagnostic ``look_ahead``, a root mean square over the numbers that the rule sees."""
        return jnp.abs(self.distance) * diagnostics.rms(self.velocity)

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Subtract ``distance`` velocities from the view."""
        ahead = where_present(lambda v, x: x - jnp.asarray(self.distance, x.dtype) * v, self.velocity, view)
        return self, ahead, ()


def where_present(fn, own: PyTree, view: PyTree) -> PyTree:
    """Map ``fn(own, view)`` over the leaves; a leaf that ``optax.masked`` removed from ``own`` is that of ``view``."""
    is_hole = lambda node: isinstance(node, optax.MaskedNode)
    return jax.tree.map(lambda o, v: v if is_hole(o) else fn(o, v), own, view, is_leaf=is_hole)
