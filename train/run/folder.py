"""The run folder: configuration, event log, metrics, checkpoints and the picture of one run."""

import contextlib
import dataclasses
import itertools
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
from train.common.seals import CHANGED, SIGNATURE, check_signature
from train.config.config import Config
from train.config.parsing import command_of
from train.run.records import Record, check_records, read_metrics, settings_of, sizes_of

RUNS = Path("runs")
LEFTOVERS = re.compile(r"checkpoints|config\.json\..*unfinished")  # Left by a run that is killed at its start.
SETTINGS = ("epochs", "learning_rate")  # Fields that change commits and may change when a run is resumed.
CHECKPOINT = re.compile(r"(\.replaced-)?\d+")  # Folder of a checkpoint, also of one whose replacement is not complete.


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
        self.checkpoints_path = self.path / "checkpoints"
        self.replay = self.path / "replay.json"
        self.settings: list[tuple[int, dict[str, Any]]] = []  # By :meth:`note_settings`.
        self.kept: dict[str, Any] = {}  # Likewise.
        self.data: str | None = None  # Likewise.
        self.records = {"events": Record(self.events), "metrics": Record(self.metrics)}
        self._alone = False
        self.check_in_place: Callable[[], None] = lambda: None  # By :meth:`alone`.

    @classmethod
    def fresh(cls, config: Config) -> "RunFolder":
        """Choose the folder of a new run without creating it.

        Raises:
          FileExistsError: if `--out` names the folder of a run, or one with other files.
          OSError: if the folder cannot be created or written to.
        """
        default = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.dataset.replace('/', '-')}-{config.method}"
        folder = cls(config.out or default)
        folder.check_new()
        check_out(folder.path)
        if folder.path.exists() and (
            others := sorted(name for name in os.listdir(folder.path) if not LEFTOVERS.fullmatch(name))
        ):
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
        with files.alone(self.path) as self.check_in_place:
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def check_writable(self) -> None:
        """Raise `PermissionError` if a run that is resumed could not be saved."""
        for path in (self.path, self.checkpoints_path, self.events, self.metrics):
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
          RecordError: if the folder has something else in place of a file of a run.
        """
        if name == "latest":
            found = sorted(RUNS.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise FileNotFoundError(f"there is no run under {RUNS}/; name the folder of one")
            return cls.find(str(found[-1].parent))
        folder = cls(name)
        if not folder.config.exists():
            raise FileNotFoundError(f"{name} is not a run folder: it has no config.json")
        files.check_regular(
            folder.config, folder.events, folder.metrics, folder.summary, folder.picture, folder.report, folder.timeline,
            folder.replay,
        )  # fmt: skip
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
        """Return the final figures of the run.

        Raises:
          RecordError: if `summary.json` has no number of commits, or was changed.
        """
        try:
            found = json.loads(self.summary.read_bytes())
            commits = found["commits"]
            if type(commits) is not int:
                raise TypeError(f"commits is {ascii(commits)[:60]}")
            check_signature(found)  # An earlier version wrote none.
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            kind = "" if str(error) == CHANGED else f"{type(error).__name__}: "
            wrong = f"{kind}{ascii(str(error))[1:-1][:80]}"
            raise RecordError(f"{self.summary} is not the summary of a run ({wrong}); delete it to go on") from error
        return {name: value for name, value in found.items() if name != SIGNATURE}

    def check_length(self, summary: gemjax.Summary, *, measured: bool) -> None:
        """Check that the event log is complete up to the summary of the run; nothing else marks the end of the log.

        Raises:
          RecordError: if the log has fewer commits than the summary, or as :meth:`read_summary` does.
        """
        # A simulation also counts the commits that it did not apply.
        found = summary.commits + (0 if measured else summary.dropped + summary.rejected)
        if self.summary.exists() and found < (expected := self.summarised_commits()):
            raise RecordError(
                f"{self.events} has {found} commits, but {self.summary.name} counts {expected}: lines are missing at the "
                "end of the log"
            )

    def checkpoints(self, keep: int = 2, *, read_only: bool = False) -> Checkpoints:
        """Open the checkpoints, of which the newest are kept, or all if `keep` is 0."""
        return Checkpoints(self.checkpoints_path, keep or None, read_only=read_only)

    def note_settings(
        self, config: Config, commits: int, saved: dict[str, Any] | None = None, data: str | None = None
    ) -> None:
        """Note from which commit on a run has its learning rate and epochs, which a resumed run may change.

        Args:
          config: configuration of the run.
          commits: commits that were applied before.
          saved: metadata of the checkpoint that the run continues from, with earlier settings; checkpoints of earlier
            versions have none.
          data: checksum of its data.

        Raises:
          RecordError: if the configuration or the data are not those that the checkpoint was written with.
        """
        self.kept = json.loads(json.dumps(config.kept()))  # As JSON has it.
        self.data = data
        before = (saved or {}).get("kept")
        for name, value in self.kept.items():
            if isinstance(before, dict) and before.get(name, value) != value:
                raise RecordError(
                    f"{self.config} was changed: {name} is {value!r}, but was {ascii(before[name])[:60]} at the checkpoint; "
                    "a resumed run keeps it; write it back, or start a new run in another folder"
                )
        remedy = "give the folder of those data as --data-dir, or start a new run in another folder"
        self.check_data(config, saved, data, remedy)
        now = {name: getattr(config, name) for name in SETTINGS}
        self.settings = settings_of(saved or {})
        if not self.settings or self.settings[-1][1] != now:
            self.settings = [*(past for past in self.settings if past[0] < commits), (commits, now)]

    def check_data(self, config: Config, saved: dict[str, Any] | None, data: str | None, remedy: str) -> None:
        """Check that the data are those of a checkpoint; `remedy` ends the message.

        Raises:
          RecordError: if not; checkpoints of earlier versions have no checksum of their data.
        """
        before = (saved or {}).get("data")
        if None not in (before, data) and before != data:
            raise RecordError(
                f"the data of {config.dataset} are not those that {self.path} was begun with (their checksum is {data}, but "
                f"was {ascii(before)[1:-1][:60]}); {remedy}"
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
        checkpoints.save(
            state,
            trace,
            sizes | {"sha256": checksums, "settings": self.settings, "kept": self.kept, "data": self.data},
            wait=wait,
        )

    def verify(self, num_workers: int, *, read_only: bool = False) -> Trace | None:
        """Check the records up to the newest checkpoint, before a run continues from it.

        Returns:
          The commits of the event log up to there; `None` if there is no checkpoint.

        Raises:
          RecordError: if a record is damaged, or does not match the checkpoint; the message names the file, and the line if
            that line shows the damage.
          CheckpointError: if the checkpoint cannot be read.
        """
        if self.no_checkpoint():  # Opening them would create the folder.
            return None
        with self.checkpoints(read_only=read_only) as checkpoints:
            found = checkpoints.metadata
        if found is None:
            return None
        sizes = sizes_of(found, self.records, self.checkpoints_path)
        logged = Trace(worker=[], num_workers=num_workers)
        try:
            if self.events.exists():
                logged = eventlog.trace_of(self.events, num_workers, sizes["events"])
            read_metrics(self.metrics, sizes["metrics"])
        except ValueError as error:
            raise RecordError(str(error)) from error
        check_records(self.records, found, self.checkpoints_path)
        return logged

    def check_whole(self) -> None:
        """Check the records against the newest checkpoint, if there is one that can be read: a report needs none.

        Raises:
          RecordError: if a record is shorter than it was then, or was changed.
        """
        if self.no_checkpoint():
            return
        try:
            with self.checkpoints(read_only=True) as checkpoints:
                found = checkpoints.metadata
        except CheckpointError:
            return
        if found is not None and all(name in found for name in self.records):
            check_records(self.records, found, self.checkpoints_path)

    def check_empty(self, config: Config) -> None:
        """Check that a run without a checkpoint has no records either, because it would begin again and replace them.

        Raises:
          RecordError: if it has; with the command that begins the run in another folder.
        """
        if found := [record.path.name for record in self.records.values() if record.size]:
            missing = self.no_checkpoint() or f"{self.checkpoints_path} holds no complete checkpoint"
            raise RecordError(
                f"{self.path} cannot be resumed: {missing}, but there are records in {' and '.join(found)}, which a new start "
                f"would delete; restore the checkpoints, or {self.begin_again(config)}"
            )

    def begin_again(self, config: Config) -> str:
        """Return the advice to begin the same run in a folder that does not exist."""
        path = self.path if self.path.name not in ("", "..") else self.path.resolve()
        others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
        out = next(other for other in others if not os.path.lexists(other))
        return f"begin the run again in another folder: {command_of(dataclasses.replace(config, out=str(out)))}"

    def newest(self, opened: Checkpoints | None = None) -> str:
        """Say of how many commits the newest checkpoint is; `opened` are the checkpoints if they are open already."""
        try:
            with contextlib.nullcontext(opened) if opened else self.checkpoints(read_only=True) as checkpoints:
                found = checkpoints.latest
        except (CheckpointError, OSError) as error:
            return str(error)
        return "there is no checkpoint" if found is None else f"the newest checkpoint is of {found} commits"

    def can_be_resumed(self) -> bool:
        """Return True if the run has a checkpoint, or no records that a new start would delete."""
        return self.no_checkpoint() is None or not any(record.size for record in self.records.values())

    def no_checkpoint(self) -> str | None:
        """Return the reason why the folder of the checkpoints can hold none; `None` if it seems to hold some."""
        path = self.checkpoints_path
        if not path.is_dir():
            return f"{path} is {'not a folder' if os.path.lexists(path) else 'missing'}"
        names = sorted(os.listdir(path))
        if not names:
            return f"{path} is empty"
        if any(CHECKPOINT.fullmatch(name) and (path / name).is_dir() for name in names):
            return None
        return f"{path} holds no checkpoint, only {ascii(names[0])[1:-1][:60]}"

    def rewind(self, sizes: dict[str, Any], commits: int) -> None:
        """Truncate the records to their sizes at the checkpoint after `commits`, and remove the summary of a later end.

        A replay is removed with it: its verdict was on commits that will be made again.

        Raises:
          RecordError: if a record is shorter than that, was changed, or has no valid size in the checkpoint.
        """
        sizes = sizes_of(sizes, self.records, self.checkpoints_path)
        for name, record in self.records.items():
            record.check_size(sizes[name], f"the checkpoint in {self.checkpoints_path}")
        if self.summary.exists() and self.summarised_commits() > commits:
            self.summary.unlink()
            self.replay.unlink(missing_ok=True)
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
        """Read `metrics.jsonl` with :func:`train.run.records.read_metrics`."""
        return read_metrics(self.metrics)
