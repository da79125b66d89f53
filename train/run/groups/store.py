"""Finished jobs of a command, one JSON file per job, from which an interrupted command resumes."""

import abc
import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from train.common import interrupts
from train.common.console import say
from train.common.errors import RecordError, printable
from train.common.files import FULL, check_regular, in_words, write_whole

Job = TypeVar("Job", bound=Hashable)
Result = TypeVar("Result")

NUMBER, UNKNOWN = (int, float), (int, float, type(None))  # A number that is not finite is `None`.


class Store(abc.ABC, Generic[Job, Result]):
    """A folder of finished jobs. Each file is complete or absent, whenever the command is killed.

    Args:
      path: the folder.

    Attributes:
      check_in_place: called before a result is written.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.check_in_place: Callable[[], None] = lambda: None

    @abc.abstractmethod
    def key(self, job: Job) -> str:
        """Return the file name of a job without its ending. It changes with everything that decides the result."""

    def encode(self, job: Job, result: Result) -> Any:
        """Return `result` as JSON values."""
        return result

    def decode(self, job: Job, found: Any) -> Result:
        """Return the result in JSON values `found`.

        Raises:
          RecordError: with what was found, if the file is not damaged but cannot be used.
          ValueError: with the reason why they are not a result of `job`.
        """
        return found

    def file(self, job: Job) -> Path:
        """Return the path of the file of `job`, present or not."""
        return self.path / f"{self.key(job)}.json"

    def load(self, job: Job) -> Result | None:
        """Return the result of `job`; `None` if it is not finished.

        Raises:
          RecordError: if the file is damaged or belongs to another job.
        """
        path = self.file(job)
        check_regular(path)
        if not path.exists():
            return None
        try:
            return self.decode(job, json.loads(path.read_text()))
        except RecordError as error:
            raise RecordError(f"{path} {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(f"{path} is damaged ({error}); delete it to compute it again") from error

    def known(self, jobs: Iterable[Job]) -> dict[Job, Result]:
        """Return the results of the finished ones of `jobs`.

        Raises:
          RecordError: if the file of one is damaged.
        """
        return {job: result for job in jobs if (result := self.load(job)) is not None}

    def save(self, job: Job, result: Result) -> None:
        """Write the result of `job`."""
        self.check_in_place()
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.file(job), json.dumps(self.encode(job, result), indent=1) + "\n")

    def keep(self, made: Iterable[tuple[Job, Result]], known: dict[Job, Result]) -> Iterator[tuple[Job, Result]]:
        """Save each result as it arrives, add it to `known`, and yield it."""
        for job, result in made:
            self.save(job, result)
            known[job] = result
            yield job, result


def check_fields(found: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Check that an object of JSON has `fields`; others are allowed.

    Args:
      found: the object.
      fields: the type of each field. A list has the type of its elements, and is as long as the lists beside it; a dictionary
        has fields of its own.

    Raises:
      ValueError: with the first field that is missing or has another type.
    """
    if missing := [name for name in fields if name not in found]:
        raise ValueError(f"it has no {missing[0]}")
    lengths: dict[str, int] = {}
    for name, kind in fields.items():
        value, nested = found[name], isinstance(kind, (dict, list))
        valid = isinstance(value, type(kind)) if nested else _is_of(value, kind)
        if valid and isinstance(kind, list):
            lengths[name] = len(value)
            valid = all(_is_of(one, kind[0]) for one in value)
        if not valid:
            raise ValueError(f"its {name} is {ascii(value)[:60]}")
        if isinstance(kind, dict):
            check_fields(value, kind)
    if len(set(lengths.values())) > 1:
        raise ValueError(f"its {', '.join(lengths)} are not equally long")


def _is_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Return True for a value of that type; numbers must be finite as floats, and true or false is none."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and (not isinstance(value, (int, float)) or abs(value) <= sys.float_info.max)


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
