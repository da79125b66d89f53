"""What the runs of claims cost: commits, gradients, and time by what was measured so far."""

from pathlib import Path

from rich.table import Table

from train.claims import papers as configs
from train.claims.claim import Claim, file_name
from train.claims.runs import SCALES, Record, Run, Scale, num_commits
from train.common.errors import UsageError
from train.task import cluster as pace

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
SPEED = 250.0  # Gradients a second, to estimate with where nothing has been measured.


def commits(run: Run) -> int:
    """Commits of a run, without its data."""
    rows = ROWS.get(run.config.dataset)
    if rows is None:
        raise UsageError(f"how many training rows {run.config.dataset} has is not known; add it to ROWS")
    return num_commits(run.config, rows)


def gradients(run: Run) -> int:
    """What a run costs: its commits, each of so many local steps."""
    return round(commits(run) * pace.mean_period(run.config))


def speed(known: dict[Run, Record], claim: Claim, scale: Scale, total: int, processes: int) -> float:
    """Gradients a second, by the runs that are done, else by what the claim's author measured on two cores."""
    if known:
        made = sum(map(gradients, known))
        return processes * made / sum(record["seconds"] for record in known.values())
    minutes = claim.minutes.get(scale)
    return total / (60 * minutes) * processes / 2 if minutes else SPEED * processes


def listed(results: Path) -> Table:
    """All claims with what each scale takes, and where in `results` there is one."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("claim", "what", *SCALES, "results"):
        table.add_column(column, no_wrap=column != "what")
    for name in configs.CLAIMS:
        claim = configs.claim(name)
        costs = [duration(claim.minutes[scale]) if scale in claim.minutes else "" for scale in SCALES]
        done = [scale for scale in SCALES if (results / f"{file_name(name, scale)}.json").exists()]
        table.add_row(name, f"{claim.title} [dim]({claim.source})[/dim]", *costs, ", ".join(done) or "none")
    table.caption = "what each scale takes on two CPU cores; scales whose results are in train/results"
    return table


def duration(minutes: float) -> str:
    """Minutes in the unit that people would choose.

    >>> [duration(minutes) for minutes in (25, 1_600, 9_800, 1_500_000)]
    ['25 min', '27 h', '7 days', '2.9 years']
    """
    for name, size, digits, least in (("years", 525_600, 1, 525_600), ("days", 1_440, 0, 2_880), ("h", 60, 0, 120)):
        if minutes >= least:
            return f"{minutes / size:.{digits}f} {name}"
    return f"{minutes:g} min"
