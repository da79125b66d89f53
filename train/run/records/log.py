"""The event log of a run."""

import os
from collections.abc import Callable
from typing import Any

import gemjax


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
