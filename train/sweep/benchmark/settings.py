"""Settings and search spaces of the benchmark, and the runs of each by successive halving."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from train.claims.runs import PlannedRun, RunRecord
from train.config.config import Config
from train.config.datasets import DATASETS
from train.config.methods import METHODS, Method

PERIOD = 4  # Local steps per commit, for methods that have them.
TUNING = 100  # The seed that serves tuning alone.
RATES = (0.0006, 0.002, 0.006, 0.02, 0.06, 0.2)  # With two values of a method's own number.
BETWEEN = (0.0011, 0.0035, 0.011, 0.035, 0.11, 0.35)  # Further rates of methods without such a number.
CANDIDATES = 2 * len(RATES)  # Of a method.
ONE, SYNCHRONOUS, FIRST_ONLY, LOCAL = "one_worker", "synchronous_sgd", "m_synchronous_sgd", "local_sgd"
BASELINES = (SYNCHRONOUS, FIRST_ONLY, LOCAL)  # Synchronous training.
REFERENCES = (ONE, *BASELINES)
NAMES = {SYNCHRONOUS: "synchronous SGD", FIRST_ONLY: "m-synchronous SGD", LOCAL: "local SGD", ONE: "one worker"}
EQUAL, UNEQUAL = "homogeneous", "heterogeneous"
FREE, RACK, SLOW = "free", "rack", "slow"  # Networks.
# Time of a view and a gradient together, times that of computing a gradient.
TRANSFER = {FREE: 0.0, RACK: 0.3, SLOW: 10.0}
WORDS = {EQUAL: "equal", UNEQUAL: "unequal", RACK: "in a rack", SLOW: "on a slow network"}
PERIODS = {RACK: (2, 8), SLOW: (8, 32)}  # Local steps per commit that are tried.
# Methods where transfers take time: those with local steps whose number is tuned, and three of the others.
NETWORKED = (
    "asgd", "dana_slim", "gem", "downpour", "easgd", "lsgd", "delayed_nesterov", "heloco", "fedbuff", "decoupled_diloco",
)  # fmt: skip
TITLES = {"cifar": "CIFAR-10", "fashion": "Fashion-MNIST"}  # Names of tasks on pages, if they differ.
FIRST = ("asgd", "momentum_asgd", "staleness_aware", "dc_asgd", "dana_slim", "gap_aware", "gem", "easgd")  # Best known.
# With them the fastest ones of the first settings, which are measured in all settings of tasks that have all methods.
FAST = ("dana_zero", "dana_dc", "dana_ga", "lwp", "multi_asgd", "gap_aware_adam", "eamsgd")
RECENT = ("ordered_momentum", "rescaled_asgd", "no_loco")  # In the quick form, too.
SMOOTH = (0.5, 0.9)  # Values of a momentum.
Setting = tuple[str, int, str, str]  # Task, number of workers, cluster and network.


class Entry(NamedTuple):
    """A method in a setting."""

    task: str
    workers: int
    cluster: str
    method: str
    network: str = FREE

    @classmethod
    def at(cls, setting: Setting, method: str) -> Entry:
        return cls(*setting[:3], method, setting[3])

    @property
    def setting(self) -> Setting:
        return self.task, self.workers, self.cluster, self.network


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """A method with what is tuned.

    Args:
      method: its row in `train/config/methods.py`.
      own: the field of its own number; empty if it has none.
      values: of that field, for a number of workers; two of them, more for a reference.
      factor: factor on all learning rates, for a number of workers; larger for methods with one step per N gradients.
      fixed: further fields.
      barrier: True if workers wait for each other.
    """

    method: Method
    own: str = ""
    values: Callable[[int], tuple[float, ...]] = lambda workers: SMOOTH
    factor: Callable[[int], float] = lambda workers: 1.0
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    barrier: bool = False

    def candidates(self, workers: int, network: str = FREE) -> list[dict[str, Any]]:
        """Return the numbers to try: twelve for every method over the same rates, and more for a reference.

        On a network those of a method with local steps are tried with each of two periods.
        """
        if network != FREE and METHODS[self.method].local and "period" not in self.fixed:
            return [free | {"period": period} for free in self.candidates(workers) for period in PERIODS[network]]
        if not self.own:
            return [{"learning_rate": rate * self.factor(workers)} for rate in sorted((*RATES, *BETWEEN))]
        return [
            {"learning_rate": rate * self.factor(workers), self.own: value}
            for rate in RATES
            for value in self.values(workers)
        ]


def _strengths(one: float, other: float) -> Callable[[int], tuple[float, float]]:
    return lambda workers: (one, other)


def _rounds(workers: int) -> float:
    """Return the factor of methods that make one step per round of N gradients (the linear scaling rule)."""
    return float(workers)


def _quorums(workers: int) -> tuple[int, ...]:
    """Return the numbers m of gradients per round to try, from half of the workers to all.

    >>> _quorums(16), _quorums(4)
    ((8, 10, 12, 14, 16), (2, 3, 4))
    """
    return tuple(sorted({math.ceil(workers * eighths / 8) for eighths in (4, 5, 6, 7, 8)}))


def _own(method: Method) -> SearchSpace:
    """Return the search space of a method without a row below: its momentum is tuned, or rates alone."""
    return SearchSpace(method, "momentum" if "momentum" in METHODS[method].takes else "")


_ROWS = (
    SearchSpace("gem", "kappa", _strengths(1.0, 2.0)),
    SearchSpace("dc_asgd", "strength", _strengths(4.0, 40.0)),
    SearchSpace("one_step_delay", "strength", _strengths(0.3, 1.0)),
    SearchSpace("eamsgd", "strength", lambda workers: (0.9 / workers, min(1.0, 3.6 / workers))),
    SearchSpace("easgd", "strength", lambda workers: (0.9 / workers, min(1.0, 3.6 / workers))),
    SearchSpace("lsgd", "strength", _strengths(0.1, 0.3)),
    SearchSpace("yellowfin", factor=lambda workers: 15.0),
    SearchSpace("rennala", factor=_rounds),
    SearchSpace("malenia", factor=_rounds),
    SearchSpace("downpour", "outer_learning_rate", lambda workers: (workers**-0.5, 1.0)),
    SearchSpace("agn", "outer_learning_rate", _strengths(1.0, 4.0)),
    SearchSpace("fedbuff", "outer_learning_rate", _strengths(1.0, 3.0)),
    SearchSpace("fedasync", "outer_learning_rate", _strengths(0.2, 0.6)),
    SearchSpace("delayed_nesterov", "outer_learning_rate", _strengths(0.07, 0.7)),
    SearchSpace("outer_nesterov", "outer_learning_rate", _strengths(0.07, 0.7)),
    SearchSpace("no_loco", "outer_learning_rate", _strengths(0.2, 0.7), fixed={"momentum": 0.5}),
)
SEARCH_SPACES: dict[str, SearchSpace] = {name: _own(name) for name in METHODS} | {row.method: row for row in _ROWS}
# A mean over N workers behind a barrier, and one Nesterov step along it: DiLoCo with its outer rate at 1.
SEARCH_SPACES |= {
    ONE: SearchSpace("momentum_asgd", "momentum"),
    SYNCHRONOUS: SearchSpace(
        "diloco", "momentum", _strengths(0.0, 0.9), _rounds, {"outer_learning_rate": 1.0, "period": 1}, barrier=True
    ),
    # The same with rounds of the first m workers, and a momentum of 0.9.
    FIRST_ONLY: SearchSpace(FIRST_ONLY, "quorum", _quorums, _rounds, {"momentum": 0.9}, barrier=True),
    LOCAL: SearchSpace("diloco", "momentum", _strengths(0.0, 0.5), fixed={"outer_learning_rate": 1.0}, barrier=True),
}


def candidates(entry: Entry) -> list[dict[str, Any]]:
    """Return the numbers to try of an entry."""
    return SEARCH_SPACES[entry.method].candidates(entry.workers, entry.network)


def rounded(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return tuned numbers as rows have them."""
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def _pace(network: str, period: int) -> float:
    """Return the share of the time of a worker in which it computes."""
    return 1 / (1 + TRANSFER[network] / period)


