"""Sweeps from end to end, tiny: the table, the picture, what an interrupted sweep does, and what is refused."""

import csv
import dataclasses
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure
from rich.console import Console
from shrunk import Dense

import gemjax
from gemjax.engines import memory
from train import cli
from train.config.methods import METHODS
from train.run.groups import batch
from train.run.groups.progress import GroupProgress
from train.sweep import plots as sweep_plots
from train.sweep import sweep
from train.sweep import table as sweep_table
from train.sweep.folder import SweepFolder
from train.sweep.grid import Cell, Grid
from train.task import models, schedules
from train.task.cluster import cluster
from train.task.methods import local_steps, make_method
from train.task.task import make_task


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
    names = ["method", "workers", "learning_rate", "momentum", "strength", "seed"]
    rows = [dict(zip(names, (*cell, *point), strict=True)) for point in grid.points(cell.method)]
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


# --- What comes of it


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


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"workers": (1,)}, id="one-number", marks=pytest.mark.slow),
        pytest.param({"seeds": (0,), "learning_rates": (0.1,)}, id="one-point", marks=pytest.mark.slow),
        pytest.param({"learning_rates": (1.0, 2.0)}, id="all-diverge"),
        pytest.param({"learning_rates": (0.1, 1.0), "workers": (1, 2, 4, 8, 16)}, id="many", marks=pytest.mark.slow),
    ],
)
def test_every_grid_can_be_drawn(small, change):
    folder, _, output = run(dataclasses.replace(small, **change))
    assert image.imread(folder.picture).std() > 0.05
    assert max(map(len, output[output.index("Best point") :].splitlines()[:-1])) <= 80


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_sweep_learns(small):
    _, rows, _ = run(small)
    assert len(rows) == 16
    assert all(row["train_loss"] < row["initial_train_loss"] and not row["diverged"] for row in rows)
    assert len({row["test_loss"] for row in rows}) == 16


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("method", ["gem", pytest.param("lsgd", marks=pytest.mark.slow)])
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
def test_runs_that_diverge_are_results(small):
    folder, rows, output = run(dataclasses.replace(small, methods=("asgd",), workers=(2,), learning_rates=(0.1, 1e9)))
    assert [row["diverged"] for row in rows] == [False, False, True, True]
    assert all(row["test_loss"] is None or row["test_loss"] > 1e6 for row in rows[2:])
    assert "2/4" in output
    assert (
        json.loads((folder.path / "cells" / "asgd-2.json").read_text())["content"] == rows
    )  # No NaN, which JSON has not.
    _, rows, output = run(dataclasses.replace(small, methods=("asgd",), learning_rates=(1e30,), out=small.out + "2"))
    assert all(row["diverged"] for row in rows)
    assert "–" in output


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


@pytest.mark.slow
def test_a_run_diverged_if_its_training_loss_says_so(small):
    """The test data play no part."""
    grid = dataclasses.replace(small, methods=("asgd",), workers=(2,), learning_rates=(0.0, 0.02, 1e30), seeds=(3,))
    task = make_task(grid.config(grid.cells[0]))
    worse = dataclasses.replace(task, evaluate=lambda params, model_state: (100.0, 0.0))
    folder = SweepFolder.of(grid)
    with GroupProgress(Console(file=io.StringIO()), "cell", 1, 60) as progress:
        rows = sweep.run_cell(grid, grid.cells[0], worse, progress)
    assert [row["diverged"] for row in rows] == [False, False, True]
    some = {name: leaf[:360] for name, leaf in task.batches.data.items()}
    begin = task.loss_fn(task.params_of(3), (), some, jax.random.key(0))[0]
    assert rows[0]["initial_train_loss"] == pytest.approx(float(begin), rel=1e-5)
    assert [point.idle for point in sweep_table.points(rows)] == [True, False, False]
    folder.begin(grid)
    folder.save(grid.cells[0], [{name: row[name] for name in row if name != "initial_train_loss"} for row in rows])
    with pytest.raises(ValueError, match="other columns than this version"):
        folder.load(grid.cells[0])


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_swept(small, method):
    """Numbers that are traced go through every method."""
    own = {"strengths": (0.1, 0.2)} if {"kappa", "strength"} & set(METHODS[method].takes) else {}
    grid = dataclasses.replace(small, methods=(method,), workers=(2,), momenta=(0.5, 0.9), seeds=(0,), **own)
    _, rows, _ = run(grid)
    assert len(rows) == 2 * (2 if "momentum" in METHODS[method].takes else 1) * (2 if own else 1)
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
    monkeypatch.setattr(schedules, "rate", rate)
    grid = dataclasses.replace(small, methods=("asgd",), workers=(3,), gradients=50, schedule="cosine")
    task = sweep.make_task(grid.config(grid.cells[0]))
    monkeypatch.setattr(batch, "memory_of_run", lambda *_: {})
    with pytest.raises(MadeError, match="50"):
        sweep.run_cell(grid, grid.cells[0], task, types.SimpleNamespace(update=lambda name, done: None))


