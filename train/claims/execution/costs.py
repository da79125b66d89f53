"""The cost of the runs of claims: commits, gradients, and time estimated from finished runs."""

from pathlib import Path

from rich.table import Table

from train.claims import papers as configs
from train.claims.claim import Claim, file_name
from train.claims.runs import SCALES, PlannedRun, RunRecord, Scale, num_commits
from train.config.datasets import DATASETS
from train.task import cluster as pace


def commits(run: PlannedRun) -> int:
    """Return the commits of a run without loading its data."""
    return num_commits(run.config, DATASETS[run.config.dataset].rows)


def gradients(run: PlannedRun) -> int:
    """Return the gradients of a run: its commits times the local steps per commit."""
    return round(commits(run) * pace.mean_period(run.config))


def speed(known: dict[PlannedRun, RunRecord], claim: Claim, scale: Scale, total: int, processes: int) -> float:
    """Return gradients per second, from finished runs or else from the claim's minutes on two cores."""
    if known:
        made = sum(map(gradients, known))
        return processes * made / sum(record["seconds"] for record in known.values())
    return total / (60 * claim.minutes[scale]) * processes / 2


def listed(results: Path) -> Table:
    """Return a table of all claims with the time of each scale and the scales that `results` holds."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("claim", "title", *SCALES, "results"):
        table.add_column(column, no_wrap=column != "title")
    for name in configs.CLAIMS:
        claim = configs.claim(name)
        costs = [duration(claim.minutes[scale]) if scale in claim.minutes else "" for scale in SCALES]
        done = [scale for scale in SCALES if (results / f"{file_name(name, scale)}.json").exists()]
        table.add_row(name, f"{claim.title} [dim]({claim.source})[/dim]", *costs, ", ".join(done) or "none")
    table.caption = "times on two CPU cores; scales with results in train/results"
    return table


def duration(minutes: float) -> str:
    """Return minutes in a readable unit.

    >>> [duration(minutes) for minutes in (25, 1_600, 9_800, 1_500_000)]
    ['25 min', '27 h', '7 days', '2.9 years']
    """
    for name, size, digits, least in (("years", 525_600, 1, 525_600), ("days", 1_440, 0, 2_880), ("h", 60, 0, 120)):
        if minutes >= least:
            return f"{minutes / size:.{digits}f} {name}"
    return f"{minutes:g} min"
