"""The values that a sweep accepts on its command line."""

import dataclasses

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


def test_a_value_that_is_given_twice_is_tried_once():
    assert Grid(seeds=(1, 0, 1)).seeds == (1, 0)


def test_the_runs_of_a_sweep_have_its_precision():
    grid = Grid(x64=True)
    assert grid.config(grid.cells[0]).x64
    assert grid.differences(Grid()) == ["--x64 True (not False)"]
