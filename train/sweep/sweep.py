"""`python -m train sweep`: methods and numbers of workers side by side, in the simulator."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console

from gemjax import arrivals
from gemjax.engines.memory import check_fits, readable
from train.common import interrupts
from train.common.console import RunConsole, say
from train.common.files import alone, in_shell, release
from train.common.machine import in_its_precision
from train.config import helptext
from train.config.file import show_config, start_from, take_config, take_resume
from train.config.parsing import check_resumed, in_rounds, parse_flags
from train.run.groups.batch import FinishedRun, fit, memory_of_run, programs, run_batch
from train.run.groups.progress import GroupProgress
from train.run.groups.store import until_interrupted
from train.sweep import plots as sweep_plots
from train.sweep import table as sweep_table
from train.sweep.folder import Row, SweepFolder
from train.sweep.grid import Cell, Grid
from train.task.cluster import cluster
from train.task.data.load import check_name
from train.task.divergence import MARGIN
from train.task.methods import make_method
from train.task.task import PyTree, Task, make_task, parameter_shapes

USAGE = "python -m train sweep"
ABOUT = f"""Compare methods, numbers of workers, learning rates, momenta and seeds in gemjax's simulator.
{helptext.START} All runs of one method with one number of workers (a cell) share one compiled program. The folder gets \
sweep.csv (a line per run, for pandas.read_csv), sweep.png, and each cell when it is finished. After an interruption, \
--resume or the same command with the same --out resumes."""


def main(argv: Sequence[str]) -> int:
    """Run the sweep that the command line asks for and return the exit status."""
    grid, folder = parse(argv)
    console = RunConsole()
    if grid.dry_run:
        return until_interrupted(lambda: dry_run(grid, console), console, str)

    def resume() -> str:
        if not folder.is_final:  # Nothing of this sweep is there yet.
            return ""
        done = f" with {len(folder.known(grid.cells))} of {_count(len(grid.cells), 'cell')} done"
        return done + (
            f"; resume with: python -m train sweep --resume {in_shell(folder.path)}" if folder.grid.exists() else ""
        )

    say(console, f"sweep on {grid.dataset}: preparing data and parameters …")
    try:
        return until_interrupted(lambda: run(grid, folder, console), console, resume)
    finally:
        if grid.out is None and folder.is_final:  # A folder that is not final may belong to another sweep.
            release(folder.path)


def parse(argv: Sequence[str]) -> tuple[Grid, SweepFolder]:
    """Return the sweep that `argv` asks for, and its folder.

    Raises:
      UsageError: if it is wrong.
    """
    given = argv
    argv, default = start_from(list(argv), swept=True)
    argv, is_printed = take_config(argv, Grid, "sweep")
    argv, resume = take_resume(argv)
    folder = SweepFolder.find(resume) if resume else None
    begun = Grid.load(folder.grid) if folder else Grid.of(default)
    helptext.show(argv, USAGE, ABOUT, begun)
    if resume:
        check_resumed(list(given), default, begun)
    grid = parse_flags(Grid, argv, USAGE, begun)
    if not resume:
        grid = in_rounds(grid, grid.methods, argv)
    if is_printed:
        show_config(grid, "sweep")
    check_name(grid.dataset, grid.data_dir)
    grid = dataclasses.replace(grid, resume=None)
    for cell in grid.cells:
        for point in grid.points(cell.method):
            make_method(grid.config(cell), **point)
    return grid, folder or SweepFolder.of(grid)


@in_its_precision
def run(grid: Grid, folder: SweepFolder, console: Console) -> list[Row]:
    """Run the cells of `grid` that `folder` lacks, write the table and the picture, and return all rows.

    Raises:
      UsageError: before anything is computed, if the folder belongs to another sweep.
      MemoryError: likewise, if a single run does not fit the memory.
      BlockingIOError: if another process runs this sweep.
    """
    _check_memory(grid, parameter_shapes(grid.config(grid.cells[0])))
    task = make_task(grid.config(grid.cells[0]))
    folder.data = task.data_checksum()
    folder.create()
    with alone(folder.path):
        folder.check_grid(grid)  # Another process may have begun, or ended, a sweep there meanwhile.
        known = folder.known(grid.cells)
        folder.begin(grid)
        interrupts.raise_again()  # From here there is a folder to resume from, which the last line names.
        return _run(grid, folder, known, task, console)


def _run(grid: Grid, folder: SweepFolder, known: dict[Cell, list[Row]], task: Task, console: Console) -> list[Row]:
    """Run the cells that are not `known`, write the table and the picture, and return all rows."""
    missing = [cell for cell in grid.cells if cell not in known]
    say(console, f"{_what(grid)}; folder {folder.path}")
    say(console, f"{grid.dataset}: {task.data}")
    if (most := task.batches.batch_size) < grid.batch_size:
        say(console, f"--batch-size {grid.batch_size} is larger than the data set: a batch has {most} rows")
    if known:
        say(console, f"{len(known)} of {_count(len(grid.cells), 'cell')} done already")
    sizes = {cell: _num_runs(grid, cell) * grid.commits(cell.method) for cell in grid.cells}
    before = sum(sizes[cell] for cell in known)
    with GroupProgress(console, "cell", len(grid.cells), sum(sizes.values()), len(known), before) as progress:
        made = ((cell, run_cell(grid, cell, task, progress)) for cell in missing)
        for cell, _ in folder.keep(made, known):
            folder.write_table(_in_order(grid, known))
            progress.end(_name(cell), sizes[cell])
    rows = _in_order(grid, known)
    folder.write_table(rows)
    title = f"{grid.dataset}, {grid.gradients:,} gradients per run, {grid.cluster} workers"
    sweep_plots.draw(rows, folder.picture, title)
    console.print(sweep_table.fitted(rows, console))
    say(console, f"table of all runs: {folder.table}, picture: {folder.picture}")
    return rows


def _in_order(grid: Grid, known: dict[Cell, list[Row]]) -> list[Row]:
    """Return the rows of all finished cells in the order of the grid."""
    return [row for cell in grid.cells for row in known.get(cell, [])]


def run_cell(grid: Grid, cell: Cell, task: Task, progress: GroupProgress) -> list[Row]:
    """Simulate all runs of one method with one number of workers and return a row per run."""
    name, commits, model = _name(cell), grid.commits(cell.method), cluster(grid.config(cell))
    progress.update(name, 0)
    # A cosine schedule ends with the run.
    epochs = grid.gradients / (cell.workers * task.batches.steps_per_epoch)
    speed_up = functools.cache(lambda seed: arrivals.speed_up(model, commits, seed))
    return run_batch(
        dataclasses.replace(grid.config(cell), epochs=epochs),
        task,
        commits,
        grid.over(cell.method),
        grid.seeds,
        lambda finished: _row(cell, task, finished, speed_up(finished.point["seed"])),
        diagnostics=("gap",),
        progress=functools.partial(progress.update, name),
    )


def _row(cell: Cell, task: Task, finished: FinishedRun, speed_up: arrivals.SpeedUp) -> Row:
    """Return the row of a run in `sweep.csv`; `None` where a number is not finite or not applicable."""
    point, history, state, begin = finished.point, finished.history, finished.state, finished.initial_loss
    applied = history["applied"]
    last = max(1, len(applied) // 10)
    kept = applied[~history["dropped"]][-last:]
    # If most of the last commits were rejected, the losses that are left are from before the run diverged.
    train_loss = _mean(history["loss"][applied][-last:]) if 2 * kept.sum() >= len(kept) else np.nan
    test_loss, accuracy = task.evaluate(state.params, state.model_state)
    row = {
        "method": cell.method,
        "workers": cell.workers,
        "learning_rate": point["learning_rate"],
        "momentum": point.get("momentum"),
        "strength": point.get("kappa", point.get("strength")),
        "seed": point["seed"],
        "commits": len(applied),
        "initial_train_loss": begin,
        "train_loss": train_loss,
        "test_loss": test_loss,
        "test_accuracy": accuracy,
        "diverged": not train_loss <= (1 + MARGIN) * begin,
        "rejected": int(state.rejected),
        "dropped": int(state.dropped),
        "staleness": _mean(history["staleness"][applied]),
        "gap": _mean(history["gap"][applied]),
        "time": float(history["time"][-1]),
        "speed_up": speed_up.over_one_worker,
        "speed_up_over_synchronous": speed_up.over_synchronous,
    }
    return {name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()}


@in_its_precision
def dry_run(grid: Grid, console: Console) -> None:
    """Print the sweep and the memory that its programs keep.

    Raises:
      MemoryError: if a single run does not fit, after everything is printed.
    """
    params = parameter_shapes(grid.config(grid.cells[0]))
    say(console, _what(grid))
    for cell in grid.cells:
        needed = memory_of_run(grid.config(cell), params)
        lists = {"point": range(math.prod(map(len, grid.over(cell.method).values()))), "seed": grid.seeds}
        count = len(programs(lists, functools.partial(fit, needed)))
        runs, size = _count(_num_runs(grid, cell), "run"), readable(sum(needed.values()))
        split = f" in {count} programs" if count > 1 else ""
        say(console, f"{cell.method} with {_count(cell.workers, 'worker')}: {runs}{split} of {size} each")
    say(console, "gradients and activations need further memory")
    _check_memory(grid, params)


def _what(grid: Grid) -> str:
    runs = sum(_num_runs(grid, cell) for cell in grid.cells)
    return (
        f"{', '.join(grid.methods)} with {', '.join(map(str, grid.workers))} workers on {grid.dataset}: "
        f"{_count(len(grid.cells), 'cell')}, {_count(runs, 'run')} of {grid.gradients:,} gradients ({jax.default_backend()})"
    )


def _name(cell: Cell) -> str:
    return f"{cell.method}, {cell.workers} workers"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _num_runs(grid: Grid, cell: Cell) -> int:
    return len(grid.seeds) * math.prod(map(len, grid.over(cell.method).values()))


def _check_memory(grid: Grid, params: PyTree) -> None:
    """Raise `MemoryError` if the device cannot hold a single run."""
    for cell in grid.cells:
        check_fits(memory_of_run(grid.config(cell), params), jax.devices()[0])


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
