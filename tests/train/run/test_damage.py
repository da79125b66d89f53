"""Damaged run folders: `--resume` and `report` refuse them in one line, before anything is computed or changed."""

import dataclasses
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from shrunk import Dense, flags

import gemjax
from gemjax.checkpoints.folder import METADATA
from train import cli
from train.config.config import Config
from train.report import report
from train.run import train as training
from train.run.folder import RunFolder
from train.task import models

LONGER = ["--resume", "run", "--epochs", "1.2"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Make the folder of a finished run of 33 commits."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(models, "DigitsCNN", Dense)
        assert (
            cli.main(flags(path, "--eval-every", "5", "--data-dir", str(tmp_path_factory.getbasetemp() / "data"))) == 0
        )
    return path


@pytest.fixture
def folder(finished, monkeypatch, tmp_path):
    """Make a copy of that folder, `run`, which tests may damage."""
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    monkeypatch.setattr(report, "draw", lambda *_: [])
    monkeypatch.setattr(training.figures, "draw_run", lambda *_: None)  # It takes longer than such a run.
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


def without(path):
    """Remove `checkpoints/`."""
    shutil.rmtree(path)


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


def damaged_metadata(path):
    for metadata in path.glob(f"*/{METADATA}"):
        metadata.write_text("{")


def a_file(path):
    shutil.rmtree(path)
    path.write_text("not a folder")


def foreign(path):
    empty(path)
    (path / "notes").mkdir()


def files(path):
    empty(path)
    (path / "33").write_text("not a folder")


NONE_LEFT = [
    (without, "run/checkpoints is missing"),
    (empty, "run/checkpoints is empty"),
    (a_file, "run/checkpoints is not a folder"),
    (foreign, "run/checkpoints holds no checkpoint, only notes"),
    (files, "run/checkpoints holds no checkpoint, only 33"),
]


@pytest.mark.parametrize(("remove", "missing"), NONE_LEFT, ids=[remove.__name__ for remove, _ in NONE_LEFT])
@pytest.mark.parametrize("summary", ["finished", "killed"])
def test_records_without_a_checkpoint_are_refused_and_kept(folder, capsys, remove, missing, summary):
    remove(folder.saved.path)
    if summary == "killed":
        folder.summary.unlink()
    error = refusal(capsys, folder, LONGER)
    assert (
        f"train: run cannot be resumed: {missing}, but there are records in events.jsonl and metrics.jsonl, which"
        in error
    )
    command = re.search(r"begin the run again in another folder: (python -m train .*)$", error)[1]
    config, resume = cli.parse(shlex.split(command)[3:])
    assert resume is None
    assert config == dataclasses.replace(Config.load(folder.config), epochs=1.2, out="run-2")


def test_metrics_alone_are_kept_too(folder, capsys):
    empty(folder.saved.path)
    folder.events.write_text("")
    assert "is empty, but there are records in metrics.jsonl, which" in refusal(capsys, folder, LONGER)


def test_a_checkpoint_that_cannot_be_read_leaves_the_records(folder, capsys):
    shutil.rmtree(folder.saved.path / "33")
    for path in folder.saved.path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    before = {path: path.read_bytes() for path in (folder.events, folder.metrics)}
    assert cli.main(LONGER) == 2
    assert "checkpoints: checkpoint 22 " in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_a_run_without_records_and_checkpoints_begins(folder, capsys):
    """It was killed before its first commit."""
    shutil.rmtree(folder.saved.path)
    for path in (folder.summary, folder.metrics):
        path.unlink()
    folder.events.write_text("")
    assert cli.main(["--resume", "run"]) == 0
    assert "there is no checkpoint yet: starting again" in capsys.readouterr().out
    assert folder.finished(33)


def test_a_finished_run_without_checkpoints_is_still_finished(folder, capsys):
    shutil.rmtree(folder.saved.path)
    before = contents(folder)
    assert cli.main(["--resume", "run"]) == 0
    assert "the run in run has made all 33 commits" in capsys.readouterr().out
    assert contents(folder) == before


@pytest.mark.parametrize("field", [{"finished": False}, {}], ids=str)
def test_a_run_with_all_its_commits_is_finished_whatever_its_summary_says_of_that(folder, capsys, field):
    """Without that field `--resume` ended in a traceback, and after a stop in the exit status of Ctrl-C."""
    folder.summary.write_text(json.dumps({"commits": 33} | field))
    assert cli.main(["--resume", "run", "--epochs", "0.5"]) == 0
    assert "the run in run has made 33 commits, and 17 are asked for" in " ".join(capsys.readouterr().out.split())


def test_the_new_folder_does_not_exist_yet(folder, capsys):
    empty(folder.saved.path)
    folder.path.with_name("run-2").mkdir()
    assert "--out run-3" in refusal(capsys, folder, LONGER)


def semicolon(lines):
    """Replace one digit of a time."""
    where = lines[4].index(b'"time":') + 9
    lines[4] = lines[4][:where] + b";" + lines[4][where + 1 :]


def swapped(lines):
    """Exchange the first two lines."""
    lines[:2] = lines[1::-1]


def nul(lines):
    """Write NUL bytes."""
    lines[2] = lines[2][:20] + bytes(10) + lines[2][30:]


def high_bit(lines):
    """Flip the highest bit of one byte."""
    lines[3] = lines[3][:30] + bytes([lines[3][30] ^ 0x80]) + lines[3][31:]


def joined(lines):
    """Overwrite a line break."""
    lines[1] = lines[1][:-1] + b" "


def truncated(lines):
    """Cut a line in the middle of the file."""
    lines[2] = lines[2][:30] + b"\n"


def unbalanced(lines):
    """Move the start of a line to the line before it."""
    lines[1], lines[2] = lines[1][:-1] + lines[2][:9] + b"\n", lines[2][9:]


DAMAGES = [semicolon, swapped, nul, high_bit, joined, truncated, unbalanced]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["events", "metrics"])
def test_every_command_refuses_damaged_records(folder, capsys, monkeypatch, name, damage):
    """The message names file and line, before data are prepared."""
    path = getattr(folder, name)
    lines = path.read_bytes().splitlines(keepends=True)
    damage(lines)
    path.write_bytes(b"".join(lines))
    monkeypatch.setattr(training, "make_task", None)
    for argv in (["--resume", "run"], LONGER, ["report", "run"]):
        error = refusal(capsys, folder, argv)
        assert re.match(rf"train: run/{name}\.jsonl, line [1-5]: not ", error), (argv, error)


