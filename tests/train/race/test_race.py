"""The race: its seconds, losses and target, its files, and the figures of the page."""

import json
import re
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from shrunk import Dense

from train import cli
from train.race import picture, race, tuning
from train.race.contestants import CONTESTANTS, Lap, label, run
from train.task import models

ROOT = Path(__file__).parents[3]
STORED = ROOT / "train" / "results" / "race.json"


def lap(losses, commits_per_second=10.0):
    """Return the run of two workers in turn, evaluated after each commit, with these losses."""
    commits = np.arange(len(losses))
    times = commits[1:] / commits_per_second
    rows = {"time": times, "ready": times, "began": times - 0.05, "dispatched": times - 0.05}
    return Lap(commits / commits_per_second, np.array(losses), commits, rows | {"worker": commits[1:] % 2})


def constant_gradient():
    """Return a task whose gradient is 1 everywhere, so that parameters tell the number of commits in any order."""
    return types.SimpleNamespace(
        params=jnp.zeros(()), loss_fn=lambda params, batch: params + 0.0 * batch, batches=lambda worker, step: 0.0,
        evaluate=lambda params: (float(params), 0.0),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asgd", "synchronous", "quorum"])
def test_a_loss_is_that_of_the_parameters_after_its_commit(name):
    found = run(CONTESTANTS[name], constant_gradient(), 3, 0.0, 24)
    assert found.losses[0] == 0.0
    assert found.commits[-1] == 24
    assert list(found.commits) == sorted(set(found.commits))
    assert found.seconds[0] == 0.0
    assert list(found.seconds[1:]) == [found.history["time"][count - 1] for count in found.commits[1:]]
    if name == "asgd":
        np.testing.assert_allclose(found.losses, -CONTESTANTS["asgd"].learning_rate * found.commits, rtol=1e-5)


def test_the_last_worker_is_slow_and_a_round_waits_for_it():
    found = run(CONTESTANTS["synchronous"], constant_gradient(), 3, 0.02, 6).history
    taken = found["ready"] - found["began"]
    assert (taken[found["worker"] == 2] >= 0.02).all()
    for first in (0, 3):  # The slow gradient of a round is finished before any of them commits.
        worker, ready = (found[name][first : first + 3] for name in ("worker", "ready"))
        assert sorted(worker) == [0, 1, 2]
        assert (found["time"][first : first + 3] >= ready.max() - 1e-6).all()


def test_the_target_is_the_least_loss_that_all_contestants_reach_and_a_margin():
    quick, late, lost = lap([2.0, 0.5, 0.1]), lap([2.0, 1.0, 0.231]), lap([2.0, 1.9, 5.0])
    assert race.target_of({"gem": quick, "asgd": late}) == 0.35
    assert race.target_of({"gem": quick, "asgd": late, "quorum": lost}) == 0.35
    assert race.target_of({"quorum": lost}) is None
    assert (late.reached(0.35), late.reached(0.1)) == (2, None)


def test_the_rates_are_inside_of_their_grids():
    for contestant in CONTESTANTS.values():
        assert contestant.tried == tuple(sorted(contestant.tried))
        assert contestant.tried[0] < contestant.learning_rate < contestant.tried[-1]
        assert contestant.learning_rate in contestant.tried


def test_a_contestant_that_learns_nothing_is_in_the_table_and_in_the_picture(tmp_path):
    laps = {"gem": lap([2.0, 0.5, 0.1]), "asgd": lap([2.0, np.nan, 5.0])}
    found = race.figures(laps, race.Race(workers=2), 0.0)
    assert found["contestants"]["gem"]["seconds_to_target"] == 0.2
    lost = found["contestants"]["asgd"]
    assert (lost["seconds_to_target"], lost["losses"]) == (None, [2.0, None, 5.0])
    assert "not reached" in [cell for column in race.table(found).columns for cell in column.cells]
    picture.draw(json.loads(json.dumps(found)), tmp_path / "race.png")
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_command_writes_figures_and_picture_and_its_own_files_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    argv = ["race", "--methods", "asgd", "gem", "--workers", "2", "--slow", "0.01", "--gradients", "10"]
    argv += ["--out", str(tmp_path)]
    assert cli.main(argv) == 0
    found = json.loads((tmp_path / "race.json").read_text())
    assert list(found["contestants"]) == ["asgd", "gem"]
    assert (found["slow"], found["gradients"]) == (0.01, 10)
    assert {path.name for path in tmp_path.iterdir()} == {"race.json", "race.png"}
    assert "worker 1 waits 0.01 s per gradient" in capsys.readouterr().out
    monkeypatch.setattr(race, "compete", lambda *_: found | {"slow": 0.02})
    assert cli.main(argv) == 0
    assert json.loads((tmp_path / "race.json").read_text())["slow"] == 0.02


@pytest.mark.slow
def test_tuning_simulates_each_rate_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    monkeypatch.setattr(tuning, "EVERY", 4)
    argv = ["race", "--tune", "--methods", "quorum", "--workers", "3", "--gradients", "10"]
    argv += ["--out", str(tmp_path / "none")]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert [f" {rate:g} " in printed for rate in CONTESTANTS["quorum"].tried] == [True] * len(
        CONTESTANTS["quorum"].tried
    )
    assert not (tmp_path / "none").exists()


def test_tuning_evaluates_the_parameters_after_a_commit():
    found = dict(tuning.tune("asgd", constant_gradient(), 3, 0.2, 40))
    assert list(found) == list(CONTESTANTS["asgd"].tried)
    for rate, one in found.items():
        assert list(one.commits) == [0, 16, 32, 40]
        np.testing.assert_allclose(one.losses, -rate * one.commits, rtol=1e-5)
        assert (np.diff(one.seconds) > 0).all()


def test_a_simulated_round_waits_for_the_slow_worker_only_at_the_barrier():
    barrier, without = (tuning.trace_of(4, quorum, 0.2, 12) for quorum in (4, 3))
    assert list(barrier.pulled_at) == [0] * 4 + [4] * 4 + [8] * 4
    assert (np.diff(barrier.time[::4]) > 0.2).all()
    assert without.time[8] < 0.1
    assert 3 not in without.worker[:9]


@pytest.mark.parametrize("page", ["README.md", "train/measure.md"])
def test_the_seconds_of_a_page_are_those_of_the_stored_race(page):
    found = json.loads(STORED.read_text())
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"test loss of {found['target']:g}" in text
    for name, one in found["contestants"].items():
        assert one["learning_rate"] == CONTESTANTS[name].learning_rate, "race again: the rates have changed"
        assert re.search(rf"\b{one['seconds_to_target']:.1f} s\b", text), label(name, found["workers"])


def test_the_rates_of_the_page_are_those_of_the_contestants():
    page = (ROOT / "train" / "measure.md").read_text(encoding="utf-8")
    for name, contestant in CONTESTANTS.items():
        tried = re.search(rf"^\| `{name}` \|.*\| ([^|]*\*\*[^|]*) \|$", page, re.MULTILINE)[1]
        assert [float(rate.strip("*")) for rate in tried.split(", ")] == list(contestant.tried)
        assert float(re.search(r"\*\*(.*?)\*\*", tried)[1]) == contestant.learning_rate
