"""`python -m train report [RUN]`: the report of a run as one page, pictures, and a timeline for Perfetto."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gemjax
from gemjax import Summary, Verdict
from gemjax.telemetry import Timeline, eventlog, style
from gemjax.telemetry.perfetto import chrome_trace_text
from gemjax.telemetry.verdict import duration
from train.common.console import RunConsole
from train.common.errors import RecordError, printable
from train.common.files import write_picture, write_whole
from train.config.config import Config, flag
from train.config.parsing import parse_flags
from train.report import hosts, page
from train.run import figures
from train.run.folder import RunFolder
from train.run.progress import commits_per_second
from train.task.methods import make_method

SIZE = (5.6, 3.4)  # Inches.
WORKERS_LISTED, INCIDENTS_LISTED = 128, 50
CYCLES_TRACED = 200_000  # The newest ones, in timeline.json.


@dataclasses.dataclass(frozen=True)
class ReportFlags:
    """Report whether a run was truly asynchronous.

    Writes `report.html` (one page with everything), `figures/*.png` and `timeline.json` (for ui.perfetto.dev) into the run
    folder. It also works while the run goes on.
    """

    run: tyro.conf.Positional[str] = "latest"
    """Folder of the run; the newest under `runs/` if not given."""


def main(argv: Sequence[str]) -> int:
    """Write the report of the run that the command line names."""
    options = parse_flags(ReportFlags, argv, "python -m train report")
    try:
        folder = RunFolder.find(options.run)
        summary, verdict = write_report(folder)
    except ValueError as error:  # A damaged or foreign record.
        print(f"train: {printable(str(error))}", file=sys.stderr)
        return 2
    console = RunConsole()
    for text in (verdict.headline, *_sentences(verdict), facts(folder, summary), f"report: {folder.report}"):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def facts(folder: RunFolder, summary: Summary) -> str:
    """Return the key figures of a run in one line."""
    staleness = f"staleness p50 {summary.staleness_median:.0f} p95 {summary.staleness_p95:.0f}"
    utilisation = f"utilisation {100 * np.mean(summary.utilisation):.0f} %" if summary.measured else ""
    return ", ".join(filter(None, (f"{summary.commits:,} commits", speed(folder, summary), staleness, utilisation)))


def speed(folder: RunFolder, summary: Summary) -> str:
    """Return the commits per second of a run in words; empty if not known.

    The event log of a run on devices has them. That of a simulated run has virtual times, so its summary must have them.
    """
    rate = summary.rate if summary.measured else None
    if not summary.measured and folder.summary.exists():
        rate = folder.read_summary().get("commits_per_second")
    return commits_per_second(rate) if isinstance(rate, float) else ""


def write_report(folder: RunFolder) -> tuple[Summary, Verdict]:
    """Write the report of a run into its folder.

    Raises:
      RecordError: if there is no commit yet.
      ValueError: if the configuration, the event log or the metrics cannot be read, with the name of the file.
    """
    config = Config.load(folder.config)
    if not folder.events.exists():
        raise RecordError(f"{folder.path} has no {folder.events.name}: no commit was made yet, or the file was removed")
    try:
        run = gemjax.timeline(eventlog.read(folder.events), config.workers)
        summary = gemjax.summarise(run)
    except ValueError as error:
        named = str(error).startswith(str(folder.events))
        raise ValueError(str(error) if named else f"{folder.events}: {error}") from error
    metrics, verdict = folder.read_metrics(), gemjax.verdict(summary)
    rate, replayed = speed(folder, summary), folder.read_replay()  # Before anything is written.
    pictures = draw(run, summary, metrics, folder.path / "figures")
    write_whole(folder.timeline, chrome_trace_text(_newest(run)))
    write_whole(folder.report, compose(folder, config, run, summary, verdict, metrics, rate, replayed, pictures))
    return summary, verdict


def _newest(run: Timeline) -> Timeline:
    """Return the last cycles of a run, as many as a viewer can load."""
    if len(run.cycles["time"]) <= CYCLES_TRACED:
        return run
    cycles = {name: column[-CYCLES_TRACED:] for name, column in run.cycles.items()}
    incidents = tuple(i for i in run.incidents if i["time"] >= cycles["dispatch"].min())
    return dataclasses.replace(run, cycles=cycles, incidents=incidents)


def draw(run: Timeline, summary: Summary, metrics: figures.Metrics, pngs: Path) -> list[page.EmbeddedPicture]:
    """Draw all figures for which the records have data, each also as a PNG in `pngs`."""
    pngs.mkdir(exist_ok=True)
    return [_render(*drawing, pngs) for drawing in _drawings(run, summary, metrics)]


def _drawings(
    run: Timeline, summary: Summary, metrics: figures.Metrics
) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
    """Yield the name, the caption and the drawing function of each figure."""
    commits, expected = run.only("commit"), summary.num_workers - 1
    caption = f"Training loss{' and test loss' if metrics else ''} against commits."
    yield "loss", caption, lambda axes: figures.draw_loss(axes, run, metrics=metrics)
    yield (
        "loss-time",
        caption.replace("commits", "time"),
        lambda axes: figures.draw_loss(axes, run, by="time", metrics=metrics),
    )
    if metrics:
        yield "accuracy", "Accuracy on the test set.", lambda axes: figures.draw_accuracy(axes, metrics)
    if np.isfinite(commits["staleness"]).any():
        caption = (
            "Staleness: commits by other workers between a worker's pull and its commit; "
            f"N − 1 = {expected} if all workers are equally fast."
        )
        yield "staleness", caption, lambda axes: figures.draw_staleness(axes, run, expected=expected)
    if "gap" in commits and np.isfinite(commits["gap"]).any():
        caption = "Gap: RMS distance between the central variable and the view that a gradient was computed at."
        yield "gap", caption, lambda axes: figures.draw_gap(axes, run)
    if run.measured:
        caption = "Time of each worker from its first dispatch to the end: computing, waiting or idle."
        yield "utilisation", caption, lambda axes: figures.draw_account(axes, run, summary)
        caption = (
            "Commit wait: a finished gradient waits to be committed. View wait: a worker waits for its next view. In a truly "
            "asynchronous run both are short compared with the gradient."
        )
        yield "waits", caption, lambda axes: figures.draw_waits(axes, run)
    yield "shares", "Share of the commits that each worker made.", lambda axes: figures.draw_shares(axes, run, summary)
    if summary.dropped or summary.rejected or summary.faults or summary.interrupted:
        caption = "Dropped and rejected commits, faults, interruptions and retired workers, by worker and time."
        yield "incidents", caption, lambda axes: figures.draw_incidents(axes, run)
    whole = len(run.cycles["time"]) <= CYCLES_TRACED
    rest = "the rest of the run" if whole else f"the newest {CYCLES_TRACED:,} gradients"
    caption = f"Timeline of the workers, computing and waiting; timeline.json has {rest}."
    yield "timeline", caption, lambda axes: figures.draw_timeline(axes, run)


def _render(name: str, caption: str, drawing: Callable[[Axes], None], pngs: Path) -> page.EmbeddedPicture:
    wide = name == "timeline"
    with style.style():
        figure = Figure(figsize=(2 * SIZE[0], SIZE[1]) if wide else SIZE, layout="constrained")
        drawing(figure.add_subplot())
        write_picture(pngs / f"{name}.png", figure)
        return page.EmbeddedPicture.of(figure, name, caption, wide=wide)


def compose(
    folder: RunFolder, config: Config, run: Timeline, summary: Summary, verdict: Verdict, metrics: figures.Metrics,
    rate: str, replayed: tuple[str, int] | None, pictures: list[page.EmbeddedPicture],
) -> str:  # fmt: skip
    """Compose the page."""
    title = f"{config.dataset}: {config.method}, {config.workers} workers"
    place = "on a Ray cluster" if config.engine == "cluster" else "on devices"
    engine = place if run.measured else "simulated: times are virtual, one gradient takes about 1"
    findings = [(finding.passed, finding.text) for finding in verdict.findings]
    sections = [
        page.heading(title, f"Run {folder.path.name}, {engine}."),
        page.verdict_box(verdict.asynchronous, verdict.headline, findings, _sentences(verdict)),
        page.numbers(_numbers(rate, run, summary, metrics, replayed)),
        page.section("Figures", page.figures(pictures)),
        page.section("Faults and losses", *_incidents(run, summary)),
        *([page.section("Hosts", listed)] if (listed := hosts.table(run)) else []),
        page.section("Workers", _workers(run, summary)),
        page.section("Configuration", page.folded(
            "all flags", page.table(("flag", "value"), [(flag(n), v) for n, v in dataclasses.asdict(config).items()], (0, 1))
        )),
        page.section("Cite", page.folded("BibTeX of the method", page.code(gemjax.citation(make_method(config))))),
        page.footer(
            "Utilisation: time computing from the first dispatch to the end. Commit wait: from a finished gradient to its "
            "commit. View wait: from the commit to the arrival of the next view. Network, a part of the view wait: the "
            "time that a view and its gradient travel between driver and worker. Made by python -m train report from "
            "config.json, events.jsonl and metrics.jsonl; timeline.json opens at ui.perfetto.dev."
        ),
    ]  # fmt: skip
    return page.page(title, sections)


def _sentences(verdict: Verdict) -> list[str]:
    return [advice[:1].upper() + advice[1:] for advice in verdict.advice]


def _numbers(
    rate: str, run: Timeline, summary: Summary, metrics: figures.Metrics, replayed: tuple[str, int] | None
) -> list[tuple[str, str, str]]:
    loss = run.only("commit")["loss"]
    window = max(1, len(loss) // 50)
    span = duration(summary.span) if run.measured else f"{summary.span:.4g}"
    found = [
        ("commits", f"{summary.commits:,}", rate),
        ("time", span, f"{duration(summary.paused)} of it in callbacks and checkpoints" if summary.paused else ""),
        ("training loss", f"{loss[-window:].mean():.4g}", f"mean of the last {window}"),
    ]
    if not run.measured:
        found[1] = ("virtual time", span, f"{summary.rate:.4g} commits per unit of it")
    if metrics:
        found.append(("test accuracy", f"{100 * metrics['test_accuracy'][-1]:.2f} %", "at the last evaluation"))
    found.append(("staleness", f"{summary.staleness_median:.0f}", f"median; 95 % ≤ {summary.staleness_p95:.0f}"))
    if run.measured:
        low, mean, high = (100 * f(summary.utilisation) for f in (np.min, np.mean, np.max))
        found += [
            ("utilisation", f"{mean:.0f} %", f"{low:.0f} to {high:.0f} % per worker"),
            ("gradient", duration(summary.gradient_time), "median"),
            ("commit and view wait", duration(summary.wait_median), f"median; 95 % ≤ {duration(summary.wait_p95)}"),
        ]
    if len(times := figures.network_times(run)):
        p50, p95 = np.percentile(times, [50, 95])
        found.append(("network", duration(p50), f"per gradient, median; 95 % ≤ {duration(p95)}"))
    if replayed is not None:
        verdict, end = replayed
        found.append(("replay", verdict, f"of the first {end:,} applied commits, by python -m train replay"))
    found.append(("dropped, rejected", f"{summary.dropped}, {summary.rejected}", f"faults: {summary.faults}"))
    if summary.interrupted:
        found.append(("called back", f"{summary.interrupted}", "computations begun again, by --interrupt"))
    return found


def _incidents(run: Timeline, summary: Summary) -> list[str]:
    listed = [incident for incident in run.incidents if incident["event"] != "pause"]
    counts = (
        f"Faults: {summary.faults}; workers retired: {summary.retired}; commits dropped: {summary.dropped}, "
        f"rejected: {summary.rejected}; computations called back: {summary.interrupted}."
    )
    if not listed:
        return [page.paragraph(counts)]
    rows = [
        (i["event"], i.get("worker", ""), i.get("step", ""), f"{i['time']:.3f}", i.get("error", "")) for i in listed
    ]
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
