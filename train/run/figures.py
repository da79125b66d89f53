"""The picture of a run, and its figures, each drawn on its own axes."""

import itertools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gemjax import Summary
from gemjax.telemetry import Timeline, style
from gemjax.telemetry.verdict import duration
from train.common.files import write_picture
from train.config.config import Config
from train.run.folder import RunFolder

Metrics = dict[str, np.ndarray]

COMPUTING, VIEW_WAIT, COMMIT_WAIT, IDLE = "#254bd2", "#e4b309", "#b3260f", "0.85"
NETWORK, DROPPED, CALLED_BACK, TEST = "#8b7962", "#655d5f", "#9a7fc0", "#e07e06"
KINDS = {"drop": ("dropped", DROPPED, "x"), "reject": ("rejected", TEST, "^"), "fault": ("fault", COMMIT_WAIT, "o"),
         "interrupt": ("called back", CALLED_BACK, "v"), "retire": ("retired", "black", "s")}  # fmt: skip
WORKERS_SHOWN = 16  # In the timeline.
ROUNDS_SHOWN = 6  # In the timeline: gradients of an average worker, from the middle of the run.
FINEST = 1e-6  # Seconds, the resolution of the event log.
POINTS = 2000  # Per curve; longer curves are drawn as the range of each bin.


def draw_run(folder: RunFolder, config: Config, run: Timeline) -> None:
    """Draw loss, test accuracy, staleness and the workers' timeline into `run.png`."""
    metrics = folder.read_metrics()
    with style.style():
        figure = style.picture(columns=2, height=5.2)
        axes = figure.subplots(2, 2)
        if len(run.only("commit")["worker"]):
            draw_loss(axes[0, 0], run)
            draw_staleness(axes[1, 0], run)
            draw_timeline(axes[1, 1], run)
        if metrics:
            draw_accuracy(axes[0, 1], metrics)
        about = (
            f"{config.method}, {config.workers} workers, learning rate {_rates(folder, config)}, engine {config.engine}"
        )
        style.heading(figure, config.dataset, about)
        write_picture(folder.picture, figure)


def _rates(folder: RunFolder, config: Config) -> str:
    """Return the learning rate, with those of earlier sessions and the commits at which it was changed."""
    found = [(commits, one["learning_rate"]) for commits, one in folder.provenance.settings] or [(0, config.rate)]
    changes = [now for before, now in itertools.pairwise([(0, None), *found]) if now[1] != before[1]]
    return ", then ".join(
        f"{rate:g} after {commits:,} applied commits" if commits else f"{rate:g}" for commits, rate in changes
    )


