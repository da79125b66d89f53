"""Results of the benchmark: the rows of its file, made from the records of runs, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from train.claims.runs import PlannedRun, RunRecord
from train.common.statistics import Estimate, Seeds, crossing, estimate, leaders, profile, ratio
from train.sweep.benchmark.settings import (
    BASELINES,
    FIRST,
    FREE,
    LOCAL,
    NETWORKED,
    ONE,
    REFERENCES,
    SEARCH_SPACES,
    SYNCHRONOUS,
    Design,
    Entry,
    Setting,
    rounded,
)
from train.task.cluster import mean_period

KEPT = 0.9  # The target, as a share of one worker's accuracy.
LATE = 0.98  # A later target of the same runs.
BETWEEN = 9  # Targets from the first to the later one, both among them, over which times are averaged.
SLACK = 0.01  # Accuracy that a run may lose after the target: it is reached on 2,000 rows, and kept on all.
Row = dict[str, Any]


def document(
    design: Design, known: Mapping[PlannedRun, RunRecord], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of the benchmark's file: a row per finished entry.

    Args:
      design: the scale.
      known: records of runs.
      before: an earlier content of the file, whose rows are kept where `known` has none. Targets stay while a row is kept.
    """
    defined, old = definition(design), earlier(design, before)
    rows, hardware = {}, set(before["hardware"] if before and old else ())
    found = {entry: design.next_runs(entry, known) for entry in design.entries()}
    kept = [entry for entry, (runs, numbers) in found.items() if not numbers or any(run not in known for run in runs)]
    targets = {entry.task: old[entry]["target"] for entry in kept if entry in old}
    for entry, (runs, numbers) in found.items():
        if entry in kept:
            row = old.get(entry)
        else:
            records = [known[run] for run in runs]
            if entry.method == ONE:
                mean = KEPT * float(np.mean([_accuracy(record) for record in records]))
                targets.setdefault(entry.task, round(mean, 4))
            row = _row(design, entry, numbers, runs[0], records, targets[entry.task]) if entry.task in targets else None
            if row is not None:
                made = design.made(entry, known).values()
                row["tuning"] = design.tuning(entry)
                row["cost"] = _cost(design.tuned.get(entry), list(made))
                hardware |= {record["hardware"]["device"] for record in made if "hardware" in record}
        if row is not None:
            rows[entry] = row
    costs = [row["cost"] for row in rows.values()]
    cost = {"runs": sum(one["runs"] for one in costs), "minutes": round(sum(one["minutes"] for one in costs), 1)}
    return {
        "definition": defined, "targets": targets, "rows": list(rows.values()), "cost": cost,
        "hardware": sorted(hardware),
    }  # fmt: skip


def _cost(tuned: Mapping[str, Any] | None, made: Sequence[RunRecord]) -> dict[str, float]:
    """Return what a row cost: its runs, and those of the row that tuned it."""
    before = tuned["cost"] if tuned else {"runs": 0, "minutes": 0.0}
    minutes = sum(record["seconds"] for record in made) / 60
    return {"runs": before["runs"] + len(made), "minutes": round(before["minutes"] + minutes, 2)}


def without_late(rows: Mapping[Entry, Row]) -> dict[Entry, Row]:
    """Return the rows that lack times to the later target, because they are older, and that are needed there.

    A method of which a run ends too low cannot hold that target, so that its row is not needed.
    """
    is_needed = lambda row: row["method"] in BASELINES or min(row["accuracy"]) >= _late(row["target"]) - SLACK
    return {entry: row for entry, row in rows.items() if "late" not in row and entry.workers > 1 and is_needed(row)}


def _late(target: float) -> float:
    return round(target * LATE / KEPT, 4)


def earlier(design: Design, before: Mapping[str, Any] | None) -> dict[Entry, Row]:
    """Return the rows of an earlier content of the file by entry, without those of another definition or tuning."""
    if before is None:
        return {}
    rows = {entry_of(row): row for row in before["rows"]}
    if before["definition"] != definition(design):
        return {}
    return {entry: row for entry, row in rows.items() if row["tuning"] == design.tuning(entry)}


def definition(design: Design) -> dict[str, Any]:
    """Return what decides the numbers of a design."""
    return {
        "name": design.name, "gradients": design.gradients, "seeds": list(design.seeds), "tasks": dict(design.titles),
        "rungs": [[count, share] for count, share in design.rungs], "kept": KEPT, "narrow": sorted(design.narrow),
    }  # fmt: skip