@dataclasses.dataclass(frozen=True)
class Design:
    """A scale of the benchmark.

    Args:
      name: of its files and its folder of runs.
      tasks: configurations by name.
      titles: their descriptions.
      settings: task, workers, cluster and network of each, the most informative first.
      gradients: per run, of all workers together.
      methods: contestants, without the references.
      rungs: candidates of each rung, in proportion more for a reference with more of them, and the share of `gradients` that
        each of its runs has.
      seeds: those reported.
      evaluations: along a reported run.
      warm_up: share of `gradients` in which the rate rises.
      narrow: tasks that only some methods have, because a gradient takes long.
      tuned: rows of an earlier file whose numbers are taken as they are; only their reported runs are made.
    """

    name: str
    tasks: Mapping[str, Config]
    titles: Mapping[str, str]
    settings: tuple[Setting, ...]
    gradients: int
    methods: tuple[str, ...]
    rungs: tuple[tuple[int, float], ...] = ((12, 1 / 8), (4, 1 / 4))
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    evaluations: int = 25
    warm_up: float = 0.05
    narrow: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    tuned: Mapping[Entry, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def budget(self) -> int:
        """Gradients that tune one method in one setting."""
        return round(sum(count * share for count, share in self.rungs) * self.gradients)

    def rungs_of(self, entry: Entry) -> list[tuple[int, float]]:
        """Return the rungs of an entry."""
        if entry in self.tuned:
            return []
        wider = len(candidates(entry)) / CANDIDATES
        return [(round(count * wider), share) for count, share in self.rungs]

    def cost(self, entry: Entry) -> tuple[int, int]:
        """Return the number of runs of an entry, and their gradients."""
        every = [*self.rungs_of(entry), (len(self.seeds), 1.0)]
        return sum(count for count, _ in every), round(sum(count * share for count, share in every) * self.gradients)

    def methods_of(self, setting: Setting) -> tuple[str, ...]:
        """Return the methods that a setting has."""
        return self.narrow.get(setting[0], self.methods) if setting[3] == FREE else NETWORKED

    def is_core(self, entry: Entry) -> bool:
        """Return True if an entry belongs to the benchmark: all methods in the first settings, `FIRST` and `FAST` in all."""
        first = entry.setting[1:] == self.settings[0][1:]
        return entry.method in (*REFERENCES, *FIRST, *FAST) or first or entry.network != FREE

    def entries(self) -> list[Entry]:
        """Return all entries, the most informative first: the first setting in full, then `FIRST` and `FAST` everywhere."""
        ones = [Entry(task, 1, EQUAL, ONE) for task in dict.fromkeys(setting[0] for setting in self.settings)]
        free = [setting for setting in self.settings if setting[3] == FREE]
        networked = [setting for setting in self.settings if setting[3] != FREE]
        early = [name for name in (*FIRST, *FAST) if name in self.methods]
        late = [name for name in self.methods if name not in early]
        takes = lambda setting, name: name in REFERENCES or name in self.methods_of(setting)
        of = lambda settings, methods: [
            Entry.at(setting, name) for setting in settings for name in methods if takes(setting, name)
        ]
        first, others = free[:1], free[1:]
        known = of(first, (*BASELINES, *early))
        return [
            *ones[:1],
            *known,
            *of(first, late),
            *ones[1:],
            *of(others, (*BASELINES, *early)),
            *of(others, late),
            *of(networked, (*BASELINES, *NETWORKED)),
        ]

    def config(self, entry: Entry, numbers: Mapping[str, Any], share: float, seed: int) -> Config:
        """Return the configuration of a run."""
        space = SEARCH_SPACES[entry.method]
        local = METHODS[space.method].local
        barrier = {EQUAL: "barrier", UNEQUAL: "heterogeneous_barrier"}
        cluster: Any = barrier[entry.cluster] if space.barrier else entry.cluster
        task = self.tasks[entry.task]
        steps = DATASETS[task.dataset].rows // task.batch_size
        changes: dict[str, Any] = {"period": PERIOD} if local else {}
        changes |= dict(space.fixed) | dict(numbers) | {"transfer": TRANSFER[entry.network]}
        gradients = share * self.gradients
        if (
            share < 1 and "period" in numbers
        ):  # Candidates train for the same time: their periods decide what transfers cost.
            paces = [_pace(entry.network, period) for period in PERIODS[entry.network]]
            gradients *= _pace(entry.network, numbers["period"]) * len(paces) / sum(paces)
        return dataclasses.replace(
            task,
            method=space.method,
            workers=entry.workers,
            cluster=cluster,
            # Half a gradient less, because the number of commits is rounded up.
            epochs=(round(gradients) - 0.5) / (entry.workers * steps),
            warmup_epochs=self.warm_up * self.gradients / steps,
            seed=seed,
            **changes,
        )

    def run(self, entry: Entry, numbers: Mapping[str, Any], share: float, seed: int) -> PlannedRun:
        values = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        place = ", ".join((entry.task, WORDS[entry.cluster], *([] if entry.network == FREE else [entry.network])))
        kind = f"{place}, {entry.method}, {values}, {share:.3g} of a run"
        return PlannedRun(
            kind,
            entry.workers,
            self.config(entry, numbers, share, seed),
            evaluations=self.evaluations if share == 1 else 1,
        )

    def next_runs(
        self, entry: Entry, known: Mapping[PlannedRun, RunRecord]
    ) -> tuple[list[PlannedRun], dict[str, float]]:
        """Return the runs of the first unfinished rung, or those that are reported, and the best numbers so far.

        A rung keeps the candidates with the least loss of the last parameters on training rows.
        """
        contenders = candidates(entry)
        if row := self.tuned.get(entry):
            contenders = [numbers for numbers in contenders if rounded(numbers) == row["numbers"]]
        for count, share in self.rungs_of(entry):
            runs = [self.run(entry, numbers, share, TUNING) for numbers in contenders[:count]]
            if any(run not in known for run in runs):
                return runs, {}
            losses = [_loss(known[run]) for run in runs]
            contenders = [contenders[index] for index in sorted(range(len(runs)), key=lambda index: losses[index])]
        return [self.run(entry, contenders[0], 1, seed) for seed in self.seeds], contenders[0]

    def tuning(self, entry: Entry) -> str:
        """Return a digest of the runs that tune an entry; it changes with each of their settings."""
        runs = [self.run(entry, numbers, 1, TUNING) for numbers in candidates(entry)]
        return hashlib.sha256("".join(run.key("1") for run in runs).encode()).hexdigest()[:12]

    def made(self, entry: Entry, known: Mapping[PlannedRun, RunRecord]) -> dict[PlannedRun, RunRecord]:
        """Return the runs of an entry that are made, those that tuned it too, with their records."""
        found: dict[PlannedRun, RunRecord] = {}
        while new := {run: known[run] for run in self.next_runs(entry, found)[0] if run in known and run not in found}:
            found |= new
        return found


def title(task: str) -> str:
    """Return the name of a task on pages."""
    return TITLES.get(task, task)


def networked(setting: Setting) -> str:
    """Return the words for the network of a setting, which follow its workers."""
    return "" if setting[3] == FREE else f", {WORDS[setting[3]]}"


def _loss(record: RunRecord) -> float:
    found = record.get("final_loss")
    return math.inf if found is None else found


def _settings(tasks: tuple[str, ...], workers: tuple[int, ...]) -> tuple[Setting, ...]:
    """Return all settings, 16 unequal workers first, and those of eight unequal workers on a network last."""
    every = [(task, count, cluster, FREE) for count in workers for cluster in (UNEQUAL, EQUAL) for task in tasks]
    networked = [(task, 8, UNEQUAL, network) for network in (SLOW, RACK) for task in tasks]
    return (*sorted(every, key=lambda setting: (setting[1] != 16, setting[2] != UNEQUAL)), *networked)


_ALL = tuple(name for name in METHODS if name not in REFERENCES)
FULL = Design(
    name="benchmark",
    tasks={
        "cifar": Config(dataset="cifar10_jpeg", engine="simulate", model="pooled_cnn", pool=2, batch_size=16),
        "fashion": Config(dataset="fashion_mnist", engine="simulate", model="pooled_cnn", pool=2, batch_size=16),
        "characters": Config(
            dataset="tiny_shakespeare", engine="simulate", model="transformer", width=0.25, depth=1, batch_size=1
        ),
    },
    titles={
        "cifar": "CIFAR-10 (JPEG q75) at 16 × 16, pooled CNN, batches of 16",
        "fashion": "Fashion-MNIST at 14 × 14, pooled CNN, batches of 16",
        "characters": "Tiny Shakespeare, one transformer block of 32 units, batches of 128 characters",
    },
    settings=_settings(("cifar", "fashion", "characters"), (4, 16, 64)),
    gradients=16_000,
    methods=_ALL,
    narrow={"characters": (*FIRST, "gap_aware_adam")},
)
QUICK = Design(
    name="benchmark-quick",
    tasks={"digits": Config(dataset="digits", engine="simulate", batch_size=8)},
    titles={"digits": "handwritten digits at 8 × 8, small CNN, batches of 8"},
    settings=(
        ("digits", 16, UNEQUAL, FREE),
        ("digits", 16, EQUAL, FREE),
        ("digits", 64, UNEQUAL, FREE),
        ("digits", 8, UNEQUAL, SLOW),
    ),
    gradients=4_800,
    methods=(*FIRST, *RECENT),
    seeds=(0, 1, 2),
)
