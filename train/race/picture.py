"""The picture of a race: loss against wall-clock seconds, and the timelines of the workers below."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gemjax.telemetry import style
from train.common.files import write_picture
from train.race.contestants import label
from train.run.figures import COMPUTING, IDLE

DELAY = "#e0a3a0"
LOOKS: dict[str, dict[str, Any]] = {
    "synchronous": style.look("synchronous", ls="-"),
    "quorum": style.look("yellowfin", ls="-"),
}


def draw(found: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Draw the figures of `race.json` to `path` (.png)."""
    laps = found["contestants"]
    with style.style():
        figure = style.picture(columns=2, height=4.4)
        parts: Any = figure.subfigures(2, 1, height_ratios=(2.8, 1.6))
        upper, lower = parts
        _draw_losses(upper.subplots(), found)
        _draw_timelines(lower.subplots(1, len(laps), sharey=True, squeeze=False)[0], found)
        title = f"The same {found['gradients']} gradients per run. {delay(found)}"
        style.heading(
            figure, title, f"Digits; {found['devices']}. Wall-clock time, without compilation and evaluation."
        )
        write_picture(path, figure)


def delay(found: Mapping[str, Any]) -> str:
    """Return the sentence about the artificial delay of a race."""
    if not found["slow"]:
        return "No artificial delay."
    return f"Artificial delay: worker {found['workers'] - 1} waits {found['slow']:g} s per gradient."


def _draw_losses(axes: Axes, found: Mapping[str, Any]) -> None:
    target, ends, handles = found["target"], [], []
    laps = sorted(found["contestants"].items(), key=lambda item: item[1]["seconds_to_target"] or np.inf, reverse=True)
    for name, lap in laps:
        looks, seconds = LOOKS.get(name, style.look(name)), lap["seconds_to_target"]
        words = "not reached" if seconds is None else f"{seconds:.1f} s"
        losses = np.array(lap["losses"], float)
        marked: dict[str, Any] = looks | {"ms": 6, "mec": "white", "zorder": 4}
        axes.plot(lap["seconds"], losses, **looks | {"marker": ""})
        ends.append(lap["seconds"][-1] if seconds is None else seconds)
        if seconds is not None:
            axes.plot(seconds, target, **marked)
        handles += axes.plot([], [], label=f"{label(name, found['workers'])}: {words}", **marked)
    if target is not None:
        axes.axhline(target, color=style.QUIET, ls=":", lw=1, zorder=1)
        least = min(loss for _, lap in laps for loss in lap["losses"] if loss is not None)
        axes.set_ylim(bottom=0.9 * min(least, target))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(_two_and_five))
    axes.set_xlim(0, 1.1 * max(ends))
    axes.set(xlabel="wall-clock seconds", ylabel="test loss")
    title = None if target is None else f"time to a test loss of {target:g} (dotted)"
    axes.legend(handles=handles, loc="upper right", title=title, labelcolor="linecolor", alignment="left")


def _two_and_five(value: float, _: object = None) -> str:
    """Return the label of a minor tick between decades: only at 2 and 5."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _draw_timelines(rows: Any, found: Mapping[str, Any]) -> None:
    workers = found["workers"]
    for axes, (name, lap) in zip(rows, found["contestants"].items(), strict=True):
        spans = np.array(lap["timeline"], float).reshape(-1, 4)
        worker, began, ready, _ = spans.T
        waited = np.where(worker == workers - 1, found["slow"], 0.0)
        axes.barh(np.arange(workers), found["window"], height=0.7, color=IDLE)
        axes.barh(worker, ready - waited - began, left=began, height=0.7, color=COMPUTING, ec="white", lw=0.4)
        axes.barh(worker, waited, left=ready - waited, height=0.7, color=DELAY)
        axes.set(xlim=(0, found["window"]), ylim=(workers - 0.5, -0.5), title=label(name, workers),
                 xlabel="seconds, in mid-run")  # fmt: skip
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    rows[0].set_ylabel("worker")
    kinds = {"computes": COMPUTING, "artificial delay": DELAY, "waits": IDLE}
    handles = [Patch(color=color, label=kind) for kind, color in kinds.items()]
    rows[0].figure.legend(handles=handles, loc="outside lower center", ncols=3)
