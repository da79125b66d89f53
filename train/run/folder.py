"""The run folder: configuration, event log, metrics, checkpoints and the picture of one run."""

import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gemjax import CheckpointError, Checkpoints, RunState, Trace
from gemjax.telemetry import eventlog
from train.common import files
from train.common.errors import RecordError
from train.common.files import append_whole, check_out
from train.config.config import Config
from train.config.datasets import label
from train.config.parsing import command_of
from train.run.records import read_metrics
from train.run.resume import Provenance

RUNS = Path("runs")
LEFTOVERS = re.compile(r"checkpoints|config\.json\..*unfinished")  # Left by a run that is killed at its start.


class RunFolder:
    """Files of a run.

    The run writes `config.json`, `events.jsonl` (one line per event), `metrics.jsonl` (one line per evaluation),
    `checkpoints/`, `summary.json` and `run.png`. A report adds `report.html`, `figures/` and `timeline.json`.
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
        self.saved = self.path / "checkpoints"
        self.replay = self.path / "replay.json"
        self.provenance = Provenance(self.path)
        self._alone = False

    @classmethod
    def fresh(cls, config: Config) -> "RunFolder":
        """Choose the folder of a new run without creating it.

        Raises:
          FileExistsError: if `--out` names the folder of a run, or one with other files.
          UsageError: if the folder cannot be created or written to.
        """
        default = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{label(config.dataset)}-{config.method}"
        folder = cls(config.out or default)
        check_out(config.out or default)
        if config.out is None:
            return folder
        folder.check_new()
        found = sorted(os.listdir(folder.path)) if folder.path.exists() else []
        saves = folder.checkpoints(read_only=True).latest is not None
        if others := [name for name in found if saves or not LEFTOVERS.fullmatch(name)]:
            raise FileExistsError(
                f"--out {folder.path} is not empty: it holds {others[0]}; choose an empty or a new folder"
            )
        return folder

    def check_new(self) -> None:
        """Raise `FileExistsError` if the folder holds a run."""
        if self.config.exists():
            raise FileExistsError(
                f"{self.path} holds a run already; continue it with --resume {files.in_shell(self.path)}"
                " or choose another --out"
            )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Create the folder and keep other processes from writing this run meanwhile; may be nested.

        Raises:
          BlockingIOError: if another process writes it.
        """
        if self._alone:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with files.alone(self.path):
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    @classmethod
    def find(cls, name: str) -> "RunFolder":
        """Find the folder of an earlier run; `latest` is the newest one under `runs/`.

        Raises:
          FileNotFoundError: if there is no such run.
        """
        if name == "latest":
            found = sorted(RUNS.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise FileNotFoundError(f"there is no run under {RUNS}/; name the folder of one")
            return cls.find(str(found[-1].parent))
        folder = cls(name)
        if not folder.config.exists():
            raise FileNotFoundError(f"{name} is not a run folder: it has no config.json")
        return folder

    def finished(self, num_commits: int) -> bool:
        """Return True if the run has made that many commits and has a summary."""
        return self.summary.exists() and self.summarised_commits() >= num_commits

    def summarised_commits(self) -> int:
        """Return the number of commits in the summary of the run."""
        return self.read_summary()["commits"]

    def read_summary(self) -> dict[str, Any]:
        """Return the final figures of the run.

        Raises:
          RecordError: if they cannot be read.
        """
        return _read(self.summary)

    def read_replay(self) -> tuple[str, int] | None:
        """Return the verdict of the last replay and the commits that it replayed; `None` if there was no replay."""
        if not self.replay.exists():
            return None
        found = _read(self.replay)
        return found["verdict"], found["pieces"][-1]["end"]

    def checkpoints(self, keep: int = 2, *, read_only: bool = False) -> Checkpoints:
        """Open the checkpoints, of which the newest `keep` are kept, or all if that is 0; there may be none yet."""
        return Checkpoints(self.saved.absolute(), keep or None, read_only=read_only)

    def newest_checkpoint(self, opened: Checkpoints | None = None) -> str:
        """Say of how many commits the newest checkpoint is; `opened` may still write it."""
        try:
            found = (opened or self.checkpoints(read_only=True)).latest
        except (CheckpointError, OSError) as error:
            return str(error)
        return "there is no checkpoint" if found is None else f"the newest checkpoint is of {found} commits"

    def save_checkpoint(
        self, checkpoints: Checkpoints, state: RunState, trace: Trace, log: eventlog.EventLog, *, wait: bool = False
    ) -> None:
        """Write a checkpoint with the sizes of the records, so that a resumed run repeats no line.

        It is written in the background unless `wait` is set; closing `checkpoints` waits for the last one.
        """
        log.sync()  # Before the checkpoint that holds the log's size, so that a power cut cannot leave a shorter log.
        files.sync(self.metrics)
        checkpoints.save(state, trace, self.sizes() | self.provenance.metadata(), wait=wait)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the records."""
        records = {"events": self.events, "metrics": self.metrics}
        return {name: path.stat().st_size if path.exists() else 0 for name, path in records.items()}

    def logged(self, config: Config) -> Trace | None:
        """Return the commits of the event log up to the newest checkpoint; `None` if there is no checkpoint.

        Raises:
          RecordError: if a line of the event log or of the metrics cannot be read; the message names it. Or if there are
            records without a checkpoint, which a new start would replace.
          CheckpointError: if the checkpoint cannot be read.
        """
        found = self.checkpoints(read_only=True).metadata
        if found is None:
            self._check_no_records(config)
            return None
        try:
            logged = eventlog.trace_of(self.events, config.workers, found["events"])
            read_metrics(self.metrics, found["metrics"])
        except ValueError as error:
            raise RecordError(str(error)) from error
        return logged

    def _check_no_records(self, config: Config) -> None:
        """Check that a run that begins here replaces no records."""
        if found := [f"{name}.jsonl" for name, size in self.sizes().items() if size]:
            raise RecordError(
                f"{self.path} cannot be resumed: there is no checkpoint in {self.saved}, but there are records in "
                f"{' and '.join(found)}, which a new start would delete; restore the checkpoints, or {self.begin_again(config)}"
            )

    def check_writable(self) -> None:
        """Check that the run can be saved here."""
        for path in (self.path, self.saved, self.events, self.metrics):
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(
                    f"{path} cannot be written: no permission; change that, or resume a copy of the run"
                )

    @property
    def go_on(self) -> str:
        """The command that continues the run."""
        return f"python -m train --resume {files.in_shell(self.path)}"

    def begin_again(self, config: Config) -> str:
        """Return the advice to begin the same run in a folder that does not exist."""
        path = self.path if self.path.name not in ("", "..") else self.path.resolve()
        out = next(other for other in files.numbered(path) if not os.path.lexists(other))
        return f"begin the run again in another folder: {command_of(dataclasses.replace(config, out=str(out)))}"

    def can_be_resumed(self) -> bool:
        """Return True if the run has a checkpoint, or no records that a new start would delete."""
        return self.checkpoints(read_only=True).latest is not None or not any(self.sizes().values())

    def rewind(self, saved: dict[str, Any], commits: int, applied: int) -> None:
        """Truncate the records to their sizes at a checkpoint, and remove conclusions on commits that will be made again.

        Args:
          saved: metadata of the checkpoint.
          commits: commits up to it; the summary of a later end is removed.
          applied: those that were applied; a replay of later ones is removed.
        """
        if self.summary.exists() and self.summarised_commits() > commits:
            self.summary.unlink()
        replayed = self.read_replay()
        if replayed and replayed[1] > applied:
            self.replay.unlink()
        for name, path in (("events", self.events), ("metrics", self.metrics)):
            if path.exists() and path.stat().st_size > saved[name]:
                os.truncate(path, saved[name])

    def add_metrics(self, **fields: Any) -> None:
        """Append one line to `metrics.jsonl`."""
        append_whole(self.metrics, json.dumps(fields) + "\n")

    def read_metrics(self) -> dict[str, np.ndarray]:
        """Read `metrics.jsonl` with :func:`train.run.records.read_metrics`."""
        return read_metrics(self.metrics)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"{path} cannot be read ({error}); delete it to go on") from error
