"""Sweeps from end to end, tiny: the rows, the picture, and the memory that they need."""

import contextlib
import csv
import dataclasses
import io
import json
import re
import types

import jax
import numpy as np
import pytest
import small_sweeps
from matplotlib import image
from rich.console import Console
from small_sweeps import arguments, run

import gemjax
from gemjax.engines import memory
from train import cli
from train.config.methods import METHODS
from train.run.groups import batch
from train.run.groups.progress import GroupProgress
from train.sweep import sweep
from train.sweep import table as sweep_table
from train.sweep.folder import SweepFolder
from train.sweep.grid import Cell, Grid
from train.task import methods
from train.task.cluster import cluster
from train.task.methods import local_steps, make_method
from train.task.task import make_task

data_dir, small = small_sweeps.data_dir, small_sweeps.small
undrawn, pretended = small_sweeps.undrawn, small_sweeps.pretended


# --- Results


@pytest.mark.slow
def test_a_sweep_leaves_its_table_and_its_picture(small, pretended):
    folder, rows, output = run(small)
    with open(folder.table) as file:
        table = list(csv.DictReader(file))
    assert [(row["method"], row["workers"], row["learning_rate"], row["seed"]) for row in table] == [
        (method, str(workers), str(rate), str(seed))
        for method in small.methods
        for workers in small.workers
        for rate in small.learning_rates
        for seed in small.seeds
    ]
    assert pretended == small.cells
    assert rows == [row for cell in small.cells for row in folder.load(cell)]
    assert image.imread(folder.picture).std() > 0.05
    for word in (
        "4 cells",
        "16 runs",
        "4/4 cells done, 100 % of the gradients  left 0 s",
        "Best point",
        "0/4",
        str(folder.table),
    ):
        assert word in output
    assert Grid.load(folder.grid) == small


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"workers": (1,)}, id="one-number", marks=pytest.mark.nightly),
        pytest.param({"seeds": (0,), "learning_rates": (0.1,)}, id="one-point", marks=pytest.mark.nightly),
        pytest.param({"learning_rates": (1.0, 2.0)}, id="all-diverge"),
        pytest.param({"learning_rates": (0.1, 1.0), "workers": (1, 2, 4, 8, 16)}, id="many", marks=pytest.mark.nightly),
    ],
)
def test_every_grid_can_be_drawn(small, change):
    folder, _, output = run(dataclasses.replace(small, **change))
    assert image.imread(folder.picture).std() > 0.05
    assert max(map(len, output[output.index("Best point") :].splitlines()[:-1])) <= 80


