"""`python -m train reproduce`: run, judge and draw a published claim."""

import dataclasses
import json
import os
import shlex
import subprocess
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
from train.claims.runs import PlannedRun, RunRecord, Scale
from train.claims.summary_table import RESULTS
from train.common import interrupts
from train.common.console import RunConsole, say
from train.common.errors import UsageError
from train.common.files import check_out, write_whole
from train.common.machine import cores
from train.config.parsing import in_flags, parse_flags
from train.config.validation import one_of
from train.run.groups.progress import GroupProgress
from train.run.groups.store import until_interrupted

DESCRIPTION = """Check published claims with runs in gemjax's simulator.

Scale `small` takes minutes on two CPU cores, needs no files and judges directions only. `full` is the paper's setting. Most
claims whose setting takes days on CPUs also have `cpu`, with a smaller network that takes about an hour. Each finished run
is kept, and claims share runs: repeat an interrupted command to resume it."""
PUBLISHED_RUNS = 400  # Runs up to which they are committed; of larger claims only the table is.


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """The flags of `python -m train reproduce`."""

    claims: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CLAIM")] = ()
    """Names of the claims to check; `all` for every claim."""
    scale: Scale = "small"
    """`small`: minutes, directions only; `full`: the paper's setting; `cpu` (some claims only): about an hour."""
    processes: int | None = None
    """Number of processes, with one run each. Default: one per core, or a single one on an accelerator."""
    data_dir: str | None = None
    """Folder of prepared data sets; default: that of TFDS."""
    manual_dir: str | None = None
    """Folder with the original files of data sets that cannot be created here."""
    work: str = str(POOL)
    """Folder of finished runs, from which an interrupted claim resumes."""
    out: str | None = None
    """Folder of CLAIM.json and CLAIM.png; default: `train/results`; the work folder at small scale."""
    pdf: str | None = None
    """Folder for the pictures as vector graphics without titles, as papers need them; default: none are written."""
    anew: bool = False
    """Repeat runs that are published in `train/results/runs`; runs in the work folder are still used."""
    list: bool = False
    """List the claims with their costs, and exit."""
    dry_run: bool = False
    """Print the runs, the number of commits left and an estimate of their time, and exit."""

    def pool(self, claim: Claim) -> Pool:
        """Return the store of the finished runs of `claim`."""
        return Pool(self.work, None if self.anew else self.published(claim))

    def published(self, claim: Claim) -> Path:
        """Return the path of the file of the published runs of `claim`."""
        return PUBLISHED / f"{file_name(claim.name, self.scale)}.json"

    @property
    def folder(self) -> Path:
        """The folder of results."""
        return Path(self.out or (Path(self.work) / "small" if self.scale == "small" else RESULTS))

    def files(self, claim: Claim) -> tuple[Path, ...]:
        """Return the paths of the files of `claim`: its numbers, its picture and, with `--pdf`, its vector graphics."""
        path = self.folder / f"{file_name(claim.name, self.scale)}.json"
        vectors = () if self.pdf is None else (Path(self.pdf) / f"{path.stem}.pdf",)
        return path, path.with_suffix(".png"), *vectors


def main(argv: Sequence[str]) -> int:
    """Check the claims that the command line names and return the exit status."""
    asked, claims = parse(argv)
    console = RunConsole()
    if asked.list:
        console.print(costs.listed(RESULTS))
        return 0
    if asked.dry_run:
        for claim in claims:
            dry_run(claim, asked, console)
        return 0
    check_out(asked.folder)
    check_out(asked.work, "--work")
    if asked.pdf is not None:
        check_out(asked.pdf, "--pdf")
    check_data(claims, asked)
    interrupts.raise_again()  # Finished runs are kept, and this process compiles nothing.

    def work() -> None:
        for claim in claims:
            reproduce(claim, asked, console)

    resume = f"; finished runs are kept. Resume with: python -m train reproduce {shlex.join(argv)}"
    return until_interrupted(work, console, lambda: resume)


def parse(argv: Sequence[str]) -> tuple[Reproduce, list[Claim]]:
    """Return the flags in `argv` and the claims that it names.

    Raises:
      UsageError: if it is wrong.
    """
    asked = parse_flags(Reproduce, argv, "python -m train reproduce", description=DESCRIPTION)
    everything = configs.CLAIMS if "all" in asked.claims else ()
    names = dict.fromkeys([*everything, *(name for name in asked.claims if name != "all")])
    if not names and not asked.list:
        raise UsageError(f"name a claim: {', '.join(configs.CLAIMS)}, or all (python -m train reproduce --list)")
    if unknown := [name for name in names if name not in configs.CLAIMS]:
        raise UsageError(f"there is no claim {unknown[0]!r}; choose {one_of(unknown[0], configs.CLAIMS)}")
    claims = [configs.claim(name) for name in names]
    if "all" in asked.claims:
        return asked, [claim for claim in claims if asked.scale in claim.runs]
    if without := [claim.name for claim in claims if asked.scale not in claim.runs]:
        raise UsageError(f"{', '.join(without)} has no scale {asked.scale}; there are small and full")
    return asked, claims


def check_data(claims: Sequence[Claim], asked: Reproduce) -> None:
    """Raise ``UsageError`` if one of several claims lacks its data, before the runs of the others are made."""
    without: dict[str, list[str]] = {}
    for claim in claims if len(claims) > 1 else ():
        runs = claim.runs[asked.scale]
        known = asked.pool(claim).known(runs)
        if lacking := _lacking([run for run in runs if run not in known], asked):
            without.setdefault(lacking, []).append(claim.name)
    if without:
        raise UsageError(" ".join(f"{lacking} Needed for {', '.join(names)}." for lacking, names in without.items()))


