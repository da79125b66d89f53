"""`python -m train reproduce`: runs what decides a published claim, draws it, and says in words whether it held."""

import contextlib
import dataclasses
import io
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from train import cli, configs, interrupts
from train.claim import SCALES, Claim, Run, Scale, Statement, file_name, groups, num_commits, verdict
from train.files import write_whole
from train.measured import Measured
from train.pool import POOL, PUBLISHED, Pool, Record
from train.progress import RunsProgress
from train.workers import Processes

RESULTS = Path(__file__).parent / "results"
DESCRIPTION = """Checks published claims with runs in gemjax's simulator.

`small` takes minutes on two CPU cores and needs no files; it judges directions only. `full` is the paper's setting. Claims
whose setting takes days on CPUs have `cpu` in between, a smaller network that takes about an hour. Every
finished run is kept at once, and claims share runs: a command that was interrupted goes on when it is given again."""
# Training rows of the data sets of claims, to count commits without their data.
ROWS = {
    "digits": 1437,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "cifar10_jpeg": 50_000,
    "tiny_shakespeare": 7_842,
}
PUBLISHED_RUNS = 400  # Of a claim with more, the table alone is committed.
SPEED = 250.0  # Commits a second, to estimate with where nothing has been measured.


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """What `python -m train reproduce` is asked."""

    claims: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CLAIM")] = ()
    """Claims to check, by name; `all` for every one."""
    scale: Scale = "small"
    """`small` takes minutes and judges directions; `full` is the paper's setting; `cpu`, which some claims have, takes
    about an hour."""
    processes: int | None = None
    """Runs side by side, a process each; one for each core if not given, a single one on an accelerator."""
    data_dir: str | None = None
    """Folder of prepared data sets; TFDS's own default if not given."""
    manual_dir: str | None = None
    """Folder with the original files of data sets that cannot be made here."""
    work: str = str(POOL)
    """Folder of finished runs, from which an interrupted claim goes on."""
    out: str | None = None
    """Folder for CLAIM.json and CLAIM.png (CLAIM-cpu.json, …); if not given, the work folder at small scale, else
    `train/results`."""
    anew: bool = False
    """Make runs that are published in `train/results/runs` anew, too; those in the work folder stay."""
    list: bool = False
    """List the claims with what they cost, and end."""
    dry_run: bool = False
    """Say which runs there are, how many commits are to be made and about how long they take, and end."""

    def __post_init__(self):
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"--processes must be at least 1; got {self.processes}")

    @property
    def pool(self) -> Pool:
        """Finished runs."""
        return Pool(self.work, None if self.anew else PUBLISHED)

    @property
    def folder(self) -> Path:
        """Where results go."""
        return Path(self.out or (Path(self.work) / "small" if self.scale == "small" else RESULTS))


def main(argv: Sequence[str]) -> int:
    """Checks the claims that the command line names; returns the exit status."""
    asked, claims = parse(argv)
    console = Console()
    if asked.list:
        console.print(_listed())
        return 0
    if asked.dry_run:
        for claim in claims:
            dry_run(claim, asked, console)
        return 0
    interrupts.raise_again()  # Finished runs are kept, and nothing is compiled in this process.
    try:
        for claim in claims:
            reproduce(claim, asked, console)
    except KeyboardInterrupt:
        words = " ".join(argv)
        _say(console, f"stopped; finished runs are kept. Go on with: python -m train reproduce {words}")
        return 130
    return 0


