"""Errors that end a command with one line."""

from collections.abc import Sequence


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