def entry_of(row: Row) -> Entry:
    return Entry(row["task"], row["workers"], row["cluster"], row["method"], row.get("network", FREE))


def _accuracy(record: RunRecord) -> float:
    return record["test_accuracy"] or 0.0


def _row(
    design: Design, entry: Entry, numbers: dict, run: PlannedRun, records: Sequence[RunRecord], target: float
) -> Row:
    period = mean_period(run.config)
    targets = np.linspace(target, _late(target), BETWEEN)
    every = [[_reached(record, float(one)) for one in targets] for record in records]
    reached, late = ([of_seed[index] for of_seed in every] for index in (0, -1))
    return {
        "task": entry.task, "workers": entry.workers, "cluster": entry.cluster, "network": entry.network,
        "method": entry.method, "target": target,
        "numbers": rounded(numbers),
        "accuracy": [round(_accuracy(record), 4) for record in records],
        "gradients": [_finite(period * commits) for commits, _ in reached],
        "time": [_finite(time) for _, time in reached],
        "late": {
            "target": float(targets[-1]),
            "gradients": [_finite(period * commits) for commits, _ in late],
            "time": [_finite(time) for _, time in late],
            "mean time": [_finite(float(np.mean([time for _, time in of_seed]))) for of_seed in every],
        },
        "end": [_finite(record["time"] or math.inf) for record in records],
    }  # fmt: skip


def _reached(record: RunRecord, target: float) -> tuple[float, float]:
    """Return commits and virtual time at which a run first has the target accuracy; infinite if it has not."""
    found, curve = record["evaluations"], record["curve"]
    commits = crossing(found["commits"], found["test_accuracy"], target)
    if not math.isfinite(commits):
        return math.inf, math.inf
    return commits, float(np.interp(commits, [0, *curve["commits"]], [0.0, *curve["time"]]))


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


