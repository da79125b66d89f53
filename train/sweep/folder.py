"""The folder of a sweep: its grid, a file per finished cell, the table of all runs and the picture."""

import csv
import io
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train.common.errors import UsageError
from train.common.files import check_out, reserve, write_whole
from train.config.datasets import label
from train.run.folder import RUNS
from train.run.groups.store import Store
from train.sweep.grid import Cell, Grid

Row = dict[str, Any]
COLUMNS = [
    "method", "workers", "learning_rate", "momentum", "strength", "seed", "commits", "initial_train_loss", "train_loss",
    "test_loss", "test_accuracy", "diverged", "rejected", "dropped", "staleness", "gap", "time", "speed_up",
    "speed_up_over_synchronous",
]  # fmt: skip
POINT = ("learning_rate", "momentum", "strength")


class SweepFolder(Store[Cell, list[Row]]):
    """The files of a sweep.

    `sweep.json` (the grid), `cells/<method>-<workers>.json` (the runs of a finished cell), `sweep.csv` (one line per run) and
    `sweep.png`. Each file is complete or absent, whenever the sweep is killed.

    Attributes:
      is_final: True if `path` is final: the user has named it, or it is created.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        self.is_final = True
        self.data: str | None = None  # Checksum of the data, when they have been read.

    @property
    def grid(self) -> Path:
        """The file of the grid."""
        return self.path / "sweep.json"

    @property
    def table(self) -> Path:
        """The file with one line per run."""
        return self.path / "sweep.csv"

    @property
    def picture(self) -> Path:
        """The file of the picture."""
        return self.path / "sweep.png"

    @classmethod
    def of(cls, grid: Grid) -> "SweepFolder":
        """Return the folder that `grid` names, or else a new one; nothing is created.

        Raises:
          UsageError: if it cannot be created or written to.
        """
        folder = cls(grid.out or RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{label(grid.dataset)}-sweep")
        folder.is_final = grid.out is not None
        check_out(folder.path)
        return folder

    @classmethod
    def find(cls, name: str) -> "SweepFolder":
        """Return the folder of an earlier sweep; `latest` is the newest one under `runs/`.

        Raises:
          FileNotFoundError: if there is no such sweep.
        """
        found = sorted(RUNS.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
        folder = cls(found[-1].parent if name == "latest" and found else name)
        if not folder.grid.exists():
            raise FileNotFoundError(
                f"{name} is not the folder of a sweep: it has no sweep.json; name one with --resume FOLDER"
            )
        check_out(folder.path, "--resume")
        return folder

    def check_grid(self, grid: Grid) -> None:
        """Check that the folder does not hold another sweep.

        Raises:
          UsageError: with the flags that differ.
        """
        if self.grid.exists() and (differ := Grid.load(self.grid).differences(grid)):
            raise UsageError(
                f"{self.path} holds another sweep, of {', '.join(differ)}; resume that one or choose another --out"
            )

    def create(self) -> None:
        """Create the folder; without `--out`, with a number behind its name if another sweep began in the same second."""
        if self.is_final:
            self.path.mkdir(parents=True, exist_ok=True)
        else:
            self.path, self.is_final = reserve(self.path), True

    def begin(self, grid: Grid) -> None:
        """Write the grid, unless that is done."""
        (self.path / "cells").mkdir(parents=True, exist_ok=True)
        if not self.grid.exists():
            write_whole(self.grid, grid.text())

    def key(self, job: Cell) -> str:
        return f"cells/{job.method}-{job.workers}"

    def encode(self, job: Cell, result: list[Row]) -> dict[str, Any]:
        return {"data": self.data, "runs": result}

    def decode(self, job: Cell, found: Any) -> list[Row]:
        if None not in (self.data, found["data"]) and found["data"] != self.data:
            raise ValueError("it was computed on other data than this sweep goes on with")
        return found["runs"]

    def write_table(self, rows: Iterable[Row]) -> None:
        """Write `sweep.csv`. Values that are unknown or not finite are empty there."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.table, text.getvalue())
