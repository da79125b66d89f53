"""The progress of many jobs: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from train.common.console import say
from train.run.progress import LINES, MINUTE, Display


class GroupProgress(Display):
    """Progress of jobs that run at the same time or one after the other.

    Args:
      console: a terminal gets a bar, anything else plain lines.
      unit: the word for a job, such as `run`.
      jobs: number of jobs.
      total: gradients of all jobs.
      done: number of jobs that earlier sessions have finished.
      before: gradients of those jobs. The rate excludes them.
      clock: seconds.
    """

    _bar: Progress | None = None

    def __init__(
        self, console: Console, unit: str, jobs: int, total: int, done: int = 0, before: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ):  # fmt: skip
        self.console, self.unit, self.jobs, self.total, self.clock = console, unit, jobs, total, clock
        self.done, self.before, self._finished = done, before, before
        self._in_flight: dict[str, int] = {}
        self._ended: set[str] = set()
        self._line_at, self._began = before, clock()
        self._printed = self._began
        if console.is_terminal:
            columns = (TextColumn(text) for text in ("{task.percentage:.0f} % of the gradients", "{task.description}"))
            left = TextColumn("left {task.fields[left]}")
            self._live = self._bar = Progress(
                BarColumn(bar_width=24), *columns, TimeElapsedColumn(), left, console=console
            )
            self._task = self._bar.add_task(self._text, total=total, completed=before, left="…")

    @property
    def gradients(self) -> int:
        """Gradients of all jobs, including those in flight."""
        return self._finished + sum(self._in_flight.values())

    @property
    def left(self) -> str:
        """Time left at the rate so far, compilation included."""
        made = self.gradients - self.before
        if made <= 0:
            return "…"
        seconds = round((self.clock() - self._began) * (self.total - self.gradients) / made)
        return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"

    def update(self, name: str, gradients: int) -> None:
        """Show that the job `name` has made that many gradients."""
        if name in self._ended:  # The message was late.
            return
        self._in_flight[name] = gradients
        if self._bar is not None:
            self._draw(self._bar)
        elif self.gradients - self._line_at >= self.total / LINES or self.clock() - self._printed >= MINUTE:
            self._print(name if len(self._in_flight) == 1 else "")

    def end(self, name: str, gradients: int, text: str = "") -> None:
        """Show that the job `name` is finished after that many gradients, with a `text` about it."""
        self._in_flight.pop(name, None)
        self._ended.add(name)
        self.done, self._finished = self.done + 1, self._finished + gradients
        line = f"{name}: {text}" if text else name
        if self._bar is None:
            self._print(line)
            return
        self._draw(self._bar)
        if text:
            say(self._bar.console, line)

    @property
    def _text(self) -> str:
        names = ", ".join(self._in_flight) if len(self._in_flight) == 1 else ""
        return f"{self.done} of {self.jobs} {self.unit}s done" + (f", {names}" if names else "")

    def _draw(self, bar: Progress) -> None:
        bar.update(self._task, completed=self.gradients, description=self._text, left=self.left)

    def _print(self, text: str) -> None:
        self._line_at, self._printed = self.gradients, self.clock()
        percent = 100 * self.gradients / max(1, self.total)
        say(
            self.console,
            f"{self.done}/{self.jobs} {self.unit}s done, {percent:.0f} % of the gradients  left {self.left}  {text}".rstrip(),
        )
