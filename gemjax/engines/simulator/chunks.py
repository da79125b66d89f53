"""Cuts of a long run into compiled calls."""

import itertools
from collections.abc import Iterable

import numpy as np

from gemjax.protocol.trace import Events


def chunks(events: Events, chunk_size: int, stops: Iterable[int] = (), done: int = 0) -> list[tuple[int, int]]:
    """Cut arrivals into pieces of at most ``chunk_size``, one of which ends at each of ``stops``.

    The arrivals between two stops are cut evenly, so that no piece is tiny. A resumed run continues with the remaining pieces
    of the same cuts.

    Args:
      events: all arrivals of the trace.
      chunk_size: the largest number of arrivals per piece, positive.
      stops: numbers of commits after which a piece ends; those beyond the trace are ignored.
      done: arrivals already simulated.

    Returns:
      ``(begin, end)`` of each piece, in arrivals.

    >>> from gemjax import Trace
    >>> chunks(Trace([0] * 12).events(), chunk_size=4, stops=[6], done=2)
    [(2, 3), (3, 6), (6, 9), (9, 12)]
    """
    after_commit = np.concatenate([[0], np.flatnonzero(events.commits) + 1])
    counts = np.asarray([*stops], int)
    counts = counts[(counts > 0) & (counts < len(after_commit))]
    edges = np.unique([0, *after_commit[counts], len(events.worker)])
    ends = [done]
    for begin, end in itertools.pairwise(edges.tolist()):
        pieces = -(-(end - begin) // chunk_size)
        ends += [cut for k in range(1, pieces + 1) if (cut := begin + (end - begin) * k // pieces) > done]
    return list(itertools.pairwise(ends))
