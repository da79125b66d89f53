"""Means of training loss and gap between two evaluations."""

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from gemjax.telemetry import eventlog
from train.run.records.metrics import read_metrics

# Beginnings of lines of the event log that are rows of the history.
ROWS = tuple(b'{"event":"%s"' % event for event in (b"commit", b"reject", b"drop"))


class Means:
    """Means over the commits since the last evaluation, of the numbers as the event log has them.

    So they do not depend on when checkpoints were written, or on whether the run was resumed.
    """

    def __init__(self):
        self._losses: list[float] = []
        self._gaps: list[float] = []

    @classmethod
    def of_records(cls, events: Path, metrics: Path, *, measured: bool) -> Self:
        """Return the means of a run that goes on: over the commits in its log that its metrics do not count yet.

        Args:
          events: the event log.
          metrics: the metrics.
          measured: False for a simulation, whose `commits` count those that were not applied, too.
        """
        means, evaluated = cls(), read_metrics(metrics)
        counts = ("commits", "rejected", "dropped") if measured else ("commits",)
        before = sum(int(np.nan_to_num(evaluated[name][-1])) for name in counts if name in evaluated)
        with open(events, "rb") as file:  # Its lines have been checked.
            for line in itertools.islice(filter(lambda line: line.startswith(ROWS), file), before, None):
                event = json.loads(line)
                means._append(event.get("loss"), event.get("gap"), event["event"] == "commit")
        return means

    def add(self, history: Mapping[str, np.ndarray]) -> None:
        """Add commits, as columns; there may be none."""
        if history:
            columns = (history[name].tolist() for name in ("loss", "gap", "applied"))
            for loss, gap, applied in zip(*columns, strict=True):
                self._append(eventlog.rounded(loss), eventlog.rounded(gap), applied)

    def _append(self, loss: Any, gap: Any, applied: bool) -> None:
        self._gaps.append(math.nan if gap is None else gap)
        if applied:
            self._losses.append(math.nan if loss is None else loss)

    def take(self) -> tuple[float, float]:
        """Return the mean loss of applied commits and the mean gap, and begin again; NaN if there are none."""
        means = _mean(self._losses), _mean(self._gaps)
        self._losses.clear()
        self._gaps.clear()
        return means


def _mean(values: list[float]) -> float:
    with np.errstate(over="ignore"):
        return float(np.mean(values)) if values else math.nan