def change_a_digit(path, pattern):
    """Change the digit that a pattern ends with; the length stays."""
    content = path.read_bytes()
    last = re.search(pattern, content).end() - 1
    path.write_bytes(content[:last] + (b"7" if content[last : last + 1] != b"7" else b"3") + content[last + 1 :])


@pytest.mark.parametrize(("name", "pattern"), [("events", rb'"loss":\d\.\d'), ("metrics", rb'"test_loss": \d\.\d')])
def test_other_numbers_of_the_same_length_are_found_by_the_checksum(folder, capsys, name, pattern):
    change_a_digit(getattr(folder, name), pattern)
    error = refusal(capsys, folder, LONGER)
    assert f"run/{name}.jsonl was changed after the checkpoint in run/checkpoints was written: " in error


@pytest.mark.slow
@pytest.mark.parametrize("tail", [b'{"event":"com', bytes(4096), b""])
def test_damage_behind_the_checkpoint_is_removed(folder, tail):
    """A crash may cut a line; after a power cut, the file system may show NUL bytes."""
    whole = folder.events.read_bytes(), folder.metrics.read_bytes()
    shutil.rmtree(folder.saved.path / "33")
    folder.summary.unlink()
    for path in (folder.events, folder.metrics):
        with open(path, "ab") as file:
            file.write(tail)
    assert cli.main(["--resume", "run"]) == 0
    assert (folder.events.read_bytes(), folder.metrics.read_bytes()) == whole


