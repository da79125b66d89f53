"""The finished runs of all claims: one small file per run, shared by claims and kept across interruptions."""

import json
import os
from pathlib import Path
from typing import Any

import gemjax
from train.claims.runs import Record, Run
from train.run.folder import RUNS
from train.run.groups.store import Store

POOL = RUNS / "reproduce"
PUBLISHED = Path(__file__).parents[2] / "results" / "runs"
VERSION = gemjax.__version__


class Pool(Store[Run, Record]):
    """Finished runs by what decides their numbers: configuration, recorded quantities, and the version of the library.

    A run with a changed configuration is another run. Changes of the code are not detected: a change that moves numbers, as
    golden histories show, needs another version of the library once one is released.

    Args:
      path: the folder of the runs made here.
      published: a folder of runs that others have made, read for runs that `path` lacks; `None`: no such folder.
    """

    def __init__(self, path: str | os.PathLike = POOL, published: str | os.PathLike | None = PUBLISHED):
        super().__init__(path, published)

    def key(self, job: Run) -> str:
        return job.key(VERSION)

    def encode(self, job: Run, result: Record) -> dict[str, Any]:
        return {"run": job.described()} | result

    def decode(self, job: Run, found: Any) -> Record:
        if found["run"] != json.loads(json.dumps(job.described())):
            raise ValueError("it is of another run")
        return found
