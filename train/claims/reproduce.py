"""`python -m train reproduce`: runs what decides a published claim, draws it, and says in words whether it held."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from train.claims import outcome
from train.claims import papers as configs
from train.claims.claim import Claim, file_name
from train.claims.execution import costs
from train.claims.execution.cache import POOL, PUBLISHED, Pool
from train.claims.execution.processes import Processes
from train.claims.results import Measured
from train.claims.runs import Record, Run, Scale, groups
from train.claims.summary_table import RESULTS
from train.common import interrupts
from train.common.console import say
from train.common.errors import UsageError
from train.common.files import check_out, write_whole
from train.config.parsing import in_flags, one_line
from train.run.progress import RunsProgress
from train.task import cluster as pace

DESCRIPTION = """Checks published claims with runs in gemjax's simulator.

`small` takes minutes on two CPU cores and needs no files; it judges directions only. `full` is the paper's setting. Most
claims whose setting takes days on CPUs have `cpu` in between, a smaller network that takes about an hour. Every
finished run is kept at once, and claims share runs: a command that was interrupted goes on when it is given again."""
PUBLISHED_RUNS = 400  # Of a claim with more, the table alone is committed.


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """What `python -m train reproduce` is asked."""

    claims: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CLAIM")] = ()
    """Claims to check, by name; `all` for every one."""
    scale: Scale = "small"
    """`small`: minutes, directions alone; `full`: the paper's setting; `cpu`, which some claims have: about an hour."""
    processes: int | None = None
    """Runs side by side, a process each; one for each core if not given, a single one on an accelerator."""
    data_dir: str | None = None
    """Folder of prepared data sets; TFDS's own default if not given."""
    manual_dir: str | None = None
    """Folder with the original files of data sets that cannot be made here."""
    work: str = str(POOL)
    """Folder of finished runs, from which an interrupted claim goes on."""
    out: str | None = None
    """Folder for CLAIM.json and CLAIM.png; `train/results` if not given, at small scale the work folder."""
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
        console.print(costs.listed(RESULTS))
        return 0
    if asked.dry_run:
        for claim in claims:
            dry_run(claim, asked, console)
        return 0
    check_out(asked.folder)
    check_out(asked.work, "--work")
    interrupts.raise_again()  # Finished runs are kept, and nothing is compiled in this process.
    try:
        for claim in claims:
            reproduce(claim, asked, console)
    except KeyboardInterrupt as stop:
        words = " ".join(argv)
        number = interrupts.number_of(stop)
        say(
            console,
            f"stopped by {interrupts.name_of(number)}; finished runs are kept. Go on with: python -m train reproduce {words}",
        )
        return interrupts.status_of(number)
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
        raise UsageError(str(error)) from None
    except SystemExit as stop:
        if stop.code == 0:  # --help.
            raise
        raise UsageError(f"{one_line(said.getvalue())} (python -m train reproduce --help)") from None
    names = configs.CLAIMS if asked.claims == ("all",) else asked.claims
    if not names and not asked.list:
        raise UsageError(f"name a claim: {', '.join(configs.CLAIMS)}, or all (python -m train reproduce --list)")
    try:
        claims = [configs.claim(name) for name in names]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if asked.claims == ("all",):
        return asked, [claim for claim in claims if asked.scale in claim.runs]
    if without := [claim.name for claim in claims if asked.scale not in claim.runs]:
        raise UsageError(f"{', '.join(without)} has no scale {asked.scale}; there are small and full")
    return asked, claims


def reproduce(claim: Claim, asked: Reproduce, console: Console) -> dict[str, Any]:
    """Makes the runs of `claim` that are missing, judges and draws all; returns what its JSON file holds.

    Raises:
      UsageError: if a run cannot be made.
    """
    pool, runs = asked.pool, claim.runs[asked.scale]
    known = _known(pool, runs)
    say(console, f"{claim.name} ({asked.scale}): {claim.title} [{claim.source}]")
    say(
        console,
        f"{len(runs)} runs, {len(known)} of them done already{_published(pool, known)}; work folder {pool.path}",
    )
    _make_missing(claim, runs, known, pool, asked, console)
    measured = Measured(asked.scale, [(run, known[run]) for run in runs])
    while claim.then is not None and (more := [run for run in claim.then(measured) if run not in known]):
        runs = [*runs, *more]
        known |= _known(pool, runs)
        say(console, f"{len(runs)} runs with those that follow from what was measured")
        _make_missing(claim, runs, known, pool, asked, console)
        measured = Measured(asked.scale, [(run, known[run]) for run in runs])
    statements = list(claim.judge(measured))
    result = outcome.summary(claim, measured, statements)
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / f"{file_name(claim.name, asked.scale)}.json"
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    outcome.draw(claim, measured, path.with_suffix(".png"))
    if asked.folder == RESULTS and len(runs) <= PUBLISHED_RUNS:
        for run in runs:
            pool.publish(run, known[run])
    outcome.tell(claim, asked.scale, statements, console)
    say(console, f"results: {path}, picture: {path.with_suffix('.png')}")
    return result


