"""`python -m train report [RUN]`: what happened in a run, as one page, pictures, and a timeline for Perfetto."""

import dataclasses
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

import gemjax
from gemjax import Summary, Timeline, Verdict
from gemjax.telemetry import eventlog
from gemjax.telemetry.perfetto import chrome_trace_text
from gemjax.telemetry.verdict import duration
from train.common.errors import RecordError
from train.common.files import write_picture, write_whole
from train.config.config import Config, flag
from train.report import page
from train.run import figures
from train.run.folder import RunFolder

SIZE = (6.6, 4.0)
WORKERS_LISTED, INCIDENTS_LISTED = 128, 50
CYCLES_TRACED = 200_000  # In timeline.json: the newest.


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes `report.html` (one page with everything), `figures/*.png` and `timeline.json` (for ui.perfetto.dev) into a run
    folder, and says whether the run was truly asynchronous. A run that is still going on can be looked at, too."""

    run: tyro.conf.Positional[str] = "latest"
    """Folder of the run; the newest under `runs/` if not given."""


def main(argv: Sequence[str]) -> int:
    """Reports on the run that the command line names."""
    options = tyro.cli(Report, args=list(argv), prog="python -m train report")
    try:
        folder = RunFolder.find(options.run)
        verdict = write_report(folder)
    except ValueError as error:  # A record that is damaged, or not one.
        print(f"train: {error}", file=sys.stderr)
        return 2
    console = Console()
    for text in (verdict.headline, *_sentences(verdict), f"report: {folder.report}"):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def write_report(folder: RunFolder) -> Verdict:
    """Writes the report of a run into its folder.

    Raises:
      ValueError: if the configuration, the event log or the metrics are damaged or not of a run, with the file's name; or if
        there is no commit yet.
    """
    config = Config.load(folder.config)
    try:
        run = gemjax.timeline(eventlog.read(folder.events) if folder.events.exists() else [], config.workers)
        summary = gemjax.summarise(run)
    except ValueError as error:
        named = str(error).startswith(str(folder.events))
        raise ValueError(str(error) if named else f"{folder.events}: {error}") from error
    folder.check_length(summary, measured=run.measured)
    metrics, verdict = folder.read_metrics(), gemjax.verdict(summary)
    pictures = draw(run, summary, metrics, folder.path / "figures")
    write_whole(folder.timeline, chrome_trace_text(_newest(run)))
    write_whole(folder.report, compose(folder, config, run, summary, verdict, metrics, pictures))
    return verdict


def _newest(run: Timeline) -> Timeline:
    """As much of the end of a run as a viewer takes in."""
    if len(run.cycles["time"]) <= CYCLES_TRACED:
        return run
    cycles = {name: column[-CYCLES_TRACED:] for name, column in run.cycles.items()}
    incidents = tuple(i for i in run.incidents if i["time"] >= cycles["dispatch"].min())
    return dataclasses.replace(run, cycles=cycles, incidents=incidents)


def draw(run: Timeline, summary: Summary, metrics: figures.Metrics, pngs: Path) -> list[page.Picture]:
    """All figures that the records have data for, each also as a PNG in `pngs`."""
    if pngs.is_symlink():
        raise RecordError(
            f"{pngs} is a link to somewhere else; a report writes into its run's folder only: remove the link"
        )
    pngs.mkdir(exist_ok=True)
    return [_render(*drawing, pngs) for drawing in _drawings(run, summary, metrics)]


def _drawings(
    run: Timeline, summary: Summary, metrics: figures.Metrics
) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
    """Of each figure its name, its caption, and what draws it."""
    commits, expected = run.only("commit"), summary.num_workers - 1
    caption = "Training loss against commits, and the loss on the test set." if metrics else "Training loss."
    yield "loss", caption, lambda axes: figures.draw_loss(axes, run, metrics=metrics)
    yield "loss-time", "The same against time.", lambda axes: figures.draw_loss(axes, run, by="time", metrics=metrics)
    if metrics:
        yield "accuracy", "Accuracy on the test set.", lambda axes: figures.draw_accuracy(axes, metrics)
    if np.isfinite(commits["staleness"]).any():
        caption = (
            "Staleness: commits of others between a worker's pull and its commit; "
            f"N − 1 = {expected} if all are equally fast."
        )
        yield "staleness", caption, lambda axes: figures.draw_staleness(axes, run, expected=expected)
    if "gap" in commits and np.isfinite(commits["gap"]).any():
        caption = "Gap: what staleness did to the parameters that a gradient was computed on."
        yield "gap", caption, lambda axes: figures.draw_gap(axes, run)
    if run.measured:
        caption = "What each worker did from its first dispatch to the end."
        yield "utilisation", caption, lambda axes: figures.draw_account(axes, run, summary)
        caption = (
            "Commit wait: a finished gradient waits to be committed. View wait: a worker waits for its next view. Both are "
            "short beside the gradient in a run that is truly asynchronous."
        )
        yield "waits", caption, lambda axes: figures.draw_waits(axes, run)
    yield "shares", "Share of the commits that each worker made.", lambda axes: figures.draw_shares(axes, run, summary)
    if summary.dropped or summary.rejected or summary.faults:
        caption = "What was dropped, rejected or failed, by worker and time."
        yield "incidents", caption, lambda axes: figures.draw_incidents(axes, run)
    caption = "Who computed when, and who waited; timeline.json has the rest."
    yield "timeline", caption, lambda axes: figures.draw_timeline(axes, run)


def _render(name: str, caption: str, drawing: Callable[[Axes], None], pngs: Path) -> page.Picture:
    wide = name == "timeline"
    figure = Figure(figsize=(2 * SIZE[0], SIZE[1]) if wide else SIZE, layout="constrained")
    drawing(figure.add_subplot())
    svg = io.BytesIO()
    write_picture(pngs / f"{name}.png", figure, dpi=130)
    with matplotlib.rc_context({"svg.hashsalt": "gemjax"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return page.Picture(name, caption, svg.getvalue(), wide)


def compose(
    folder: RunFolder, config: Config, run: Timeline, summary: Summary, verdict: Verdict, metrics: figures.Metrics,
    pictures: list[page.Picture],
) -> str:  # fmt: skip
    """The page."""
    title = f"{config.dataset}: {config.method}, {config.workers} workers"
    engine = "on devices" if run.measured else "simulated: times are virtual, one gradient takes about 1"
    findings = [(finding.passed, finding.text) for finding in verdict.findings]
    sections = [
        page.heading(title, f"Run {folder.path.name}, {engine}."),
        page.verdict_box(verdict.asynchronous, verdict.headline, findings, _sentences(verdict)),
        page.numbers(_numbers(run, summary, metrics)),
        page.section("Figures", page.figures(pictures)),
        page.section("Faults and losses", *_incidents(run, summary)),
        page.section("Workers", _workers(run, summary)),
        page.section("Configuration", page.folded(
            "all flags", page.table(("flag", "value"), [(flag(n), v) for n, v in dataclasses.asdict(config).items()], (0, 1))
        )),
        page.footer(
            "Utilisation: time computing from the first dispatch to the end. Commit wait: from a finished gradient to its "
            "commit. View wait: from the commit to the arrival of the next view. Made by python -m train report from "
            "config.json, events.jsonl and metrics.jsonl; timeline.json opens at ui.perfetto.dev."
        ),
    ]  # fmt: skip
    return page.page(title, sections)


def _sentences(verdict: Verdict) -> list[str]:
    return [advice[:1].upper() + advice[1:] for advice in verdict.advice]


def _numbers(run: Timeline, summary: Summary, metrics: figures.Metrics) -> list[tuple[str, str, str]]:
    loss = run.only("commit")["loss"]
    window = max(1, len(loss) // 50)
    span = duration(summary.span) if run.measured else f"{summary.span:.4g}"
    unit = "second" if run.measured else "unit of time"
    found = [
        ("commits", f"{summary.commits:,}", f"{summary.commits / max(summary.span, 1e-12):.4g} a {unit}"),
        ("time", span, f"{duration(summary.paused)} of it in evaluations" if summary.paused else ""),
        ("training loss", f"{loss[-window:].mean():.4g}", f"mean of the last {window}"),
    ]
    if metrics:
        found.append(("test accuracy", f"{100 * metrics['test_accuracy'][-1]:.2f} %", "at the last evaluation"))
    found.append(("staleness", f"{summary.staleness_median:.0f}", f"median; 95 % ≤ {summary.staleness_p95:.0f}"))
    if run.measured:
        low, mean, high = (100 * f(summary.utilisation) for f in (np.min, np.mean, np.max))
        found += [
            ("utilisation", f"{mean:.0f} %", f"{low:.0f} to {high:.0f} % a worker"),
            ("gradient", duration(summary.gradient_time), "median"),
            ("commit and view wait", duration(summary.wait_median), f"median; 95 % ≤ {duration(summary.wait_p95)}"),
        ]
    found.append(("dropped, rejected", f"{summary.dropped}, {summary.rejected}", f"faults: {summary.faults}"))
    return found


def _incidents(run: Timeline, summary: Summary) -> list[str]:
    told = [incident for incident in run.incidents if incident["event"] != "pause"]
    counts = (
        f"Faults: {summary.faults}; workers retired: {summary.retired}; commits dropped: {summary.dropped}, "
        f"rejected: {summary.rejected}."
    )
    if not told:
        return [page.paragraph(counts)]
    rows = [(i["event"], i.get("worker", ""), i.get("step", ""), f"{i['time']:.3f}", i.get("error", "")) for i in told]
    more = f" The first {INCIDENTS_LISTED} of {len(rows)}:" if len(rows) > INCIDENTS_LISTED else ""
    header = ("event", "worker", "step", "time", "error")
    return [page.paragraph(counts + more), page.table(header, rows[:INCIDENTS_LISTED], (0, 4))]


def _workers(run: Timeline, summary: Summary) -> str:
    commits = np.bincount(run.only("commit")["worker"], minlength=run.num_workers)
    devices = run.devices or ("",) * run.num_workers
    parts = (summary.share, summary.utilisation, summary.commit_wait, summary.view_wait)
    rows = [
        (worker, devices[worker], commits[worker], *(f"{100 * part[worker]:.1f} %" for part in parts))
        for worker in range(min(run.num_workers, WORKERS_LISTED))
    ]
    header = ("worker", "device", "commits", "share", "computing", "commit wait", "view wait")
    listed = page.table(header, rows, (1,))
    if run.num_workers > WORKERS_LISTED:
        listed += page.paragraph(f"The first {WORKERS_LISTED} of {run.num_workers}.")
    return listed if run.num_workers <= 16 else page.folded(f"all {run.num_workers}", listed)
