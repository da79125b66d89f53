"""The table of a sweep and the axes of its picture."""

import dataclasses
import io
import types

import pytest
import small_sweeps
from matplotlib.figure import Figure
from rich.console import Console
from small_sweeps import pretend

from train.sweep import plots as sweep_plots
from train.sweep import table as sweep_table
from train.sweep.grid import Cell

data_dir, small = small_sweeps.data_dir, small_sweeps.small


def test_the_best_point_is_chosen_by_training_loss_and_diverges_least():
    def row(rate, seed, train, test, diverged=False):
        own = {"learning_rate": rate, "seed": seed, "train_loss": train, "test_accuracy": test, "diverged": diverged}
        return {"method": "gem", "workers": 2, "momentum": 0.9, "strength": None} | own

    rows = [
        row(0.1, 0, 1.0, 0.7), row(0.1, 1, 2.0, 0.9),
        row(0.2, 0, 1.2, 0.5), row(0.2, 1, 1.2, 0.6),
        row(0.3, 0, 0.1, 0.9), row(0.3, 1, None, None, diverged=True),
    ]  # fmt: skip
    ((best, cell),) = sweep_table.best_of_cells(rows)
    assert best["learning_rate"] == 0.2
    assert best.spread("test_accuracy") == (pytest.approx(0.55), 0.5, 0.6)
    assert [point.diverged for point in cell] == [0, 0, 1]
    assert cell[2].spread("train_loss") == (0.1, 0.1, 0.1)
    assert sweep_table._behind(cell[2], (10.0, 10.0)) == " (1 of 2 seeds)"
    assert sweep_table._behind(best, (40.0, 50.0)) == " (40.0–50.0)"


def test_speed_ups_in_the_table_are_means_over_the_seeds(small):
    progress = types.SimpleNamespace(update=lambda name, done: None)
    rows = pretend(small, Cell("asgd", 2), None, progress)
    for row in rows:
        row |= {"speed_up": float(row["seed"]), "speed_up_over_synchronous": 10.0 + row["seed"]}
    cells = {column.header: [*column.cells] for column in sweep_table.table(rows).columns}
    assert cells["×one"] == ["4.0"]
    assert cells["×sync"] == ["14.00"]


@pytest.mark.parametrize(("width", "ranges"), [(80, False), (100, True)])
def test_a_table_of_many_columns_fits_a_terminal(small, width, ranges):
    progress = types.SimpleNamespace(update=lambda name, done: None)
    grid = dataclasses.replace(small, methods=("momentum_lookahead",), workers=(128,))
    rows = pretend(grid, grid.cells[0], None, progress)
    for index, row in enumerate(rows):
        point, seed = divmod(index, len(grid.seeds))
        row |= {
            "learning_rate": 0.00125 * (1 + point),
            "momentum": 0.9 + 0.05 * (point > 0),
            "strength": 0.25 * (1 + point),
        }
        row |= {"train_loss": 2.25, "test_accuracy": 0.1 * seed, "speed_up": 99.9, "staleness": 99.9}
    console = Console(file=io.StringIO(), width=width)
    console.print(sweep_table.fitted(rows, console))
    shown = console.file.getvalue()
    assert "…" not in shown
    header = next(line for line in shown.splitlines() if "method" in line)
    assert " ".join(header.split()) == "method N rate mom. str. loss error % stale ×one ×sync div."
    assert ("(test error: least–most)" in shown) == ranges


def test_the_table_marks_rates_at_the_edge_and_what_has_learned_nothing(small):
    progress = types.SimpleNamespace(update=lambda name, done: None)
    grid = dataclasses.replace(small, learning_rates=(0.1, 0.2, 0.3), seeds=(0,))
    rows = [row for cell in grid.cells[:3] for row in pretend(grid, cell, None, progress)]
    losses = [1.0, 0.1, 1.0, 1.0, 2.2, 0.5, 2.2, 2.3, 2.4]
    for row, loss in zip(rows, losses, strict=True):
        row["train_loss"] = loss
    made = sweep_table.table(rows)
    cells = {column.header: [*column.cells] for column in made.columns}
    assert cells["rate"] == ["0.2", "0.3 ↑", "0.1 ↓"]
    assert cells["loss"] == ["0.1", "0.5", "2.2 ○"]
    assert "○: no better than before training" in made.caption
    assert "↑ ↓: the largest or least rate tried" in made.caption
    assert "○" not in sweep_table.table(rows[:3]).caption + sweep_table.table(rows[3:6]).caption
    assert "↑" not in sweep_table.table(rows[:3]).caption


@pytest.mark.parametrize(("values", "labels"), [((15.0, 120.0), {"20", "50"}), ((2.0, 900.0), set())])
def test_axes_of_few_decades_label_what_lies_between(values, labels):
    axes = Figure().subplots()
    axes.plot([1, 2], values)
    sweep_plots._set_crosses_apart([axes], {"asgd": {}})
    form = axes.yaxis.get_minor_formatter()
    assert {form(value) for value in axes.yaxis.get_minorticklocs() if 10 < value < 100} - {""} == labels
