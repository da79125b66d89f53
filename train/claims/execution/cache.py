"""The finished runs of all claims: one small file a run, so that claims share runs and interrupted ones go on."""

import json
import os
from pathlib import Path

import gemjax
from train.claims.runs import Record, Run
from train.common.files import write_whole
from train.run.folder import RUNS

POOL = RUNS / "reproduce"
PUBLISHED = Path(__file__).parents[2] / "results" / "runs"
VERSION = gemjax.__version__


class Pool:
    """Finished runs by what decides their numbers: configuration, what is recorded, and the library's version.

    Every file is there as a whole or not at all. A run whose configuration changed is another run, and made anew. Code is not
    looked at: a change that moves numbers, as golden histories tell, needs another version of the library once one is released.

    Args:
      path: the folder that runs are kept in.
      published: a folder of runs that others have made, looked into for those that `path` does not have; `None`: nowhere.
    """

    def __init__(self, path: str | os.PathLike = POOL, published: str | os.PathLike | None = PUBLISHED):
        self.path = Path(path)
        self.published = None if published is None else Path(published)

    def file(self, run: Run) -> Path:
        """Where the record of `run` is, or will be."""
        return self.path / f"{run.key(VERSION)}.json"

    def load(self, run: Run) -> Record | None:
        """What `run` recorded; `None` if it has not been made.

        Raises:
          ValueError: if its file is damaged or of something else.
        """
        path = self.file(run)
        if not path.exists() and self.published is not None:
            path = self.published / path.name
        if not path.exists():
            return None
        try:
            record = json.loads(path.read_text())
            if record["run"] != json.loads(json.dumps(run.described())):
                raise ValueError("it is of another run")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete it, and the run is made again") from error
        return record

    def save(self, run: Run, record: Record) -> None:
        """Keeps what `run` recorded."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.file(run), json.dumps({"run": run.described()} | record, indent=1) + "\n")

    def publish(self, run: Run, record: Record) -> None:
        """Puts what `run` recorded where other checkouts find it, unless it is there."""
        if self.published is not None and not (path := self.published / self.file(run).name).exists():
            self.published.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"run": run.described()} | record, separators=(",", ":")) + "\n")
