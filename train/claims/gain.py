"""README's first picture: the gain of a staleness-aware method with the number of workers, from GEM's figure 1."""

import json
from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gemjax.telemetry.style import heading, label_ends, look, picture, style, ticks_at
from train.common.files import write_picture

CLAIM = "gem_figure_1"
PICTURE = "gain.png"
SERIES = {  # Name in the result: label, method.
    "DOWNPOUR": ("plain asynchronous SGD", "asgd"),
    "adaptive staleness": ("rate / (staleness + 1)", "dynsgd"),
    "GEM": ("GEM", "gem"),
}


def draw_gain(results: Path) -> Path:
    """Draw `gain.png` in the folder `results`: test error against the number of workers, one line per method.

    Args:
      results: folder with `gem_figure_1.json`, as `python -m train reproduce` writes it.

    Returns:
      The picture's path.
    """
    result = json.loads((results / f"{CLAIM}.json").read_text(encoding="utf-8"))
    path = results / PICTURE
    with style():
        figure = picture(columns=2, height=3.2)
        drawn = [row for row in result["results"] if row["series"] in SERIES]
        values = [value for row in drawn for value in row["test_accuracy"]["values"]]
        seeds = f"mean and range of {len(result['seeds'])} seeds" + (", failed runs left out" if None in values else "")
        heading(
            figure, "GEM gains from more workers at the same learning rate", f"MNIST, one epoch per worker, {seeds}"
        )
        axes = figure.subplots()
        for name, (label, method) in SERIES.items():
            points = {row["point"]: _errors(row) for row in result["results"] if row["series"] == name}
            points = {point: errors for point, errors in points.items() if errors}
            if not points:
                continue
            means = {workers: sum(errors) / len(errors) for workers, errors in points.items()}
            text = f"{label}: {means[max(means)]:.2g} %"
            axes.plot([*means], [*means.values()], label=text, **look(method, ls="-", lw=2))
            axes.vlines(
                [*points],
                [min(e) for e in points.values()],
                [max(e) for e in points.values()],
                look(method)["color"],
                lw=2,
            )
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        ticks_at(axes, {row["point"] for row in drawn})
        axes.set(ylim=(0.6, 100), xlabel="asynchronous workers", ylabel="test error (%)")
        label_ends(axes)
        write_picture(path, figure)
    return path


def _errors(row: dict[str, Any]) -> list[float]:
    """Return the test errors of a point's seeds in per cent, without those of runs that failed."""
    return [100 * (1 - accuracy) for accuracy in row["test_accuracy"]["values"] if accuracy is not None]
