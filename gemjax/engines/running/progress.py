"""The line that ``progress=True`` prints."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

EVERY = 0.2  # Seconds between two updates.


class ProgressLine:
    """One line of text about a run, updated on a terminal; elsewhere it is printed at the end alone.

    Args:
      shown: the argument ``progress`` of an engine; if it is false, nothing is printed.
      total: commits of the whole run.
    """

    def __init__(self, shown: Any, total: int):
        self._shown, self._total = bool(shown), total
        self._updates = self._shown and sys.stderr.isatty()
        self._first, self._commits, self._began, self._at = 0, 0, time.perf_counter(), -math.inf
        self._width = 0

    def begin(self) -> None:
        """Say that programs are being compiled."""
        self._say("compiling …")

    def start(self, commits: int) -> None:
        """Start the clock: the run has made so many commits before."""
        self._first, self._commits, self._began = commits, commits, time.perf_counter()

    def update(self, commits: int, loss: Callable[[], float]) -> None:
        """Show the commits made so far and a recent loss, if the line is due."""
        self._commits = commits
        if self._updates and time.perf_counter() >= self._at + EVERY:
            self._say(self._described(loss))

    def end(self, commits: int, loss: Callable[[], float]) -> None:
        """Show the end of the run, and end the line."""
        if self._shown:
            self._commits = commits
            self._say(self._described(loss), always=True)
            print(file=sys.stderr, flush=True)

    def _described(self, loss: Callable[[], float]) -> str:
        seconds, made = time.perf_counter() - self._began, self._commits - self._first
        rate = made / seconds if seconds > 0 else 0.0
        parts = [
            f"{self._commits:,}/{self._total:,} commits",
            f"{rate:,.0f} commits/s" if rate >= 10 else f"{rate:.2g} commits/s",
        ]
        left = self._total - self._commits
        parts.append(f"{left / rate:,.0f} s left" if left and rate else f"{seconds:,.1f} s")
        return "  ".join([*parts, f"loss {loss():.4g}"])

    def _say(self, text: str, *, always: bool = False) -> None:
        if not (self._updates or always):
            return
        self._at = time.perf_counter()
        print(f"{chr(13) if self._updates else ''}{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)