def parse(argv: Sequence[str]) -> tuple[Reproduce, list[Claim]]:
    """What `argv` asks for, and the claims it names.

    Raises:
      UsageError: if it is wrong.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            asked = tyro.cli(Reproduce, args=list(argv), prog="python -m train reproduce", description=DESCRIPTION)
    except ValueError as error:
        raise cli.UsageError(str(error)) from None
    except SystemExit as stop:
        if stop.code == 0:  # --help.
            raise
        raise cli.UsageError(f"{cli.one_line(said.getvalue())} (python -m train reproduce --help)") from None
    names = configs.CLAIMS if asked.claims == ("all",) else asked.claims
    if not names and not asked.list:
        raise cli.UsageError(f"name a claim: {', '.join(configs.CLAIMS)}, or all (python -m train reproduce --list)")
    try:
        claims = [configs.claim(name) for name in names]
    except ValueError as error:
        raise cli.UsageError(str(error)) from None
    if asked.claims == ("all",):
        return asked, [claim for claim in claims if asked.scale in claim.runs]
    if without := [claim.name for claim in claims if asked.scale not in claim.runs]:
        raise cli.UsageError(f"{', '.join(without)} has no scale {asked.scale}; its full one takes no days on a CPU")
    return asked, claims


def reproduce(claim: Claim, asked: Reproduce, console: Console) -> dict[str, Any]:
    """Makes the runs of `claim` that are missing, judges and draws all; returns what its JSON file holds.

    Raises:
      UsageError: if a run cannot be made.
    """
    pool, runs = asked.pool, claim.runs[asked.scale]
    known = _known(pool, runs)
    _say(console, f"{claim.name} ({asked.scale}): {claim.title} [{claim.source}]")
    _say(console, f"{len(runs)} runs, {len(known)} of them done already; work folder {pool.path}")
    _make_missing(claim, runs, known, pool, asked, console)
    measured = Measured(asked.scale, [(run, known[run]) for run in runs])
    if claim.then is not None:
        runs = [*runs, *claim.then(measured)]
        known |= _known(pool, runs)
        _say(console, f"{len(runs)} runs with those that follow from what was measured")
        _make_missing(claim, runs, known, pool, asked, console)
        measured = Measured(asked.scale, [(run, known[run]) for run in runs])
    statements = list(claim.judge(measured))
    result = summary(claim, measured, statements)
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / f"{file_name(claim.name, asked.scale)}.json"
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    draw(claim, measured, path.with_suffix(".png"))
    if asked.folder == RESULTS and len(runs) <= PUBLISHED_RUNS:
        for run in runs:
            pool.publish(run, known[run])
    tell(claim, statements, console)
    _say(console, f"results: {path}, picture: {path.with_suffix('.png')}")
    return result


def _make_missing(
    claim: Claim, runs: Sequence[Run], known: dict[Run, Record], pool: Pool, asked: Reproduce, console: Console
) -> None:
    if missing := sorted((run for run in runs if run not in known), key=commits, reverse=True):
        _make(groups(missing) if claim.together else [[run] for run in missing], known, pool, asked, console)


def _known(pool: Pool, runs: Sequence[Run]) -> dict[Run, Record]:
    """The runs that are done.

    Raises:
      UsageError: if the record of one is damaged.
    """
    try:
        return {run: found for run in runs if (found := pool.load(run)) is not None}
    except ValueError as error:
        raise cli.UsageError(str(error)) from error


def _make(grouped: list[list[Run]], known: dict[Run, Record], pool: Pool, asked: Reproduce, console: Console) -> None:
    """Makes runs, the longest first, and keeps each as it ends.

    Raises:
      UsageError: if one cannot be made; those that are under way are given up.
    """
    machine = {"data_dir": asked.data_dir, "manual_dir": asked.manual_dir}
    runs = [run for group in grouped for run in group]
    total = sum(map(commits, runs))
    with Processes(asked.processes) as processes, RunsProgress(console, total, len(runs)) as progress:
        _say(console, f"{processes.count} at a time on {processes.hardware['device']}, {total:,} commits to make")
        commit = _git_commit()
        for run, record, error in processes.make(grouped, machine, progress.update):
            if record is None:
                raise cli.UsageError(f"{run.name}: {error}") from error
            own = {"hardware": processes.hardware, "processes": processes.count, "git_commit": commit}
            known[run] = record | own | {"date": time.strftime("%Y-%m-%d")}
            pool.save(run, known[run])
            progress.end(run.name, commits(run), f"training loss {_plain(record['train_loss'])}")


def commits(run: Run) -> int:
    """Commits of a run, without its data."""
    rows = ROWS.get(run.config.dataset)
    if rows is None:
        raise cli.UsageError(f"how many training rows {run.config.dataset} has is not known; add it to ROWS")
    return num_commits(run.config, rows)


def summary(claim: Claim, measured: Measured, statements: Sequence[Statement]) -> dict[str, Any]:
    """What is committed of a claim: verdict, numbers, published numbers, and how they came about."""
    records = [record for _, record in measured.records]
    return {
        "claim": claim.name,
        "title": claim.title,
        "source": claim.source,
        "scale": measured.scale,
        "setting": claim.setting.get(measured.scale, ""),
        "verdict": verdict(statements),
        "statements": [dataclasses.asdict(statement) for statement in statements],
        "results": measured.rows(),
        "paper": {
            what: {series: {f"{x:g}": value for x, value in points.items()} for series, points in by.items()}
            for what, by in claim.paper.items()
        },
        "read_off_a_figure": claim.read_off,
        "paper_note": claim.paper_note,
        "cost": {
            "runs": len(records),
            "commits": sum(record["commits"] for record in records),
            "run_minutes": round(sum(record["seconds"] for record in records) / 60, 1),
            "processes": max(record["processes"] for record in records),
        },
        "seeds": sorted({run.config.seed for run, _ in measured.records}),
        "hardware": _distinct(record["hardware"] for record in records),
        "git_commits": _distinct(record["git_commit"] for record in records),
        "dates": _distinct(record["date"] for record in records),
    }


def draw(claim: Claim, measured: Measured, path: Path) -> None:
    """Draws a claim into `path` (.png)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    claim.draw(figure, measured)
    seeds = len({run.config.seed for run, _ in measured.records if run.config.seed not in claim.tuning})
    means = f"mean and 95 % interval of {seeds} seeds" if seeds > 1 else "one seed"
    note = ", dashed: the paper, read off a figure" if claim.paper and claim.read_off and measured.full else ""
    datasets = ", ".join(dict.fromkeys(run.config.dataset for run, _ in measured.records))
    small = "" if measured.full else f"{measured.scale.upper()} SCALE, not the paper's setting; "
    own = claim.setting.get(measured.scale, "")
    figure.suptitle(f"{claim.title}\n{small}{own or datasets}, {means}{note}", fontsize="medium")
    figure.savefig(path, dpi=110)


