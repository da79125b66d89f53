"""`python -m train results`: README's table of claims, and a page of all their statements, from what `reproduce` wrote."""

import argparse
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from train.claim import file_name
from train.files import write_whole

RESULTS = Path(__file__).parent / "results"
BEGIN = "<!-- results: made by `python -m train results --write README.md` -->"
END = "<!-- end of results -->"
PAGE = "README.md"  # In the folder of results.
HEADER = ("claim", "verdict", "statements held", "runs", "cost")
STATEMENTS = ("", "statement", "measured", "paper")


def main(argv: Sequence[str]) -> int:
    """Prints the table, or writes it into a file and the page beside the results; returns the exit status."""
    from train import cli

    parser = argparse.ArgumentParser(prog="python -m train results", description=__doc__)
    parser.add_argument(
        "--write", metavar="FILE", help="Markdown file whose table, between two marks, is made anew, as is the page"
    )
    parser.add_argument("--results", metavar="FOLDER", default=str(RESULTS), help="where CLAIM.json files are")
    asked = parser.parse_args(argv)
    results = load(Path(asked.results))
    table = markdown(results)
    if asked.write is None:
        print(table)
        return 0
    path = Path(asked.write)
    try:
        write_whole(path, replaced(path.read_text(encoding="utf-8"), table))
    except ValueError as error:
        raise cli.UsageError(f"{path}: {error}") from error
    write_whole(Path(asked.results) / PAGE, page(results))
    return 0


def load(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results of all claims in `folder`, by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if "claim" in result]


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table, and below it on what and from which commits it was made."""
    if not results:
        return "No claim has been run at full scale yet."
    return "\n".join([*_table(HEADER, map(_row, results)), "", *_notes(results)])


def page(results: Sequence[dict[str, Any]]) -> str:
    """All claims with their statements and pictures."""
    lines = ["# Published claims, checked", "", "Made by `python -m train results --write README.md`."]
    for result in results:
        path = file_name(result["claim"], result["scale"])
        rows = [
            ("held" if one["held"] else "**not held**", one["text"], one["measured"], one["paper"])
            for one in result["statements"]
        ]
        lines += [
            *("", f"## {path}", ""),
            f"{result['title']} ({result['source']}){_setting(result)}: **{result['verdict']}**.",
            *("", *_table(STATEMENTS, rows), ""),
            *_found(result),
            f"{_cost(result)}; {_runs(result)}. Setting and deviations:",
            f"[{result['claim']}.py](../configs/{result['claim']}.py); all numbers: [{path}.json]({path}.json).",
            *("", f"![{result['title']}]({path}.png)"),
        ]
    return "\n".join([*lines, "", *_notes(results)]) + "\n"


def replaced(text: str, table: str) -> str:
    """`text` with `table` between the two marks.

    Raises:
      ValueError: if the marks are not there, once and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"expected the line {BEGIN} and below it {END}, each once")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    held, name = sum(one["held"] for one in result["statements"]), file_name(result["claim"], result["scale"])
    return (
        f"[{result['title']}](train/results/README.md#{name}) ({result['source']}; `{result['claim']}`){_setting(result)}",
        f"**{result['verdict']}**",
        f"{held} of {len(result['statements'])}",
        _runs(result),
        _cost(result),
    )


def _setting(result: dict[str, Any]) -> str:
    """What was run, if that is not the published setting."""
    full = result["scale"] == "full"
    words = result.get("setting") or ("" if full else "a smaller setting")
    return f". **{'' if full else 'Not the full setting: '}{words}**" if words else ""


def _found(result: dict[str, Any]) -> list[str]:
    """What the claim's docstring says was found at this scale."""
    from train import configs

    if result["claim"] not in configs.CLAIMS:
        return []
    scale = "" if result["scale"] == "full" else rf" \({result['scale']}\)"
    text = inspect.getdoc(configs.module(result["claim"])) or ""
    found = re.search(rf"^Found{scale}: .+?(?=\n\n|\nFound)", text, re.DOTALL | re.MULTILINE)
    return [*found[0].splitlines(), ""] if found else []


def _runs(result: dict[str, Any]) -> str:
    seeds = result["seeds"]
    return f"{result['cost']['runs']} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _cost(result: dict[str, Any]) -> str:
    minutes = result["cost"]["run_minutes"] / result["cost"]["processes"]
    return f"{result['cost']['commits']:,} commits, {minutes:.0f} min"


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
