"""README's first picture: what a staleness-aware method gains as workers are added, from the result of GEM's figure 1."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from train.common.files import write_picture

CLAIM = "gem_figure_1"
SERIES = {  # Name in the result: label, colour, marker.
    "DOWNPOUR": ("plain asynchronous SGD", "tab:orange", "s"),
    "adaptive staleness": ("rate / (staleness + 1)", "tab:green", "D"),
    "GEM": ("GEM", "tab:blue", "o"),
}


def draw_gain(results: Path) -> Path:
    """Draws `gain.png` in the folder `results`: test error against the number of workers, one line per method.

    Args:
      results: folder with `gem_figure_1.json`, as `python -m train reproduce` writes it.

    Returns:
      The picture's path.
    """
    result = json.loads((results / f"{CLAIM}.json").read_text(encoding="utf-8"))
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, (label, color, marker) in SERIES.items():
        points = {row["point"]: _errors(row) for row in result["results"] if row["series"] == name}
        means = {workers: sum(errors) / len(errors) for workers, errors in points.items()}
        axes.plot([*means], [*means.values()], marker=marker, color=color, lw=2, ms=6)
        axes.vlines([*points], [min(e) for e in points.values()], [max(e) for e in points.values()], color=color, lw=2)
        last = max(means)
        text = f"{label}: {means[last]:.2g} %"
        axes.annotate(
            text, (last, means[last]), (10, 0), textcoords="offset points", color=color, va="center", fontsize=11
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(means))
    axes.set_xlim(3.5, 1.6 * last)
    axes.set_ylim(0.6, 120)
    axes.set_xlabel("asynchronous workers", fontsize=11)
    axes.set_ylabel("test error (%)", fontsize=11)
    axes.set_title(f"MNIST, one epoch per worker; mean and range of {len(result['seeds'])} seeds", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    path = results / "gain.png"
    write_picture(path, figure)
    return path


def _errors(row: dict[str, Any]) -> list[float]:
    """Test errors of a point's seeds, in per cent."""
    return [100 * (1 - accuracy) for accuracy in row["test_accuracy"]["values"]]
