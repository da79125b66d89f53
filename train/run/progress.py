"""The live view: a table of workers and a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

MARGIN = 8  # Lines of a terminal besides the table of workers: earlier output and the bar.
REFRESH = 0.1  # Least seconds between two drawings of the table.
LINES = 20  # Plain lines per run, if the output is not a terminal.
MINUTE = 60.0  # Most seconds between two plain lines.
MOST_WORKERS = 32  # A longer table is less useful than the summary line.
SILENT = 10.0  # Mean cycles of a worker after which it counts as silent.
SILENCE = 10.0  # Seconds without a commit after which the progress shows them.


def commits_per_second(rate: float) -> str:
    """Format a rate, as all commands show it.

    >>> commits_per_second(1234.5), commits_per_second(0.0123)
    ('1,234 commits/s', '0.012 commits/s')
    """
    return f"{rate:,.0f} commits/s" if rate >= 10 else f"{rate:.2g} commits/s"


class Display:
    """A display that a terminal shows from `__enter__` to `__exit__`."""

    _live: Live | Progress | None = None  # None if the console is not a terminal.

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


class RunProgress(Display):
    """Progress of a run: commits, their rate, the time left, the loss, the staleness and the last test accuracy.

    Args:
      console: a terminal shows the live view, any other console plain lines.
      total: commits of the run.
      done: commits made before.
      workers: number of workers in the table; default: no table.
      clock: function that returns the time in seconds.
    """

    def __init__(
        self, console: Console, total: int, done: int = 0, workers: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ):  # fmt: skip
        self.console, self.total, self.done, self.clock = console, total, done, clock
        self.evaluated: tuple[int, float] | None = None  # Commits and accuracy of the newest evaluation.
        self._began: float | None = None  # Time from which the rate counts, and the number of commits before it.
        self._begun_at = self._line_at = done
        self._applied = 0  # Commits since `_began`, without those that were rejected or dropped.
        self._elapsed = 0.0  # From `_began` to the newest commit.
        self._seen = self._newest = self._printed = clock()  # Times of the last update, commit and printed line.
        self._drawn_at = -REFRESH
        self._description = "no commit yet"
        self._workers = None
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
            if 0 < workers <= MOST_WORKERS and console.height >= workers + MARGIN:
                self._workers = Workers(workers)
                # Drawn at updates, so that no thread runs besides the scheduler's.
                self._live = Live(self._workers.table(), console=console, auto_refresh=False)

    @property
    def rate(self) -> float:
        """Applied commits per second of this session; NaN if not known yet.

        On devices the seconds count from the first dispatch. A simulation has no such time: its rate begins after the first
        update, which includes compilation.
        """
        return self._per_second(self._applied)

    @property
    def _left(self) -> float:
        """Seconds to the end of the run; of a simulation, those that are not applied count as well. NaN if not known yet."""
        return (self.total - self.done) / self._per_second(self.done - self._begun_at)

    def _per_second(self, made: int) -> float:
        seconds = self._elapsed + self._seen - self._newest
        return made / seconds if self._began is not None and made and seconds > 0 else float("nan")

    @property
    def rate_text(self) -> str:
        return commits_per_second(self.rate) if self.rate > 0 else "… commits/s"

    def update(self, done: int, rejected: int, history: dict[str, Any]) -> None:
        """Show that `done` commits are made, with the newest in `history`; it is empty if there are no new ones."""
        before, self._seen = self._seen, self.clock()
        self.done = done
        if history:
            self._newest = self._seen
            self._measure(history)
            self._description = self._describe(rejected, history)
        silent = self._seen - self._newest
        waiting = self._began is not None and silent >= SILENCE
        text = self._description + (f"  no commit for {silent:.0f} s" if waiting else "")
        if self._live is not None:
            self._bar.update(self._task, completed=done, rate=self.rate_text, text=text)
            self._draw(history, self._seen - before)
        elif (
            done >= self.total
            or done - self._line_at >= self.total / LINES
            or self._seen - self._printed >= MINUTE
        ):  # fmt: skip
            self._line_at, self._printed = done, self._seen
            left = f"{self._left:.0f} s" if self._left >= 0 else "…"
            self.console.print(
                f"{done}/{self.total} commits  {self.rate_text}  left {left}  {text}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip

    def _measure(self, history: dict[str, Any]) -> None:
        """Measure the time up to the newest commit: by the run's own clock, or else by that of the display."""
        measured = "dispatched" in history
        if self._began is None:
            self._began = float(history["dispatched"].min()) if measured else self._seen
            self._applied = int(history["applied"].sum()) if measured else 0
            self._begun_at = self.done - self._applied
        else:
            self._applied += int(history["applied"].sum())
        self._elapsed = (float(history["time"][-1]) if measured else self._seen) - self._began

    def _describe(self, rejected: int, history: dict[str, Any]) -> str:
        p50, p95 = np.percentile(history["staleness"], [50, 95])
        losses = history["loss"][history["applied"]]
        parts = [f"loss {np.mean(losses):.4f}" if len(losses) else "no commit applied"]
        parts += [f"staleness p50 {p50:.0f} p95 {p95:.0f}"]
        if self.evaluated is not None:
            at, accuracy = self.evaluated
            parts += [f"test accuracy {100 * accuracy:.2f} %" + (f" at {at:,}" if at < self.done else "")]
        parts += [f"rejected {rejected}"] if rejected else []
        return "  ".join(parts)

    def _draw(self, history: dict[str, Any], seconds: float) -> None:
        if self._workers is None or not isinstance(self._live, Live):
            return
        if history:
            self._workers.update(history)
        else:
            self._workers.wait(seconds)
        if self._seen - self._drawn_at >= REFRESH or self.done >= self.total:
            self._drawn_at = self._seen
            self._live.update(Group(self._workers.table(), self._bar), refresh=True)


