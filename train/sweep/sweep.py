"""`python -m train sweep`: methods and numbers of workers side by side, in the simulator."""

import contextlib
import dataclasses
import functools
import io
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console

import gemjax
from gemjax import arrivals
from gemjax.engines.memory import check_fits, readable
from train.common import interrupts
from train.common.errors import UsageError
from train.config import helptext
from train.config.parsing import one_line, start_from, take_resume
from train.config.validation import LOCAL
from train.run.progress import SweepProgress
from train.sweep import plots as sweep_plots
from train.sweep import table as sweep_table
from train.sweep.folder import Row, SweepFolder
from train.sweep.grid import Cell, Grid, programs
from train.task.cluster import cluster
from train.task.data.names import check_dataset
from train.task.divergence import MARGIN
from train.task.methods import at, knobs, local_steps, make_method
from train.task.task import PyTree, Task, make_task, parameter_shapes

CHUNK = 100  # Arrivals between two looks at a program.

USAGE = "python -m train sweep"
ABOUT = f"""Compare methods, numbers of workers, learning rates, momenta and seeds in gemjax's simulator.
{helptext.START} All runs of one method with one number of workers (a cell) are one compiled program. The folder gets \
sweep.csv (a line per run, for pandas.read_csv), sweep.png, and each cell when it is finished. After an interruption \
--resume goes on, or the same command with the same --out."""


def main(argv: Sequence[str]) -> int:
    """Runs the sweep that the command line asks for; returns the exit status."""
    grid, folder = parse(argv)
    console = Console()
    try:
        if grid.dry_run:
            dry_run(grid, console)
            return 0
        _say(console, f"sweep on {grid.dataset}: preparing data and parameters …")
        run(grid, folder, console)
    except KeyboardInterrupt as stop:
        done = sum(folder.rows(cell) is not None for cell in grid.cells)
        number = interrupts.number_of(stop)
        _say(console, f"stopped by {interrupts.name_of(number)} with {done} of {_count(len(grid.cells), 'cell')} done")
        if folder.grid.exists():
            _say(console, f"go on with: python -m train sweep --resume {folder.path}")
        return interrupts.status_of(number)
    return 0


def parse(argv: Sequence[str]) -> tuple[Grid, SweepFolder]:
    """The sweep that `argv` asks for, and its folder.

    Raises:
      UsageError: if it is wrong.
    """
    argv, default = start_from(list(argv), swept=True)
    argv, resume = take_resume(argv)
    said = io.StringIO()
    try:
        begun = Grid.load(SweepFolder.find(resume).grid) if resume else Grid.of(default)
        helptext.show(argv, USAGE, ABOUT, begun)
        with contextlib.redirect_stderr(said):
            grid = tyro.cli(Grid, args=argv, default=begun, prog=USAGE)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except SystemExit as stop:
        if stop.code == 0:
            raise
        raise UsageError(f"{one_line(said.getvalue())} (python -m train sweep --help)") from None
    if resume and grid.out != begun.out:
        raise UsageError("a resumed sweep stays in its folder; give --resume or --out, not both")
    check_dataset(grid.dataset, grid.data_dir)
    grid = dataclasses.replace(grid, resume=None)
    return grid, SweepFolder.find(resume) if resume else SweepFolder.of(grid)


def run(grid: Grid, folder: SweepFolder, console: Console) -> list[Row]:
    """Runs the cells of `grid` that `folder` lacks, and draws what came of all; returns all rows.

    Raises:
      UsageError: before anything is computed, if that cannot be.
    """
    task, known = _begin(grid, folder)
    interrupts.raise_again()  # There is a folder to go on from, which the last line names.
    missing = [cell for cell in grid.cells if cell not in known]
    _say(console, f"{_what(grid)}; folder {folder.path}")
    if (most := task.batches.batch_size) < grid.batch_size:
        _say(console, f"--batch-size {grid.batch_size} is more than all rows: a batch has {most}")
    if known:
        _say(console, f"{len(known)} of {_count(len(grid.cells), 'cell')} done already")
    sizes = {cell: _num_runs(grid, cell) * grid.commits(cell.method) for cell in grid.cells}
    before = sum(sizes[cell] for cell in known)
    with SweepProgress(console, sum(sizes.values()), len(grid.cells), len(known), before) as progress:
        for cell in missing:
            progress.begin(f"{cell.method}, {cell.workers} workers")
            known[cell] = run_cell(grid, cell, task, progress)
            folder.save(cell, known[cell])
            folder.write_table(_in_order(grid, known))
            progress.end()
    rows = _in_order(grid, known)
    folder.write_table(rows)
    sweep_plots.draw(
        rows, folder.picture, f"{grid.dataset}, {grid.gradients:,} gradients a run, {grid.cluster} workers"
    )
    console.print(sweep_table.table(rows))
    _say(console, f"table of all runs: {folder.table}, picture: {folder.picture}")
    return rows


def _begin(grid: Grid, folder: SweepFolder) -> tuple[Task, dict[Cell, list[Row]]]:
    """What is trained and which cells are done, once it is known that nothing stands in the way of the others.

    Raises:
      UsageError: if the folder is of another sweep or damaged, or a single run does not fit into memory.
    """
    try:
        folder.check(grid)
        known = {cell: rows for cell in grid.cells if (rows := folder.rows(cell)) is not None}
        task = make_task(grid.config(grid.cells[0]))
        _check_memory(grid, task.params)
    except (ValueError, MemoryError) as error:
        raise UsageError(str(error)) from error
    folder.begin(grid)
    return task, known


