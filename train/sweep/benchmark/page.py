"""The page and the picture of the benchmark, made from its file alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from train.sweep.benchmark.outcome import Findings, points
from train.sweep.benchmark.settings import (
    FAST,
    FIRST,
    FIRST_ONLY,
    LOCAL,
    ONE,
    REFERENCES,
    SEARCH_SPACES,
    SYNCHRONOUS,
    WORDS,
    Design,
    Entry,
    Setting,
    networked,
    title,
)

TITLE = "# Which asynchronous method?"
NAMES = {SYNCHRONOUS: "synchronous SGD", FIRST_ONLY: "m-synchronous SGD", LOCAL: "local SGD", ONE: "one worker"}
BASELINES = (SYNCHRONOUS, FIRST_ONLY, LOCAL)
PLAIN = "asgd"
TIES = 5  # Methods that a row of the overview names.
SHOWN = 8  # Methods that are most often near the fastest one.
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
    """Return the page in Markdown."""
    found = Findings(content)
    lines = [TITLE, "", *_fastest(design, found), ""]
    every, shares = found.profile([NEAR])
    if shares:
        text = "Share of settings in which a method reaches the target within a factor of the fastest"
        counts = {name: round(share[0] * len(every)) for name, share in shares.items() if share[0]}
        rows = [(f"`{name}`", str(counts[name])) for name in sorted(counts, key=lambda name: -counts[name])[:SHOWN]]
        lines += _lines((f"within {NEAR:g} times of the fastest method", f"settings, of {len(every)}"), rows)
        lines += ["", f"![{text}]({design.name}.png)", ""]
    for setting in dict.fromkeys((*(one for one in design.settings if one in found.settings), *found.settings)):
        lines += _table(design, found, setting)
    return "\n".join([*lines, *_setup(design, found, command)]) + "\n"


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _fastest(design: Design, found: Findings) -> list[str]:
    """Return the table of the fastest methods: settings with as many workers together, then each setting."""
    rows = []
    for _, *place_alike in dict.fromkeys(("", *setting[1:]) for setting in design.settings):
        if len(alike := found.at(*place_alike)) > 1:
            tasks = " and ".join(title(setting[0]) for setting in alike)
            place = f"**{_workers(alike[0])}: {tasks}**"
            rows.append([place, str(len(found.methods(alike))), *_overview(found, alike)])
    for setting in (setting for setting in design.settings if setting in found.settings):
        own = [Entry.at(setting, name) for name in design.methods_of(setting)]
        have, core = sum(entry in found.rows for entry in own), sum(map(design.is_core, own))
        rows.append([_place(setting), f"{have}" if have >= core else f"{have} of {core}", *_overview(found, [setting])])
    return _lines(OVERVIEW, rows) if rows else []


def _overview(found: Findings, settings: list[Setting]) -> list[str]:
    """Return the cells of `OVERVIEW` on the fastest method of some settings with as many workers."""
    if not (fastest := found.fastest(settings)):
        return ["none reaches and holds the target with every seed", *["—"] * (len(OVERVIEW) - 3)]
    first, more = fastest[0], len(fastest) - TIES
    ties = ", ".join(f"`{name}`" for name in fastest[:TIES]) + (f" and {more} more" if more > 0 else "")
    has = lambda name: all(Entry.at(setting, name) in found.rows for setting in settings)
    ratios = [_ratio(found, settings, first, other) if has(other) else "—" for other in BASELINES]
    plain = _ratio(found, settings, first, PLAIN) if has(PLAIN) and found.holds(settings, PLAIN) else "—"
    return [ties, *ratios, plain, points(found.relative_accuracy(settings, first))]


def _workers(setting: Setting) -> str:
    return f"{setting[1]} {WORDS[setting[2]]} workers{networked(setting)}"


def _place(setting: Setting) -> str:
    return f"{title(setting[0])}, {_workers(setting)}"


def _table(design: Design, found: Findings, setting: Setting) -> list[str]:
    """Return the table of a setting, the fastest method first."""
    here, fastest, accurate = [setting], found.fastest([setting]), found.most_accurate([setting])
    references = [name for name in BASELINES if Entry.at(setting, name) in found.rows]
    names = [name for name in SEARCH_SPACES if name not in REFERENCES and Entry.at(setting, name) in found.rows]
    order = lambda name: (
        name not in REFERENCES and not found.holds(here, name),
        float(np.mean(np.log(found.times(here, name)[0]))),
    )
    one = found.rows[Entry(setting[0], 1, "homogeneous", ONE)]
    target = 100 * one["target"]
    lines = [
        f"## {(place := _place(setting))[0].upper()}{place[1:]}",
        "",
        f"One worker ends at {100 * np.mean(one['accuracy']):.1f} % accuracy; the target is {target:.1f} %.",
        "",
    ]
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
            count, ratios = f"{gradients:,.0f}", [_ratio(found, here, name, other) for other in references]
        rows.append([label, tuned, kept, count, *ratios])
    return [*lines, *_lines((*header, *(f"sooner than {NAMES[name]}, times" for name in references)), rows), ""]


def _ratio(found: Findings, settings: list[Setting], name: str, reference: str) -> str:
    if name == reference:
        return "1"
    value = found.speed_up(settings, name, reference)
    least = "" if found.arrives(settings, reference) else "≥ "
    return f"{least}{value.mean:.2f} ({value.low:.2f} to {value.high:.2f})"


def _setup(design: Design, found: Findings, command: str) -> list[str]:
    """Return the table of what the numbers were made with; `train/README.md` defines the terms."""
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
        rows.append((everywhere, f"at least {len((*FIRST, *FAST))}: the best known, and the fastest there"))
    rows += [
        ("target, of the final accuracy of one worker", f"{content['definition']['kept']:g}"),
        (
            "pairs of a method and a setting, measured so far",
            f"{sum(map(found.rows.__contains__, core))} of {len(core)}",
        ),
        ("runs so far", f"{cost['runs']:,}"),
        ("process minutes so far", f"{cost['minutes']:,}"),
        ("machines", ", ".join(content["hardware"]) or "none yet"),
        ("command that makes or continues this page", f"`{command}`"),
    ]
    defined = "The section *Benchmark* of `train/README.md` defines tuning, targets, times and intervals."
    return ["## How it is measured", "", defined, "", *_lines(("quantity", "value"), rows)]


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