class Workers:
    """State of each worker so far: its commits, its last staleness, its utilisation.

    Args:
      num_workers: number of workers.
    """

    def __init__(self, num_workers: int):
        self.num_workers = num_workers
        self.commits = np.zeros(num_workers, int)
        self.arrivals = np.zeros(num_workers, int)
        self.staleness = np.full(num_workers, -1)
        self.computing = np.zeros(num_workers)
        self.first, self.last = np.full(num_workers, np.nan), np.full(num_workers, np.nan)
        self.outcome = [""] * num_workers
        self.now = 0.0
        self.measured = False

    def update(self, history: dict[str, np.ndarray]) -> None:
        """Add the commits since the last call."""
        workers, applied, dropped = history["worker"], history["applied"], history["dropped"]
        self.measured = "ready" in history
        self.now = float(history["time"][-1])
        begin = history["dispatched"] if self.measured else np.zeros(len(workers))
        for row, worker in enumerate(workers):
            self.arrivals[worker] += 1
            self.commits[worker] += bool(applied[row])
            self.staleness[worker] = history["staleness"][row]
            self.last[worker] = history["time"][row]
            if np.isnan(self.first[worker]):
                self.first[worker] = begin[row]
            self.outcome[worker] = "" if applied[row] else "dropped" if dropped[row] else "rejected"
        if self.measured:
            self.computing += np.bincount(workers, history["ready"] - history["began"], self.num_workers)

    def wait(self, seconds: float) -> None:
        """Advance the time by so many seconds without a commit; virtual time does not advance."""
        if self.measured:
            self.now += seconds

    def state(self, worker: int) -> str:
        """Describe the worker: computing, the outcome of its last commit, or the time for which it has been silent."""
        if not self.arrivals[worker]:
            return "starting"
        silent = self.now - self.last[worker]
        if silent > SILENT * (self.last[worker] - self.first[worker]) / self.arrivals[worker]:
            return f"silent for {silent:.1f}" + (" s" if self.measured else "")
        return self.outcome[worker] or "computing"

    def utilisation(self, worker: int) -> float:
        """Share of its time that the worker spent on gradients that arrived; NaN if that is not measured."""
        return self.computing[worker] / max(self.now - self.first[worker], 1e-9) if self.measured else float("nan")

    def table(self) -> Table:
        """Make the table, with one row per worker."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("worker", "state", "commits", "share", "staleness", "utilisation"):
            table.add_column(
                name, justify="left" if name == "state" else "right", min_width=11 if name == "state" else None
            )
        total = max(1, int(self.commits.sum()))
        for worker in range(self.num_workers):
            state, busy = self.state(worker), self.utilisation(worker)
            table.add_row(
                str(worker),
                state,
                str(self.commits[worker]),
                f"{100 * self.commits[worker] / total:.1f} %",
                "–" if self.staleness[worker] < 0 else str(self.staleness[worker]),
                "–" if np.isnan(busy) else f"{100 * busy:.0f} %",
                style="green" if state == "computing" else "yellow",
            )
        return table
