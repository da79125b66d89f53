"""Errors that end a command with one line."""

import sys
from collections.abc import Sequence
from typing import Any


class UsageError(Exception):
    """A wrong command line. The message is the line to print."""


class DataError(ValueError):
    """A data set that is missing or unusable. The message is one line with the remedy."""


class RecordError(ValueError):
    """A damaged record of a run. The message is one line with the remedy."""


def printable(text: str) -> str:
    """Return `text` in one line, with escapes for characters that a terminal would not print.

    >>> printable("--out \\x1b[31m")
    '--out \\\\x1b[31m'
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def either(names: Sequence[str]) -> str:
    """Return `names` as alternatives.

    >>> either(["gem", "asgd", "lsgd"])
    'gem, asgd or lsgd'
    """
    return ", ".join([*names[:-2], " or ".join(names[-2:])])


def show_unraisable(unraisable: Any) -> None:
    """Print an exception that nothing can catch, as `sys.unraisablehook` does, unless a command reports its cause itself.

    After a failed write Orbax closes its event loop, and TensorStore complains that it cannot report the other writes there.
    """
    if not (isinstance(error := unraisable.exc_value, RuntimeError) and str(error) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)
