"""Records of a run: its event log, its metrics, and the means between two evaluations that they hold."""

import collections
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

import gemjax
from gemjax.telemetry import eventlog
from train.common.errors import RecordError

METRICS = ("commits", "time", "test_loss", "test_accuracy")  # Required fields of a line.
# Beginnings of lines of the event log that are rows of the history.
ROWS = tuple(b'{"event":"%s"' % event for event in (b"commit", b"reject", b"drop"))


class RunLog(gemjax.EventLog):
    """The event log of a run.

    Args:
      path: file of the log.
      on_commit: called after each commit is written.
    """

    def __init__(self, path: str | os.PathLike, on_commit: Callable[[], None]):
        super().__init__(path)
        self._on_commit = on_commit

    def write(self, /, event: str, time: float, **fields: Any) -> None:
        super().write(event, time, **fields)
        if event == "commit":
            self._on_commit()

    def check_continued(self, trace: gemjax.Trace) -> None:
        """Check nothing again: the log was read when the run was restored."""


def read_metrics(path: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """Read metrics as columns; values that were not finite are NaN, and an incomplete last line is skipped.

    Args:
      path: the file; without it there are no columns.
      size: bytes to read; all if `None`.

    Raises:
      RecordError: if a line is not one of metrics; the message names file and line.
    """
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        lines = file.read(-1 if size is None else size).split(b"\n")[:-1]
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = dict.fromkeys(METRICS) | json.loads(line)
            rows.append({name: math.nan if value is None else +value for name, value in row.items()})
            rows[-1]["commits"] = int(rows[-1]["commits"])
        except (ValueError, TypeError) as error:
            raise RecordError(
                f"{path}, line {number}: not metrics of a run: {error}; the line is {line[:80]!r}"
            ) from error
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}


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
        """Return the means of a run that begins or goes on: over the commits in its log that its metrics do not count yet."""
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
