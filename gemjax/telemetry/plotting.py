"""The figures of ``Result.plot()`` and ``SweepResult.plot()``; needs matplotlib."""

from collections.abc import Mapping, Sequence

import numpy as np

try:
    import matplotlib  # noqa: F401 - Without it the classes below may still be known.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("drawing a run needs matplotlib, which is not installed: pip install matplotlib") from error

from gemjax.telemetry import style

LOSS, STALENESS, FAST, SLOW, OTHERS, LOST = "#254bd2", "#b35c00", "#1f7a43", "#8567fb", "0.75", "#b3260f"
HEIGHT = 5.0  # Inches.
POINTS = 1000  # Per curve, at most; more commits are drawn as the range of each bin.
BINS = 60  # Of the quantiles of staleness, at most.
WORKERS = 64  # Curves of commits, at most, besides the fastest and the slowest worker.


def plot_run(history: Mapping[str, np.ndarray], num_workers: int) -> Figure:
    """Draw loss, staleness and the commits of each worker against time.

    Args:
      history: the history of a :class:`gemjax.Result`.
      num_workers: number of workers N, including those that never commit.

    Returns:
      A figure of one column's width, for ``figure.savefig("run.pdf")``. It is not registered with ``pyplot``.

    Raises:
      ValueError: if no commit was applied.
    """
    applied = np.asarray(history.get("applied", ()), bool)
    if not applied.any():
        raise ValueError("there is nothing to draw: no commit of this run was applied")
    time, worker = (np.asarray(history[name])[applied] for name in ("time", "worker"))
    loss, staleness = (np.asarray(history[name])[applied].astype(np.float64) for name in ("loss", "staleness"))
    lost = {"rejected": ~applied & ~history["dropped"], "dropped": np.asarray(history["dropped"])}
    with style.style():
        figure = style.picture(height=HEIGHT)
        top, middle, bottom = figure.subplots(3, 1, sharex=True)
        _draw_loss(top, time, loss)
        _mark_lost(top, {name: np.asarray(history["time"])[which] for name, which in lost.items()})
        _draw_staleness(middle, time, staleness)
        _draw_commits(bottom, time, worker, num_workers)
        bottom.set_xlabel(_unit(history))
        bottom.margins(x=0.01)
        if 0 <= time[0] < 0.1 * time[-1]:  # Otherwise the history is that of a continued run.
            bottom.set_xlim(left=0.0)
        figure.align_ylabels()
    return figure


def plot_sweep(table: Sequence[Mapping[str, float]], swept: Sequence[str]) -> Figure:
    """Draw the final loss of each run of a sweep, and their medians, against the swept number with the most values.

    A tick at the upper edge is a run whose loss is not finite; it is left out of the median.

    Args:
      table: a row per run, with its point and its ``loss``.
      swept: names of the swept numbers; the seed is not one.

    Raises:
      ValueError: if no run has a finite loss.
    """
    runs = [row for row in table if np.isfinite(row["loss"])]
    if not runs:
        raise ValueError("there is nothing to draw: no run of this sweep has a finite loss")
    by = max(swept or ["seed"], key=lambda name: len({row[name] for row in table}))
    others = [name for name in swept if name != by]
    lines: dict[str, dict[float, list[float]]] = {}
    for row in sorted(runs, key=lambda row: row[by]):
        label = ", ".join(f"{name} {row[name]:g}" for name in others)
        lines.setdefault(label, {}).setdefault(row[by], []).append(row["loss"])
    with style.style():
        figure = style.picture()
        axes = figure.subplots()
        for label, found in lines.items():
            (line,) = axes.plot([*found], [np.median(losses) for losses in found.values()], label=label or "_")
            points = [(x, loss) for x, losses in found.items() for loss in losses]
            axes.plot(*zip(*points, strict=True), ".", color=line.get_color(), label="_")
        x = np.array([row[by] for row in table])
        _mark_lost(axes, {f"of {len(table)} runs diverged": x[[not np.isfinite(row["loss"]) for row in table]]})
        if x.min() > 0 and x.max() >= 5 * x.min():
            axes.set_xscale("log")
        losses = np.array([row["loss"] for row in runs])
        if losses.min() > 0 and losses.max() > 10 * losses.min():
            axes.set_yscale("log")
        axes.set(xlabel=by, ylabel="final loss")
        if others:
            style.label_ends(axes)
    return figure


def _unit(history: Mapping[str, np.ndarray]) -> str:
    if "dispatched" not in history:
        return "virtual time (units of the trace)"
    return "time (seconds, or units of the trace)" if np.isnan(history["dispatched"]).any() else "time (s)"


