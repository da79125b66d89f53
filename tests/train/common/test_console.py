"""Output on terminals of an odd size and of another encoding than UTF-8."""

import io
import os
import sys

import pytest

from train import cli
from train.common.console import RunConsole, say
from train.config import helptext
from train.config.config import Config


@pytest.fixture
def terminal(monkeypatch):
    """Replace the output of the process by that of a terminal with an encoding; returns a function with its bytes."""

    def replace(encoding, errors="strict"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding, errors, write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream.buffer.getvalue

    return replace


@pytest.mark.parametrize("name", ["runs/[exp 1] gem", "runs/a[/b]", "[bold]x[/bold]", "a:smile:b"])
def test_names_are_printed_as_they_are(name, capsys):
    """Brackets are a style to Rich, and words between colons are pictures."""
    say(RunConsole(), f"picture: {name}/run.png")
    assert capsys.readouterr().out == f"picture: {name}/run.png\n"


@pytest.mark.parametrize("width", [1, 2, 20, 40])
def test_the_help_is_readable_on_a_narrow_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = helptext.text("python -m train", "Train.", Config(), everything=True)
    assert "  --resume RUN" in text


def test_symbols_are_escaped_on_an_ascii_terminal(terminal):
    output = terminal("ascii")
    assert cli.main(["reproduce", "--list"]) == 0
    assert b"gem_figure_1" in output()
    assert b"\\u03ba" in output()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_path_that_the_terminal_cannot_show_is_escaped(encoding, terminal, tmp_path):
    output = terminal(encoding)
    folder = tmp_path / os.fsdecode("läuft-".encode() + b"\xff")
    assert cli.main(["report", str(folder)]) == 2
    assert b"l\\xe4uft-\\udcff" in output() if encoding == "ascii" else "läuft-\\udcff".encode() in output()
    say(RunConsole(), str(folder))
    assert output().count(b"uft-\\udcff") == 2
