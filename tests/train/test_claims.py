"""Every claim: judged on made-up results that bear it out and that do not, drawn from them, and run for real, tiny."""

import dataclasses

import pytest
from matplotlib.figure import Figure
from test_reproduce import made_up

from train import configs, reproduce
from train.claim import SCALES
from train.measured import Measured
from train.record import record

CLAIMS = [configs.claim(name) for name in configs.CLAIMS]
BY_NAME = {claim.name: claim for claim in CLAIMS}


def measured(claim, scale, loss, **changes):
    """Made-up results; `loss` and what else is a function of (series, point) decide them."""
    rows = []
    for run in claim.runs[scale]:
        own = {name: change(run.series, run.point) for name, change in changes.items()}
        made = made_up(run, loss(run.series, run.point), **own)
        made["diagnostics"] = {
            name: {**one, "median": 0.9 * one["median"]} for name, one in made["diagnostics"].items()
        }
        rows.append((run, made))
    return Measured(scale, rows)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_claims_are_what_they_say(claim):
    module = configs._MODULES[claim.name]
    assert module.__doc__ is not None
    for part in (
        "Setting (full)" if "Setting:" not in module.__doc__ else "Setting:",
        "Cost (full)",
        "Expected",
        "Deviations:",
    ):
        assert part in module.__doc__
    assert configs.claim(claim.name) is claim
    for scale in SCALES:
        assert all(reproduce.commits(run) > 0 for run in claim.runs[scale])
        assert claim.minutes[scale] > 0
    assert all(run.config.dataset == "digits" for run in claim.runs["small"])  # Which no file is needed for.


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_commits_in_a_claims_docstring_are_those_it_makes(claim):
    total = sum(reproduce.commits(run) for run in claim.runs["full"])
    assert f"{total:,} commits" in configs._MODULES[claim.name].__doc__


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_claims_judge_and_draw_runs_that_failed(claim, scale):
    """Nothing is learned anywhere: every run diverged."""
    failed = measured(
        claim, scale, lambda series, point: None, test_accuracy=lambda s, p: None, diverged=lambda s, p: True
    )
    statements = claim.judge(failed)
    assert not all(statement.held for statement in statements)
    assert all(statement.text and statement.measured for statement in statements)
    claim.draw(Figure(), failed)


@pytest.mark.parametrize("scale", SCALES)
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


def test_figure_5_tells_a_loss_that_rises_again():
    claim = BY_NAME["gem_figure_5"]
    falling, rising = ([0.1 - 0.002 * k for k in range(30)], [0.04 + 0.001 * abs(k - 10) for k in range(30)])

    def looks(series, point):
        losses = falling if series == "GEM" else rising
        return {"commits": [937 * (k + 1) for k in range(30)], "test_loss": losses, "test_accuracy": losses}

    found = claim.judge(measured(claim, "full", lambda s, p: 0.1, evaluations=looks))
    assert [statement.held for statement in found] == [True, True, True]
    falling, rising = rising, falling
    found = claim.judge(measured(claim, "full", lambda s, p: 0.1, evaluations=looks))
    assert [statement.held for statement in found] == [False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_small_scale_runs_from_end_to_end_shrunk(claim, tmp_path):
    """One seed, and so few commits that only wiring is tested."""
    rows = []
    for run in claim.runs["small"]:
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, epochs=0.1))
        rows.append((run, record(run, {"data_dir": str(tmp_path), "manual_dir": None})))
    found = Measured("small", rows)
    assert all(statement.text for statement in claim.judge(found))
    reproduce.draw(claim, found, tmp_path / "claim.png")
    assert (tmp_path / "claim.png").stat().st_size > 10_000