def tell(claim: Claim, statements: Sequence[Statement], console: Console) -> None:
    """Says in words whether a claim held."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "statement", "measured", "paper"):
        table.add_column(column, overflow="fold")
    for statement in statements:
        table.add_row("held" if statement.held else "NOT HELD", statement.text, statement.measured, statement.paper)
    console.print(table)
    count = sum(statement.held for statement in statements)
    _say(console, f"the claim {verdict(statements)}: {count} of {len(statements)} statements")


def dry_run(claim: Claim, asked: Reproduce, console: Console) -> None:
    """Says what would be run."""
    runs, pool = claim.runs[asked.scale], asked.pool
    known = _known(pool, runs)
    missing = [run for run in runs if run not in known]
    total, left = sum(map(commits, runs)), sum(map(commits, missing))
    processes = asked.processes or Processes.usual()
    seconds = left / _speed(known, claim, asked.scale, total, processes)
    _say(console, f"{claim.name} ({asked.scale}): {len(runs)} runs of {total:,} commits in all, {len(known)} done")
    more = "; then more runs, by what these measure" if claim.then is not None else ""
    _say(console, f"left: {left:,} commits, about {seconds / 60:.0f} min with {processes} processes{more}")
    for place in dict.fromkeys((run.series, run.point) for run in missing):
        here = [run for run in missing if (run.series, run.point) == place]
        seeds = f"{len(here)} seed{'s' if len(here) > 1 else ''}"
        _say(console, f"  {place[0]} at {place[1]:g}: {here[0].config.method}, {seeds} of {commits(here[0]):,} commits")


def _speed(known: dict[Run, Record], claim: Claim, scale: Scale, total: int, processes: int) -> float:
    """Commits a second, by the runs that are done, else by what the claim's author measured on two cores."""
    if known:
        made = sum(record["commits"] for record in known.values())
        return processes * made / sum(record["seconds"] for record in known.values())
    minutes = claim.minutes.get(scale)
    return total / (60 * minutes) * processes / 2 if minutes else SPEED * processes


def _listed() -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("claim", "what", "small (min)", "cpu (min)", "full (min)"):
        table.add_column(column, no_wrap=column == "claim")
    for name in configs.CLAIMS:
        claim = configs.claim(name)
        minutes = [
            "" if scale not in claim.runs else f"{claim.minutes[scale]:g}" if scale in claim.minutes else "?"
            for scale in SCALES
        ]
        table.add_row(name, f"{claim.title} [dim]({claim.source})[/dim]", *minutes)
    table.caption = "minutes on two CPU cores"
    return table


def _git_commit() -> str:
    """The commit of the checkout, marked where files differ from it; empty outside of git."""
    run = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, cwd=RESULTS.parent).stdout
    try:
        commit, changed = run("rev-parse", "--short=10", "HEAD").strip(), run("status", "--porcelain", "-uno").strip()
    except OSError:
        return ""
    return commit + ("+" if commit and changed else "")


def _distinct(values: Any) -> list:
    found: list = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _plain(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