def _in_order(grid: Grid, known: dict[Cell, list[Row]]) -> list[Row]:
    """The rows of all cells that are done, in the order of the grid, whichever came first."""
    return [row for cell in grid.cells for row in known.get(cell, [])]


def run_cell(grid: Grid, cell: Cell, task: Task, progress: SweepProgress) -> list[Row]:
    """All runs of one method with one number of workers, in one program if the device can hold that."""
    config, commits, over = grid.config(cell), grid.commits(cell.method), grid.over(knobs(cell.method))
    model = cluster(config)
    parts = programs(over | {"seed": grid.seeds}, functools.partial(_fit, _memory(grid, cell, task.params)))
    steps = task.batches.steps_per_epoch
    # A cosine schedule ends with the run.
    config = dataclasses.replace(config, epochs=grid.gradients / (cell.workers * steps))
    local: Any = lambda **point: local_steps(at(config, point), steps)
    rows: list[Row] = []
    for part in parts:
        seeds = part.pop("seed")
        result = gemjax.sweep(
            lambda **point: make_method(at(config, point), steps),
            task.loss_fn,
            gemjax.PerSeed(task.params_of),
            gemjax.PerSeed(task.batches_of),
            gemjax.PerSeed(lambda seed: model.trace(commits, seed)),
            part,
            seeds=seeds,
            model_state=task.model_state,
            local=local if cell.method in LOCAL else None,
            diagnostics=("gap",),
            chunk_size=min(CHUNK, commits),
            callback=progress.of(len(seeds) * int(np.prod([len(values) for values in part.values()]))),
        )
        rows += _rows(cell, task, result, {seed: arrivals.speed_up(model, commits, seed) for seed in seeds})
    order = [*over.items(), ("seed", grid.seeds)]
    rows.sort(key=lambda row: [values.index(row["strength" if name == "kappa" else name]) for name, values in order])
    return rows


def _rows(cell: Cell, task: Task, result: gemjax.SweepResult, speed_ups: dict[int, arrivals.SpeedUp]) -> list[Row]:
    """One row a run: what it was, and what came of it."""
    history, rows = result.history, []
    begins = {seed: task.train_loss(task.params_of(seed), task.model_state) for seed in speed_ups}
    for index, point in enumerate(result.table(last=max(1, history["loss"].shape[1] // 10))):
        applied, seed = history["applied"][index], point["seed"]
        reached = jax.tree.map(lambda leaf, index=index: leaf[index], (result.params, result.state.model_state))
        test_loss, accuracy = task.evaluate(*reached)
        row = {
            "method": cell.method,
            "workers": cell.workers,
            "learning_rate": point["learning_rate"],
            "momentum": point.get("momentum"),
            "strength": point.get("kappa", point.get("strength")),
            "seed": seed,
            "commits": len(applied),
            "initial_train_loss": begins[seed],
            "train_loss": point["loss"],
            "test_loss": test_loss,
            "test_accuracy": accuracy,
            "diverged": not point["loss"] <= (1 + MARGIN) * begins[seed],
            "rejected": point["rejected"],
            "dropped": point["dropped"],
            "staleness": _mean(history["staleness"][index][applied]),
            "gap": _mean(history["gap"][index][applied]),
            "time": float(history["time"][index][-1]),
            "speed_up": speed_ups[seed].over_one_worker,
            "speed_up_over_synchronous": speed_ups[seed].over_synchronous,
        }
        finite = {
            name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()
        }
        rows.append(finite)
    return rows


def dry_run(grid: Grid, console: Console) -> None:
    """Says what the sweep would be and what memory its programs would keep.

    Raises:
      MemoryError: if a single run does not fit, after all has been said.
    """
    params = parameter_shapes(grid.config(grid.cells[0]))
    _say(console, _what(grid))
    for cell in grid.cells:
        needed = _memory(grid, cell, params)
        lists = grid.over(knobs(cell.method)) | {"seed": grid.seeds}
        count = len(programs(lists, functools.partial(_fit, needed)))
        runs, size = _num_runs(grid, cell), readable(sum(needed.values()))
        split = f" in {count} programs" if count > 1 else ""
        _say(
            console, f"{cell.method} with {_count(cell.workers, 'worker')}: {_count(runs, 'run')}{split} of {size} each"
        )
    _say(console, "gradients and activations come on top")
    _check_memory(grid, params)


def _what(grid: Grid) -> str:
    runs = sum(_num_runs(grid, cell) for cell in grid.cells)
    return (
        f"{', '.join(grid.methods)} with {', '.join(map(str, grid.workers))} workers on {grid.dataset}: "
        f"{_count(len(grid.cells), 'cell')}, {_count(runs, 'run')} of {grid.gradients:,} gradients ({jax.default_backend()})"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _num_runs(grid: Grid, cell: Cell) -> int:
    return len(grid.seeds) * int(np.prod([len(values) for values in grid.over(knobs(cell.method)).values()]))


def _check_memory(grid: Grid, params: PyTree) -> None:
    """Raises `MemoryError` if the device cannot hold a single run."""
    for cell in grid.cells:
        check_fits(_memory(grid, cell, params), jax.devices()[0])


def _memory(grid: Grid, cell: Cell, params: PyTree) -> dict[str, int]:
    """Bytes that one run of a cell keeps."""
    config = grid.config(cell)
    return gemjax.memory_of(make_method(config), params, num_workers=cell.workers, local=local_steps(config))


def _fit(needed: dict[str, int], runs: int) -> bool:
    """Whether so many runs fit side by side, with as much again for gradients, activations and what is being copied."""
    try:
        check_fits({name: 2 * runs * size for name, size in needed.items()}, jax.devices()[0])
    except MemoryError:
        return False
    return True


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
