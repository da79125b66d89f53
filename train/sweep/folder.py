"""The folder of a sweep: its grid, a file per finished cell, the table of all runs and the picture."""

import csv
import io
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train.common.errors import RecordError
from train.common.files import check_name, check_out, check_regular, reserve, write_whole
from train.common.machine import generator, other_generator
from train.run.folder import RUNS
from train.run.groups.store import NUMBER, UNKNOWN, Store, check_fields
from train.sweep.grid import Cell, Grid

Row = dict[str, Any]
COLUMNS = [
    "method", "workers", "learning_rate", "momentum", "strength", "seed", "commits", "initial_train_loss", "train_loss",
    "test_loss", "test_accuracy", "diverged", "rejected", "dropped", "staleness", "gap", "time", "speed_up",
    "speed_up_over_synchronous",
]  # fmt: skip
POINT = ("learning_rate", "momentum", "strength")
FIELDS = dict.fromkeys(COLUMNS, UNKNOWN) | {"method": str, "diverged": bool} | dict.fromkeys(
    ("workers", "learning_rate", "seed", "commits", "initial_train_loss", "speed_up", "speed_up_over_synchronous"), NUMBER
)  # fmt: skip


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
        self._grid: Grid | None = None  # By :meth:`check`.
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
          FileExistsError: if it holds a single run.
          UsageError: if its name means another folder.
          OSError: if it cannot be created or written to.
          RecordError: if it has something else in place of a file of a sweep.
        """
        folder = cls(grid.out or RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{grid.dataset.replace('/', '-')}-sweep")
        folder.is_final = grid.out is not None
        if (folder.path / "config.json").exists():
            raise FileExistsError(f"{folder.path} holds a run; choose another --out for the sweep")
        check_name(folder.path)
        check_out(folder.path)
        check_regular(folder.grid, folder.table, folder.picture)
        others = [path.name for path in (folder.table, folder.picture) if path.exists() and not folder.grid.exists()]
        if others:
            raise FileExistsError(
                f"--out {folder.path} holds {' and '.join(others)} that no sweep has written there; choose another --out"
            )
        return folder

    @classmethod
    def find(cls, name: str) -> "SweepFolder":
        """Return the folder of an earlier sweep; `latest` is the newest one under `runs/`.

        Raises:
          FileNotFoundError: if there is no such sweep.
          RecordError: if the folder has something else in place of a file of a sweep.
        """
        if name == "latest":
            found = sorted(RUNS.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise FileNotFoundError(f"there is no sweep under {RUNS}/ to resume; name one with --resume FOLDER")
            return cls.find(str(found[-1].parent))
        folder = cls(name)
        if not folder.grid.exists():
            raise FileNotFoundError(f"{name} is not the folder of a sweep: it has no sweep.json")
        check_out(folder.path, "--resume")
        check_regular(folder.grid, folder.table, folder.picture)
        return folder

    def check(self, grid: Grid) -> None:
        """Check that the folder does not hold another sweep. From now on its cells must be those of `grid`.

        Raises:
          ValueError: with the flags that differ.
        """
        if self.grid.exists() and (differ := Grid.load(self.grid).differences(grid)):
            raise ValueError(
                f"{self.path} holds another sweep, of {', '.join(differ)}; resume that one or choose another --out"
            )
        self._grid = grid

    def create(self) -> None:
        """Create the folder; without `--out` under a further name if a sweep that began in the same second has this."""
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

    def encode(self, job: Cell, result: list[Row]) -> Any:
        if self._grid is None:
            return result
        return {"sweep": self._grid.definition(), "data": self.data, "generator": generator(), "runs": result}

    def decode(self, job: Cell, found: Any) -> list[Row]:
        # Earlier versions wrote the runs alone, or those and the sweep.
        if isinstance(found, dict) and found.keys() | {"data", "generator"} == {"sweep", "data", "generator", "runs"}:
            if other := other_generator(found.get("generator")):
                raise RecordError(
                    f"was computed with {other}; set it as it was, or delete each such file to compute it again"
                )
            if None not in (self.data, found.get("data")) and found["data"] != self.data:
                raise RecordError(
                    "was computed on other data than this sweep goes on with; give the folder of the former data as "
                    "--data-dir, or delete each such file to compute it again"
                )
            if self._grid is not None:
                definition = self._grid.definition()
                # Another version may have other fields.
                if any(found["sweep"].get(name, value) != value for name, value in definition.items()):
                    raise ValueError("it is of another sweep")
            found = found["runs"]
        if not isinstance(found, list) or not found or any(not isinstance(row, dict) for row in found):
            raise ValueError("it is no list of runs")
        if any(list(row) != COLUMNS for row in found):
            raise ValueError("it has other columns than this version writes")
        if any((row["method"], row["workers"]) != (job.method, job.workers) for row in found):
            raise ValueError("it is of another cell")
        for row in found:
            check_fields(row, FIELDS)
        points = [tuple(row[name] for name in (*POINT, "seed")) for row in found]
        if self._grid is not None and points != self._grid.points(job.method):
            raise ValueError("its runs are not those of the sweep")
        return found

    def write_table(self, rows: Iterable[Row]) -> None:
        """Write `sweep.csv`. Values that are unknown or not finite are empty there."""
        self.check_in_place()
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.table, text.getvalue())