class Findings:
    """The measurements of a file, by setting and method."""

    def __init__(self, content: Mapping[str, Any]):
        self.content = content
        self.rows = {entry_of(row): row for row in content["rows"]}
        self.settings: list[Setting] = list(
            dict.fromkeys(entry.setting for entry in self.rows if entry.method not in REFERENCES)
        )

    def late(self, time: str = "time") -> Findings:
        """Return the measurements at the later target, of settings in which no method that could hold it lacks them.

        With ``time="mean time"`` a time is the mean over targets from the first to the later one.
        """
        unfinished = {entry.setting for entry in without_late(self.rows)}
        rows = [row | self._late(row, time) for entry, row in self.rows.items() if entry.setting not in unfinished]
        return Findings({**self.content, "rows": rows})

    @staticmethod
    def _late(row: Row, time: str) -> Row:
        """Return what a row has in other places at the later target; a method that cannot hold it does not reach it."""
        if late := row.get("late"):
            return {"target": late["target"], "gradients": late["gradients"], "time": late[time]}
        never = [None] * len(row["time"])
        return {"target": _late(row["target"]), "gradients": never, "time": never}

    def methods(self, settings: Sequence[Setting]) -> list[str]:
        """Return the methods, without references, that are measured in all of `settings`."""
        return [
            name
            for name in SEARCH_SPACES
            if name not in REFERENCES and settings and all(Entry.at(setting, name) in self.rows for setting in settings)
        ]

    def at(self, workers: int, cluster: str, network: str = FREE, *, narrow: bool = False) -> list[Setting]:
        """Return the settings with that many workers that have most methods, on tasks with all methods or only some."""
        here = [one for one in self.comparable(network, narrow=narrow) if one[1:3] == (workers, cluster)]
        most = max((len(self.methods([one])) for one in here), default=0)
        return [one for one in here if len(self.methods([one])) == most]

    def comparable(self, network: str = FREE, *, narrow: bool = False) -> list[Setting]:
        """Return the settings on a network that have the references and its best-known methods; others are unfinished."""
        expected = FIRST if network == FREE else NETWORKED
        known = {name for name in expected if any(entry.method == name for entry in self.rows)}
        return [
            one
            for one in self.settings
            if one[3] == network
            and (one[0] in self.content["definition"]["narrow"]) == narrow
            and {SYNCHRONOUS, LOCAL, *known} <= {entry.method for entry in self.rows if entry.setting == one}
        ]

    def reached(self, setting: Setting, method: str) -> int:
        """Return the number of seeds that reached the target."""
        return sum(value is not None for value in self.rows[Entry.at(setting, method)]["time"])

    def arrives(self, settings: Sequence[Setting], method: str) -> bool:
        """Return True if a method reached the target with every seed in all settings."""
        return all(None not in self.rows[Entry.at(setting, method)]["time"] for setting in settings)

    def lost(self, setting: Setting, method: str) -> int:
        """Return the number of seeds that reached the target and ended more than ``SLACK`` below it."""
        row = self.rows[Entry.at(setting, method)]
        pairs = zip(row["time"], row["accuracy"], strict=True)
        return sum(time is not None and accuracy < row["target"] - SLACK for time, accuracy in pairs)

    def holds(self, settings: Sequence[Setting], method: str) -> bool:
        """Return True if a method reached the target with every seed in all settings, and none ended below it."""
        return self.arrives(settings, method) and not any(self.lost(setting, method) for setting in settings)

    def times(self, settings: Sequence[Setting], method: str) -> list[Seeds]:
        """Return times to the target; where it was not reached, the time of the whole run, which is a lower bound."""
        rows = [self.rows[Entry.at(setting, method)] for setting in settings]
        return [
            [end if time is None else time for time, end in zip(row["time"], row["end"], strict=True)] for row in rows
        ]

    def speed_up(self, settings: Sequence[Setting], method: str, reference: str) -> Estimate:
        """Return how much sooner a method reaches the target than a reference does; see :meth:`times`."""
        return ratio(self.times(settings, reference), self.times(settings, method))

    def gradients(self, setting: Setting, method: str) -> float | None:
        values = self.rows[Entry.at(setting, method)]["gradients"]
        return None if None in values else float(np.mean(values))

    def relative_accuracy(self, settings: Sequence[Setting], method: str) -> Estimate:
        """Return the accuracy beyond that of one worker, in points, paired by seed."""
        return estimate([self._difference(setting, method) for setting in settings])

    def _difference(self, setting: Setting, method: str) -> Seeds:
        one = self.rows[Entry(setting[0], 1, "homogeneous", ONE)]["accuracy"]
        return 100 * np.subtract(self.rows[Entry.at(setting, method)]["accuracy"], one)

    def fastest(self, settings: Sequence[Setting]) -> list[str]:
        """Return the method that reaches the target first, and those that tie with it; only methods that hold it."""
        able = [name for name in self.methods(settings) if self.holds(settings, name)]
        return leaders({name: [-np.log(one) for one in self.times(settings, name)] for name in able})

    def most_accurate(self, settings: Sequence[Setting]) -> list[str]:
        """Return the method with the highest final accuracy, and those that tie with it."""
        return leaders(
            {name: [self._difference(setting, name) for setting in settings] for name in self.methods(settings)}
        )

    def profile(self, factors: Sequence[float]) -> tuple[list[Setting], dict[str, list[float]]]:
        """Return the comparable settings that a method holds, and the share in which each is within factors of the fastest.

        Tasks with few methods count unless other methods would drop out.
        """
        settings = [one for one in self.comparable() if self.fastest([one])]
        narrow = [one for one in self.comparable(narrow=True) if self.fastest([one])]
        if self.methods([*settings, *narrow]) == self.methods(settings):
            settings += narrow
        common = self.methods(settings)
        settings = [one for one in settings if any(self.holds([one], name) for name in common)]
        times = {name: [self._typical(setting, name) for setting in settings] for name in common}
        return settings, profile(times, factors) if times else {}

    def _typical(self, setting: Setting, method: str) -> float:
        """Return the geometric mean of the times; infinite if a seed did not reach the target or did not hold it."""
        if not self.holds([setting], method):
            return math.inf
        return float(np.exp(np.mean(np.log(self.times([setting], method)[0]))))


def times(value: Estimate, *, is_bound: bool) -> str:
    """Return a ratio with its interval; `is_bound` if the ratio may be larger.

    >>> times(Estimate(2.0, 1.5, 2.5), is_bound=True)
    '≥ 2.00 (1.50 to 2.50)'
    """
    return f"{'≥ ' if is_bound else ''}{value.mean:.2f} ({value.low:.2f} to {value.high:.2f})"


def points(value: Estimate) -> str:
    """Return a difference of accuracies with its interval.

    >>> points(Estimate(-1.0, -1.5, 0.5))
    '−1.0 (−1.5 to +0.5)'
    """
    mean, low, high = (f"{number:+.1f}".replace("-", "−") for number in value)
    return f"{mean} ({low} to {high})"