# --- Interrupted


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_sweep_computes_only_what_is_missing(small, pretended, monkeypatch, capsys):
    folder, _, _ = run(dataclasses.replace(small, out=small.out + "-whole"))
    whole = folder.table.read_text()
    run_cell, argv = sweep.run_cell, ["sweep", *arguments(small)]

    def interrupted(grid, cell, *rest):
        if cell == small.cells[2]:
            raise KeyboardInterrupt
        return run_cell(grid, cell, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(sweep, "run_cell", interrupted)
        assert cli.main(argv) == 130
    said = capsys.readouterr().out
    assert "stopped by Ctrl-C with 2 of 4 cells done" in said
    assert f"--resume {small.out}" in "".join(said.split("\n"))
    folder = SweepFolder(small.out)
    assert folder.table.read_text() == "".join(whole.splitlines(keepends=True)[:9])
    pretended.clear()
    assert cli.main(["sweep", "--resume", small.out]) == 0
    assert pretended == small.cells[2:]
    assert folder.table.read_text() == whole
    assert (
        "3/4 cells done, 75 % of the gradients" in capsys.readouterr().out
    )  # Of the whole sweep, what was done before included.
    assert cli.main(["sweep", "--resume", small.out, "--out", small.out + "-other"]) == 2
    assert "stays in its folder" in capsys.readouterr().err
    pretended.clear()
    (folder.path / "cells" / "asgd-3.json").unlink()
    assert cli.main(argv) == 0  # The same command again goes on as well.
    assert pretended == [small.cells[1]]
    assert folder.table.read_text() == whole


@pytest.mark.usefixtures("undrawn", "pretended")
def test_a_sweep_on_a_full_disk_names_the_command_that_resumes_it(small, monkeypatch, capsys):
    save = SweepFolder.save

    def full(self, job, result):
        if job == small.cells[2]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file(job)))
        save(self, job, result)

    with monkeypatch.context() as patched:
        patched.setattr(SweepFolder, "save", full)
        assert cli.main(["sweep", *arguments(small)]) == 1
    assert re.fullmatch(
        rf"train: \S+gem-2\.json could not be written: No space left on device \(.* are free\); make room\. Stopped with 2 of "
        rf"4 cells done; resume with: python -m train sweep --resume {small.out}\n",
        capsys.readouterr().err,
    )
    assert cli.main(["sweep", "--resume", small.out]) == 0


