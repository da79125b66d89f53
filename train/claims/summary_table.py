"""`python -m train results`: write the page of all checked claims from the files of `reproduce`."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from train.claims.claim import file_name
from train.common.errors import UsageError
from train.common.files import write_whole
from train.config.parsing import parse_flags

RESULTS = Path(__file__).parents[1] / "results"
PAGE = "README.md"  # In the folder of results.
HEADER = ("figure", "quantity", "paper", "ours", "ratio or difference", "verdict")
FINDINGS = ("question", "quantity", "paper", "ours")
MADE = ("claims", "setting and numbers", "runs", "cost", "machine", "commits", "dates")
INTRODUCTION = """# Published claims, checked

This page is written by `python -m train results` from the JSON files beside it. `python -m train reproduce CLAIM` makes such
a file; [train/measure.md](../measure.md#check-published-claims) describes that command.

A number is **reproduced** if its ratio to the published one is within the factor by which two means over seeds differ by
chance (95 % for all points of a row together, at most 2). **Reproduced in direction** means that the paper's conclusion follows
from our numbers too, which differ from the paper's. In the pictures the paper's curves are grey and ours in colour.
[Runs, costs and machines](#runs-costs-and-machines) are at the end."""
PARTS = {  # Heading and introduction of each part of the page.
    "paper's setting": (
        "The papers' settings",
        "GEM: Hermans & Louppe, [Gradient Energy Matching](https://arxiv.org/abs/1805.08469), 2018, on MNIST. Its published\n"
        "curves were read from the figures' vector graphics ([gem_curves.json](../claims/papers/gem_curves.json)).",
    ),
    "reduced setting": (
        "Reduced settings",
        "Smaller networks and data, because the papers' settings take days on CPUs. The papers' ratios are kept.",
    ),
    "own investigation": ("Own investigations", "Questions that the papers leave open; they have no verdict."),
}
# Commits that results name but the history lacks, by the commit that contains their work.
LANDED = {"023ae49": ("f83d059e41", "1e41995b2e", "734a8eac92", "bd1d874bf1", "e7777d116c", "4c43f49230")}


@dataclasses.dataclass(frozen=True)
class Results:
    """Write the page of all checked claims from the files of `reproduce`."""

    results: str = str(RESULTS)
    """Folder of the CLAIM.json files."""


def main(argv: Sequence[str]) -> int:
    """Write the page to the folder of results and return the exit status."""
    folder = Path(parse_flags(Results, argv, "python -m train results").results)
    results, path = load(folder), folder / PAGE
    if not results:
        raise UsageError(f"--results {folder} holds no CLAIM.json; give the folder that --out of reproduce named")
    write_whole(path, page(results))
    print(f"wrote {path} (claims: {len(results)})")
    return 0


def load(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results of all claims in `folder`, sorted by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if "claim" in result]


def page(results: Sequence[dict[str, Any]]) -> str:
    """Return the page: per part a table of all quantities and the pictures, and at the end the origin of the runs."""
    lines = [INTRODUCTION]
    for name, (heading, introduction) in PARTS.items():
        if own := [result for result in results if result["part"] == name]:
            header = FINDINGS if name == "own investigation" else HEADER
            rows = [row[: len(header)] for result in own for row in _rows(result)]
            lines += ["", f"## {heading}", *(["", introduction] if introduction else []), "", *_table(header, rows)]
            lines += [line for result in own for line in _section(result)]
    if missing := _missing(results):
        lines += ["", f"No result yet: {missing}. `python -m train reproduce --list` says what they cost."]
    lines += ["", "## Runs, costs and machines", "", "<details>", "<summary>All runs</summary>", ""]
    return "\n".join([*lines, *_made(results), "", "</details>"]) + "\n"


def _missing(results: Sequence[dict[str, Any]]) -> str:
    """Return the names of the claims without any result."""
    from train.claims import papers as configs

    done = {result["claim"] for result in results}
    return ", ".join(f"[`{name}`](../claims/papers/{name}.py)" for name in configs.CLAIMS if name not in done)


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of a claim, of which only the first one names its figure."""
    name = file_name(result["claim"], result["scale"])
    figure = f"[{result['source']}](#{name})"
    rows: list[tuple[str, ...]] = []
    for one in result["statements"]:
        verdict = f"**{one['verdict']}**" + (f" ({one['why']})" if one["why"] else "")
        rows.append(("" if rows else figure, one["text"], one["paper"], one["measured"], one["compared"], verdict))
    return rows


def _section(result: dict[str, Any]) -> list[str]:
    """Return the picture of a claim and its findings."""
    path = file_name(result["claim"], result["scale"])
    title = f"{result['title']} ({result['source']}){_setting(result)}."
    found = _found(result)
    return ["", f"### {path}", "", title, "", f"![{result['title']}]({path}.png)", *(["", *found] if found else [])]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _setting(result: dict[str, Any]) -> str:
    """Return the setting if it is not the published one."""
    words = result.get("setting") or ("" if result["scale"] == "full" else "a smaller setting")
    return f". Setting: {words}" if words else ""


def _found(result: dict[str, Any]) -> list[str]:
    """Return the findings at this scale from the claim's docstring."""
    from train.claims import papers as configs

    if result["claim"] not in configs.CLAIMS:
        return []
    scale = "" if result["scale"] == "full" else rf" \({result['scale']}\)"
    text = inspect.getdoc(configs.module(result["claim"])) or ""
    found = re.search(rf"^Found{scale}: (.+?)(?=\n\n|\nFound)", text, re.DOTALL | re.MULTILINE)
    return [found[1][0].upper() + found[1][1:]] if found else []


def _made(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table of settings, costs, machines, commits and dates, with a row per claim that has runs."""
    rows = []
    for result in (result for result in results if result["cost"]["runs"]):
        path, seeds, cost = file_name(result["claim"], result["scale"]), result["seeds"], result["cost"]
        machines = [
            f"{one['device']} ({one['cores']} cores, jax {one['jax']}, {cost['processes']} runs at a time)"
            for one in result["hardware"]
        ]
        commits = ", ".join(f"`{commit}`" for commit in result["git_commits"] if commit) or "not known"
        rows.append((
            f"`{path}`",
            f"[setting](../claims/papers/{result['claim']}.py), [numbers]({path}.json)",
            f"{cost['runs']}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
            f"{cost['commits']:,} commits, {cost['run_minutes'] / cost['processes']:.0f} min",
            "; ".join(machines), commits, ", ".join(result["dates"]),
        ))  # fmt: skip
    lines = _table(MADE, rows)
    named = {commit for result in results for commit in result["git_commits"]}
    for landed, states in LANDED.items():
        if missing := [f"`{commit}`" for commit in states if commit in named]:
            lines += ["", f"The history does not have {', '.join(missing)}: their work landed as `{landed}`."]
    return lines
