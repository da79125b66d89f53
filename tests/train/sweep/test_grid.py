"""What a sweep may be, on its command line."""

import dataclasses

import pytest

from train import cli
from train.sweep import sweep
from train.sweep.grid import Cell, Grid


def test_a_configuration_comes_first():
    grid, _ = sweep.parse(["mnist", "--workers", "4", "8", "--methods", "easgd", "gem", "--period", "2"])
    assert (grid.dataset, grid.batch_size, grid.workers, grid.methods) == ("mnist", 64, (4, 8), ("easgd", "gem"))
    assert grid.config(Cell("gem", 4)).period == 1
    assert grid.config(Cell("easgd", 4)).period == 2
    assert (grid.commits("gem"), grid.commits("easgd")) == (600, 300)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--methods", "adam"], "invalid choice 'adam' for argument '--methods'"),
        (["--methods", "gem", "gem"], "--methods has gem twice"),
        (["--worker", "3"], "did you mean --workers?"),
        (["--workers", "0"], "--workers must be at least 1; got 0"),
        (["--learning-rates", "0.1", "-1"], "--learning-rates must not be negative; got -1"),
        (["--momenta", "1.5"], "--momenta must be in [0, 1); got 1.5"),
        (["--seeds", "-1"], "--seeds must not be negative; got -1"),
        (["--strengths", "-1"], "--strengths must be finite and not negative; got -1"),
        (["--methods", "gem", "easgd", "--strengths", "0.5", "5"], "--strengths must be in [0, 1] with easgd; got 5"),
        (["--methods", "asgd", "--strengths", "1"], "--strengths is for gem, dc_asgd"),
        (["--period", "2"], "--period is for methods with local steps"),
        (["--gradients", "0"], "--gradients must be at least --period, 1; got 0"),
        (["imagenet"], "there is no configuration 'imagenet'"),
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


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "--help-all"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(Grid):
        assert "--" + field.name.replace("_", "-") in text
    assert "sweep.csv" in text
