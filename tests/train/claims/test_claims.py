"""Every claim: judged on made-up results that bear it out and that do not, drawn from them, and run for real, tiny."""

import dataclasses
import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from shrunk import Dense as Tiny
from test_reproduce import made_up

from train.claims import outcome
from train.claims import papers as configs
from train.claims.execution import costs
from train.claims.execution.single import _task, record
from train.claims.results import Measured
from train.claims.runs import REQUIRED, SCALES
from train.task import cluster as pace
from train.task import models, task
from train.task.data.load import SOURCES, Dataset

CLAIMS = [configs.claim(name) for name in configs.CLAIMS]
BY_NAME = {claim.name: claim for claim in CLAIMS}
AT_EACH_SCALE = [
    pytest.param(claim, scale, id=f"{claim.name}-{scale}")
    for claim in CLAIMS
    for scale in SCALES
    if scale in claim.runs
]


def measured(claim, scale, loss, **changes):
    """Made-up results; `loss` and what else is a function of (series, point) decide them."""
    found = Measured(scale, _rows(claim.runs[scale], loss, changes))
    while claim.then is not None and (more := new(claim, found)):
        found = Measured(scale, [*found.records, *_rows(more, loss, changes)])
    return found


def new(claim, found):
    """Runs that follow from what was found, and are not among it."""
    known = {run for run, _ in found.records}
    return [run for run in claim.then(found) if run not in known]


def _rows(runs, loss, changes):
    rows = []
    for run in runs:
        own = {name: change(run.series, run.point) for name, change in changes.items()}
        made = made_up(run, loss(run.series, run.point), **own)
        made["diagnostics"] = {
            name: one if one["median"] is None else {**one, "median": 0.9 * one["median"]}
            for name, one in made["diagnostics"].items()
        }
        rows.append((run, made))
    return rows


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_claims_are_what_they_say(claim):
    module = configs.module(claim.name)
    assert module.__doc__ is not None
    for part in (
        "Setting (full)" if "Setting:" not in module.__doc__ else "Setting:",
        "Cost (full)",
        "Expected",
        "Deviations:",
    ):
        assert part in module.__doc__
    assert configs.claim(claim.name) is claim
    assert set(REQUIRED) <= claim.runs.keys()
    for scale, runs in claim.runs.items():
        assert all(costs.commits(run) > 0 for run in runs)
        assert claim.minutes[scale] > 0
        assert scale != "cpu" or (
            ("Setting (cpu)" in module.__doc__ or "Setting:" in module.__doc__) and claim.setting["cpu"]
        )
    assert all(run.config.dataset == "digits" for run in claim.runs["small"])  # Which no file is needed for.


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_commits_in_a_claims_docstring_are_those_it_makes(claim):
    total = sum(costs.commits(run) for run in claim.runs["full"])
    assert f"{total:,} commits" in configs.module(claim.name).__doc__


@pytest.mark.parametrize(("claim", "scale"), AT_EACH_SCALE)
@pytest.mark.parametrize("early", [False, True], ids=["in-the-end", "at-once"])
def test_claims_judge_and_draw_runs_that_failed(claim, scale, early):
    """Nothing is learned anywhere: every run diverged, or was given up before anything of it was kept."""
    failed = {name: lambda s, p: None for name in ("test_loss", "test_accuracy")} | {"diverged": lambda s, p: True}
    if early:
        nothing = {"commits": [], "time": [], "train_loss": [], "test_loss": [], "test_accuracy": []}
        failed |= dict.fromkeys(("time", "staleness_p50", "staleness_p95"), lambda s, p: None)
        failed |= dict.fromkeys(("curve", "evaluations"), lambda s, p: nothing)
        empty = {"median": None, "mean": None, "time": [], "curve": []}
        failed["diagnostics"] = lambda s, p: dict.fromkeys(("gap", "normalised_gap", "pi_median"), empty)
    found = measured(claim, scale, lambda series, point: None, **failed)
    statements = claim.judge(found)
    assert not any(statement.held for statement in statements)
    assert all(statement.text and statement.measured for statement in statements)
    json.dumps([dataclasses.asdict(statement) for statement in statements])
    claim.draw(Figure(), found)


