"""Traces from delays that were recorded without their workers."""

import bisect

import numpy as np


def rows_of_commits(delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns ``worker`` and ``pulled_at`` for the staleness of each commit, with few workers.

    A worker takes over as late as possible: of those that are free at a pull, the one that committed last.

    >>> rows_of_commits(np.array([0, 1, 1, 0, 2]))
    (array([0, 1, 0, 0, 1]), array([0, 0, 1, 3, 2]))
    """
    pulled_at = np.arange(len(delays)) - delays
    last: list[int] = []  # The last commit of each worker in order of time, and beside it that worker.
    names: list[int] = []
    worker = []
    for clock, pulled in enumerate(pulled_at):
        free = bisect.bisect_left(last, pulled) - 1
        name = len(names) if free < 0 else names.pop(free)
        if free >= 0:
            last.pop(free)
        worker.append(name)
        last.append(clock)
        names.append(name)
    return np.array(worker, int), pulled_at


def rows_of_table(delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns ``worker`` and ``pulled_at`` for the table of a server, the age of each worker's gradient at each step.

    >>> rows_of_table(np.array([[0, 0], [0, 1], [1, 1]]))   # Worker 0 at step 1, and worker 1, which had pulled before, at 2.
    (array([0, 1, 0, 1]), array([0, 0, 2, 2]))
    """
    version = np.arange(len(delays))[:, None] - delays
    step, worker = np.nonzero(version != np.vstack([np.full_like(version[:1], -1), version[:-1]]))
    commits_before = np.searchsorted(step, np.arange(len(delays) + 1))
    return worker, commits_before[version[step, worker]]
