"""`python -m train benchmark`: asynchronous methods with equal tuning, and their time to a target."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from train.claims.execution import costs
from train.claims.execution.cache import Pool
from train.claims.execution.processes import Processes
from train.claims.runs import PlannedRun, RunRecord
from train.common import interrupts
from train.common.console import RunConsole, say
from train.common.errors import UsageError
from train.common.files import check_out, write_picture, write_whole
from train.config.file import show_config, take_config
from train.config.methods import Method
from train.config.parsing import parse_flags
from train.run.folder import RUNS
from train.run.groups.progress import GroupProgress
from train.run.groups.store import until_interrupted
from train.sweep.benchmark import outcome, page
from train.sweep.benchmark.settings import FULL, QUICK, REFERENCES, WORDS, Design, Entry, networked

USAGE = "python -m train benchmark"
RESULTS = Path(__file__).parents[2] / "results"
WAVE = 10  # Cells whose runs are made at the same time, before the page is written again.
DESCRIPTION = """Compare asynchronous methods in gemjax's simulator.

Every method is tuned with the same budget. Seeds that did not serve tuning measure its accuracy and its time to a target,
against synchronous SGD and local SGD. The page says which part is done. Each finished run is kept: repeat an interrupted
command to resume it. Rows of an earlier page are not tuned again, wherever they were made, and measured again only if they lack
times to the later target."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The flags of `python -m train benchmark`."""

    quick: bool = False
    """Ten minutes on two cores, without files: digits, 8 to 11 methods, 8, 16 and 64 workers."""
    methods: tuple[Method, ...] = ()
    """Methods to measure wherever they can be; default: all with 16 unequal workers, the best known and fastest in others."""
    tasks: tuple[Literal["cifar", "fashion", "characters", "digits"], ...] = ()
    """Tasks to measure; default: all of the scale."""
    workers: tuple[Literal[4, 8, 16, 64], ...] = ()
    """Numbers of workers to measure; default: all of the scale."""
    clusters: tuple[Literal["homogeneous", "heterogeneous"], ...] = ()
    """`homogeneous` or `heterogeneous` workers; default: both."""
    networks: tuple[Literal["free", "rack", "slow"], ...] = ()
    """Transfers that take no time, 0.3 times as long as a gradient, or 10 times; default: all."""
    processes: int | None = None
    """Number of processes. Default: one per core, or a single one on an accelerator."""
    data_dir: str | None = None
    """Folder of prepared data sets; default: that of TFDS."""
    manual_dir: str | None = None
    """Folder with the original files of data sets that cannot be created here."""
    work: str = str(RUNS / "benchmark")
    """Folder of finished runs, from which an interrupted benchmark resumes."""
    out: str | None = None
    """Folder of the page, the picture and the file; default: `train/results`, or the work folder with `--quick`."""
    anew: bool = False
    """Measure rows again that the file in the folder of `--out` has; runs in the work folder are still used."""
    dry_run: bool = False
    """Print the runs that are left and the budget of tuning, and exit."""

    def __post_init__(self):
        if not any(entry.workers > 1 for entry in self.entries):
            raise ValueError(
                "no setting has these --tasks, --workers, --clusters and --networks together; see --dry-run for those that "
                "there are"
            )
        if without := [name for name in self.methods if not any(entry.method == name for entry in self.entries)]:
            raise ValueError(
                f"--methods {' '.join(without)}: the benchmark has no such method for these --tasks, --workers and --clusters"
            )

    @property
    def whole(self) -> Design:
        """The scale, whatever part of it is asked for."""
        return QUICK if self.quick else FULL

    @property
    def entries(self) -> list[Entry]:
        """The entries that are asked for; references always belong to them."""
        return [entry for entry in self.whole.entries() if self.takes(entry)]

    def takes(self, entry: Entry, more: Container[Entry] = ()) -> bool:
        """Return True if an entry is asked for; `more` has entries that belong to the benchmark besides its core."""
        asked = lambda values, value: not values or value in values
        by_default = self.whole.is_core(entry) or entry in more
        return (
            asked(self.tasks, entry.task)
            and (entry.method in REFERENCES or (entry.method in self.methods if self.methods else by_default))
            and (
                entry.workers == 1
                or (
                    asked(self.workers, entry.workers)
                    and asked(self.clusters, entry.cluster)
                    and asked(self.networks, entry.network)
                )
            )
        )

    @property
    def folder(self) -> Path:
        return Path(self.out or (self.work if self.quick else RESULTS))

    @property
    def file(self) -> Path:
        return self.folder / f"{self.whole.name}.json"

    @property
    def pool(self) -> Pool:
        return Pool(Path(self.work) / self.whole.name)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for and return the exit status."""
    argv, is_printed = take_config(list(argv), Benchmark, "benchmark")
    asked = parse_flags(Benchmark, argv, USAGE, description=DESCRIPTION)
    if is_printed:
        show_config(asked, "benchmark")
    console = RunConsole()
    check_out(asked.work, "--work")
    before = published(asked)
    known = load(asked.whole, asked.whole.entries(), asked.pool, {})
    older = {} if asked.anew else outcome.without_late(outcome.earlier(asked.whole, before))
    tuned = {entry: row for entry, row in older.items() if missing(asked.whole, entry, known)}
    design = dataclasses.replace(asked.whole, tuned=tuned)
    load(design, design.entries(), asked.pool, known)
    if asked.dry_run:
        dry_run(asked, unfinished(asked, design, known, before), console)
        return 0
    check_out(asked.folder)
    interrupts.raise_again()  # Finished runs are kept, and this process compiles nothing.
    resume = f"; finished runs are kept. Resume with: {shlex.join([*USAGE.split(), *argv])}"
    return until_interrupted(lambda: run(asked, design, known, before, console), console, lambda: resume)


def published(asked: Benchmark) -> dict[str, Any] | None:
    """Return the content of an earlier file of the benchmark, if there is one."""
    return json.loads(asked.file.read_text(encoding="utf-8")) if asked.file.exists() else None


def load(
    design: Design, entries: Sequence[Entry], pool: Pool, known: dict[PlannedRun, RunRecord]
) -> dict[PlannedRun, RunRecord]:
    """Add the finished runs of `entries` to `known`, rung by rung, and return it."""
    for entry in entries:
        while found := pool.known(run for run in design.next_runs(entry, known)[0] if run not in known):
            known |= found
    return known


def missing(design: Design, entry: Entry, known: dict[PlannedRun, RunRecord]) -> list[PlannedRun]:
    """Return the runs of an entry that can be made now; none if it is finished."""
    return [run for run in design.next_runs(entry, known)[0] if run not in known]


def alike(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """Divide runs into those that one program can make: quorum, period and length decide the trace."""
    groups: dict[tuple, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.config.quorum, run.config.period, run.config.epochs), []).append(run)
    return list(groups.values())


def unfinished(
    asked: Benchmark, design: Design, known: dict[PlannedRun, RunRecord], before: Mapping[str, Any] | None
) -> list[Entry]:
    """Return the entries that are asked for and have runs left.

    A finished row of the file `before` has none, except with `--anew`; the others of `design.tuned` have their reported runs.
    """
    rows = {} if asked.anew else outcome.earlier(design, before)
    every = [entry for entry in design.entries() if asked.takes(entry, design.tuned)]
    left = [entry for entry in every if entry not in rows or entry in design.tuned]
    return [entry for entry in left if missing(design, entry, known)]


def run(
    asked: Benchmark,
    design: Design,
    known: dict[PlannedRun, RunRecord],
    before: Mapping[str, Any] | None,
    console: Console,
) -> dict[str, Any]:
    """Make the missing runs, write the page after every wave of them, and return the content of the benchmark's file.

    Raises:
      UsageError: if data are missing or a run cannot be made. Finished runs are kept.
    """
    pool, waiting = asked.pool, unfinished(asked, design, known, before)
    say(
        console,
        f"{design.name}: {len(asked.entries)} pairs of a method and a setting, {len(waiting)} unfinished; {budget(design)}",
    )
    if waiting:
        from train.task.data.load import lacking  # It imports TFDS, which a look at finished runs does not need.

        machine = {"data_dir": asked.data_dir, "manual_dir": asked.manual_dir}
        if said := lacking([design.tasks[entry.task].dataset for entry in waiting], **machine):
            raise UsageError(said)
        cost = [design.cost(entry) for entry in waiting]
        runs, gradients = sum(count for count, _ in cost), sum(gradients for _, gradients in cost)
        made = [run for entry in waiting for run in design.made(entry, known)]
        done = len(made), sum(map(costs.gradients, made))
        with (
            Processes(asked.processes) as processes,
            GroupProgress(console, "run", runs, gradients, *done) as progress,
        ):
            say(console, f"{processes.count} at a time on {processes.hardware['device']}; runs are kept in {pool.path}")
            while waiting := [entry for entry in waiting if missing(design, entry, known)]:
                groups = [group for entry in waiting[:WAVE] for group in alike(missing(design, entry, known))]
                arriving = processes.make(groups, machine, progress.update, together=True)
                for made, record in pool.keep(arriving, known):
                    progress.end(made.name, costs.gradients(made), f"accuracy {record['test_accuracy'] or 0:.3f}")
                load(design, waiting[:WAVE], pool, known)
                write(asked, design, known)
    content = write(asked, design, known)
    say(console, f"page: {asked.folder / design.name}.md")
    return content


def write(asked: Benchmark, design: Design, known: dict[PlannedRun, RunRecord]) -> dict[str, Any]:
    """Write file, page and picture, and return the content of the file."""
    from gemjax.telemetry import style

    path = asked.file
    content = outcome.document(design, known, published(asked))  # Read again: another process may have added rows.
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n  ".join(json.dumps(row) for row in content["rows"])
    others = json.dumps({name: value for name, value in content.items() if name != "rows"}, indent=1)
    write_whole(path, f'{others[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n')
    if outcome.Findings(content).profile([1.0])[1]:
        with style.style():
            figure = style.picture(2, 2.8)
            page.draw(figure, content)
            write_picture(path.with_suffix(".png"), figure)
    write_whole(path.with_suffix(".md"), page.written(design, content, command(asked.whole)))
    return content


def command(design: Design) -> str:
    return f"{USAGE} --quick" if design is QUICK else USAGE


def budget(design: Design) -> str:
    """Return the budget of tuning in words."""
    return (
        f"every method is tuned with {design.budget:,} gradients per setting and reported with {len(design.seeds)} further "
        f"seeds of {design.gradients:,}"
    )


def dry_run(asked: Benchmark, waiting: Sequence[Entry], console: Console) -> None:
    """Print the budget, and how many methods each setting has left."""
    say(console, budget(asked.whole))
    every = [entry for entry in asked.whole.entries() if asked.takes(entry, waiting)]
    for setting in dict.fromkeys(entry.setting for entry in every):
        entries = [entry for entry in every if entry.setting == setting]
        left = [entry.method for entry in entries if entry in waiting]
        name = (
            f"{setting[0]}, {setting[1]} {WORDS[setting[2]]} worker{'s' if setting[1] > 1 else ''}{networked(setting)}"
        )
        say(console, f"{name}: {len(left)} of {len(entries)} methods left" + (f": {', '.join(left)}" if left else ""))