@pytest.mark.parametrize("scale", REQUIRED)
def test_figure_1_holds_where_only_gem_gains(scale):
    claim = BY_NAME["gem_figure_1"]
    losses = {"GEM": lambda n: 0.4 / n, "DOWNPOUR": lambda n: 0.1 * n, "adaptive staleness": lambda n: 0.5}
    found = claim.judge(measured(claim, scale, lambda series, n: losses[series](n)))
    assert [statement.held for statement in found[:4]] == [True] * 4
    losses["GEM"] = lambda n: 0.1
    assert not claim.judge(measured(claim, scale, lambda series, n: losses[series](n)))[0].held


def test_figure_1_says_how_near_the_published_numbers_are():
    claim = BY_NAME["gem_figure_1"]
    near = measured(claim, "full", lambda series, n: 1.1 * claim.paper["train_loss"][series][n])
    far = measured(claim, "full", lambda series, n: 1.3 * claim.paper["train_loss"][series][n])
    assert all(statement.held for statement in claim.judge(near))
    assert [statement.held for statement in claim.judge(far)[-3:]] == [False] * 3


def test_figure_2_compares_the_accuracy_of_each_reading():
    claim = BY_NAME["gem_figure_2"]
    reached = {"equations": 0.9915, "code": 0.9930, "algorithm": 0.9939}
    found = claim.judge(measured(claim, "full", lambda s, n: 0.02, test_accuracy=lambda series, n: reached[series]))
    assert [statement.held for statement in found] == [True, True, True, False, True, True]


def test_what_closes_the_gap_to_the_published_accuracy_is_judged_one_by_one():
    claim = BY_NAME["gem_accuracy"]
    reached = {"as published": 0.9917, "no dropout": 0.9910, "κ = 2": 0.9929, "rate / 10": 0.9935}

    def looks(series, n):
        accuracies = [0.9, *[reached[series] + 0.001 * k for k in (-2, 2, 1, -1, 0)]]
        return {"commits": [*range(1, 7)], "test_loss": [0.02] * 6, "test_accuracy": accuracies}

    found = claim.judge(measured(claim, "full", lambda s, n: 0.02, evaluations=looks))
    assert [statement.held for statement in found] == [False, False, True, True]
    reached |= {"κ = 2": 0.9960, "rate / 10": 0.9970}
    found = claim.judge(measured(claim, "small", lambda s, n: 0.02, evaluations=looks))
    assert [statement.held for statement in found] == [False, True]


def test_figure_8_holds_a_gain_against_its_interval():
    claim = BY_NAME["gem_figure_8"]

    def judged(spread):
        """κ = 2 is best by 0.01, κ = 4 worst; seeds lie `spread` apart."""
        found = measured(claim, "full", lambda series, kappa: {1: 0.07, 2: 0.06, 3: 0.07, 4: 0.1}[kappa])
        for run, one in found.records:
            one["train_loss"] += spread * (run.config.seed - 1)
        return {statement.text: statement.held for statement in claim.judge(found)}

    calm, wide = judged(0.0), judged(0.01)
    gain = "5 workers: a κ above 1 gives a lower final loss than κ = 1, by more than the interval where there is one"
    assert calm[gain]
    assert not wide[gain]
    assert all(held for text, held in calm.items() if "κ = 4 is worse than every smaller one" in text)


