"""The run folder: configuration, event log, metrics, checkpoints and the picture of one run."""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gemjax
from gemjax import Checkpoints, RunState, Trace
from gemjax.telemetry import eventlog
from train.common.errors import RecordError
from train.common.files import append_whole, check_out, naming
from train.config.config import Config

RUNS = Path("runs")
BEGUN = {"checkpoints", "config.json.unfinished"}  # What a run that is killed as it begins may leave.
METRICS = ("commits", "time", "test_loss", "test_accuracy")  # What a line of metrics has at least.


class RunLog(gemjax.EventLog):
    """The event log of a run: an error names the file, and the first commit is told.

    Args:
      path: the file.
      on_commit: called with each commit.
    """

    def __init__(self, path: str | os.PathLike, on_commit: Callable[[], None]):
        super().__init__(path)
        self._path, self._on_commit = path, on_commit

    def write(self, event: str, time: float, **fields: Any) -> None:
        try:  # A context manager is too slow for each event.
            super().write(event, time, **fields)
        except OSError as error:
            error.filename = os.fspath(self._path)
            raise
        if event == "commit":
            self._on_commit()

    def flush(self) -> None:
        with naming(self._path):
            super().flush()

    def sync(self) -> None:
        with naming(self._path):
            super().sync()

    def close(self) -> None:
        with naming(self._path):
            super().close()


class RunFolder:
    """Where a run keeps what it knows.

    `config.json`, `events.jsonl` (one line an event), `metrics.jsonl` (one line an evaluation), `checkpoints/`,
    `summary.json` and `run.png`; of a report `report.html`, `figures/` and `timeline.json`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.events = self.path / "events.jsonl"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.picture = self.path / "run.png"
        self.report = self.path / "report.html"
        self.timeline = self.path / "timeline.json"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints_path = self.path / "checkpoints"

    @classmethod
    def fresh(cls, config: Config) -> "RunFolder":
        """The folder of a new run, not made yet.

        Raises:
          FileExistsError: if `--out` names a folder that a run has written to, or one with other files.
          OSError: if the folder cannot be made or written to.
        """
        default = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.dataset.replace('/', '-')}-{config.method}"
        folder = cls(config.out or default)
        if folder.config.exists():
            raise FileExistsError(
                f"{folder.path} holds a run already; continue it with --resume {folder.path} or choose another --out"
            )
        check_out(folder.path)
        if folder.path.exists() and (others := sorted(set(os.listdir(folder.path)) - BEGUN)):
            raise FileExistsError(
                f"--out {folder.path} is not empty: it holds {others[0]}; choose an empty or a new folder"
            )
        return folder

    def begin(self, config: Config) -> None:
        """Makes the folder and notes the configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        config.save(self.config)

    @classmethod
    def find(cls, name: str) -> "RunFolder":
        """The folder of an earlier run; `latest` is the newest one under `runs/`.

        Raises:
          FileNotFoundError: if there is no such run.
        """
        if name == "latest":
            found = sorted(RUNS.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise FileNotFoundError(f"there is no run under {RUNS}/; name the folder of one")
            return cls(found[-1].parent)
        folder = cls(name)
        if not folder.config.exists():
            raise FileNotFoundError(f"{name} is not a run folder: it has no config.json")
        return folder

    def finished(self, num_commits: int) -> bool:
        """Whether the run in this folder has made that many commits already, and has summed up."""
        return self.summary.exists() and self.summed_up() >= num_commits

    def summed_up(self) -> int:
        """The commits that the run had made when it was summed up.

        Raises:
          RecordError: if `summary.json` does not say.
        """
        try:
            commits = json.loads(self.summary.read_bytes())["commits"]
            if type(commits) is not int:
                raise TypeError(f"commits is {ascii(commits)[:60]}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecordError(f"{self.summary} is not the summary of a run ({error!r}); delete it to go on") from error
        return commits

    def check_length(self, summary: gemjax.Summary, *, measured: bool) -> None:
        """Refuses an event log that has fewer commits than the run when it was summed up: nothing else tells its end.

        Raises:
          RecordError: if it has.
        """
        # A simulation counts the commits that it did not apply, too.
        found = summary.commits + (0 if measured else summary.dropped + summary.rejected)
        if self.summary.exists() and found < (expected := self.summed_up()):
            raise RecordError(
                f"{self.events} has {found} commits, but the run had made {expected} when it was summed up: lines are missing "
                "at its end"
            )

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.checkpoints_path)

    def save_checkpoint(self, checkpoints: Checkpoints, state: RunState, trace: Trace, log: eventlog.EventLog) -> None:
        """Writes a checkpoint that also knows how far the records went, so that a resumed run repeats none.

        It is written in the background; closing `checkpoints` waits for the last one.
        """
        log.sync()  # Before the checkpoint that names its size; or a power cut might leave the one without the other.
        _sync(self.metrics)
        sizes = {"events": self.events.stat().st_size, "metrics": _size(self.metrics)}
        checkpoints.save(state, trace, sizes, wait=False)

    def rewind(self, sizes: dict[str, int]) -> None:
        """Cuts the records back to where the checkpoint was written.

        Raises:
          RecordError: if they are not as long as that any more, or the checkpoint does not say how long they were.
        """
        records = {"events": self.events, "metrics": self.metrics}
        for name, path in records.items():
            size = sizes.get(name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise RecordError(
                    f"{self.checkpoints_path} does not say how long {path.name} was ({name} is {ascii(size)[:60]}), so this "
                    "run cannot go on; begin anew in another folder"
                )
            if _size(path) < size:
                raise RecordError(
                    f"{path} has {_size(path)} bytes, but {size} when the checkpoint in {self.checkpoints_path} was written: "
                    "lines are missing at its end; put the whole file back, or begin anew in another folder"
                )
            if not _ends_a_line(path, size):
                raise RecordError(
                    f"{path} was changed: no line ends where it ended when the checkpoint in {self.checkpoints_path} was "
                    "written; put the file back, or begin anew in another folder"
                )
        for name, path in records.items():
            if _size(path) > sizes[name]:
                os.truncate(path, sizes[name])

    def add_metrics(self, **fields: Any) -> None:
        """Appends one line to `metrics.jsonl`."""
        append_whole(self.metrics, json.dumps(fields) + "\n")

    def read_metrics(self) -> dict[str, np.ndarray]:
        """`metrics.jsonl` as columns; what was not finite is NaN, and a last line cut short by a crash is left out.

        Raises:
          ValueError: if a line is not what :meth:`add_metrics` writes; the message names file and line.
        """
        if not self.metrics.exists():
            return {}
        lines = self.metrics.read_bytes().split(b"\n")[:-1]
        rows = [_metrics(line, f"{self.metrics}, line {number}") for number, line in enumerate(lines, start=1)]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _metrics(line: bytes, where: str) -> dict[str, float]:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or any(isinstance(value, (str, list, dict)) for value in row.values()):
            raise ValueError("expected an object of numbers")
        if lacking := [name for name in METRICS if name not in row]:
            raise ValueError(f"it has no {', '.join(lacking)}")
        values = {name: math.nan if value is None else value for name, value in row.items()}
        return {
            name: value if abs(value) < 2**53 else float(value) for name, value in values.items()
        }  # Counts stay so.
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}: not metrics of a run: {error}; the line is {line[:80]!r}") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _ends_a_line(path: Path, size: int) -> bool:
    if size == 0:
        return True
    with open(path, "rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _sync(path: Path) -> None:
    """Has what was written to a file on disk; nothing if there is none."""
    if path.exists():
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