@pytest.mark.nightly
@pytest.mark.usefixtures("undrawn")
def test_a_sweep_learns(small):
    _, rows, _ = run(small)
    assert len(rows) == 16
    assert all(row["train_loss"] < row["initial_train_loss"] and not row["diverged"] for row in rows)
    assert len({row["test_loss"] for row in rows}) == 16


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("method", [pytest.param("gem", marks=pytest.mark.nightly), "lsgd"])
def test_a_row_is_the_run_that_its_seed_makes_alone(small, method):
    """Initial parameters, shuffles and arrivals are those of the seed."""
    period = 2 if method == "lsgd" else 1
    grid = dataclasses.replace(small, methods=(method,), workers=(3,), strengths=(0.5, 0.9), period=period)
    _, rows, _ = run(grid)
    assert len(rows) == 8
    row = rows[-1]
    assert (row["learning_rate"], row["strength"], row["seed"]) == (0.1, 0.9, 5)
    own = {"kappa" if method == "gem" else "strength": 0.9}
    config = dataclasses.replace(grid.config(Cell(method, 3)), learning_rate=0.1, seed=5, **own)
    task, commits = make_task(config), 10 if method == "lsgd" else 20
    alone = gemjax.simulate(
        make_method(config), task.loss_fn, task.params, task.batches, cluster(config).trace(commits, 5),
        local=local_steps(config), seed=5, diagnostics=("gap",),
    )  # fmt: skip
    assert row["commits"] == commits
    assert row["train_loss"] == pytest.approx(alone.history["loss"][-max(1, commits // 10) :].mean(), rel=1e-4)
    assert row["test_loss"] == pytest.approx(task.evaluate(alone.params)[0], rel=1e-4)
    assert row["staleness"] == pytest.approx(alone.history["staleness"].mean())
    assert row["gap"] == pytest.approx(alone.history["gap"].mean(), rel=1e-4)
    assert row["time"] == alone.history["time"][-1]
    found = gemjax.arrivals.speed_up(cluster(config), commits, 5)
    assert (row["speed_up"], row["speed_up_over_synchronous"]) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "tiered_barrier",
        *(
            pytest.param(kind, marks=pytest.mark.nightly)
            for kind in ("round_robin", "barrier", "heterogeneous_barrier")
        ),
    ],
)
def test_clusters_as_slow_as_their_slowest_worker_can_be_swept(small, kind):
    _, rows, _ = run(dataclasses.replace(small, methods=("asgd",), workers=(4,), learning_rates=(0.1,), cluster=kind))
    assert len(rows) == len({row["seed"] for row in rows})
    # Workers in turn are equally fast, and gain nothing either.
    assert all(row["speed_up_over_synchronous"] == 1.0 for row in rows)


@pytest.mark.slow
def test_runs_that_diverge_are_results(small):
    folder, rows, output = run(dataclasses.replace(small, methods=("asgd",), workers=(2,), learning_rates=(0.1, 1e9)))
    assert [row["diverged"] for row in rows] == [False, False, True, True]
    assert all(row["test_loss"] is None or row["test_loss"] > 1e6 for row in rows[2:])
    assert "2/4" in output
    written = json.loads((folder.path / "cells" / "asgd-2.json").read_text())
    assert written["runs"] == rows  # No NaN, which JSON has not.
    _, rows, output = run(dataclasses.replace(small, methods=("asgd",), learning_rates=(1e30,), out=small.out + "2"))
    assert all(row["diverged"] for row in rows)
    assert "–" in output


@pytest.mark.parametrize(("rejected", "diverged"), [(0, False), (4, False), (6, True), (92, True)])
def test_a_run_whose_last_commits_were_mostly_rejected_has_diverged(rejected, diverged):
    """The losses of its first ones are those of initial parameters."""
    applied = np.arange(100) < 100 - rejected
    history = {"applied": applied, "dropped": np.zeros(100, bool), "loss": np.full(100, 2.3), "time": np.arange(100.0)}
    history |= {"staleness": np.ones(100), "gap": np.ones(100)}
    state = types.SimpleNamespace(params=(), model_state=(), rejected=rejected, dropped=0)
    finished = types.SimpleNamespace(
        point={"learning_rate": 1e6, "seed": 0}, history=history, state=state, initial_loss=2.3
    )
    row = sweep._row(
        types.SimpleNamespace(method="asgd", workers=8), types.SimpleNamespace(evaluate=lambda *_: (1e20, 0.1)),
        finished, types.SimpleNamespace(over_one_worker=8.0, over_synchronous=1.0),
    )  # fmt: skip
    assert (row["diverged"], row["train_loss"]) == (diverged, None if diverged else pytest.approx(2.3))


@pytest.mark.slow
def test_a_run_diverged_if_its_training_loss_says_so(small):
    """The test data play no part."""
    grid = dataclasses.replace(small, methods=("asgd",), workers=(2,), learning_rates=(0.0, 0.02, 1e30), seeds=(3,))
    task = make_task(grid.config(grid.cells[0]))
    worse = dataclasses.replace(task, evaluate=lambda params, model_state: (100.0, 0.0))
    with GroupProgress(Console(file=io.StringIO()), "cell", 1, 60) as progress:
        rows = sweep.run_cell(grid, grid.cells[0], worse, progress)
    assert [row["diverged"] for row in rows] == [False, False, True]
    some = {name: leaf[:360] for name, leaf in task.batches.data.items()}
    begin = task.loss_fn(task.params_of(3), (), some, jax.random.key(0))[0]
    assert rows[0]["initial_train_loss"] == pytest.approx(float(begin), rel=1e-5)
    assert [point.idle for point in sweep_table.points(rows)] == [True, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in ("gem", "lsgd", "diloco") else pytest.mark.nightly) for name in METHODS],
)
def test_every_method_can_be_swept(small, method):
    """Numbers that are traced go through every method."""
    own = {"strengths": (0.1, 0.2)} if {"kappa", "strength"} & set(METHODS[method].takes) else {}
    own |= {"momenta": (0.5, 0.9)} if "momentum" in METHODS[method].takes else {}
    grid = dataclasses.replace(small, methods=(method,), workers=(2,), seeds=(0,), **own)
    warned = pytest.warns(gemjax.RunWarning, match="defined in rounds")
    with warned if METHODS[method].rounds else contextlib.nullcontext():
        _, rows, _ = run(grid)
    assert len(rows) == 2 * (2 if "momentum" in METHODS[method].takes else 1) * (2 if "strengths" in own else 1)
    assert len({row["train_loss"] for row in rows}) > 1
    assert all(row["train_loss"] is not None for row in rows)


