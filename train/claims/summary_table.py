"""`python -m train results`: writes the page of all checked claims from the files that `reproduce` wrote."""

import argparse
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from train.claims import gain
from train.claims.claim import file_name
from train.common.files import write_whole

RESULTS = Path(__file__).parents[1] / "results"
PAGE = "README.md"  # In the folder of results.
HEADER = ("claim", "verdict", "statements held", "runs", "cost")
STATEMENTS = ("", "statement", "measured", "paper")
MADE = ("claims", "machine", "commits", "dates")
INTRODUCTION = """# Published claims, checked

This page is written by `python -m train results` from the JSON files beside it. `python -m train reproduce CLAIM` makes such
a file; [train/README.md](../README.md#check-published-claims) describes that command.

A claim is a list of statements that runs decide. A claim **held** if all of its statements held. The costs are those of all
runs of a claim together."""
# Commits that results name and the history lacks, by the commit that holds their work.
LANDED = {"023ae49": ("f83d059e41", "1e41995b2e", "734a8eac92", "bd1d874bf1", "e7777d116c", "4c43f49230")}


def main(argv: Sequence[str]) -> int:
    """Writes the page and README's picture of the gain into the folder of results; returns the exit status."""
    folder = parse(argv)
    results = load(folder)
    write_whole(folder / PAGE, page(results))
    print(f"wrote {folder / PAGE} (claims: {len(results)})")
    if any(result["claim"] == gain.CLAIM for result in results):
        print(f"wrote {gain.draw_gain(folder)}")
    return 0


def parse(argv: Sequence[str]) -> Path:
    """The folder of results that `argv` names."""
    parser = argparse.ArgumentParser(prog="python -m train results", description=__doc__)
    parser.add_argument("--results", metavar="FOLDER", default=str(RESULTS), help="folder of the CLAIM.json files")
    return Path(parser.parse_args(argv).results)


def load(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results of all claims in `folder`, by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if "claim" in result]


def page(results: Sequence[dict[str, Any]]) -> str:
    """The page: a table of all claims, how they were made, and a section per claim."""
    if not results:
        return f"{INTRODUCTION}\n\nNo claim has been run yet.\n"
    lines = [INTRODUCTION, "", *_table(HEADER, map(_row, results)), "", *_made(results)]
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
            f"[{result['claim']}.py](../claims/papers/{result['claim']}.py); all numbers: [{path}.json]({path}.json).",
            *("", f"![{result['title']}]({path}.png)"),
        ]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    held, name = sum(one["held"] for one in result["statements"]), file_name(result["claim"], result["scale"])
    return (
        f"[{result['title']}](#{name}) ({result['source']}; `{result['claim']}`){_setting(result)}",
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
    from train.claims import papers as configs

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


def _made(results: Sequence[dict[str, Any]]) -> list[str]:
    """A table of machines, commits and dates; claims that share them share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        machines = [
            f"{one['device']} ({one['cores']} cores, jax {one['jax']}, {result['cost']['processes']} runs at a time)"
            for one in result["hardware"]
        ]
        commits = ", ".join(f"`{commit}`" for commit in result["git_commits"] if commit) or "not known"
        made = ("; ".join(machines), commits, ", ".join(result["dates"]))
        rows.setdefault(made, []).append(f"`{result['claim']}`")
    lines = _table(MADE, [(", ".join(names), *made) for made, names in rows.items()])
    named = {commit for result in results for commit in result["git_commits"]}
    for landed, states in LANDED.items():
        if missing := [f"`{commit}`" for commit in states if commit in named]:
            lines += ["", f"The history does not have {', '.join(missing)}: their work landed as `{landed}`."]
    return lines
