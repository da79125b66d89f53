"""Marks that rules put in their state: what they need from the protocol, and how they take part in a pull."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

PyTree = Any


class ReadsStaleParams(NamedTuple):
    """An empty node; a rule puts it in its state to be given ``stale_params`` (which costs one copy a worker)."""


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
