"""Errors that are shown beside the one line of a command."""

import sys

import pytest

from train.common.errors import show_unraisable


class Broken:
    """An object that raises when it is deleted, where nothing can catch the exception."""

    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RuntimeError("Event loop is closed"), ""),
        (RuntimeError("other"), "RuntimeError: other"),
        (OSError("Event loop is closed"), "OSError: Event loop is closed"),
    ],
)
def test_only_a_closed_event_loop_is_not_shown(monkeypatch, capsys, error, shown):
    monkeypatch.setattr(sys, "unraisablehook", show_unraisable)
    Broken(error)
    found = capsys.readouterr().err.splitlines()
    assert found[-1:] == ([shown] if shown else [])
