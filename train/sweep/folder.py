"""The folder of a sweep: what it is, a file for each finished cell, the table of all runs and the picture."""

import csv
import io
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train.common.files import check_out, write_whole
from train.run.folder import RUNS
from train.sweep.grid import Cell, Grid

Row = dict[str, Any]


class SweepFolder:
    """Where a sweep keeps what it knows.

    `sweep.json` (the grid), `cells/<method>-<workers>.json` (the runs of a finished cell), `sweep.csv` (one line a run) and
    `sweep.png`. Every file is there as a whole or not at all, whenever the sweep is killed.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.grid = self.path / "sweep.json"
        self.table = self.path / "sweep.csv"
        self.picture = self.path / "sweep.png"

    @classmethod
    def of(cls, grid: Grid) -> "SweepFolder":
        """The folder that `grid` asks for, or a new one; nothing is made yet.

        Raises:
          FileExistsError: if it holds a single run.
          OSError: if it cannot be made or written to.
        """
        folder = cls(grid.out or RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{grid.dataset.replace('/', '-')}-sweep")
        if (folder.path / "config.json").exists():
            raise FileExistsError(f"{folder.path} holds a run; choose another --out for the sweep")
        check_out(folder.path)
        return folder

    @classmethod
    def find(cls, name: str) -> "SweepFolder":
        """The folder of an earlier sweep; `latest` is the newest one under `runs/`.

        Raises:
          FileNotFoundError: if there is no such sweep.
        """
        if name == "latest":
            found = sorted(RUNS.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise FileNotFoundError(f"there is no sweep under {RUNS}/ to resume; name one with --resume FOLDER")
            return cls(found[-1].parent)
        folder = cls(name)
        if not folder.grid.exists():
            raise FileNotFoundError(f"{name} is not the folder of a sweep: it has no sweep.json")
        return folder

    def check(self, grid: Grid) -> None:
        """Refuses a folder that holds another sweep.

        Raises:
          ValueError: with what differs.
        """
        if self.grid.exists() and (differ := Grid.load(self.grid).differences(grid)):
            raise ValueError(
                f"{self.path} holds another sweep, of {', '.join(differ)}; go on with that or choose another --out"
            )

    def begin(self, grid: Grid) -> None:
        """Makes the folder and notes the grid, if that has not been done."""
        (self.path / "cells").mkdir(parents=True, exist_ok=True)
        if not self.grid.exists():
            write_whole(self.grid, grid.text())

    def rows(self, cell: Cell) -> list[Row] | None:
        """The runs of a finished cell; `None` if it is not finished.

        Raises:
          ValueError: if its file is damaged.
        """
        path = self._cell(cell)
        if not path.exists():
            return None
        try:
            rows = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); delete it, and the cell is computed again") from error
        if not all("initial_train_loss" in row for row in rows):
            raise ValueError(f"{path} is of an earlier version; delete it, and the cell is computed again")
        return rows

    def save(self, cell: Cell, rows: list[Row]) -> None:
        """Keeps the runs of a finished cell."""
        write_whole(self._cell(cell), json.dumps(rows, indent=1) + "\n")

    def write_table(self, rows: Iterable[Row]) -> None:
        """Writes `sweep.csv`; what is not known or not finite is empty there."""
        rows, text = list(rows), io.StringIO()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.table, text.getvalue())

    def _cell(self, cell: Cell) -> Path:
        return self.path / "cells" / f"{cell.method}-{cell.workers}.json"
