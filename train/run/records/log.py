"""The event log of a run: writing, and the check against the trace in a checkpoint."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gemjax
from gemjax import Trace
from gemjax.telemetry import eventlog
from train.common.errors import RecordError
from train.common.files import naming

ROUNDED = 2e-6  # The log has times in microseconds.


class RunLog(gemjax.EventLog):
    """The event log of a run; its errors name the file.

    Args:
      path: file of the log.
      on_commit: called after each commit is written.
    """

    def __init__(self, path: str | os.PathLike, on_commit: Callable[[], None]):
        super().__init__(path)
        self._path, self._on_commit = path, on_commit

    def write(self, /, event: str, time: float, **fields: Any) -> None:
        try:  # A context manager is too slow for each event.
            super().write(event, time, **fields)
        except OSError as error:
            error.filename = os.fspath(self._path)
            raise
        if event == "commit":
            self._on_commit()

    def flush(self) -> None:
        with naming(self._path):
            super().flush()

    def sync(self) -> None:
        with naming(self._path):
            super().sync()

    def close(self) -> None:
        with naming(self._path):
            super().close()

    def check_continued(self, trace: gemjax.Trace) -> None:
        """Check nothing again: the log was compared with the checkpoint when the run was restored."""


def check_trace(logged: Trace, recorded: Trace, path: Path, size: int, applied: int) -> None:
    """Check that the log up to a checkpoint has the commits of the trace in that checkpoint.

    Args:
      logged: trace of the log.
      recorded: trace of the checkpoint.
      path: file of the log.
      size: bytes of the log up to the checkpoint.
      applied: applied commits at the checkpoint; the trace of a simulation also has others, and is then not compared.

    Raises:
      RecordError: if not, with the line of the first commit that differs.
    """
    remedy = "restore the file, or start a new run in another folder"
    if len(logged) != applied:
        raise RecordError(
            f"{path} has {len(logged)} commits up to the checkpoint, but the checkpoint has {applied}; {remedy}"
        )
    if len(recorded) != applied:
        return
    for name in ("worker", "pulled_at", "step", "time"):
        ours, theirs = getattr(logged, name), getattr(recorded, name)
        rounding = 1e-12 * np.abs(theirs) + ROUNDED if name == "time" else 0
        differs = np.flatnonzero(np.abs(ours - theirs) > rounding)
        if len(differs):
            row = differs[0]
            raise RecordError(
                f"{path}, line {_lines(path, size)[row]}: {name} of commit {row} is {ours[row]}, but {theirs[row]} in the "
                f"checkpoint; {remedy}"
            )


def _lines(path: Path, size: int) -> list[int]:
    """Return the line of each commit."""
    lines: list[int] = []
    for number, event in enumerate(eventlog.read(path, size), start=1):
        if event["event"] == "start":
            del lines[event.get("commits", 0) :]
        elif event["event"] == "commit":
            lines.append(number)
    return lines
