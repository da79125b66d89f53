"""Means of training loss and gap between two evaluations."""

import collections
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from gemjax.telemetry import eventlog
from train.run.records.metrics import read_metrics

# Beginnings of lines of the event log that are rows of the history.
ROWS = tuple(b'{"event":"%s"' % event for event in (b"commit", b"reject", b"drop"))


class ArrivalRow(NamedTuple):
    """A commit: its loss and gap, NaN if not finite, and how it ended: ``commit``, ``reject`` or ``drop``."""

    loss: float
    gap: float
    event: str


class Taken(NamedTuple):
    """Means over some commits, and how many of them were refused."""

    loss: float
    gap: float
    rejected: int
    dropped: int


class Means:
    """Means over the commits since the last evaluation, of the numbers as the event log has them.

    So they do not depend on when checkpoints were written, or on whether the run was resumed.

    Args:
      commits: commits up to the last evaluation.
      measured: False for a simulation, whose `commits` count those that were not applied, too.
    """

    def __init__(self, commits: int = 0, *, measured: bool = True):
        self._commits, self._measured = commits, measured
        self._rows: collections.deque[ArrivalRow] = collections.deque()

    @classmethod
    def of_records(cls, events: Path, metrics: Path, *, measured: bool) -> Self:
        """Return the means of a run that goes on: over the commits in its log that its metrics do not count yet.

        Args:
          events: the event log.
          metrics: the metrics.
          measured: False for a simulation, whose `commits` count those that were not applied, too.
        """
        evaluated = read_metrics(metrics)
        means = cls(int(evaluated["commits"][-1]) if evaluated else 0, measured=measured)
        counts = ("commits", "rejected", "dropped") if measured else ("commits",)
        before = sum(int(np.nan_to_num(evaluated[name][-1])) for name in counts if name in evaluated)
        with open(events, "rb") as file:  # Its lines have been checked.
            for line in itertools.islice(filter(lambda line: line.startswith(ROWS), file), before, None):
                event = json.loads(line)
                means._append(event.get("loss"), event.get("gap"), event["event"])
        return means

    def add(self, history: Mapping[str, np.ndarray]) -> None:
        """Add commits, as columns; there may be none."""
        if history:
            columns = (history[name].tolist() for name in ("loss", "gap", "applied", "dropped"))
            for loss, gap, applied, dropped in zip(*columns, strict=True):
                event = "commit" if applied else "drop" if dropped else "reject"
                self._append(eventlog.rounded(loss), eventlog.rounded(gap), event)

    def _append(self, loss: Any, gap: Any, event: str) -> None:
        self._rows.append(ArrivalRow(math.nan if loss is None else loss, math.nan if gap is None else gap, event))

    def take(self, commits: int) -> Taken:
        """Return the means over the commits up to an evaluation after ``commits``, and begin behind them.

        The loss is that of applied commits. A mean is NaN if there are none.
        """
        rows = []
        while self._rows and self._commits < commits:
            rows.append(self._rows.popleft())
            self._commits += rows[-1].event == "commit" or not self._measured
        return Taken(
            _mean([row.loss for row in rows if row.event == "commit"]),
            _mean([row.gap for row in rows]),
            *(sum(row.event == event for row in rows) for event in ("reject", "drop")),
        )


def _mean(values: list[float]) -> float:
    with np.errstate(over="ignore"):
        return float(np.mean(values)) if values else math.nan
