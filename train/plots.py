"""The picture of a run, drawn from what its folder holds."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gemjax import eventlog
from train.config import Config
from train.runfolder import RunFolder

WORKERS_SHOWN = 16
ROUNDS_SHOWN = 6  # In the timeline, from the middle of the run: gradients of an average worker.


def draw_run(folder: RunFolder, config: Config) -> None:
    """Draws loss, test accuracy, staleness and the workers' timeline into `run.png`."""
    arrivals = _columns(folder, ("commit", "drop"))
    commits = _only(arrivals, "commit")
    metrics = folder.read_metrics()
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    if len(commits.get("event", ())):
        # As the metrics count: a simulated run by its trace, one on devices by what was applied.
        _draw_loss(axes[0, 0], arrivals if config.engine == "simulate" else commits)
        _draw_staleness(axes[1, 0], commits)
        _draw_timeline(axes[1, 1], arrivals, config.workers, virtual=config.engine == "simulate")
    if metrics:
        _draw_accuracy(axes[0, 1], metrics)
    figure.suptitle(
        f"{config.dataset}: {config.method}, {config.workers} workers, learning rate {config.learning_rate:g}, "
        f"engine {config.engine}"
    )
    figure.savefig(folder.picture, dpi=110)


def _columns(folder: RunFolder, events: tuple[str, ...]) -> dict[str, np.ndarray]:
    """All events of some kinds as columns, with the time each gradient was dispatched and was ready where that is known."""
    rows: list[dict[str, Any]] = []
    begun: dict[tuple[int, int], dict[str, float]] = {}
    for record in eventlog.read(folder.events):
        kind = record["event"]
        if kind in ("dispatch", "ready"):
            begun.setdefault((record["worker"], record["step"]), {})[kind] = record["time"]
        elif kind in events:
            rows.append(record | begun.pop((record["worker"], record["step"]), {}))
    if not rows:
        return {}
    columns = {name: np.array([row.get(name, np.nan) for row in rows], float) for name in rows[0] if name != "event"}
    return columns | {"event": np.array([row["event"] for row in rows])}


def _only(columns: dict[str, np.ndarray], event: str) -> dict[str, np.ndarray]:
    rows = columns["event"] == event if columns else slice(None)
    return {name: column[rows] for name, column in columns.items()}


def _draw_loss(axes: Axes, commits: dict[str, np.ndarray]) -> None:
    loss = commits["loss"]
    axes.plot(np.arange(1, len(loss) + 1), loss, color="tab:blue", alpha=0.25, lw=0.6, label="each commit")
    window = max(1, len(loss) // 50)
    mean = np.convolve(loss, np.ones(window) / window, "valid")
    axes.plot(np.arange(window, len(loss) + 1), mean, color="tab:blue", lw=1.8, label=f"mean of {window}")
    dropped = int((commits["event"] == "drop").sum())
    title = f"Training loss; {dropped} of {len(loss)} commits dropped" if dropped else "Training loss"
    axes.set(xlabel="commits", ylabel="training loss", yscale="log", title=title)
    axes.legend()


def _draw_accuracy(axes: Axes, metrics: dict[str, np.ndarray]) -> None:
    accuracy = 100 * metrics["test_accuracy"]
    axes.plot(metrics["commits"], accuracy, marker="o", ms=3.5, color="tab:green")
    axes.set(xlabel="commits", ylabel="test accuracy (%)", title=f"Test accuracy: {accuracy[-1]:.2f} % at the end")
    axes.grid(alpha=0.3)


def _draw_staleness(axes: Axes, commits: dict[str, np.ndarray]) -> None:
    staleness = commits["staleness"].astype(int)
    edges = np.arange(staleness.min(), staleness.max() + 2) - 0.5
    axes.set_xlim(edges[0] - 0.5, edges[-1] + 0.5)
    bins = edges.tolist() if len(edges) <= 80 else 80
    axes.hist(staleness, bins=bins, color="tab:orange", edgecolor="white", lw=0.5)
    p50, p95 = np.percentile(staleness, [50, 95])
    axes.set(xlabel="staleness of applied commits (commits since the pull)", ylabel="commits",
             title=f"Staleness: median {p50:.0f}, 95 % at most {p95:.0f}")  # fmt: skip


def _draw_timeline(axes: Axes, commits: dict[str, np.ndarray], count: int, *, virtual: bool) -> None:
    """Some rounds in the middle of the run, worker by worker: computing, then waiting to be committed."""
    workers = commits["worker"].astype(int)
    first = max(0, (len(workers) - ROUNDS_SHOWN * count) // 2)
    shown = slice(first, first + ROUNDS_SHOWN * count)
    previous = np.full(count, np.nan)
    start = np.empty(len(workers))
    for row, worker in enumerate(workers):
        start[row], previous[worker] = previous[worker], commits["time"][row]
    start = np.where(np.isnan(commits.get("dispatch", start * np.nan)), start, commits.get("dispatch", start))
    ready = commits.get("ready", commits["time"])
    ready = np.where(np.isnan(ready), commits["time"], ready)
    dropped = commits["event"] == "drop"
    kinds = [
        (~dropped, (start, ready), "tab:blue", "computing"),
        (dropped, (start, ready), "tab:gray", "computing what is dropped"),
    ]
    if not virtual:  # In virtual time nobody waits.
        kinds.append((~dropped, (ready, commits["time"]), "tab:red", "ready, waiting for its commit"))
    low = np.nanmin(commits["time"][shown])
    for which, (begin, end), color, label in kinds:
        rows = np.flatnonzero(which & (workers < WORKERS_SHOWN))
        rows = rows[(rows >= shown.start) & (rows < shown.stop)]
        if len(rows):
            left = np.maximum(np.nan_to_num(begin[rows], nan=low), low)
            axes.barh(workers[rows], (end[rows] - left).clip(min=0), left=left, height=0.7, color=color,
                      edgecolor="white", lw=0.6, label=label)  # fmt: skip
    few = f" (workers 0 to {WORKERS_SHOWN - 1} of {count})" if count > WORKERS_SHOWN else ""
    unit = "virtual time (gradients)" if virtual else "seconds"
    axes.set(xlabel=unit, ylabel="worker", title=f"Timeline, {ROUNDS_SHOWN} rounds in the middle of the run{few}")
    axes.set_yticks(range(min(count, WORKERS_SHOWN)))
    axes.set_ylim(min(count, WORKERS_SHOWN) - 0.5, -0.5)
    if not virtual or dropped.any():
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8, frameon=False)
