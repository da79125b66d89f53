"""The values that a sweep accepts on its command line."""

import dataclasses
import json

import pytest

from train import cli
from train.config.config import Config
from train.config.methods import METHODS
from train.sweep import grid as definition
from train.sweep import sweep
from train.sweep.grid import Cell, Grid


def test_every_flag_of_a_sweep_that_a_run_has_reaches_its_runs(monkeypatch):
    """`--variation` did not."""
    reached = []
    monkeypatch.setattr(definition, "Config", lambda **fields: reached.extend(fields))
    shared = {field.name for field in dataclasses.fields(Grid)} & {field.name for field in dataclasses.fields(Config)}
    for name in METHODS:
        Grid.config(Grid.__new__(Grid), Cell(name, 1))
    assert shared - set(reached) == {"out", "dry_run", "resume"}


def test_a_configuration_comes_first():
    grid, _ = sweep.parse(["mnist", "--workers", "4", "8", "--methods", "easgd", "gem", "--period", "2"])
    assert (grid.dataset, grid.batch_size, grid.workers, grid.methods) == ("mnist", 64, (4, 8), ("easgd", "gem"))
    assert grid.config(Cell("gem", 4)).period == 1
    assert grid.config(Cell("easgd", 4)).period == 2
    assert (grid.commits("gem"), grid.commits("easgd")) == (600, 300)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--methods", "adam"], "--methods must be a name that --help lists; got 'adam'"),
        (["--methods", "gem", "gem"], "--methods has gem twice"),
        (["--worker", "3"], "did you mean --workers?"),
        (["--workers", "0"], "--workers must be at least 1; got 0"),
        (["--learning-rates", "0.1", "-1"], "--learning-rates must not be negative; got -1"),
        (["--momenta", "1.5"], "--momenta must be in [0, 1); got 1.5"),
        (["--seeds", "-1"], "--seeds must not be negative; got -1"),
        (["--strengths", "-1"], "--strengths must be finite and not negative; got -1"),
        (["--methods", "gem", "easgd", "--strengths", "0.5", "5"], "--strengths must be in [0, 1] with easgd; got 5"),
        (["--methods", "asgd", "--strengths", "1"], "--strengths acts only with --methods gem, dana_dc,"),
        (["--methods", "asgd", "--momenta", "0.5"], "--momenta acts only with a method that has one, gem, multi_asgd,"),
        (["--period", "2"], "--period acts only with --methods downpour,"),
        (["--gradients", "0"], "--gradients must be at least --period, 1; got 0"),
        (["imagenet"], "there is no configuration or command 'imagenet'"),
        (["--resume", "nowhere"], "nowhere is not the folder of a sweep"),
        (["--resume"], "there is no sweep under runs/ to resume"),
    ],
)
def test_a_wrong_value_is_answered_in_one_line(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("workers", [True], "--workers must be a list, each value an integer"),
        ("workers", 8, "--workers must be a list, each value an integer; got 8"),
        ("workers", [10**9], "--workers must be at most 1048576; got 1000000000"),
        ("seeds", ["0"], "--seeds must be a list, each value an integer"),
        ("methods", [5], "--methods must be a list, each value a name that --help lists"),
        ("learning_rates", [None], "--learning-rates must be a list, each value a number"),
        ("gradients", 2.5, "--gradients must be an integer; got 2.5"),
        ("dataset", 5, "--dataset must be a text without control characters; got 5"),
        ("colour", 1, "it has an unknown field 'colour'"),
    ],
)
def test_a_value_of_another_type_in_the_file_of_a_sweep_is_refused(tmp_path, capsys, field, value, message):
    fields = json.loads(Grid().text())
    (tmp_path / "sweep.json").write_text(json.dumps(fields | {field: value}))
    assert cli.main(["sweep", "--resume", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"train: {tmp_path}/sweep.json is not a sweep: {message}")
    assert error.count("\n") == 1


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "--help-all"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(Grid):
        assert "--" + field.name.replace("_", "-") in text
    assert "sweep.csv" in text


def test_the_runs_of_a_sweep_have_its_precision():
    grid = Grid(x64=True)
    assert grid.config(grid.cells[0]).x64
    assert grid.differences(Grid()) == ["--x64 True (not False)"]
