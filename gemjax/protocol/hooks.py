"""Marks that rules put in their state: what they need from the protocol, and how they take part in a pull."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

PyTree = Any


class ReadsStaleParams(NamedTuple):
    """Marks a rule that compares the central variable with what the worker pulled.

    Put one, which is empty, anywhere in the state that ``init`` returns. :func:`gemjax.asynchronous` then keeps the view that
    each worker pulled, one copy of the parameters per worker, and passes it to ``update`` as ``stale_params``, a tree like
    ``params``. Without it ``stale_params`` is ``None``. The mark holds no arrays; return it as it is.

    >>> import gemjax, jax, jax.numpy as jnp, optax
    >>> def towards_the_view(weight):
    ...     def update(updates, state, params=None, *, stale_params=None, **extra_args):
    ...         return jax.tree.map(lambda u, p, s: u + weight * (s - p), updates, params, stale_params), state
    ...     return optax.GradientTransformationExtraArgs(lambda params: gemjax.ReadsStaleParams(), update)
    >>> tx = gemjax.asynchronous(towards_the_view(0.5), num_workers=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> updates, state = tx.update(jnp.ones(1), state, jnp.full(1, 4.0), worker=1)   # Worker 1 pulled 0, and it is 4 now.
    >>> updates
    Array([-1.], dtype=float32)
    """


class NeedsLocalSteps(NamedTuple):
    """An empty node; a rule that takes the displacement of local steps for a gradient puts it in its state.

    Engines then refuse to run it without ``local=``: what would arrive otherwise is a bare gradient.
    """


class Refusals(NamedTuple):
    """How many commits a rule refused. A rule that raises the count refuses the commit at hand.

    :func:`asynchronous` then leaves parameters, clock and everyone's memory as they were; the worker is to pull again.
    """

    count: jax.Array  # int32 []


@runtime_checkable
class NoticesPull(Protocol):
    """A node of a method's state that changes when its worker pulls.

    :func:`pull` calls it with the central variable, before any view is shifted, and keeps what it returns if anybody has
    committed since the worker's last pull.
    """

    def pulled(self, params: PyTree) -> "NoticesPull": ...


@runtime_checkable
class SendsAnchors(Protocol):
    """A node of a method's state that sends points along with the view, for local steps to be drawn to."""

    def anchors(self) -> tuple[PyTree, ...]: ...


@runtime_checkable
class ShiftsView(Protocol):
    """A node of a method's state that decides where a worker computes its gradient.

    :func:`pull` calls it with the central variable (or the view so far) and hands out what it returns: a look-ahead, or
    the worker's own position.
    """

    def shift_view(self, view: PyTree) -> PyTree: ...
