"""The page and the picture of the benchmark, made from its file alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from train.sweep.benchmark import choice
from train.sweep.benchmark.outcome import BETWEEN, KEPT, LATE, Findings, points, times
from train.sweep.benchmark.settings import (
    BASELINES,
    FAST,
    FIRST,
    NAMES,
    ONE,
    RACK,
    REFERENCES,
    SEARCH_SPACES,
    SLOW,
    TRANSFER,
    WORDS,
    Design,
    Entry,
    Setting,
    networked,
    title,
)  # fmt: skip

TITLE = "# Which asynchronous method?"
SIMULATED = (
    f"Every time is simulated: the virtual time to {100 * KEPT:g} % of the accuracy at which one worker ends, on the small "
    "tasks named below."
)
READING = (
    "A row lists the fastest asynchronous methods, the fastest first; those joined by *or* tie. It begins with synchronous "
    "training if the interval of the gain includes 1, and names that alone if it is sooner. The gain compares the first "
    "asynchronous method with the best of synchronous SGD, m-synchronous SGD (rounds of the first m workers) and local SGD "
    "(rounds of several steps), each tuned. Its interval is that of 95 % over seeds. A dash: no asynchronous method holds the "
    "target in all tasks of the row.",
    "",
    f"In a rack a view and a gradient together take {TRANSFER[RACK]:g} times as long as a gradient, and on a slow network "
    f"{TRANSFER[SLOW]:g} times; elsewhere they take no time, which favours methods that send every gradient. A row on images "
    "is the geometric mean over all tasks with images that are measured there; the tables of the tasks may differ. A setting "
    "has a row if all kinds of synchronous training are measured there, and if any method holds the target with every seed.",
)
LATER = (
    f"The same runs, to {100 * LATE:g} % of the accuracy at which one worker ends, and the mean time to {BETWEEN} targets from "
    f"{100 * KEPT:g} to {100 * LATE:g} %. Gains are over the best synchronous training, as above. A row "
    "appears when every method that could hold the later target is measured there in all its tasks."
)
PLAIN = "asgd"
TIES = 5  # Methods that a row of the overview names.
SHOWN = 6  # Methods that are most often near the fastest one.
NEAR = 1.25  # Times of the fastest method.
OVERVIEW = (
    "setting",
    "methods",
    "fastest asynchronous method, with ties",
    *(f"sooner than {NAMES[name]}, times" for name in BASELINES),
    f"sooner than `{PLAIN}`, times",
    "accuracy relative to one worker, points",
)


def written(design: Design, content: Mapping[str, Any], command: str) -> str:
    """Return the page in Markdown: what to take, how that was measured, and the tables of each task."""
    found = Findings(content)
    lines = [f"{TITLE} (quick form)" if design.name.endswith("quick") else TITLE, "", SIMULATED, ""]
    if chosen := choice.table(design, found):
        lines += [*_lines(choice.HEADER, chosen), "", *READING, ""]
    if later := choice.later(design, found):
        lines += ["## A later target", "", LATER, "", *_lines(choice.LATER, later), ""]
    lines += [*_setup(design, found, command), *_profile(design, found)]
    for task in design.tasks:
        settings = [one for one in design.settings if one[0] == task and one in found.settings]
        if settings:
            one = found.rows[Entry(task, 1, "homogeneous", ONE)]
            target = f"the target is {100 * one['target']:.1f} %."
            lines += [f"## {title(task)[0].upper()}{title(task)[1:]}", ""]
            lines += [f"One worker ends at {100 * np.mean(one['accuracy']):.1f} % accuracy; {target}", ""]
            lines += [*_lines(OVERVIEW, [_overview(design, found, setting) for setting in settings]), ""]
        for setting in settings:
            lines += _table(found, setting)
    return "\n".join(lines).rstrip() + "\n"


def _profile(design: Design, found: Findings) -> list[str]:
    """Return how often each method is nearly the fastest, with the picture."""
    every, shares = found.profile([NEAR])
    if not shares:
        return []
    counts = {name: round(share[0] * len(every)) for name, share in shares.items() if share[0]}
    rows = [(f"`{name}`", str(counts[name])) for name in sorted(counts, key=lambda name: -counts[name])[:SHOWN]]
    text = "Share of settings in which a method reaches the target within a factor of the fastest"
    return [
        "## How often each method is nearly the fastest",
        "",
        *_lines((f"within {NEAR:g} times of the fastest method", f"settings, of {len(every)}"), rows),
        "",
        f"![{text}]({design.name}.png)",
        "",
    ]


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _overview(design: Design, found: Findings, setting: Setting) -> list[str]:
    """Return the cells of `OVERVIEW` on the fastest method of a setting."""
    own = [Entry.at(setting, name) for name in design.methods_of(setting)]
    have, core = sum(entry in found.rows for entry in own), sum(map(design.is_core, own))
    begin = [_workers(setting), f"{have}" if have >= core else f"{have} of {core}"]
    if not (fastest := found.fastest([setting])):
        return [*begin, "none reaches and holds the target with every seed", *["—"] * (len(OVERVIEW) - 3)]
    first, more = fastest[0], len(fastest) - TIES
    ties = ", ".join(f"`{name}`" for name in fastest[:TIES]) + (f" and {more} more" if more > 0 else "")
    has = lambda name: Entry.at(setting, name) in found.rows
    ratios = [_ratio(found, setting, first, other) if has(other) else "—" for other in BASELINES]
    plain = _ratio(found, setting, first, PLAIN) if has(PLAIN) and found.holds([setting], PLAIN) else "—"
    return [*begin, ties, *ratios, plain, points(found.relative_accuracy([setting], first))]


def _workers(setting: Setting) -> str:
    return f"{setting[1]} {WORDS[setting[2]]} workers{networked(setting)}"


def _table(found: Findings, setting: Setting) -> list[str]:
    """Return the table of a setting, the fastest method first."""
    here, fastest, accurate = [setting], found.fastest([setting]), found.most_accurate([setting])
    references = [name for name in BASELINES if Entry.at(setting, name) in found.rows]
    names = [name for name in SEARCH_SPACES if name not in REFERENCES and Entry.at(setting, name) in found.rows]
    order = lambda name: (
        name not in REFERENCES and not found.holds(here, name),
        float(np.mean(np.log(found.times(here, name)[0]))),
    )
    lines = [f"### {title(setting[0])}, {_workers(setting)}", ""]
    header = ("method", "tuned numbers", "accuracy relative to one worker, points", "gradients to the target")
    rows = []
    for name in [*references, *sorted(names, key=order)]:
        row = found.rows[Entry.at(setting, name)]
        tuned = ", ".join(f"{field.replace('_', ' ')} {value:.3g}" for field, value in row["numbers"].items())
        label = NAMES[name] if name in REFERENCES else f"**`{name}`**" if name in fastest else f"`{name}`"
        kept = points(found.relative_accuracy(here, name))
        kept = f"**{kept}**" if name in accurate else kept
        gradients, seeds = found.gradients(setting, name), len(row["time"])
        if gradients is None or (name not in REFERENCES and (lost := found.lost(setting, name))):
            count = f"reached with {found.reached(setting, name)} of {seeds} seeds" if gradients is None else ""
            count = count or f"reached at {gradients:,.0f}, lost again with {lost} of {seeds} seeds"
            ratios = ["—"] * len(references)
        else:
            count, ratios = f"{gradients:,.0f}", [_ratio(found, setting, name, other) for other in references]
        rows.append([label, tuned, kept, count, *ratios])
    return [*lines, *_lines((*header, *(f"sooner than {NAMES[name]}, times" for name in references)), rows), ""]


def _ratio(found: Findings, setting: Setting, name: str, reference: str) -> str:
    if name == reference:
        return "1"
    return times(found.speed_up([setting], name, reference), is_bound=not found.arrives([setting], reference))


def _setup(design: Design, found: Findings, command: str) -> list[str]:
    """Return the table of what the numbers were made with; `train/measure.md` defines the terms."""
    content, (_, workers, cluster, _) = found.content, design.settings[0]
    cost, core = content["cost"], [entry for entry in design.entries() if design.is_core(entry)]
    rows = [(f"task *{title(name)}*", about) for name, about in design.titles.items()]
    rows += [
        ("gradients per run, of all workers together", f"{design.gradients:,}"),
        ("share of a run in which its rate rises", f"{100 * design.warm_up:g} %"),
        ("gradients that tune a method in a setting", f"{design.budget:,}"),
        *((f"candidates with {share:g} of a run each", str(count)) for count, share in design.rungs),
        ("seeds reported, none of which served tuning", str(len(design.seeds))),
        *((f"methods on *{title(task)}*", str(len(names))) for task, names in design.narrow.items()),
    ]
    if not all(map(design.is_core, design.entries())):
        everywhere = f"methods measured elsewhere than with {workers} {WORDS[cluster]} workers"
        known = len({*FIRST, *FAST} & {*design.methods})
        rows.append((everywhere, f"at least {known}: the best known, and the fastest there"))
    rows += [
        ("target, of the final accuracy of one worker", f"{content['definition']['kept']:g}"),
        (
            "pairs of a method and a setting that belong to it, measured so far",
            f"{sum(map(found.rows.__contains__, core))} of {len(core)}",
        ),
        ("runs so far", f"{cost['runs']:,}"),
        ("process minutes so far", f"{cost['minutes']:,}"),
        ("machines", ", ".join(content["hardware"]) or "none yet"),
        ("command that makes or continues this page", f"`{command}`"),
    ]
    defined = "The section *Benchmark* of `train/measure.md` defines tuning, targets, times and intervals."
    return ["## How it is measured", "", defined, "", *_lines(("quantity", "value"), rows), ""]


def draw(figure: Any, content: Mapping[str, Any]) -> None:
    """Draw the profile of every method into an empty figure, the best ones in colour."""
    from gemjax.telemetry import style

    found, factors = Findings(content), np.geomspace(1, 8, 200)
    settings, shares = found.profile(factors.tolist())
    area = {name: float(np.mean(values)) for name, values in shares.items()}
    order = sorted(area, key=lambda name: -area[name])
    axes = figure.subplots()
    for name in reversed(order):
        shown = name in order[:SHOWN]
        looks = style.look(name, marker="") if shown else {"color": "0.85", "lw": 0.8, "zorder": 0}
        axes.plot(factors, 100 * np.array(shares[name]), drawstyle="steps-post", label=name if shown else None, **looks)
    style.ticks_at(axes, [1, 1.5, 2, 3, 4, 6, 8], log=True)
    axes.set(
        xlabel="time to the target, times that of the fastest method", ylabel="share of settings, %", ylim=(-2, 102)
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5))
    style.heading(
        figure,
        "How often each method is nearly the fastest",
        f"{len(settings)} settings, the {min(SHOWN, len(order))} best of {len(order)} methods named",
    )
