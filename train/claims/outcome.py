"""The result of a claim: its file, its picture and its verdict in words."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from train.claims.claim import Claim, Statement, part, tally
from train.claims.results import Measured
from train.claims.runs import Scale
from train.common.console import say
from train.common.files import write_picture


def summary(claim: Claim, measured: Measured, statements: Sequence[Statement]) -> dict[str, Any]:
    """Return the committed result of a claim: verdict, measured and published numbers, cost and origin."""
    records = [record for _, record in measured.records]
    tuned = measured.where(lambda run: run.config.seed in claim.tuning).rows()
    return {
        "claim": claim.name,
        "title": claim.title,
        "source": claim.source,
        "scale": measured.scale,
        "setting": claim.setting.get(measured.scale, ""),
        "part": part(claim, measured.scale),
        "verdict": tally(statements),
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
            "processes": max((record["processes"] for record in records), default=0),
        },
        "seeds": sorted({run.config.seed for run, _ in measured.records}),
        "hardware": _distinct(record["hardware"] for record in records),
        "git_commits": _distinct(record["git_commit"] for record in records),
        "dates": _distinct(record["date"] for record in records),
    }


def draw(claim: Claim, measured: Measured, path: Path, *, titled: bool = True) -> None:
    """Draw a claim to `path`: its title, its verdict and the setting, unless `titled` is False, and the picture."""
    from gemjax.telemetry.style import heading, label_ends, picture, style
    from train.claims import plots  # Here, so that claims are listed and judged without drawing.

    counts = Counter((run.series, run.point) for run, _ in measured.records if run.config.seed not in claim.tuning)
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    means = (
        ("", "one seed")[most]
        if most < 2
        else f"mean and range of {most if least == most else f'{least} to {most}'} seeds"
    )
    datasets = ", ".join(dict.fromkeys(run.config.dataset.replace("mnist", "MNIST") for run, _ in measured.records))
    setting = claim.setting.get(
        measured.scale, datasets if measured.full else f"{datasets} in place of the paper's setting"
    )
    statements = claim.judge(measured)
    verdict, setting = tally(statements), setting[:1].upper() + setting[1:]
    title = claim.title if claim.own or all(one.held for one in statements) else f"Claimed: “{claim.title}”"
    with style():
        figure = picture(columns=2, height=claim.height)
        grey = "grey: the paper" if claim.paper and measured.full else ""
        subtitle = ". ".join(filter(None, (verdict.capitalize(), ", ".join(filter(None, (setting, means, grey))))))
        if titled:
            heading(figure, title, subtitle)
        for axes in claim.draw(figure, measured, plots):
            label_ends(axes)
        write_picture(path, figure)


def tell(claim: Claim, scale: Scale, statements: Sequence[Statement], console: Console) -> None:
    """Print the statements of a claim and its verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("quantity", "paper", "ours", "ratio or difference", "verdict"):
        table.add_column(column, overflow="fold")
    for one in statements:
        verdict = f"{one.verdict} ({one.why})" if one.why else str(one.verdict)
        table.add_row(one.text, one.paper, one.measured, one.compared, verdict)
    console.print(table)
    at = "" if scale == "full" else f", at {scale} scale, which is not the paper's setting"
    say(console, f"{tally(statements) or 'no verdict: an investigation'}{at}")


def _distinct(values: Any) -> list:
    found: list = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
