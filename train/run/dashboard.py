"""The live table of workers, computed from the history that a callback gets."""

import numpy as np
from rich.table import Table

MOST_WORKERS = 32  # A longer table is less useful than the summary line.
SILENT = 10.0  # Mean cycles of a worker after which it counts as silent.


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