@pytest.mark.parametrize("argv", [["--resume", "run"], LONGER, ["replay", "run"]], ids=" ".join)
def test_every_command_refuses_the_configuration_of_another_run(folder, capsys, argv):
    config = Config.load(folder.config)
    dataclasses.replace(config, seed=9).save(folder.config)
    error = refusal(capsys, folder, argv)
    assert "train: run/config.json was changed: seed is 9, but was 0 at the checkpoint; " in error
    assert "write it back" in error


@pytest.mark.parametrize("argv", [["--resume", "run"], ["report", "run"]], ids=" ".join)
def test_a_damaged_name_in_the_metrics_is_refused(folder, capsys, argv):
    folder.metrics.write_text(folder.metrics.read_text().replace('"gap"', '"\'ap"', 1))
    assert "metrics.jsonl, line 1: not metrics of a run: it has an unknown field" in refusal(capsys, folder, argv)


def test_a_killed_run_has_made_more_commits_than_are_asked_for(folder, capsys):
    """A simulation ended in a traceback, and a run on devices as if it had made them."""
    folder.summary.unlink()
    said = "the run in run has made 33 commits, and 17 are asked for; raise --epochs to continue it"
    assert said in refusal(capsys, folder, ["--resume", "run", "--epochs", "0.5"])


@pytest.mark.slow
def test_a_log_that_another_process_truncates_meanwhile_is_named(folder, monkeypatch, capsys):
    poll = training.RunCallback.poll

    def truncate(self, progress):
        poll(self, progress)
        if progress.commits == 35:
            self.log.flush()
            os.truncate(folder.events, 0)

    monkeypatch.setattr(training.RunCallback, "poll", truncate)
    assert cli.main(LONGER) == 2
    error = capsys.readouterr().err
    assert error.startswith("train: the run is at its end, but its log was changed: run/events.jsonl, line 1: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", [".", "checkpoints", "events.jsonl", "metrics.jsonl"])
def test_a_run_that_cannot_be_written_is_refused_before_training(folder, monkeypatch, capsys, name):
    """The user of the tests may have the permission to write everything."""
    path = folder.path / name
    access = os.access
    monkeypatch.setattr(os, "access", lambda one, mode: Path(one) != path and access(one, mode))
    error = refusal(capsys, folder, LONGER)
    wrong = f"train: {path} cannot be written: no permission; change that, or resume a copy of the run\n"
    assert error == wrong


def test_a_message_on_a_summary_has_whole_quotes(folder, capsys):
    folder.summary.write_text("{}")
    error = refusal(capsys, folder, LONGER)
    assert "run/summary.json is not the summary of a run (KeyError: 'commits'); delete it" in error


@pytest.mark.parametrize("change", [without, empty, damaged_metadata])
def test_a_report_needs_no_checkpoint(folder, change):
    """They take more room than the records, so users remove them."""
    change(folder.saved.path)
    assert cli.main(["report", "run"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_a_resumed_run_leaves_no_summary_or_replay_of_commits_that_it_makes_again(folder, monkeypatch, ended):
    """The report would miss them in the log."""
    assert cli.main(["replay", "run"]) == 0
    if not ended:
        folder.summary.unlink()
    shutil.rmtree(folder.saved.path / "33")
    earlier = max(int(path.name) for path in folder.saved.path.glob("[0-9]*"))
    with monkeypatch.context() as patched:
        patched.setattr(training, "_run_engine", lambda *_: 1 / 0)
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
        patched.setattr(training, "_run_engine", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(LONGER)
    assert folder.summarised_commits() == 33
    assert folder.replay.exists()
    assert cli.main(["report", "run"]) == 0
    assert "of the first 33 applied commits, by python -m train replay" in folder.report.read_text()
