"""The live view: a table of workers and a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from train.run.dashboard import MOST_WORKERS, Workers

ROOM = 8  # Lines of a terminal beside the table of workers, for what was printed before and the bar.
OFTEN = 0.1  # Seconds from one drawing of the table to the next, at least.
LINES = 20  # Plain lines a run, where the output is not a terminal.
MINUTE = 60.0  # Seconds from one plain line to the next at most.
SILENCE = 10.0  # Seconds without a commit after which that is said.


def mean_loss(history: dict[str, Any]) -> float:
    """Of the commits in `history` that were applied; not a number if none was."""
    losses = history["loss"][history["applied"]]
    return float(np.mean(losses)) if len(losses) else float("nan")


class ProgressLine:
    """Shows commits, their rate, the time left, the loss, the staleness and the last test accuracy.

    Args:
      console: a terminal gets the live view, anything else plain lines.
      total: commits of the run.
      done: those made before.
      workers: number of workers, for the table of them; default none.
      clock: seconds.
    """

    def __init__(
        self, console: Console, total: int, done: int = 0, workers: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ):  # fmt: skip
        self.console, self.total, self.done, self.clock = console, total, done, clock
        self.accuracy = float("nan")
        self._began: float | None = None  # Of the first commits seen: what came before them was compilation.
        self._begun_at = self._line_at = done
        self._seen = self._newest = self._printed = clock()  # Of the last look, the newest commits, the last line.
        self._drawn_at = -OFTEN
        self._said = "no commit yet"
        self._live = self._workers = None
        if console.is_terminal:
            columns = ("{task.completed}/{task.total} commits", "{task.fields[rate]}", "{task.fields[text]}")
            bar = Progress(
                BarColumn(bar_width=24),
                *(TextColumn(column) for column in columns),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task, self._bar = bar.add_task("", total=total, completed=done, rate="", text=""), bar
            self._live = bar
            if 0 < workers <= MOST_WORKERS and console.height >= workers + ROOM:
                self._workers = Workers(workers)
                # Drawn when there is news: no thread of its own beside the scheduler's.
                self._live = Live(self._workers.table(), console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def rate(self) -> float:
        """Commits a second; compilation does not count."""
        if self._began is None or self.done == self._begun_at:
            return float("nan")
        return (self.done - self._begun_at) / (self._seen - self._began)

    @property
    def rate_text(self) -> str:
        return f"{self.rate:.0f}/s" if self.rate >= 10 else f"{self.rate:.2g}/s" if self.rate > 0 else "…/s"

    def update(self, done: int, rejected: int, history: dict[str, Any]) -> None:
        """Shows that `done` commits are made, the newest of which are in `history`; if it is empty, that none has come."""
        before, self._seen = self._seen, self.clock()
        self.done = done
        if history:
            self._newest = self._seen
            if self._began is None:
                self._began, self._begun_at = self._seen, done
            self._said = self._words(rejected, history)
        silent = self._seen - self._newest
        text = self._said + (f"  nothing for {silent:.0f} s" if self._began is not None and silent >= SILENCE else "")
        if self._live is not None:
            self._bar.update(self._task, completed=done, rate=self.rate_text, text=text)
            self._draw(history, self._seen - before)
        elif (
            done >= self.total
            or done - self._line_at >= self.total / LINES
            or self._seen - self._printed >= MINUTE
        ):  # fmt: skip
            self._line_at, self._printed = done, self._seen
            left = f"{(self.total - done) / self.rate:.0f} s" if self.rate > 0 else "…"
            self.console.print(
                f"{done}/{self.total} commits  {self.rate_text}  left {left}  {text}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip

    def _words(self, rejected: int, history: dict[str, Any]) -> str:
        p50, p95 = np.percentile(history["staleness"], [50, 95])
        return (
            f"loss {mean_loss(history):.4f}  staleness p50 {p50:.0f} p95 {p95:.0f}  "
            f"test accuracy {100 * self.accuracy:.2f} %" + (f"  rejected {rejected}" if rejected else "")
        )

    def _draw(self, history: dict[str, Any], seconds: float) -> None:
        if self._workers is None or not isinstance(self._live, Live):
            return
        if history:
            self._workers.update(history)
        else:
            self._workers.wait(seconds)
        if self._seen - self._drawn_at >= OFTEN or self.done >= self.total:
            self._drawn_at = self._seen
            self._live.update(Group(self._workers.table(), self._bar), refresh=True)


class SweepProgress:
    """Shows how many cells of a sweep are done, how many of all its arrivals, and the time left.

    Of its `total` arrivals the `done` cells have made `before`, in time that is not known.
    """

    def __init__(self, console: Console, total: int, cells: int, done: int = 0, before: int = 0):
        self.console, self.total, self.arrivals, self.before = console, total, before, before
        self.cells, self.done = cells, done
        self._began = self._seen = time.perf_counter()
        self._line_at, self._what = before, ""
        self._live = None
        if console.is_terminal:
            self._live = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:.0f} %"),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left {task.fields[left]}"),
                console=console,
            )
            self._task = self._live.add_task("", total=total, completed=before, left="…")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def left(self) -> str:
        """Time left, compilation of the cells to come included."""
        if self.arrivals == self.before:
            return "…"
        rest = (self.total - self.arrivals) / (self.arrivals - self.before)
        seconds = round((self._seen - self._began) * rest)
        return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"

    def begin(self, what: str) -> None:
        """Shows that a cell begins."""
        self._what = what
        if self._live is not None:
            self._live.update(self._task, description=self._text, left=self.left)

    def of(self, runs: int) -> Callable[[int, int], None]:
        """What a sweep of so many runs is to call as it goes on."""
        before = self.arrivals

        def update(done: int, total: int) -> None:
            del total
            self.arrivals, self._seen = before + runs * done, time.perf_counter()
            if self._live is not None:
                self._live.update(self._task, completed=self.arrivals, left=self.left)
            elif self.arrivals - self._line_at >= self.total / LINES:
                self._line_at = self.arrivals
                self._print()

        return update

    def end(self) -> None:
        """Shows that the cell is done."""
        self.done += 1
        self._line_at = self.arrivals
        if self._live is None:
            self._print()

    @property
    def _text(self) -> str:
        return f"cell {min(self.done + 1, self.cells)} of {self.cells}: {self._what}"

    def _print(self) -> None:
        percent = 100 * self.arrivals / max(1, self.total)
        text = f"{self.done}/{self.cells} cells done  {percent:.0f} %  left {self.left}  {self._what}"
        self.console.print(text, highlight=False, soft_wrap=True)


class RunsProgress:
    """Shows how many runs are done, how many of all their gradients, and the time left."""

    def __init__(self, console: Console, total: int, runs: int):
        self.console, self.total, self.runs = console, total, runs
        self.done = self._line_at = self._gradients_done = 0
        self._under_way: dict[str, int] = {}
        self._ended: set[str] = set()
        self._began = self._printed = time.perf_counter()
        self._live = None
        if console.is_terminal:
            self._live = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:.0f} %"),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left {task.fields[left]}"),
                console=console,
            )
            self._task = self._live.add_task(self._text, total=total, left="…")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def gradients(self) -> int:
        """Gradients of all runs, those under way included."""
        return self._gradients_done + sum(self._under_way.values())

    @property
    def left(self) -> str:
        """Time left, at the rate so far."""
        if not self.gradients:
            return "…"
        seconds = round((time.perf_counter() - self._began) * (self.total - self.gradients) / self.gradients)
        return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"

    def update(self, name: str, gradients: int) -> None:
        """Shows that the run called `name` has made so many gradients."""
        if name in self._ended:  # News that was late.
            return
        self._under_way[name] = gradients
        if self._live is not None:
            self._live.update(self._task, completed=self.gradients, description=self._text, left=self.left)
        elif self.gradients - self._line_at >= self.total / LINES or time.perf_counter() - self._printed >= MINUTE:
            self._print("")

    def end(self, name: str, gradients: int, text: str) -> None:
        """Shows that a run is done, with `text` about it."""
        self._under_way.pop(name, None)
        self._ended.add(name)
        self.done, self._gradients_done = self.done + 1, self._gradients_done + gradients
        if self._live is not None:
            self._live.update(self._task, completed=self.gradients, description=self._text, left=self.left)
            self._live.console.print(f"{name}: {text}", highlight=False, soft_wrap=True)
        else:
            self._print(f"  {name}: {text}")

    @property
    def _text(self) -> str:
        return f"{self.done} of {self.runs} runs done"

    def _print(self, text: str) -> None:
        self._line_at, self._printed = self.gradients, time.perf_counter()
        percent = 100 * self.gradients / max(1, self.total)
        line = f"{self.done}/{self.runs} runs done  {percent:.0f} %  left {self.left}{text}"
        self.console.print(line, highlight=False, soft_wrap=True)
