"""Damaged run folders: `--resume` and `report` refuse them in one line, before anything is computed or changed."""

import dataclasses
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from shrunk import dense, flags

import gemjax
from train import cli
from train.config.config import Config
from train.report import report
from train.run import command, figures
from train.run import train as training
from train.run.folder import RunFolder

LONGER = ["--resume", "run", "--epochs", "1.2"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Make the folder of a finished run of 33 commits."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        dense(patched)
        assert (
            cli.main(flags(path, "--eval-every", "5", "--data-dir", str(tmp_path_factory.getbasetemp() / "data"))) == 0
        )
    return path


@pytest.fixture
def folder(finished, monkeypatch, tmp_path):
    """Make a copy of that folder, `run`, which tests may damage."""
    dense(monkeypatch)
    monkeypatch.setattr(report, "draw", lambda *_: [])
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)  # It takes longer than such a run.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, "run")
    return RunFolder("run")


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.path.rglob("*")}


def refusal(capsys, folder, argv):
    """Return the one line with which a command refuses a folder, and check that it changes nothing."""
    before = contents(folder)
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error[:-1].isprintable()
    assert contents(folder) == before
    return error


FILES = [
    "config.json", "events.jsonl", "metrics.jsonl", "summary.json", "run.png", "checkpoints/33/_CHECKPOINT_METADATA",
    "checkpoints/33/gemjax.sizes.json", "checkpoints/33/state/manifest.ocdbt", "checkpoints/33/trace/manifest.ocdbt",
]  # fmt: skip
FOLDERS = ["checkpoints/33/state", "checkpoints/33", "checkpoints/22", "checkpoints"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "paths", "least"), [("missing", [*FILES, *FOLDERS], 3), ("cut", FILES, 2)], ids=["missing", "cut"]
)
def test_a_file_that_is_missing_or_cut_is_refused_or_changes_nothing(finished, folder, capsys, how, paths, least):
    """A resumed run equals the one that nothing was lost of, or ends in one line and leaves everything as it was."""
    assert cli.main(LONGER) == 0
    whole = folder.events.read_bytes(), folder.read_summary()["test_loss"]
    assert {path for path in paths if not (folder.path / path).exists()} <= {"checkpoints/22", "checkpoints/33"}
    continued = 0
    for name in paths:
        shutil.rmtree("run")
        shutil.copytree(finished, "run")
        path = folder.path / name
        assert path.exists(), name
        if how == "missing":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        before = contents(folder)
        capsys.readouterr()
        if cli.main(LONGER) == 0:
            assert (folder.events.read_bytes(), folder.read_summary()["test_loss"]) == whole, name
            continued += 1
        else:
            assert capsys.readouterr().err.count("\n") == 1, name
            assert contents(folder) == before, name
    assert least <= continued < len(paths)


@pytest.mark.parametrize("summary", ["finished", "killed"])
def test_records_without_a_checkpoint_are_refused_and_kept(folder, capsys, summary):
    shutil.rmtree(folder.saved)
    if summary == "killed":
        folder.summary.unlink()
    error = refusal(capsys, folder, LONGER)
    assert (
        "train: run cannot be resumed: there is no checkpoint in run/checkpoints, but there are records in events.jsonl and "
        "metrics.jsonl, which"
    ) in error
    again = re.search(r"begin the run again in another folder: (python -m train .*)$", error)[1]
    config, resume = command.parse(shlex.split(again)[3:])
    assert resume is None
    assert config == dataclasses.replace(Config.load(folder.config), epochs=1.2, out="run-2")


@pytest.mark.slow
def test_a_run_without_records_and_checkpoints_begins(folder, capsys):
    """It was killed before its first commit."""
    shutil.rmtree(folder.saved)
    for path in (folder.summary, folder.metrics):
        path.unlink()
    folder.events.write_text("")
    assert cli.main(["--resume", "run"]) == 0
    assert "there is no checkpoint yet: starting again" in capsys.readouterr().out
    assert folder.finished(33)


@pytest.mark.parametrize("name", ["events", "metrics"])
def test_every_command_names_the_line_that_cannot_be_read(folder, capsys, monkeypatch, name):
    """Before data are prepared."""
    path = getattr(folder, name)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:30] + b"\n"
    path.write_bytes(b"".join(lines))
    monkeypatch.setattr(training, "make_task", None)
    for argv in (LONGER, ["report", "run"]):
        assert f"train: run/{name}.jsonl, line 3: not " in refusal(capsys, folder, argv)


@pytest.mark.slow
@pytest.mark.parametrize("tail", [b'{"event":"com', bytes(4096), b""])
def test_damage_behind_the_checkpoint_is_removed(folder, tail):
    """A crash may cut a line; after a power cut, the file system may show NUL bytes."""
    whole = folder.events.read_bytes(), folder.metrics.read_bytes()
    shutil.rmtree(folder.saved / "33")
    folder.summary.unlink()
    for path in (folder.events, folder.metrics):
        with open(path, "ab") as file:
            file.write(tail)
    assert cli.main(["--resume", "run"]) == 0
    assert (folder.events.read_bytes(), folder.metrics.read_bytes()) == whole


def test_a_killed_run_has_made_more_commits_than_are_asked_for(folder, capsys):
    """A simulation ended in a traceback, and a run on devices as if it had made them."""
    folder.summary.unlink()
    said = "the run in run has made 33 commits, and 17 are asked for; raise --epochs to continue it"
    assert said in refusal(capsys, folder, ["--resume", "run", "--epochs", "0.5"])


@pytest.mark.parametrize("name", [".", "checkpoints", "events.jsonl", "metrics.jsonl"])
def test_a_run_that_cannot_be_written_is_refused_before_training(folder, monkeypatch, capsys, name):
    """The user of the tests may have the permission to write everything."""
    path = folder.path / name
    access = os.access
    monkeypatch.setattr(os, "access", lambda one, mode: Path(one) != path and access(one, mode))
    error = refusal(capsys, folder, LONGER)
    wrong = f"train: {path} cannot be written: no permission; change that, or resume a copy of the run\n"
    assert error == wrong


def test_a_report_needs_no_checkpoint(folder):
    """They take more room than the records, so users remove them."""
    shutil.rmtree(folder.saved)
    assert cli.main(["report", "run"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_a_resumed_run_leaves_no_summary_or_replay_of_commits_that_it_makes_again(folder, monkeypatch, ended):
    """The report would miss them in the log."""
    assert cli.main(["replay", "run"]) == 0
    if not ended:
        folder.summary.unlink()
    shutil.rmtree(folder.saved / "33")
    earlier = max(int(path.name) for path in folder.saved.glob("[0-9]*"))
    with monkeypatch.context() as patched:
        patched.setattr(training, "run_engine", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(LONGER)
    assert not folder.summary.exists()
    assert not folder.replay.exists()
    assert len(gemjax.eventlog.trace_of(folder.events, 3)) == earlier
    assert cli.main(["report", "run"]) == 0


@pytest.mark.slow
def test_a_resumed_run_keeps_the_summary_of_its_last_commits(folder, monkeypatch):
    assert cli.main(["replay", "run"]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(training, "run_engine", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(LONGER)
    assert folder.summarised_commits() == 33
    assert folder.replay.exists()
    assert cli.main(["report", "run"]) == 0
    assert "of the first 33 applied commits, by python -m train replay" in folder.report.read_text()
