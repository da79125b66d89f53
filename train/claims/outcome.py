"""What comes of a claim: its file, its picture, and whether it held, in words."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from train.claims.claim import Claim, Statement, verdict
from train.claims.results import Measured
from train.claims.runs import Scale
from train.common.console import say
from train.common.files import write_picture


def summary(claim: Claim, measured: Measured, statements: Sequence[Statement]) -> dict[str, Any]:
    """What is committed of a claim: verdict, numbers, published numbers, and how they came about."""
    records = [record for _, record in measured.records]
    tuned = measured.where(lambda run: run.config.seed in claim.tuning).rows()
    return {
        "claim": claim.name,
        "title": claim.title,
        "source": claim.source,
        "scale": measured.scale,
        "setting": claim.setting.get(measured.scale, ""),
        "verdict": verdict(statements),
        "statements": [dataclasses.asdict(statement) for statement in statements],
        "results": measured.where(lambda run: run.config.seed not in claim.tuning).rows(),
        **({"tuning": tuned} if tuned else {}),
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
    counts = Counter(
        (run.series, run.point) for run, _ in measured.records if run.config.seed not in claim.tuning
    ).values()
    seeds = f"{max(counts)} seeds" if len(set(counts)) == 1 else f"up to {max(counts)} seeds"
    means = f"mean and 95 % interval of {seeds}" if max(counts) > 1 else "one seed"
    note = ", dashed: the paper, read off a figure" if claim.paper and claim.read_off and measured.full else ""
    datasets = ", ".join(dict.fromkeys(run.config.dataset for run, _ in measured.records))
    small = "" if measured.full else f"{measured.scale.upper()} SCALE, not the paper's setting; "
    own = claim.setting.get(measured.scale, "")
    figure.suptitle(f"{claim.title}\n{small}{own or datasets}, {means}{note}", fontsize="medium")
    write_picture(path, figure)


def tell(claim: Claim, scale: Scale, statements: Sequence[Statement], console: Console) -> None:
    """Says in words whether a claim held."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "statement", "measured", "paper"):
        table.add_column(column, overflow="fold")
    for statement in statements:
        table.add_row("held" if statement.held else "NOT HELD", statement.text, statement.measured, statement.paper)
    console.print(table)
    count = sum(statement.held for statement in statements)
    at = "" if scale == "full" else f", at {scale} scale, which is not the full setting"
    say(console, f"the claim {verdict(statements)}: {count} of {len(statements)} statements{at}")


def _distinct(values: Any) -> list:
    found: list = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
