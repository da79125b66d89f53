"""`python -m train results`: README's table of claims, made from what `reproduce --scale full` has written."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.files import write_whole

RESULTS = Path(__file__).parent / "results"
BEGIN = "<!-- results: made by `python -m train results --write README.md` -->"
END = "<!-- end of results -->"
HEADER = ("claim", "verdict", "held", "not held", "runs", "cost")


def main(argv: Sequence[str]) -> int:
    """Prints the table, or writes it into a file; returns the exit status."""
    from train import cli

    parser = argparse.ArgumentParser(prog="python -m train results", description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="Markdown file whose table, between two marks, is made anew")
    parser.add_argument("--results", metavar="FOLDER", default=str(RESULTS), help="where CLAIM.json files are")
    asked = parser.parse_args(argv)
    table = markdown(load(Path(asked.results)))
    if asked.write is None:
        print(table)
        return 0
    path = Path(asked.write)
    try:
        write_whole(path, replaced(path.read_text(encoding="utf-8"), table))
    except ValueError as error:
        raise cli.UsageError(f"{path}: {error}") from error
    return 0


def load(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results of all claims in `folder`, by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if "claim" in result]


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table, and below it on what and from which commits it was made."""
    if not results:
        return "No claim has been run at full scale yet."
    rows = [HEADER, ("---",) * len(HEADER), *map(_row, results)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *_notes(results)])


def replaced(text: str, table: str) -> str:
    """`text` with `table` between the two marks.

    Raises:
      ValueError: if the marks are not there, once and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"expected the line {BEGIN} and below it {END}, each once")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    cost, name = result["cost"], result["claim"]
    held, failed = (
        "<br>".join(_sentence(one) for one in result["statements"] if one["held"] is kind) or "–"
        for kind in (True, False)
    )
    minutes = cost["run_minutes"] / cost["processes"]
    scale = result["scale"]
    suffix = "" if scale == "full" else f"-{scale}"
    words = result.get("setting") or ("" if scale == "full" else "a smaller setting")
    setting = "" if not words else f". **{'' if scale == 'full' else 'Not the published setting: '}{words}**"
    return (
        f"[{result['title']}](train/results/{name}{suffix}.png) ({result['source']}; `{name}`){setting}",
        f"**{result['verdict']}**",
        held,
        failed,
        f"{cost['runs']}, seeds {', '.join(map(str, result['seeds']))}",
        f"{cost['commits']:,} commits, {minutes:.0f} min",
    )


def _sentence(statement: dict[str, Any]) -> str:
    paper = f" (paper: {statement['paper']})" if statement["paper"] else ""
    text = f"{statement['text']}: {statement['measured']}{paper}"
    return text.replace("|", "\\|")


def _notes(results: Sequence[dict[str, Any]]) -> list[str]:
    """On what the results were made, claims with the same in one line."""
    notes: dict[str, list[str]] = {}
    for result in results:
        machines = [
            f"{one['device']} ({one['cores']} cores, jax {one['jax']}, {result['cost']['processes']} runs at a time)"
            for one in result["hardware"]
        ]
        commits = ", ".join(f"`{commit}`" for commit in result["git_commits"] if commit) or "no known commit"
        notes.setdefault(f"{'; '.join(machines)}, commit {commits}, {', '.join(result['dates'])}", []).append(
            f"`{result['claim']}`"
        )
    return [f"Made on {note}: {', '.join(names)}.  " for note, names in notes.items()]
