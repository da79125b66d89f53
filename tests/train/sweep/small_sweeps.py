"""Tiny sweeps, real and made up, and the fixtures of their tests."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console
from shrunk import Dense

from train.sweep import sweep
from train.sweep.folder import SweepFolder
from train.sweep.grid import Grid
from train.task import models


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def small(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    return Grid(
        methods=("asgd", "gem"),
        workers=(2, 3),
        learning_rates=(0.02, 0.1),
        seeds=(3, 5),
        gradients=20,
        data_dir=data_dir,
        out=str(tmp_path / "sweep"),
    )


def pretend(grid, cell, task, progress):
    """Return made-up rows of a cell; rates of 1 and more diverge."""
    del task
    rows = [
        {"method": cell.method, "workers": cell.workers, "learning_rate": point["learning_rate"]}
        | {"momentum": point.get("momentum"), "strength": point.get("kappa", point.get("strength")), "seed": seed}
        for point in grid.points(cell.method)
        for seed in grid.seeds
    ]
    for row in rows:
        found = row["workers"] * row["learning_rate"] + 0.01 * row["seed"]
        row |= {
            "commits": 20,
            "initial_train_loss": 2.3,
            "train_loss": found,
            "test_loss": found,
            "test_accuracy": 1 - found / 4,
        }
        row |= {"diverged": row["learning_rate"] >= 1, "rejected": 0, "dropped": 0, "staleness": 1.0, "gap": 0.1}
        row |= {"time": 10.0, "speed_up": 2.0, "speed_up_over_synchronous": 1.1}
    progress.update(f"{cell.method}, {cell.workers} workers", 20 * len(rows))
    return rows


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out the picture, which takes longer than such a sweep."""
    monkeypatch.setattr(sweep.sweep_plots, "draw", lambda rows, path, title: None)


@pytest.fixture
def pretended(monkeypatch):
    """List the cells that would be computed."""
    cells = []
    monkeypatch.setattr(sweep, "run_cell", lambda grid, cell, *rest: cells.append(cell) or pretend(grid, cell, *rest))
    return cells


def run(grid):
    folder, output = SweepFolder.of(grid), io.StringIO()
    rows = sweep.run(grid, folder, Console(file=output, width=80))
    return folder, rows, output.getvalue()


def arguments(grid):
    """Return the command line of a grid."""
    given = {field.name: getattr(grid, field.name) for field in dataclasses.fields(grid)}
    changed = {name: value for name, value in given.items() if value != Grid.__dataclass_fields__[name].default}
    words = [["--" + name.replace("_", "-"), *np.atleast_1d(value).tolist()] for name, value in changed.items()]
    return [str(word) for flag in words for word in flag]