def _published(pool: Pool, known: dict[Run, Record]) -> str:
    """In words, how many of the finished runs were not made here."""
    count = sum(not pool.file(run).exists() for run in known)
    return f" ({count} of them published in {os.path.relpath(PUBLISHED)}; --anew makes them here)" if count else ""


def _make_missing(
    claim: Claim, runs: Sequence[Run], known: dict[Run, Record], pool: Pool, asked: Reproduce, console: Console
) -> None:
    if missing := sorted((run for run in runs if run not in known), key=costs.gradients, reverse=True):
        if lacking := _lacking(missing, asked):
            raise UsageError(lacking)
        _make(groups(missing) if claim.together else [[run] for run in missing], known, pool, asked, console)


def _lacking(runs: Sequence[Run], asked: Reproduce) -> str:
    """What the data of `runs` lack, in a line."""
    from train.task.data import load as data  # Not sooner: it imports TFDS, which a look at what is done does not need.

    names = dict.fromkeys(run.config.dataset for run in runs)
    said = (data.missing(name, data_dir=asked.data_dir, manual_dir=asked.manual_dir) for name in names)
    return in_flags(" ".join(filter(None, said)))


def _known(pool: Pool, runs: Sequence[Run]) -> dict[Run, Record]:
    """The runs that are done.

    Raises:
      UsageError: if the record of one is damaged.
    """
    try:
        return {run: found for run in runs if (found := pool.load(run)) is not None}
    except ValueError as error:
        raise UsageError(str(error)) from error


def _make(grouped: list[list[Run]], known: dict[Run, Record], pool: Pool, asked: Reproduce, console: Console) -> None:
    """Makes runs, the longest first, and keeps each as it ends.

    Raises:
      UsageError: if one cannot be made; those that are under way are given up.
    """
    machine = {"data_dir": asked.data_dir, "manual_dir": asked.manual_dir}
    runs = [run for group in grouped for run in group]
    total = sum(map(costs.gradients, runs))
    periods = {run.name: pace.mean_period(run.config) for run in runs}
    with Processes(asked.processes) as processes, RunsProgress(console, total, len(runs)) as progress:
        say(console, f"{processes.count} at a time on {processes.hardware['device']}, {total:,} gradients to make")
        commit = _git_commit()
        tell = lambda name, commits: progress.update(name, round(commits * periods[name]))
        for run, record, error in processes.make(grouped, machine, tell):
            if record is None:
                raise UsageError(f"{run.name}: {error}") from error
            own = {"hardware": processes.hardware, "processes": processes.count, "git_commit": commit}
            known[run] = record | own | {"date": time.strftime("%Y-%m-%d")}
            pool.save(run, known[run])
            progress.end(run.name, costs.gradients(run), f"training loss {_plain(record['train_loss'])}")


def dry_run(claim: Claim, asked: Reproduce, console: Console) -> None:
    """Says what would be run."""
    runs, pool = claim.runs[asked.scale], asked.pool
    known = _known(pool, runs)
    missing = [run for run in runs if run not in known]
    total, left = sum(map(costs.commits, runs)), sum(map(costs.commits, missing))
    processes = asked.processes or Processes.usual()
    seconds = sum(map(costs.gradients, missing)) / costs.speed(
        known, claim, asked.scale, sum(map(costs.gradients, runs)), processes
    )
    done = f"{len(known)} done{_published(pool, known)}"
    say(console, f"{claim.name} ({asked.scale}): {len(runs)} runs of {total:,} commits in all, {done}")
    more = ""
    if claim.then is not None:  # What its author measured is the time of all.
        more = (
            "; then more runs, by what these measure" if known else ", with those that follow from what these measure"
        )
    say(console, f"left: {left:,} commits, about {seconds / 60:.0f} min with {processes} processes{more}")
    for place in dict.fromkeys((run.series, run.point) for run in missing):
        here = [run for run in missing if (run.series, run.point) == place]
        seeds = f"{len(here)} seed{'s' if len(here) > 1 else ''}"
        say(
            console,
            f"  {place[0]} at {place[1]:g}: {here[0].config.method}, {seeds} of {costs.commits(here[0]):,} commits",
        )
    if lacking := _lacking(missing, asked):
        say(console, f"but {lacking}")


def _git_commit() -> str:
    """The commit of the checkout, marked where files differ from it; empty outside of git."""
    run = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, cwd=RESULTS.parent).stdout
    try:
        commit, changed = run("rev-parse", "--short=10", "HEAD").strip(), run("status", "--porcelain", "-uno").strip()
    except OSError:
        return ""
    return commit + ("+" if commit and changed else "")


def _plain(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
