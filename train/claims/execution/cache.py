"""The finished runs of claims: one file per run in the work folder, shared by claims, and one file per published claim."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gemjax
from train.claims.runs import PlannedRun, RunRecord
from train.common.files import write_whole
from train.run.folder import RUNS
from train.run.groups.store import Store

POOL = RUNS / "reproduce"
PUBLISHED = Path(__file__).parents[2] / "results" / "runs"
# The generator of records that name none.
UNNAMED = {"JAX_DEFAULT_PRNG_IMPL": "threefry2x32", "JAX_THREEFRY_PARTITIONABLE": True, "JAX_RANDOM_SEED_OFFSET": 0}


class Pool(Store[PlannedRun, RunRecord]):
    """Finished runs, keyed by configuration, recorded quantities and the version of the library.

    A run with a changed configuration is another run. Changes of the code are not detected: after the first release, a change
    that moves numbers must come with a new version of the library.

    Args:
      path: the folder of the runs made here.
      published: the file of the published runs of a claim, read for runs that `path` lacks; `None`: no such file.
    """

    def __init__(self, path: str | os.PathLike = POOL, published: Path | None = None):
        super().__init__(path)
        self.published = published

    @functools.cached_property
    def _published(self) -> dict[str, Any]:
        """The published runs by their keys."""
        return json.loads(self.published.read_bytes()) if self.published and self.published.exists() else {}

    def load(self, job: PlannedRun) -> RunRecord | None:
        own = super().load(job)
        if own is None and self.published and (found := self._published.get(self.key(job))):
            return self.opened(job, {"generator": UNNAMED} | found, self.published, "give --anew")
        return own

    def publish(self, path: Path, records: Mapping[PlannedRun, RunRecord]) -> None:
        """Write a file of published runs, one run a line."""
        lines = (
            f"{json.dumps(self.key(run))}: {json.dumps(self.content(run, record), separators=(',', ':'))}"
            for run, record in records.items()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")

    def key(self, job: PlannedRun) -> str:
        return job.key(gemjax.__version__)

    def encode(self, job: PlannedRun, result: RunRecord) -> dict[str, Any]:
        return {"run": job.described()} | result

    def decode(self, job: PlannedRun, found: Any) -> RunRecord:
        return found
