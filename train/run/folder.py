"""The run folder: configuration, event log, metrics, checkpoints and the picture of one run."""

import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gemjax
from gemjax import CheckpointError, Checkpoints, RunState, Trace
from gemjax.telemetry import eventlog
from train.common import files
from train.common.errors import RecordError
from train.common.files import append_whole, check_out
from train.config.config import Config
from train.config.parsing import command_of
from train.run.records.conclusions import read_replay, read_summary
from train.run.records.kept import Kept
from train.run.records.metrics import read_metrics
from train.run.records.record import Record, check_records, sizes_of
from train.run.records.saved import Saved

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
        self.saved = Saved(self.path / "checkpoints")
        self.replay = self.path / "replay.json"
        self.kept = Kept(self.path)
        self.records = {"events": Record(self.events), "metrics": Record(self.metrics)}
        self._alone = False
        self.check_in_place: Callable[[], None] = lambda: None  # By :meth:`alone`.

    @classmethod
    def fresh(cls, config: Config) -> "RunFolder":
        """Choose the folder of a new run without creating it.

        Raises:
          FileExistsError: if `--out` names the folder of a run, or one with other files.
          UsageError: if the folder cannot be created or written to.
        """
        default = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.dataset.replace('/', '-')}-{config.method}"
        folder = cls(config.out or default)
        check_out(config.out or default)
        if config.out is None:
            return folder
        folder.check_new()
        if folder.path.exists() and (
            others := sorted(name for name in os.listdir(folder.path) if not LEFTOVERS.fullmatch(name))
        ):
            raise FileExistsError(
                f"--out {folder.path} is not empty: it holds {others[0]}; choose an empty or a new folder"
            )
        return folder

    def reserved(self) -> "RunFolder":
        """Create the folder of a run without `--out`; under a further name if a run that began in the same second has this."""
        return RunFolder(files.reserve(self.path))

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
        with files.alone(self.path) as self.check_in_place:
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def check_writable(self) -> None:
        """Raise `PermissionError` if a run that is resumed could not be saved."""
        for path in (self.path, self.saved.path, self.events, self.metrics):
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(
                    f"{path} cannot be written: no permission; change that, or resume a copy of the run"
                )

    def begin(self, config: Config) -> None:
        """Save the configuration; from then on the run can be resumed."""
        self.path.mkdir(parents=True, exist_ok=True)
        config.save(self.config)

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
        """Return the number of commits in the summary of the run.

        Raises:
          RecordError: as :meth:`read_summary` does.
        """
        return self.read_summary()["commits"]

    def read_summary(self) -> dict[str, Any]:
        """Read `summary.json` with :func:`train.run.records.conclusions.read_summary`."""
        return read_summary(self.summary)

    def check_length(self, summary: gemjax.Summary, expected: int, *, measured: bool) -> None:
        """Check that the event log has the `expected` commits of the summary of the run; nothing else marks the end of the log.

        Raises:
          RecordError: if the log has fewer.
        """
        # A simulation also counts the commits that it did not apply.
        found = summary.commits + (0 if measured else summary.dropped + summary.rejected)
        if found < expected:
            raise RecordError(
                f"{self.events} has {found} commits, but {self.summary.name} counts {expected}: lines are missing at the "
                "end of the log"
            )

    def save_checkpoint(
        self, checkpoints: Checkpoints, state: RunState, trace: Trace, log: eventlog.EventLog, *, wait: bool = False
    ) -> None:
        """Write a checkpoint with sizes and checksums of the records, so that a resumed run repeats no line.

        It is written in the background unless `wait` is set; closing `checkpoints` waits for the last one.

        Raises:
          FolderMovedError: if the folder was moved or removed.
        """
        self.check_in_place()
        log.sync()  # Before the checkpoint that holds the log's size, so that a power cut cannot leave a shorter log.
        self.records["metrics"].sync()
        sizes = {name: record.size for name, record in self.records.items()}
        checksums = {name: record.checksum(sizes[name]) for name, record in self.records.items()}
        checkpoints.save(state, trace, sizes | {"sha256": checksums} | self.kept.metadata(), wait=wait)

    def verify(self, config: Config, *, read_only: bool = False) -> Trace | None:
        """Check the records up to the newest checkpoint, before a run continues from it.

        Returns:
          The commits of the event log up to there; `None` if there is no checkpoint.

        Raises:
          RecordError: if a record is damaged, or does not match the checkpoint; the message names the file, and the line if
            that line shows the damage. Or if the configuration is not that of the checkpoint.
          CheckpointError: if the checkpoint cannot be read.
        """
        if self.saved.why_none():  # Opening them would create the folder.
            return None
        with self.saved.open(read_only=read_only) as checkpoints:
            found = checkpoints.metadata
        if found is None:
            return None
        remedy = "a resumed run keeps it; write it back, or start a new run in another folder"
        self.kept.check_config(config, found, remedy)
        sizes = sizes_of(found, self.records, self.saved.path)
        logged = Trace(worker=[], num_workers=config.workers)
        try:
            if self.events.exists():
                logged = eventlog.trace_of(self.events, config.workers, sizes["events"])
            read_metrics(self.metrics, sizes["metrics"])
        except ValueError as error:
            raise RecordError(str(error)) from error
        check_records(self.records, found, self.saved.path)
        return logged

    def check_whole(self, config: Config) -> None:
        """Check configuration and records against the newest checkpoint, if there is one that can be read: a report needs none.

        Raises:
          RecordError: if the configuration or a record was changed, or a record is shorter than it was then.
        """
        if self.saved.why_none():
            return
        try:
            with self.saved.open(read_only=True) as checkpoints:
                found = checkpoints.metadata
        except CheckpointError:
            return
        self.kept.check_config(config, found)
        if found is not None and all(name in found for name in self.records):
            check_records(self.records, found, self.saved.path)

    def check_empty(self, config: Config) -> None:
        """Check that a run without a checkpoint has no records either, because it would begin again and replace them.

        Raises:
          RecordError: if it has; with the command that begins the run in another folder.
        """
        if found := [record.path.name for record in self.records.values() if record.size]:
            missing = self.saved.why_none() or f"{self.saved.path} holds no complete checkpoint"
            raise RecordError(
                f"{self.path} cannot be resumed: {missing}, but there are records in {' and '.join(found)}, which a new start "
                f"would delete; restore the checkpoints, or {self.begin_again(config)}"
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
        return self.saved.why_none() is None or not any(record.size for record in self.records.values())

    def rewind(self, sizes: dict[str, Any], commits: int, applied: int) -> None:
        """Truncate the records to their sizes at a checkpoint, and remove conclusions on commits that will be made again.

        Args:
          sizes: metadata of the checkpoint.
          commits: commits up to it; the summary of a later end is removed.
          applied: those that were applied; a replay of later ones is removed.

        Raises:
          RecordError: if a record is shorter than that, was changed, or has no valid size in the checkpoint, or if the
            summary is damaged.
        """
        sizes = sizes_of(sizes, self.records, self.saved.path)
        for name, record in self.records.items():
            record.check_size(sizes[name], f"the checkpoint in {self.saved.path}")
        replayed = None
        with contextlib.suppress(RecordError):  # A report says that it is damaged.
            replayed = read_replay(self.replay)
        if self.summary.exists() and self.summarised_commits() > commits:
            self.summary.unlink()
        if replayed and replayed[1] > applied:
            self.replay.unlink()
        for name, record in self.records.items():
            if record.size > sizes[name]:
                os.truncate(record.path, sizes[name])

    def add_metrics(self, **fields: Any) -> None:
        """Append one line to `metrics.jsonl`.

        Raises:
          FolderMovedError: if the folder was moved or removed.
        """
        self.check_in_place()
        append_whole(self.metrics, json.dumps(fields) + "\n")

    def read_metrics(self) -> dict[str, np.ndarray]:
        """Read `metrics.jsonl` with :func:`train.run.records.metrics.read_metrics`."""
        try:
            return read_metrics(self.metrics)
        except ValueError as error:
            raise RecordError(str(error)) from error
