"""`python -m train compare RUN RUN …`: curves of several runs in one picture, and what they reached in one table."""

import dataclasses
import glob
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import gemjax
from gemjax.telemetry import eventlog, style
from train.common.console import RunConsole, say, show_table
from train.common.errors import RecordError, UsageError
from train.common.files import check_out, write_picture, write_whole
from train.common.statistics import crossing
from train.config.config import BOOKKEEPING, Config
from train.config.parsing import parse_flags
from train.report import page
from train.run.folder import RunFolder

CURVES = (("test_loss", "test loss"), ("test_accuracy", "test accuracy, %"))
HEADER = ("run", "commits to the target", "time to it", "accuracy", "test loss", "staleness p50, p95", "utilisation")


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare runs: loss and accuracy against commits and time, and a table.

    The target of the table is the best test accuracy that all of the runs reach.
    """

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of runs, or patterns such as `'runs/*gem*'`."""
    out: str = "compare.png"
    """File of the picture."""
    html: str | None = None
    """File for a page with the picture and the table."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run with what a comparison shows of it."""

    name: str
    config: Config
    metrics: Mapping[str, np.ndarray]
    summary: gemjax.Summary

    def at(self, target: float, by: str) -> float:
        """Return the commits or the time at which the run first has a test accuracy; infinite if it has not."""
        return crossing(self.metrics[by].tolist(), self.metrics["test_accuracy"].tolist(), target)


def main(argv: Sequence[str]) -> int:
    """Write the picture, print the table, and return the exit status."""
    asked = parse_flags(Compare, argv, "python -m train compare")
    for path in filter(None, (asked.out, asked.html)):
        check_out(Path(path).parent)
    runs = [read(RunFolder.find(path)) for path in folders(asked.runs)]
    differing, target = differences(runs), best_common(runs)
    header, rows = table(runs, differing, target)
    with style.style():
        picture = draw(runs)
        write_picture(Path(asked.out), picture)
        if asked.html:
            caption = "Test loss and test accuracy against commits and time."
            embedded = page.EmbeddedPicture.of(picture, "compare", caption, wide=True)
            write_whole(Path(asked.html), compose(header, rows, target, embedded))
    console, title = RunConsole(), f"Target: {100 * target:.2f} % test accuracy, the best that all runs reach"
    show_table(console, title, header, rows)
    say(console, f"picture: {asked.out}")
    return 0


def folders(names: Sequence[str]) -> list[str]:
    """Return the folders that names and patterns stand for, each once.

    Raises:
      UsageError: if they are fewer than two.
    """
    found = [path for name in names for path in (sorted(glob.glob(name)) if glob.has_magic(name) else [name])]
    if len(found := list(dict.fromkeys(found))) < 2:
        raise UsageError(f"compare needs two runs at least; {' '.join(names) or 'nothing'} names {len(found)}")
    return found


def read(folder: RunFolder) -> ComparedRun:
    """Read the records of a run.

    Raises:
      RecordError: if it has no evaluation yet.
    """
    config, metrics = Config.load(folder.config), folder.read_metrics()
    if not metrics:
        raise RecordError(f"{folder.path} has no evaluation yet; compare it when its first one is made")
    summary = gemjax.summarise(gemjax.timeline(eventlog.read(folder.events), config.workers))
    return ComparedRun(folder.path.name, config, metrics, summary)


def differences(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the fields of the configuration in which runs differ and that change a result."""
    names = [field.name for field in dataclasses.fields(Config) if field.name not in BOOKKEEPING]
    return [name for name in names if len({str(getattr(run.config, name)) for run in runs}) > 1]


def best_common(runs: Sequence[ComparedRun]) -> float:
    """Return the best test accuracy that all runs reach."""
    return min(float(np.nanmax(run.metrics["test_accuracy"])) for run in runs)


def table(
    runs: Sequence[ComparedRun], differing: Sequence[str], target: float
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows: what each run reached, and the fields in which runs differ."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        commits, time, last = run.at(target, "commits"), run.at(target, "time"), run.summary
        rows.append((
            run.name, f"{commits:,.0f}" if math.isfinite(commits) else "–", f"{time:.4g}" if math.isfinite(time) else "–",
            f"{100 * run.metrics['test_accuracy'][-1]:.2f} %", f"{run.metrics['test_loss'][-1]:.4f}",
            f"{last.staleness_median:.0f}, {last.staleness_p95:.0f}",
            f"{100 * float(np.mean(last.utilisation)):.0f} %" if last.measured else "–",
            *(str(getattr(run.config, name)) for name in differing),
        ))  # fmt: skip
    return (*HEADER, *(name.replace("_", " ") for name in differing)), rows


def draw(runs: Sequence[ComparedRun]) -> Any:
    """Return the picture: loss and accuracy against commits and time."""
    figure = style.picture(2, 5.4)
    axes = figure.subplots(2, 2, sharey="row")
    for row, (name, label) in zip(axes, CURVES, strict=True):
        for place, by in zip(row, ("commits", "time"), strict=True):
            for number, run in enumerate(runs):
                scale = 100 if name == "test_accuracy" else 1
                place.plot(run.metrics[by], scale * run.metrics[name], color=f"C{number}", label=run.name)
            place.set(xlabel=by if by == "commits" else _time(runs), ylabel=label if by == "commits" else "")
    style.heading(figure, "Runs compared", ", ".join(sorted({run.config.dataset for run in runs})))
    for row in axes:
        style.label_ends(row[1])
    return figure


def _time(runs: Sequence[ComparedRun]) -> str:
    kinds = {"time, s" if run.summary.measured else "virtual time" for run in runs}
    return " or ".join(sorted(kinds))


def compose(header: Sequence[str], rows: Sequence[Sequence[str]], target: float, picture: page.EmbeddedPicture) -> str:
    """Compose the page."""
    return page.page("Runs compared", [
        page.heading("Runs compared", f"Target: {100 * target:.2f} % test accuracy, the best that all of them reach."),
        page.section("Curves", page.figures([picture])),
        page.section("Table", page.table(header, rows, (0,))),
    ])  # fmt: skip