def draw_loss(axes: Axes, run: Timeline, *, by: str = "commits", metrics: Metrics | None = None) -> None:
    """Draw the loss of each commit and its running mean against commits or time, and the test loss if given."""
    # Counted as in the metrics: applied commits on devices, all in a simulation. The loss of a rejected one may be infinite.
    arrivals = run.only("commit") if run.measured else run.only("commit", "drop", "reject")
    event, at = arrivals["event"], np.arange(1, len(arrivals["event"]) + 1) if by == "commits" else arrivals["time"]
    at, loss, dropped = at[event != "reject"], arrivals["loss"][event != "reject"], int((event == "drop").sum())
    window = max(2, len(loss) // 50)
    axes.plot(*_thinned(at, loss), color=COMPUTING, alpha=0.35, lw=0.7, label="each commit")
    if len(loss) >= window:
        step = max(1, window // 50)  # A long window moves by several commits.
        window -= window % step
        sums = loss[: len(loss) // step * step].reshape(-1, step).sum(1)
        mean = np.convolve(sums, np.ones(window // step), "valid") / window
        axes.plot(*_thinned(at[window - 1 :: step], mean), color=COMPUTING, label=f"mean of {window} commits")
    if metrics and np.isfinite(metrics["test_loss"]).any():
        axes.plot(
            metrics[by], metrics["test_loss"], "o-", ms=6, mec="white", mew=0.8, lw=1, color=TEST, zorder=3,
            label="test loss",
        )  # fmt: skip
    title = f"Loss against {by}"
    title += f"; {dropped} of {len(event)} commits dropped" if dropped else ""
    axes.set(xlabel=by if by == "commits" else _time(run), ylabel="loss", title=title)
    if (loss > 0).any():
        axes.set_yscale("log")
    axes.legend()


def draw_accuracy(axes: Axes, metrics: Metrics) -> None:
    """Draw the test accuracy against commits."""
    accuracy = 100 * metrics["test_accuracy"]
    axes.plot(metrics["commits"], accuracy, marker="o", ms=3.5, color="#1f7a43")
    axes.set(
        xlabel="commits",
        ylabel="test accuracy (%)",
        title=f"Test accuracy: {accuracy[-1]:.2f} % at the last evaluation",
    )


def draw_staleness(axes: Axes, run: Timeline, *, expected: int | None = None) -> None:
    """Draw the distribution of staleness, and the staleness expected of equally fast workers."""
    staleness = run.only("commit")["staleness"]
    staleness = staleness[np.isfinite(staleness)].astype(int)
    width = -(-int(np.ptp(staleness) + 1) // 80)  # As many values in each bar.
    edges = np.arange(staleness.min(), staleness.max() + 1 + width, width) - 0.5
    axes.set_xlim(edges[0] - 0.5, edges[-1] + 0.5)
    axes.hist(staleness, bins=edges.tolist(), color="#b35c00", edgecolor="white", lw=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if expected is not None:
        axes.axvline(expected, color="black", ls="--", lw=1, label=f"N − 1 = {expected}")
        axes.legend()
    p50, p95 = np.percentile(staleness, [50, 95])
    axes.set(xlabel="staleness (commits since the pull)", ylabel="commits",
             title=f"Staleness: median {p50:.0f}, 95 % at most {p95:.0f}, largest {staleness.max()}")  # fmt: skip


def draw_gap(axes: Axes, run: Timeline) -> None:
    """Draw the distribution of the gap without zeros."""
    gap = run.only("commit")["gap"]
    seen = gap[np.isfinite(gap) & (gap > 0)]
    if len(seen):
        edges = np.geomspace(seen.min(), max(seen.max(), seen.min() * 1.01), 41)
        axes.hist(seen, bins=edges.tolist(), color="#8567fb", edgecolor="white", lw=0.3)
        axes.set_xscale("log")
    axes.set(xlabel="gap: RMS distance between central variable and pulled view", ylabel="commits",
             title=f"Gap: median {np.nanmedian(gap):.2g}")  # fmt: skip


def draw_account(axes: Axes, run: Timeline, summary: Summary) -> None:
    """Draw the share of its time that each worker spent computing, waiting and idle."""
    bottom = np.zeros(run.num_workers)
    parts = [(summary.utilisation, COMPUTING, "computing"), (summary.view_wait, VIEW_WAIT, "view wait"),
             (summary.commit_wait, COMMIT_WAIT, "commit wait")]  # fmt: skip
    parts.append((np.maximum(1 - sum(part for part, *_ in parts), 0), IDLE, "idle"))
    for part, color, label in parts:
        axes.bar(np.arange(run.num_workers), 100 * part, bottom=bottom, color=color, width=_width(run), label=label)
        bottom = bottom + 100 * part
    low, mean, high = (100 * f(summary.utilisation) for f in (np.min, np.mean, np.max))
    axes.set(xlabel="worker", ylabel="share of time (%)", ylim=(0, 100),
             title=f"Utilisation: mean {mean:.0f} %, range {low:.0f} to {high:.0f} %")  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)


def draw_waits(axes: Axes, run: Timeline) -> None:
    """Draw the distributions of gradient time, commit wait and view wait."""
    cycles = run.only("commit", "drop", "reject")
    spans = [("gradient", COMPUTING, cycles["ready"] - cycles["began"]),
             ("commit wait", COMMIT_WAIT, cycles["time"] - cycles["ready"]),
             ("view wait", VIEW_WAIT, cycles["began"] - cycles["dispatch"])]  # fmt: skip
    if len(network := network_times(run)):
        spans.append(("network", NETWORK, network))
    every = np.concatenate([span[span >= FINEST] for *_, span in spans])
    low, high = (every.min(), every.max()) if len(every) else (FINEST, FINEST)
    edges = np.geomspace(low, max(high, 10 * low), 61)
    for name, color, span in spans:
        seen, median = span[span >= FINEST], float(np.median(span))
        label = f"{name}: median {duration(median)}"
        if len(seen) < len(span):
            label += f"\nnone in {len(span) - len(seen)} cycles"
        axes.hist(seen, bins=edges.tolist(), histtype="stepfilled", alpha=0.35, color=color)
        axes.hist(seen, bins=edges.tolist(), histtype="step", color=color, label=label)
        if median >= FINEST:
            axes.axvline(median, color=color, ls="--", lw=1)
    scale = "log" if len(every) else "linear"
    axes.set(xscale=scale, yscale=scale, xlabel="seconds; dashed: medians", ylabel=f"cycles, of {len(cycles['time'])}",
             title="Gradient time, commit wait and view wait" + ", and network" * len(spans[3:]))  # fmt: skip
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, columnspacing=1.0, handlelength=1.2)


def network_times(run: Timeline) -> np.ndarray:
    """Return the seconds on the network, of the view and the gradient together, per cycle; empty for a run on one host."""
    times = run.only("commit", "drop", "reject").get("network", np.empty(0))
    return times[np.isfinite(times)]


def draw_shares(axes: Axes, run: Timeline, summary: Summary) -> None:
    """Draw the share of the commits of each worker."""
    axes.bar(np.arange(run.num_workers), 100 * summary.share, color="#00bced", width=_width(run))
    axes.axhline(100 / run.num_workers, color="black", ls="--", lw=1, label="equal shares")
    low, high = 100 * summary.share.min(), 100 * summary.share.max()
    axes.set(xlabel="worker", ylabel="share of the commits (%)", title=f"Commits: {low:.1f} to {high:.1f} % per worker")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()


def draw_incidents(axes: Axes, run: Timeline) -> None:
    """Draw dropped and rejected commits, faults, interruptions and retired workers against time."""
    marks: dict[str, list[tuple[float, float]]] = {}
    for kind in ("drop", "reject", "fault", "interrupt"):
        rows = run.only(kind)
        marks[kind] = list(zip(rows["time"], rows["worker"], strict=True))
    marks["retire"] = [(i["time"], i["worker"]) for i in run.incidents if i["event"] in ("retire", "hang")]
    for kind, points in marks.items():
        if points:
            label, color, marker = KINDS[kind]
            axes.plot(*zip(*points, strict=True), marker, color=color, ms=4, ls="", label=f"{label} ({len(points)})")
    if any(marks.values()):
        axes.legend()
    axes.set(
        xlabel=_time(run),
        ylabel="worker",
        title="Drops, rejections, faults, interruptions",
        ylim=(run.num_workers - 0.5, -0.5),
    )
    axes.set_xlim(0, float(run.cycles["time"].max()))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def draw_timeline(axes: Axes, run: Timeline) -> None:
    """Draw some rounds in the middle of the run: per worker, bars of computing and of waiting."""
    arrivals, count = run.only("commit", "drop", "interrupt"), run.num_workers
    first = max(0, (len(arrivals["worker"]) - ROUNDS_SHOWN * count) // 2)
    shown = {name: column[first : first + ROUNDS_SHOWN * count] for name, column in arrivals.items()}
    workers, event = shown["worker"], shown["event"]
    committed = event == "commit"
    kinds = [(committed, ("began", "ready"), COMPUTING, "computing"),
             (event == "drop", ("began", "ready"), DROPPED, "dropped gradient"),
             (event == "interrupt", ("began", "ready"), CALLED_BACK, "called back")]  # fmt: skip
    if run.measured:  # In virtual time no worker waits.
        kinds.append((committed, ("dispatch", "began"), VIEW_WAIT, "view wait"))
        kinds.append((committed, ("ready", "time"), COMMIT_WAIT, "commit wait"))
    low = float(shown["time"].min())
    for which, (begin, end), color, label in kinds:
        rows = np.flatnonzero(which & (workers < WORKERS_SHOWN))
        if len(rows):
            left = np.maximum(shown[begin][rows], low)
            axes.barh(workers[rows], (shown[end][rows] - left).clip(min=0), left=left, height=0.7, color=color,
                      edgecolor="white", lw=0.6 if color == COMPUTING else 0.0, label=label)  # fmt: skip
    title = f"Timeline, {ROUNDS_SHOWN} rounds in the middle of the run" if first else "Timeline of the run"
    if count > WORKERS_SHOWN:
        rounds = f", {ROUNDS_SHOWN} rounds" if first else ""
        title = f"Timeline{rounds}, workers 0 to {WORKERS_SHOWN - 1} of {count}"
    axes.set(xlabel=_time(run), ylabel="worker", title=title)
    axes.set_yticks(range(min(count, WORKERS_SHOWN)))
    axes.set_ylim(min(count, WORKERS_SHOWN) - 0.5, -0.5)
    if run.measured or not committed.all():
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, columnspacing=1.0, handlelength=1.2)


def _time(run: Timeline) -> str:
    return "seconds" if run.measured else "virtual time (gradients)"


def _width(run: Timeline) -> float:
    return 0.8 if run.num_workers <= 64 else 1.0


def _thinned(x: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a curve to the lowest and the highest point of each bin."""
    x = np.asarray(x)
    size = len(y) // (POINTS // 2)
    if size < 2:
        return x, y
    end = len(y) // size * size
    bins = np.where(np.isfinite(y[:end]), y[:end], np.nan).reshape(-1, size)
    lowest, highest = np.where(np.isnan(bins), np.inf, bins).min(1), np.where(np.isnan(bins), -np.inf, bins).max(1)
    ends = np.where(np.isinf(lowest), np.nan, np.stack([lowest, highest])).T.ravel()
    return np.append(np.repeat(x[:end:size], 2), x[-1]), np.append(ends, y[-1])
