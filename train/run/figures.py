"""The figures of a run, each drawn on axes of its own."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gemjax import Summary, Timeline

Metrics = dict[str, np.ndarray]

COMPUTING, VIEW_WAIT, COMMIT_WAIT, IDLE = "tab:blue", "tab:olive", "tab:red", "lightgray"
KINDS = {"drop": ("dropped", "tab:gray", "x"), "reject": ("rejected", "tab:orange", "^"), "fault": ("fault", "tab:red", "o"),
         "retire": ("retired", "black", "s")}  # fmt: skip
WORKERS_SHOWN = 16  # In the timeline.
ROUNDS_SHOWN = 6  # The same, from the middle of the run: gradients of an average worker.
POINTS = 2000  # Of a curve; more are drawn as the range of each bin.


def draw_loss(axes: Axes, run: Timeline, *, by: str = "commits", metrics: Metrics | None = None) -> None:
    """Training loss of every commit, and its running mean, against commits or time; the test loss where given."""
    # As the metrics count: a simulated run by its trace, one on devices by what was applied.
    arrivals = run.only("commit") if run.measured else run.only("commit", "drop")
    loss, dropped = arrivals["loss"], int((arrivals["event"] == "drop").sum())
    at = np.arange(1, len(loss) + 1) if by == "commits" else arrivals["time"]
    axes.plot(*_thinned(at, loss), color="tab:blue", alpha=0.35, lw=0.7, label="each commit")
    window = max(1, len(loss) // 50)
    mean = np.convolve(loss, np.ones(window) / window, "valid")
    axes.plot(*_thinned(at[window - 1 :], mean), color="tab:blue", lw=1.8, label=f"mean of {window}")
    if metrics and np.isfinite(metrics["test_loss"]).any():
        axes.plot(metrics[by], metrics["test_loss"], "o-", ms=3, lw=1, color="tab:green", label="test")
    title = f"Loss against {by}"
    title += f"; {dropped} of {len(loss)} commits dropped" if dropped else ""
    axes.set(xlabel=by if by == "commits" else _time(run), ylabel="loss", title=title)
    if (loss > 0).any():
        axes.set_yscale("log")
    axes.legend()


def draw_accuracy(axes: Axes, metrics: Metrics) -> None:
    """Test accuracy against commits."""
    accuracy = 100 * metrics["test_accuracy"]
    axes.plot(metrics["commits"], accuracy, marker="o", ms=3.5, color="tab:green")
    axes.set(xlabel="commits", ylabel="test accuracy (%)", title=f"Test accuracy: {accuracy[-1]:.2f} % at the end")
    axes.grid(alpha=0.3)


def draw_staleness(axes: Axes, run: Timeline, *, expected: int | None = None) -> None:
    """The distribution of staleness, beside what workers of equal speed would have."""
    staleness = run.only("commit")["staleness"]
    staleness = staleness[np.isfinite(staleness)].astype(int)
    edges = np.arange(staleness.min(), staleness.max() + 2) - 0.5
    axes.set_xlim(edges[0] - 0.5, edges[-1] + 0.5)
    bins = edges.tolist() if len(edges) <= 80 else 80
    axes.hist(staleness, bins=bins, color="tab:orange", edgecolor="white", lw=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if expected is not None:
        axes.axvline(expected, color="black", ls="--", lw=1, label=f"N − 1 = {expected}")
        axes.legend()
    p50, p95 = np.percentile(staleness, [50, 95])
    axes.set(xlabel="staleness of applied commits (commits since the pull)", ylabel="commits",
             title=f"Staleness: median {p50:.0f}, 95 % at most {p95:.0f}")  # fmt: skip


def draw_gap(axes: Axes, run: Timeline) -> None:
    """The distribution of the gap, where it is not zero."""
    gap = run.only("commit")["gap"]
    seen = gap[np.isfinite(gap) & (gap > 0)]
    if len(seen):
        edges = np.geomspace(seen.min(), max(seen.max(), seen.min() * 1.01), 41)
        axes.hist(seen, bins=edges.tolist(), color="tab:purple", edgecolor="white", lw=0.3)
        axes.set_xscale("log")
    axes.set(xlabel="gap: how far the parameters moved since the pull (RMS)", ylabel="commits",
             title=f"Gap: median {np.nanmedian(gap):.2g}")  # fmt: skip


def draw_account(axes: Axes, run: Timeline, summary: Summary) -> None:
    """What each worker did with its time."""
    bottom = np.zeros(run.num_workers)
    parts = [(summary.utilisation, COMPUTING, "computing"), (summary.view_wait, VIEW_WAIT, "waiting for its view"),
             (summary.commit_wait, COMMIT_WAIT, "waiting for its commit")]  # fmt: skip
    parts.append((np.maximum(1 - sum(part for part, *_ in parts), 0), IDLE, "idle"))
    for part, color, label in parts:
        axes.bar(np.arange(run.num_workers), 100 * part, bottom=bottom, color=color, width=_width(run), label=label)
        bottom = bottom + 100 * part
    low, mean, high = (100 * f(summary.utilisation) for f in (np.min, np.mean, np.max))
    axes.set(xlabel="worker", ylabel="share of its time (%)", ylim=(0, 100),
             title=f"Utilisation: {mean:.0f} % in the mean, {low:.0f} to {high:.0f} %")  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, fontsize=8, frameon=False)


def draw_waits(axes: Axes, run: Timeline) -> None:
    """How long gradients take, and how long workers wait for view and commit."""
    cycles = run.only("commit", "drop", "reject")
    spans = [("gradient", COMPUTING, cycles["ready"] - cycles["began"]),
             ("commit wait", COMMIT_WAIT, cycles["time"] - cycles["ready"]),
             ("view wait", VIEW_WAIT, cycles["began"] - cycles["dispatch"])]  # fmt: skip
    finest = 1e-6  # The log's resolution.
    longest = max(float(span.max()) for *_, span in spans)
    edges = np.geomspace(finest, max(longest, 10 * finest), 61)
    for label, color, span in spans:
        axes.hist(np.maximum(span, finest), bins=edges.tolist(), histtype="stepfilled", alpha=0.35, color=color)
        axes.hist(np.maximum(span, finest), bins=edges.tolist(), histtype="step", color=color, label=label)
        axes.axvline(max(float(np.median(span)), finest), color=color, ls="--", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="seconds; dashed: medians", ylabel="cycles",
             title="Gradient time, commit wait and view wait")  # fmt: skip
    axes.legend()


def draw_shares(axes: Axes, run: Timeline, summary: Summary) -> None:
    """Who made the commits."""
    axes.bar(np.arange(run.num_workers), 100 * summary.share, color="tab:cyan", width=_width(run))
    axes.axhline(100 / run.num_workers, color="black", ls="--", lw=1, label="equal shares")
    low, high = 100 * summary.share.min(), 100 * summary.share.max()
    axes.set(xlabel="worker", ylabel="share of the commits (%)", title=f"Commits: {low:.1f} to {high:.1f} % a worker")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()


def draw_incidents(axes: Axes, run: Timeline) -> None:
    """What was dropped, rejected or failed, when and at whom."""
    marks: dict[str, list[tuple[float, float]]] = {}
    for kind in ("drop", "reject", "fault"):
        rows = run.only(kind)
        marks[kind] = list(zip(rows["time"], rows["worker"], strict=True))
    marks["retire"] = [(i["time"], i["worker"]) for i in run.incidents if i["event"] == "retire"]
    for kind, points in marks.items():
        if points:
            label, color, marker = KINDS[kind]
            axes.plot(*zip(*points, strict=True), marker, color=color, ms=4, ls="", label=f"{label} ({len(points)})")
    if any(marks.values()):
        axes.legend()
    axes.set(
        xlabel=_time(run), ylabel="worker", title="Dropped, rejected and failed", ylim=(run.num_workers - 0.5, -0.5)
    )
    axes.set_xlim(0, float(run.cycles["time"].max()))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def draw_timeline(axes: Axes, run: Timeline) -> None:
    """Some rounds in the middle of the run, worker by worker: computing, then waiting to be committed."""
    arrivals, count = run.only("commit", "drop"), run.num_workers
    first = max(0, (len(arrivals["worker"]) - ROUNDS_SHOWN * count) // 2)
    shown = {name: column[first : first + ROUNDS_SHOWN * count] for name, column in arrivals.items()}
    workers, dropped = shown["worker"], shown["event"] == "drop"
    kinds = [(~dropped, ("began", "ready"), COMPUTING, "computing"),
             (dropped, ("began", "ready"), "tab:gray", "computing what is dropped")]  # fmt: skip
    if run.measured:  # In virtual time nobody waits.
        kinds.append((~dropped, ("dispatch", "began"), VIEW_WAIT, "waiting for its view"))
        kinds.append((~dropped, ("ready", "time"), COMMIT_WAIT, "ready, waiting for its commit"))
    low = float(shown["time"].min())
    for which, (begin, end), color, label in kinds:
        rows = np.flatnonzero(which & (workers < WORKERS_SHOWN))
        if len(rows):
            left = np.maximum(shown[begin][rows], low)
            axes.barh(workers[rows], (shown[end][rows] - left).clip(min=0), left=left, height=0.7, color=color,
                      edgecolor="white", lw=0.6 if color == COMPUTING else 0.0, label=label)  # fmt: skip
    few = f" (workers 0 to {WORKERS_SHOWN - 1} of {count})" if count > WORKERS_SHOWN else ""
    axes.set(xlabel=_time(run), ylabel="worker", title=f"Timeline, {ROUNDS_SHOWN} rounds in the middle of the run{few}")
    axes.set_yticks(range(min(count, WORKERS_SHOWN)))
    axes.set_ylim(min(count, WORKERS_SHOWN) - 0.5, -0.5)
    if run.measured or dropped.any():
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8, frameon=False)


def _time(run: Timeline) -> str:
    return "seconds" if run.measured else "virtual time (gradients)"


def _width(run: Timeline) -> float:
    return 0.8 if run.num_workers <= 64 else 1.0


def _thinned(x: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curve in few points: of each bin the lowest and the highest."""
    x = np.asarray(x)
    size = len(y) // (POINTS // 2)
    if size < 2:
        return x, y
    whole = len(y) // size * size
    bins = np.where(np.isfinite(y[:whole]), y[:whole], np.nan).reshape(-1, size)
    lowest, highest = np.where(np.isnan(bins), np.inf, bins).min(1), np.where(np.isnan(bins), -np.inf, bins).max(1)
    ends = np.where(np.isinf(lowest), np.nan, np.stack([lowest, highest])).T.ravel()
    return np.append(np.repeat(x[:whole:size], 2), x[-1]), np.append(ends, y[-1])
