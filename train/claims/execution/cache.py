"""The finished runs of claims: one file per run in the work folder, shared by claims, and one file per published claim."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gemjax
from train.claims.runs import Record, Run
from train.common.errors import RecordError
from train.common.files import write_whole
from train.common.machine import generator, other_generator
from train.run.folder import RUNS
from train.run.groups.store import NUMBER, UNKNOWN, Store, check_fields

POOL = RUNS / "reproduce"
PUBLISHED = Path(__file__).parents[2] / "results" / "runs"
VERSION = gemjax.__version__
# Fields of a record and their types, for `check_fields`.
MEASURED: dict[str, Any] = {
    "test_accuracy": UNKNOWN, "time": UNKNOWN, "seconds": NUMBER,
    "evaluations": {"commits": [NUMBER], "test_accuracy": [UNKNOWN]}, "curve": {"commits": [NUMBER], "time": [UNKNOWN]},
    "hardware": {"device": str},
}  # fmt: skip
JUDGED: dict[str, Any] = MEASURED | {
    "train_loss": UNKNOWN, "test_loss": UNKNOWN, "diverged": bool, "initial_train_loss": UNKNOWN, "commits": NUMBER,
    "staleness_p50": UNKNOWN, "staleness_p95": UNKNOWN, "steps_per_epoch": NUMBER,
    "evaluations": MEASURED["evaluations"] | {"test_loss": [UNKNOWN]},
    "curve": MEASURED["curve"] | {"train_loss": [UNKNOWN]},
    "diagnostics": {}, "processes": NUMBER, "git_commit": str, "date": str,
}  # fmt: skip
DIAGNOSED: dict[str, Any] = {"median": UNKNOWN, "time": [UNKNOWN], "curve": [UNKNOWN]}


class Pool(Store[Run, Record]):
    """Finished runs by what decides their numbers: configuration, recorded quantities, and the version of the library.

    A run with a changed configuration is another run. Changes of the code are not detected: a change that moves numbers, as
    golden histories show, needs another version of the library once one is released.

    Args:
      path: the folder of the runs made here.
      published: the file of the published runs of a claim, read for runs that `path` lacks; `None`: no such file.
      fields: fields that a record must have, with their types.
    """

    def __init__(
        self, path: str | os.PathLike = POOL, published: Path | None = None,
        fields: Mapping[str, Any] = JUDGED,
    ):  # fmt: skip
        super().__init__(path)
        self.published, self.fields = published, fields

    @functools.cached_property
    def _published(self) -> dict[str, Any]:
        """The published runs by their keys."""
        return {} if self.published is None or not self.published.exists() else json.loads(self.published.read_bytes())

    def load(self, job: Run) -> Record | None:
        if (own := super().load(job)) is not None or (found := self._published.get(self.key(job))) is None:
            return own
        try:
            return self.decode(job, dict(found))
        except RecordError as error:
            raise RecordError(f"{self.key(job)} in {self.published} {error}") from error

    def publish(self, path: Path, records: Mapping[Run, Record]) -> None:
        """Write a file of published runs, one run a line."""
        lines = (f"{json.dumps(self.key(run))}: {_line(self.encode(run, record))}" for run, record in records.items())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")

    def key(self, job: Run) -> str:
        return job.key(VERSION)

    def encode(self, job: Run, result: Record) -> dict[str, Any]:
        return {"run": job.described(), "generator": generator()} | result

    def decode(self, job: Run, found: Any) -> Record:
        if found["run"] != json.loads(json.dumps(job.described())):
            raise ValueError("it is of another run")
        if other := other_generator(found.pop("generator", None)):
            raise RecordError(
                f"was computed with {other}; set it as it was, or delete such files to compute them again"
            )
        check_fields(found, self.fields)
        if job.diagnostics:
            check_fields(found, {"diagnostics": dict.fromkeys(job.diagnostics, DIAGNOSED)})
        return found


def _line(record: Any) -> str:
    return json.dumps(record, separators=(",", ":"))
