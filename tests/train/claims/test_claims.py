"""Every claim: judged on made-up results that bear it out and that do not, drawn from them, and run for real, tiny."""

import dataclasses
import json

import numpy as np
import pytest
from shrunk import Dense as Tiny
from test_reproduce import made_up

from gemjax.telemetry.style import picture, style
from train.claims import outcome, plots
from train.claims import papers as configs
from train.claims.execution import costs
from train.claims.execution.single import _task, record
from train.claims.results import Measured
from train.claims.runs import SCALES
from train.config.datasets import DATASETS
from train.task import cluster as pace
from train.task import models, task
from train.task.data.load import Dataset

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
    """Return the runs that follow from `found` and are not in it."""
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
        "Expected",
        "Deviations:",
    ):
        assert part in module.__doc__
    assert configs.claim(claim.name) is claim
    assert {"small", "full"} <= claim.runs.keys()
    for scale, runs in claim.runs.items():
        assert len({(run.series, run.point, run.config.seed) for run in runs}) == len(runs)
        assert all(costs.commits(run) > 0 for run in runs)
        assert claim.minutes[scale] > 0
        assert scale != "cpu" or (
            ("Setting (cpu)" in module.__doc__ or "Setting:" in module.__doc__) and claim.setting["cpu"]
        )
    assert all(run.config.dataset == "digits" for run in claim.runs["small"])  # Which no file is needed for.


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "scale"), AT_EACH_SCALE)
@pytest.mark.parametrize("early", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["in-the-end", "at-once"])
def test_claims_judge_and_draw_runs_that_failed(claim, scale, early):
    """Nothing is learned anywhere: every run diverged, or was given up before anything of it was kept."""
    failed = {name: lambda s, p: None for name in ("test_loss", "test_accuracy")} | {"diverged": lambda s, p: True}
    if early:
        nothing = {"commits": [], "time": [], "train_loss": [], "test_loss": [], "test_accuracy": []}
        failed |= dict.fromkeys(("time", "staleness_p50", "staleness_p95"), lambda s, p: None)
        failed |= dict.fromkeys(("curve", "evaluations"), lambda s, p: nothing)
        empty = {"median": None, "mean": None, "time": [], "curve": [], "mean_curve": []}
        failed["diagnostics"] = lambda s, p: dict.fromkeys(("gap", "normalised_gap", "pi_median"), empty)
    found = measured(claim, scale, lambda series, point: None, **failed)
    statements = claim.judge(found)
    assert not any(statement.held for statement in statements)
    assert all(statement.text and statement.measured for statement in statements)
    assert len(statements) <= 3
    assert all((statement.verdict == "") is claim.own for statement in statements)
    json.dumps([dataclasses.asdict(statement) for statement in statements])
    with style():
        assert claim.draw(picture(columns=2, height=claim.height), found, plots)


SHRUNK = ("asgd", "gem", "lsgd", "diloco")  # Of the table of all methods, which are too many to run here.


def some(runs):
    return [run for run in runs if len(runs) < 100 or run.config.method in SHRUNK]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes a run so short that only wiring is tested.

    One run of a method stands for those of all claims that differ from it in numbers. The first run with a network has that
    network, the others have one that compiles quickly.
    """
    records, networks = {}, set()
    machine = {"data_dir": str(tmp_path_factory.mktemp("data")), "manual_dir": None}

    def make(run):
        kind = run.config.method, *_setting(run), run.diagnostics, run.evaluations, run.pretraining
        network = run.config.model, run.config.depth, run.config.width
        if kind not in records:
            config = dataclasses.replace(run.config, epochs=min(0.1, run.config.epochs))
            with pytest.MonkeyPatch.context() as patched:
                if network in networks:
                    patched.setattr(models, "DigitsCNN", Tiny)
                    config = dataclasses.replace(config, model="auto", depth=None, width=1.0)
                records[kind] = record(dataclasses.replace(run, config=config), machine)
            if network not in networks:
                networks.add(network)
                _task.cache_clear()
        return run, records[kind]

    yield make
    _task.cache_clear()


FROM_END_TO_END = ("dc_asgd_table", "delayed_nesterov")  # Gradients and local steps; some runs follow from others.


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(
            claim, id=claim.name, marks=pytest.mark.slow if claim.name in FROM_END_TO_END else pytest.mark.nightly
        )
        for claim in CLAIMS
    ],
)
def test_the_small_scale_runs_from_end_to_end_shrunk(claim, tmp_path, made):
    found = Measured("small", [made(run) for run in some(claim.runs["small"])])
    if claim.then is not None:
        found = Measured("small", [*found.records, *map(made, claim.then(found))])
    assert all(statement.text for statement in claim.judge(found))
    outcome.draw(claim, found, tmp_path / "claim.png")
    assert (tmp_path / "claim.png").stat().st_size > 10_000


def few_rows(name, **_):
    """Random rows of the shape that those of `name` have."""
    rng, shape, classes = np.random.default_rng(0), DATASETS[name].shape, DATASETS[name].classes

    def rows(count):
        if len(shape) == 1:
            return {"tokens": rng.integers(0, classes, (count, shape[0] + 1), np.uint8)}
        images = rng.integers(0, 256, (count, *shape), np.uint8)
        return {"image": images, "label": rng.integers(0, classes, count).astype(np.int32)}

    return Dataset(name, rows(16), rows(4), classes, mean=0.5, std=0.25, scale=255.0)


def _setting(run):
    config = run.config
    return config.dataset, config.model, config.cluster, config.weight_decay


FULL = {_setting(run): run for claim in CLAIMS for run in some(claim.runs["full"])}
IN_CI = ("mnist", "homogeneous"), ("tiny_shakespeare", "tiered_barrier")  # Each network is compiled anew.
SHALLOW = {"resnet20": {"depth": 8}, "auto": {"depth": 1}}  # Deep networks take a minute to compile.


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            run, id="-".join(map(str, setting)), marks=() if setting[::2][:2] in IN_CI else pytest.mark.nightly
        )
        for setting, run in FULL.items()
    ],
)
def test_the_first_commits_of_the_full_scale_run_shrunk(run, tmp_path, monkeypatch):
    """A run in each setting that claims share, with its schedule and period, and a narrow and shallow network, on made-up rows.

    The network at its full depth is traced for the shapes of its parameters.
    """
    monkeypatch.setattr(task.data, "load", few_rows)
    _task.cache_clear()
    assert task.parameter_shapes(run.config)
    small = {}
    if run.config.dataset in ("cifar10", "tiny_shakespeare"):
        small = {"width": 0.25} | SHALLOW.get(run.config.model, {})
    config = dataclasses.replace(run.config, batch_size=4, **small)
    epochs = 3 * pace.mean_period(config) / (config.workers * 4)
    run = dataclasses.replace(run, config=dataclasses.replace(config, epochs=epochs), evaluations=1)
    found = record(run, {"data_dir": str(tmp_path), "manual_dir": None})
    assert not found["failed"]
    assert found["commits"] in (3, 4)
    assert found["train_loss"] is not None
    _task.cache_clear()