def test_figure_5_tells_a_loss_that_rises_again():
    claim = BY_NAME["gem_figure_5"]
    falling, rising = ([0.085 - 0.002 * k for k in range(30)], [0.04 + 0.001 * abs(k - 10) for k in range(30)])

    def looks(series, point):
        losses = falling if series == "GEM" else rising
        return {"commits": [937 * (k + 1) for k in range(len(losses))], "test_loss": losses, "test_accuracy": losses}

    fits = [0.1, 0.05, 0.04, 0.03, 0.02]

    def curve(series, point):
        return {"commits": [1, 2, 3, 4, 5], "time": [1.0, 2.0, 3.0, 4.0, 5.0], "train_loss": fits}

    def held():
        found = claim.judge(measured(claim, "full", lambda s, p: 0.1, evaluations=looks, curve=curve))
        return [statement.held for statement in found]

    assert held() == [True] * 5
    fits = fits[::-1]  # Whose training loss rises as well does not overfit.
    assert held() == [True] * 4 + [False]
    falling, rising = rising, falling
    assert held() == [False] * 5
    falling, rising = rising[:12], falling  # As if it had failed.
    assert held() == [False]


SHRUNK = ("asgd", "gem", "lsgd", "diloco")  # Of the table of all methods, which are too many to run here.


def some(runs):
    return [run for run in runs if len(runs) < 100 or run.config.method in SHRUNK]


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_small_scale_runs_from_end_to_end_shrunk(claim, tmp_path, monkeypatch, request):
    """So few commits that only wiring is tested, and one run a method, which stands for those that differ in numbers."""
    made = {}
    request.addfinalizer(_task.cache_clear)

    def make(run):
        kind = run.config.method, *_setting(run)
        if kind not in made:
            # The first run has the network of the claim, the others one that compiles quickly.
            own = {"model": "auto", "depth": None, "width": 1.0} if made else {}
            if len(made) == 1:
                monkeypatch.setattr(models, "DigitsCNN", Tiny)
                _task.cache_clear()
            config = dataclasses.replace(run.config, epochs=min(0.1, run.config.epochs), **own)
            short = dataclasses.replace(run, config=config)
            made[kind] = record(short, {"data_dir": str(tmp_path), "manual_dir": None})
        return run, made[kind]

    found = Measured("small", [make(run) for run in some(claim.runs["small"])])
    if claim.then is not None:
        found = Measured("small", [*found.records, *map(make, claim.then(found))])
    assert all(statement.text for statement in claim.judge(found))
    outcome.draw(claim, found, tmp_path / "claim.png")
    assert (tmp_path / "claim.png").stat().st_size > 10_000


def few_rows(name, **_):
    """Random rows of the shape that those of `name` have."""
    rng, (column, shape, classes) = np.random.default_rng(0), dataclasses.astuple(SOURCES[name].spec(128))

    def rows(count):
        if column == "tokens":
            return {"tokens": rng.integers(0, classes, (count, shape[0] + 1), np.uint8)}
        images = rng.integers(0, 256, (count, *shape), np.uint8)
        return {"image": images, "label": rng.integers(0, classes, count).astype(np.int32)}

    return Dataset(name, rows(16), rows(4), classes, mean=0.5, std=0.25, scale=255.0)


def _setting(run):
    config = run.config
    return config.dataset, config.model, config.cluster, config.weight_decay


FULL = {_setting(run): run for claim in CLAIMS for run in some(claim.runs["full"])}


@pytest.mark.slow
@pytest.mark.parametrize("run", FULL.values(), ids=["-".join(map(str, setting)) for setting in FULL])
def test_the_first_commits_of_the_full_scale_run_shrunk(run, tmp_path, monkeypatch):
    """A run in each setting that claims share, its network a quarter as wide, its schedule and period, on made-up rows.

    Methods are compiled by their own tests, networks nowhere else at full depth.
    """
    monkeypatch.setattr(task.data, "load", few_rows)
    _task.cache_clear()
    width = {"width": 0.25} if run.config.dataset in ("cifar10", "tiny_shakespeare") else {}
    config = dataclasses.replace(run.config, batch_size=4, **width)
    epochs = 3 * pace.mean_period(config) / (config.workers * 4)
    run = dataclasses.replace(run, config=dataclasses.replace(config, epochs=epochs), evaluations=1)
    found = record(run, {"data_dir": str(tmp_path), "manual_dir": None})
    assert not found["failed"]
    assert found["commits"] in (3, 4)
    assert found["train_loss"] is not None
    _task.cache_clear()
