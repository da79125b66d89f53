"""The table from which a reader chooses: per setting what to take, and how much sooner it is than synchronous training."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from train.common.statistics import Estimate
from train.sweep.benchmark.outcome import KEPT, LATE, Findings, times
from train.sweep.benchmark.settings import BASELINES, FIRST_ONLY, FREE, NAMES, TRANSFER, WORDS, Design, Entry, Setting

HEADER = ("workers", "data", "take", "times sooner than the best synchronous training")
LATER = (
    "workers",
    "data",
    f"take, to {100 * KEPT:g} %",
    "times sooner",
    f"take, to {100 * LATE:g} %",
    "times sooner",
    f"take, on average from {100 * KEPT:g} to {100 * LATE:g} %",
    "times sooner",
)
MOST = 3  # Methods that a row names.


class Choice(NamedTuple):
    """The advice for settings that differ in their task alone.

    Args:
      settings: these.
      data: their kind of data.
      fastest: the fastest asynchronous method that holds the target, and those that tie with it; may be empty.
      baseline: the kind of synchronous training that reaches the target first.
      gain: how much sooner the first of `fastest` reaches the target than `baseline` does; `None` without such a method.
    """

    settings: list[Setting]
    data: str
    fastest: list[str]
    baseline: str
    gain: Estimate | None

    @property
    def advice(self) -> str:
        """The asynchronous methods if they are sooner, else the baseline, and both if that is open."""
        methods = " or ".join(f"`{name}`" for name in self.fastest[:MOST])
        if self.gain is None or self.gain.high < 1:
            return NAMES[self.baseline]
        return methods if self.gain.low > 1 else f"{NAMES[self.baseline]} or {methods}"


def choices(design: Design, found: Findings) -> list[Choice]:
    """Return the choices of finished settings, images first, in which something holds the target."""
    made = []
    for narrow, data in enumerate(("images", "text")):
        for place in sorted({setting[1:] for setting in design.settings}, key=_order):
            settings = found.at(*place, narrow=bool(narrow))
            able = [name for name in BASELINES if all(Entry.at(one, name) in found.rows for one in settings)]
            if not settings or FIRST_ONLY not in able:
                continue
            logs = {name: np.mean([np.mean(np.log(one)) for one in found.times(settings, name)]) for name in able}
            # One that does not reach the target comes last: its time is that at which its runs ended.
            baseline = min(able, key=lambda name: (not found.arrives(settings, name), float(logs[name])))
            fastest = found.fastest(settings)
            gain = found.speed_up(settings, fastest[0], baseline) if fastest else None
            if fastest or found.holds(settings, baseline):
                made.append(Choice(settings, data, fastest, baseline, gain))
    return made


def table(design: Design, found: Findings) -> list[tuple[str, str, str, str]]:
    """Return the rows below `HEADER`."""
    return [(*_place(choice), choice.advice, _gain(found, choice)) for choice in choices(design, found)]


def later(design: Design, found: Findings) -> list[tuple[str, ...]]:
    """Return the rows below `LATER`, of the settings that are measured at the later target."""
    late = found.late()
    columns = [
        {(*choice.settings,): (choice.advice, _gain(at, choice)) for choice in choices(design, at)}
        for at in (late, found.late("mean time"))
    ]
    rows: list[tuple[str, ...]] = []
    for first in choices(design, found):
        if set(first.settings) <= {*late.settings}:
            cells = [column.get((*first.settings,), ("nothing holds it", "—")) for column in columns]
            rows.append((*_place(first), first.advice, _gain(found, first), *cells[0], *cells[1]))
    return rows


def _place(choice: Choice) -> tuple[str, str]:
    """Return the words for workers and data."""
    _, workers, cluster, network = choice.settings[0]
    return f"{workers} {WORDS[cluster]}" + ("" if network == FREE else f", {WORDS[network]}"), choice.data


def _gain(found: Findings, choice: Choice) -> str:
    """Return the gain of the first method, which is named if it is not the advice."""
    if choice.gain is None:
        return "—"
    gain = times(choice.gain, is_bound=not found.arrives(choice.settings, choice.baseline))
    return gain + (f" with `{choice.fastest[0]}`" if choice.advice == NAMES[choice.baseline] else "")


def _order(place: tuple[int, str, str]) -> tuple:
    workers, cluster, network = place
    return list(TRANSFER).index(network), workers, list(WORDS).index(cluster)
