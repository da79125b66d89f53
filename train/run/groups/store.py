"""Finished jobs of a command, one JSON file per job, from which an interrupted command resumes."""

import abc
import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from train.common import interrupts
from train.common.console import say
from train.common.errors import RecordError, printable
from train.common.files import FULL, in_words, write_whole
from train.common.machine import generator, other_generator

Job = TypeVar("Job", bound=Hashable)
Result = TypeVar("Result")


class Store(abc.ABC, Generic[Job, Result]):
    """A folder of finished jobs. Each file is complete or absent, whenever the command is killed.

    Args:
      path: the folder.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    @abc.abstractmethod
    def key(self, job: Job) -> str:
        """Return the file name of a job without its ending. It changes with everything that decides the result."""

    def encode(self, job: Job, result: Result) -> dict[str, Any]:
        """Return `result` as JSON values."""
        return {"result": result}

    def decode(self, job: Job, found: Any) -> Result:
        """Return the result in JSON values `found`; a `ValueError` if this command cannot use it."""
        return found["result"]

    def file(self, job: Job) -> Path:
        """Return the path of the file of `job`, present or not."""
        return self.path / f"{self.key(job)}.json"

    def load(self, job: Job) -> Result | None:
        """Return the result of `job`; `None` if it is not finished."""
        path = self.file(job)
        return self.opened(job, json.loads(path.read_text()), path) if path.exists() else None

    def opened(self, job: Job, found: Any, path: Path, again: str = "delete the file") -> Result:
        """Return the result in the content `found` of `path`; `again` says how to compute it again.

        Raises:
          RecordError: if it has other random numbers than this process would draw, or cannot be used.
        """
        try:
            if other := other_generator(found.pop("generator", None)):
                raise ValueError(f"it was computed with {other}")
            return self.decode(job, found)
        except ValueError as error:
            raise RecordError(
                f"{path} cannot be used: {error}; set that as it was, or {again} to compute it again"
            ) from error

    def known(self, jobs: Iterable[Job]) -> dict[Job, Result]:
        """Return the results of the finished ones of `jobs`."""
        return {job: result for job in jobs if (result := self.load(job)) is not None}

    def content(self, job: Job, result: Result) -> dict[str, Any]:
        """Return the content of the file of `job`."""
        return {"generator": generator()} | self.encode(job, result)

    def save(self, job: Job, result: Result) -> None:
        """Write the result of `job`."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.file(job), json.dumps(self.content(job, result), indent=1) + "\n")

    def keep(self, made: Iterable[tuple[Job, Result]], known: dict[Job, Result]) -> Iterator[tuple[Job, Result]]:
        """Save each result as it arrives, add it to `known`, and yield it."""
        for job, result in made:
            self.save(job, result)
            known[job] = result
            yield job, result


def until_interrupted(work: Callable[[], object], console: Console, resume: Callable[[], str]) -> int:
    """Call `work` and return the exit status of the command. After an interruption or on a full disk print `resume()`.

    `resume` returns how to resume, as the rest of a sentence.
    """
    try:
        work()
    except KeyboardInterrupt as stop:
        number = interrupts.number_of(stop)
        say(console, f"stopped by {interrupts.name_of(number)}{resume()}")
        return interrupts.status_of(number)
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"train: {printable(f'{in_words(error)}; make room. Stopped{resume()}')}", file=sys.stderr)
        return 1
    return 0