def test_a_cosine_of_a_sweep_ends_with_each_run(small, monkeypatch):
    class MadeError(Exception):
        pass

    def made(make, *_, **__):
        make(learning_rate=1.0)

    def rate(config, steps_per_epoch):
        raise MadeError(round(config.workers * config.epochs * steps_per_epoch))

    monkeypatch.setattr(gemjax, "sweep", made)
    monkeypatch.setattr(methods, "scheduled_rate", rate)
    grid = dataclasses.replace(small, methods=("asgd",), workers=(3,), gradients=50, schedule="cosine")
    task = sweep.make_task(grid.config(grid.cells[0]))
    monkeypatch.setattr(batch, "memory_of_run", lambda *_: {})
    with pytest.raises(MadeError, match="50"):
        sweep.run_cell(grid, grid.cells[0], task, types.SimpleNamespace(update=lambda name, done: None))


# --- Memory


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_cell_that_does_not_fit_is_several_programs(small, monkeypatch):
    grid = dataclasses.replace(small, methods=("gem",), workers=(3,))
    _, rows, _ = run(grid)
    config = grid.config(grid.cells[0])
    needed = sum(batch.memory_of_run(config, make_task(config).params).values())
    monkeypatch.setattr(memory, "_capacity", lambda device: 2.5 * needed)  # One run, and as much again.
    calls, make = [], gemjax.sweep
    monkeypatch.setattr(
        gemjax, "sweep", lambda *args, **options: calls.append(options["seeds"]) or make(*args, **options)
    )
    _, parts, _ = run(dataclasses.replace(grid, out=grid.out + "-parts"))
    assert len(calls) == 4
    for one, other in zip(rows, parts, strict=True):
        assert [other[name] for name in ("learning_rate", "seed")] == [one[name] for name in ("learning_rate", "seed")]
        assert other["test_loss"] == pytest.approx(one["test_loss"], rel=1e-4)


def test_a_run_that_cannot_fit_is_refused_before_work_begins(small, monkeypatch, capsys):
    monkeypatch.setattr(memory, "_capacity", lambda device: 1000)
    assert cli.main(["sweep", *arguments(small)]) == 2
    assert "take fewer workers" in capsys.readouterr().err
    assert not SweepFolder(small.out).path.exists()


def test_a_dry_run_tells_the_programs_and_leaves_nothing(small, capsys):
    assert cli.main(["sweep", *arguments(small), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"gem with 3 workers: 4 runs of [\d.]+ KiB each", said)
    assert not SweepFolder(small.out).path.exists()


@pytest.mark.slow
def test_a_dry_run_of_what_cannot_fit_says_so_with_a_status(small, monkeypatch, capsys):
    """And needs no data, of which only the shapes matter."""
    monkeypatch.setattr(memory, "_capacity", lambda device: 1000)
    own = ["mnist", "--methods", "gem", "--workers", "400000", "--learning-rates", "0.1", "--seeds", "0"]
    assert cli.main(["sweep", *own, "--data-dir", small.out, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "gem with 400000 workers on mnist: 1 cell, 1 run of" in said.out
    assert re.search(r"400000 workers: 1 run of [\d.]+ GiB each", said.out)
    assert re.search(r"train: the run keeps [\d.]+ GiB .*; take fewer workers", said.err)