def reproduce(claim: Claim, asked: Reproduce, console: Console) -> dict[str, Any]:
    """Make the missing runs of `claim`, judge and draw it, and return the content of its JSON file.

    Raises:
      UsageError: if a run cannot be made.
    """
    pool, runs = asked.pool(claim), list(claim.runs[asked.scale])
    known = pool.known(runs)
    say(console, f"{claim.name} ({asked.scale}): {claim.title} [{claim.source}]")
    say(
        console,
        f"{len(runs)} runs, {len(known)} of them done already{_published(pool, known)}; work folder {pool.path}",
    )
    _make_missing(runs, known, pool, asked, console)
    measured = Measured(asked.scale, [(run, known[run]) for run in runs])
    while claim.then is not None and (more := [run for run in claim.then(measured) if run not in known]):
        runs += more
        known |= pool.known(runs)
        say(console, f"{len(runs)} runs, including those that follow from the measurements")
        _make_missing(runs, known, pool, asked, console)
        measured = Measured(asked.scale, [(run, known[run]) for run in runs])
    statements = list(claim.judge(measured))
    result = outcome.summary(claim, measured, statements)
    asked.folder.mkdir(parents=True, exist_ok=True)
    path, picture, *vectors = asked.files(claim)
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    outcome.draw(claim, measured, picture)
    for vector in vectors:
        vector.parent.mkdir(parents=True, exist_ok=True)
        outcome.draw(claim, measured, vector, titled=False)
        say(console, f"picture for a paper: {vector}")
    if asked.folder == RESULTS and 0 < len(runs) <= PUBLISHED_RUNS:
        pool.publish(asked.published(claim), {run: known[run] for run in runs})
    outcome.tell(claim, asked.scale, statements, console)
    say(console, f"results: {path}, picture: {picture}")
    return result


def _published(pool: Pool, known: dict[PlannedRun, RunRecord]) -> str:
    """Return a remark on the number of finished runs that come from the published folder; empty if there are none."""
    count = sum(not pool.file(run).exists() for run in known)
    return f" ({count} of them published in {os.path.relpath(PUBLISHED)}; --anew repeats them here)" if count else ""


def _make_missing(
    runs: Sequence[PlannedRun], known: dict[PlannedRun, RunRecord], pool: Pool, asked: Reproduce, console: Console
) -> None:
    """Make the runs that are not `known`, the longest first, and keep each record as it arrives.

    Raises:
      UsageError: if data are missing or a run cannot be made. Runs in flight are abandoned.
    """
    order = lambda run: (-costs.gradients(run), run.config.seed)  # An interrupted claim has whole seeds.
    missing = sorted((run for run in runs if run not in known), key=order)
    if not missing:
        return
    if lacking := _lacking(missing, asked):
        raise UsageError(lacking)
    total = sum(map(costs.gradients, missing))
    with Processes(asked.processes) as processes, GroupProgress(console, "run", len(missing), total) as progress:
        say(console, f"{processes.count} at a time on {processes.hardware['device']}, {total:,} gradients to make")
        machine, commit = {"data_dir": asked.data_dir, "manual_dir": asked.manual_dir}, _git_commit()
        made = processes.make([[run] for run in missing], machine, progress.update)
        for run, record in pool.keep(((run, record | {"git_commit": commit}) for run, record in made), known):
            progress.end(run.name, costs.gradients(run), f"training loss {_plain(record['train_loss'])}")


def _lacking(runs: Sequence[PlannedRun], asked: Reproduce) -> str:
    """Return a line on missing data of `runs`; empty if there are none."""
    from train.task.data.load import lacking  # It imports TFDS, which a look at finished runs does not need.

    names = [run.config.dataset for run in runs]
    return in_flags(lacking(names, data_dir=asked.data_dir, manual_dir=asked.manual_dir))


def dry_run(claim: Claim, asked: Reproduce, console: Console) -> None:
    """Print the runs of `claim`, the number of commits left and an estimate of their time."""
    runs, pool = claim.runs[asked.scale], asked.pool(claim)
    known = pool.known(runs)
    missing = [run for run in runs if run not in known]
    total, left = sum(map(costs.commits, runs)), sum(map(costs.commits, missing))
    processes = asked.processes or cores()
    whole = sum(map(costs.gradients, runs))
    seconds = (
        sum(map(costs.gradients, missing)) / costs.speed(known, claim, asked.scale, whole, processes) if missing else 0
    )
    done = f"{len(known)} done{_published(pool, known)}"
    say(console, f"{claim.name} ({asked.scale}): {len(runs)} runs of {total:,} commits in all, {done}")
    more = ""
    if claim.then is not None:  # The time that its author measured covers all runs.
        more = "; then more runs, which depend on these" if known else ", including runs that depend on these"
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
    """Return the commit of the checkout, with a `+` if files differ from it; empty outside of git."""
    run = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, cwd=RESULTS.parent).stdout
    try:
        commit, changed = run("rev-parse", "--short=10", "HEAD").strip(), run("status", "--porcelain", "-uno").strip()
    except OSError:
        return ""
    return commit + ("+" if commit and changed else "")


def _plain(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