def _draw_loss(axes: Axes, time: np.ndarray, loss: np.ndarray) -> None:
    starts, _ = _bins(len(loss), POINTS)
    ends = np.stack([np.minimum.reduceat(loss, starts), np.maximum.reduceat(loss, starts)])
    axes.plot(np.repeat(time[starts], 2), ends.T.ravel(), color=LOSS, alpha=0.35, lw=0.6)
    window = max(1, min(10, len(loss) // 4), len(loss) // 50)
    mean = np.convolve(loss, np.ones(window) / window, "valid")
    axes.plot(time[window // 2 : window // 2 + len(mean)], mean, color=LOSS)
    if loss.min() > 0 and mean.max() > 10 * mean.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("loss")
    x, side = _clear_corner(axes, loss)
    axes.text(x, 0.81, "each commit", transform=axes.transAxes, ha=side, va="top", color=LOSS, alpha=0.6)
    if window > 1:
        axes.text(x, 0.94, f"mean of {window:,} commits", transform=axes.transAxes, ha=side, va="top", color=LOSS)


def _clear_corner(axes: Axes, loss: np.ndarray) -> tuple[float, str]:
    """Return the upper corner in which two lines of text cover no curve; extends the axis if both corners are occupied."""
    half = len(loss) // 2
    begin, end = loss[: half + 1].max(), loss[half:].max()
    to, back = (np.log, np.exp) if axes.get_yscale() == "log" else (lambda y: y, lambda y: y)
    bottom, top = (to(limit) for limit in axes.get_ylim())
    if to(min(begin, end)) > bottom + 0.7 * (top - bottom):
        axes.set_ylim(top=back(top + 0.35 * (top - bottom)))
    return (0.99, "right") if end <= begin else (0.02, "left")


def _mark_lost(axes: Axes, lost: Mapping[str, np.ndarray]) -> None:
    """Draw a tick at the upper edge for each lost commit or run, and write their numbers."""
    for times in lost.values():
        axes.plot(times, np.ones(len(times)), "|", color=LOST, ms=5, mew=0.6, transform=axes.get_xaxis_transform())
    if counts := [f"{len(times):,} {name}" for name, times in lost.items() if len(times)]:
        axes.set_title(f"{' and '.join(counts)} (ticks)", color=LOST, loc="right")


def _draw_staleness(axes: Axes, time: np.ndarray, staleness: np.ndarray) -> None:
    starts, stops = _bins(len(time), BINS, at_least=20)
    parts = [staleness[start:stop] for start, stop in zip(starts, stops, strict=True)]
    low, median, high = np.array([np.percentile(part, [5, 50, 95]) for part in parts]).T
    middle = np.array([time[start:stop].mean() for start, stop in zip(starts, stops, strict=True)])
    middle[[0, -1]] = time[[0, -1]]
    axes.fill_between(middle, low, high, color=STALENESS, alpha=0.3, lw=0)
    axes.plot(middle, median, color=STALENESS)
    axes.set(ylabel="staleness (commits)", ylim=(0, 1.35 * max(1.0, high.max())))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    label = f"median, band 5 to 95 % (overall median {np.median(staleness):g})"
    axes.text(0.99, 0.97, label, transform=axes.transAxes, ha="right", va="top", color=STALENESS)


def _draw_commits(axes: Axes, time: np.ndarray, worker: np.ndarray, num_workers: int) -> None:
    counts = np.bincount(worker, minlength=num_workers)
    fast, slow = int(counts.argmax()), num_workers - 1 - int(counts[::-1].argmin())  # Two workers, if all are equal.
    shown = np.unique(np.linspace(0, num_workers - 1, min(num_workers, WORKERS)).astype(int))
    others = [one for one in shown.tolist() if one not in (fast, slow)]
    for one in [*others, slow, fast]:
        own = time[worker == one]
        starts, _ = _bins(len(own), POINTS)
        x = np.concatenate([time[:1], own[starts], time[-1:]])
        color = FAST if one == fast else SLOW if one == slow else OTHERS
        y = np.concatenate([[0], starts + 1, [len(own)]])
        axes.plot(x, y, color=color, lw=1.3 if one in (fast, slow) else 0.6, drawstyle="steps-post")
    axes.set_ylabel("commits per worker")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylim(0, 1.05 * counts.max())
    most = f"most: worker {fast}, {counts[fast]:,}" if num_workers > 1 else f"{counts[fast]:,} in all"
    axes.text(0.02, 0.97, most, transform=axes.transAxes, ha="left", va="top", color=FAST)
    if num_workers > 1:
        fewest = f"fewest: worker {slow}, {counts[slow]:,}"
        axes.text(0.02, 0.84, fewest, transform=axes.transAxes, ha="left", va="top", color=SLOW)
    if others:
        rest = f"{len(others)} of {num_workers - 2:,} others" if len(others) < num_workers - 2 else "others"
        axes.text(0.02, 0.71, rest, transform=axes.transAxes, ha="left", va="top", color="0.5")


def _bins(count: int, most: int, at_least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return first and last index (exclusive) of at most ``most`` bins of ``count`` rows, each of ``at_least`` if possible."""
    number = min(count, most, max(10, count // at_least))
    edges = np.linspace(0, count, number + 1).astype(int)
    return edges[:-1], edges[1:]