BLOCKED = """
import sys
from train import cli
from train.sweep import sweep
run_cell = sweep.run_cell

def run_or_wait(grid, cell, *rest):
    if cell == grid.cells[2]:
        sys.stdin.read()
    return run_cell(grid, cell, *rest)

sweep.run_cell = run_or_wait
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_killed_sweep_goes_on(data_dir, tmp_path):
    """It is killed in its second cell, or before its third one, for which it waits."""
    grid = Grid(
        methods=("asgd",), workers=(2, 3, 4), learning_rates=(0.1,), seeds=(0,), gradients=20, data_dir=data_dir
    )
    folders = [SweepFolder(tmp_path / name) for name in ("killed", "whole")]
    command = [[sys.executable, "-m", "train", "sweep", *arguments(grid), "--out", str(f.path)] for f in folders]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED, *command[0][3:]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        for line in process.stdout:
            if line.startswith("1/3 cells done"):
                process.send_signal(signal.SIGKILL)
                break
    assert folders[0].load(grid.cells[0]) is not None
    assert folders[0].load(grid.cells[2]) is None
    subprocess.run([*command[0][:4], "--resume", str(folders[0].path)], check=True, capture_output=True)
    subprocess.run(command[1], check=True, capture_output=True)
    assert folders[0].table.read_text() == folders[1].table.read_text()
    assert folders[0].picture.exists()


def test_a_folder_of_another_sweep_is_refused_with_what_differs(small, capsys):
    folder = SweepFolder.of(small)
    folder.begin(small)
    other = dataclasses.replace(small, seeds=(0,), batch_size=16)
    assert cli.main(["sweep", *arguments(other)]) == 2
    said = capsys.readouterr().err
    assert f"{small.out} holds another sweep, of --batch-size 32 (not 16), --seeds 3 5 (not 0)" in said
    assert cli.main(["sweep", "--resume", small.out, "--workers", "7"]) == 2
    assert "--workers 2 3 (not 7)" in capsys.readouterr().err
    assert folder.load(small.cells[0]) is None


def test_what_is_damaged_or_of_a_single_run_is_refused(small, tmp_path, capsys):
    folder = SweepFolder.of(small)
    folder.begin(small)
    (folder.path / "cells" / "asgd-2.json").write_text("[{")
    assert cli.main(["sweep", *arguments(small)]) == 2
    assert "asgd-2.json is damaged" in capsys.readouterr().err
    folder.grid.write_text("{")
    assert cli.main(["sweep", "--resume", str(folder.path)]) == 2
    assert "is not a sweep" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["sweep", "--out", str(tmp_path)]) == 2
    assert "holds a run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep.json", "sweep.csv", "sweep.png", "cells/asgd-2.json"])
def test_what_is_no_file_is_refused_before_it_is_read_or_replaced(small, capsys, name):
    folder = SweepFolder.of(small)
    folder.begin(small)
    (folder.path / name).unlink(missing_ok=True)
    os.mkfifo(folder.path / name)
    for argv in (["--resume", small.out], arguments(small)):
        assert cli.main(["sweep", *argv]) == 2
        assert f"{folder.path / name} is a pipe or a device, expected a file; move it away" in capsys.readouterr().err


def made_up(grid, number):
    return pretend(grid, grid.cells[number], None, types.SimpleNamespace(update=lambda *_: None))


@pytest.mark.parametrize(
    "content",
    [
        lambda grid: made_up(grid, 1),
        lambda grid: [row | {"gap": "x"} for row in made_up(grid, 0)],
        lambda grid: [{"gap": 0.1}, *made_up(grid, 0)],
        lambda grid: [],
        lambda grid: {},
        lambda grid: ["initial_train_loss"],
        lambda grid: [row | {"learning_rate": None} for row in made_up(grid, 0)],
        lambda grid: [row | {"speed_up": None} for row in made_up(grid, 0)],
        lambda grid: [row | {"diverged": None} for row in made_up(grid, 0)],
        lambda grid: [row | {"train_loss": 10**400} for row in made_up(grid, 0)],
        lambda grid: [row | {"train_loss": float("nan")} for row in made_up(grid, 0)],
        lambda grid: made_up(grid, 0)[1:],
        lambda grid: [*made_up(grid, 0), made_up(grid, 0)[0]],
        lambda grid: [row | {"seed": row["seed"] + 1} for row in made_up(grid, 0)],
    ],
)  # fmt: skip
@pytest.mark.usefixtures("undrawn", "pretended")
def test_a_cell_that_is_not_the_result_of_its_own_is_refused(small, capsys, content):
    folder = SweepFolder.of(small)
    folder.begin(small)
    folder.file(small.cells[0]).write_text(json.dumps(content(small)))
    assert cli.main(["sweep", *arguments(small)]) == 2
    assert "asgd-2.json is damaged" in capsys.readouterr().err
    folder.file(small.cells[0]).write_text("[" * 100_000)
    assert cli.main(["sweep", *arguments(small)]) == 2
    assert "asgd-2.json is damaged" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_one_process_at_a_time_computes_a_sweep(small, monkeypatch, capsys):
    """Two computed each cell twice, and each could remove the file that the other was about to name."""

    def and_again(grid, cell, *rest):
        assert cli.main(["sweep", "--resume", grid.out]) == 2
        return pretend(grid, cell, *rest)

    monkeypatch.setattr(sweep, "run_cell", and_again)
    run(small)
    assert capsys.readouterr().err.count(f"train: {small.out} is in use by another process, such as a run") == 4


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


@pytest.mark.parametrize("gradients", [10**11, 2**31 - 1])
def test_more_gradients_than_fit_are_refused_before_work_begins(small, monkeypatch, capsys, gradients):
    monkeypatch.setattr(memory, "_capacity", lambda device: 2**34)
    assert cli.main(["sweep", *arguments(small), "--gradients", str(gradients)]) == 2
    says = "--gradients must be at most" if gradients > 2**31 else "trace and history 320 GiB"
    assert says in capsys.readouterr().err
    assert not SweepFolder(small.out).path.exists()


def test_a_dry_run_tells_the_programs_and_leaves_nothing(small, capsys):
    assert cli.main(["sweep", *arguments(small), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"gem with 3 workers: 4 runs of [\d.]+ KiB each", said)
    assert not SweepFolder(small.out).path.exists()


def test_a_dry_run_of_what_cannot_fit_says_so_with_a_status(small, monkeypatch, capsys):
    """And needs no data, of which only the shapes matter."""
    monkeypatch.setattr(memory, "_capacity", lambda device: 1000)
    own = ["mnist", "--methods", "gem", "--workers", "400000", "--learning-rates", "0.1", "--seeds", "0"]
    assert cli.main(["sweep", *own, "--data-dir", small.out, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "gem with 400000 workers on mnist: 1 cell, 1 run of" in said.out
    assert re.search(r"400000 workers: 1 run of [\d.]+ GiB each", said.out)
    assert re.search(r"train: the run keeps [\d.]+ GiB .*; take fewer workers", said.err)


@pytest.mark.parametrize(("values", "labels"), [((15.0, 120.0), {"20", "50"}), ((2.0, 900.0), set())])
def test_axes_of_few_decades_label_what_lies_between(values, labels):
    axes = Figure().subplots()
    axes.plot([1, 2], values)
    sweep_plots._set_crosses_apart([axes], {"asgd": {}})
    form = axes.yaxis.get_minor_formatter()
    assert {form(value) for value in axes.yaxis.get_minorticklocs() if 10 < value < 100} - {""} == labels
