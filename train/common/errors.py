"""Errors that end a command with one line."""


class UsageError(Exception):
    """A wrong command line; its message is the one line to show."""


class DataError(ValueError):
    """A data set that cannot be had, and what to do about it; one line."""


class RecordError(ValueError):
    """What a run has recorded is damaged; one line that says what, and what to do about it."""
