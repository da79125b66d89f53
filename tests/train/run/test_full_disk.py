"""A full disk: the run reports it in one line, and continues from the newest checkpoint once there is space."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from orbax.checkpoint import v1 as ocp
from shrunk import COMMITS, dense, flags, no_file_beyond

import gemjax
from gemjax.engines.running.checkpoints import CheckpointWriteError
from gemjax.telemetry import eventlog
from train import cli
from train.common.files import append_whole, in_words, write_whole
from train.run import figures, folder
from train.run.folder import RunFolder

TENSORSTORE = "RESOURCE_EXHAUSTED: Failed writing: \"x\": No space left on device [os_error_code='28']"


@pytest.fixture
def tiny(monkeypatch, tmp_path, tmp_path_factory):
    dense(monkeypatch)
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)  # It takes longer than such a run.
    monkeypatch.chdir(tmp_path)
    return flags("run", "--data-dir", str(tmp_path_factory.getbasetemp() / "data"))


@pytest.fixture
def failing(monkeypatch):
    """Make chosen checkpoints, by commits, find the disk full, as Python or TensorStore reports it."""
    failing = {}
    save = ocp.save_checkpointables

    def full(path, *args, **options):
        how = failing.get(int(os.path.basename(path).partition(".")[0]))
        if how == "by Python":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if how == "by TensorStore":
            raise ValueError(TENSORSTORE)
        save(path, *args, **options)

    monkeypatch.setattr(ocp, "save_checkpointables", full)
    return failing


def checkpoints_in(folder):
    return sorted(int(name) for name in os.listdir(RunFolder(folder).saved) if name.isdecimal())


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("by Python", marks=pytest.mark.nightly), "by TensorStore"])
def test_a_failed_checkpoint_is_reported_and_the_run_goes_on(tiny, failing, how, capsys):
    failing[22] = how
    assert cli.main(tiny) == 0
    output = capsys.readouterr()
    assert output.err == ""
    (line,) = [line for line in output.out.splitlines() if line.startswith("warning")]
    assert re.fullmatch(
        r"warning: \S+/run/checkpoints: the checkpoint of 22 commits could not be written: No space left on device \(its "
        r"arrays take [\d.]+ KiB, [\d.]+ \wiB are free\); the newest good one is of 11 commits; the run goes on and tries "
        r"again when the next checkpoint is due",
        line,
    )
    assert checkpoints_in("run") == [11, COMMITS]


@pytest.mark.slow
def test_a_run_whose_last_checkpoint_fails_continues_from_the_previous_one(tiny, failing, capsys):
    assert cli.main([*tiny[:-1], tiny[-1], "--out", "whole"]) == 0
    failing[COMMITS] = "by TensorStore"
    assert cli.main(tiny) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the checkpoint of 33 commits could not be written: No space left on device (" in error
    assert "the newest good one is of 22 commits; make room and go on with: python -m train --resume run\n" in error
    folder = RunFolder("run")
    assert checkpoints_in("run") == [11, 22]
    assert not folder.summary.exists()
    failing.clear()
    assert cli.main(["--resume", "run"]) == 0
    assert "continuing from the checkpoint at 22 commits" in capsys.readouterr().out
    whole = RunFolder("whole")
    assert folder.events.read_bytes() == whole.events.read_bytes()
    losses = [json.loads(one.summary.read_text())["test_loss"] for one in (folder, whole)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_run_whose_first_checkpoint_fails_ends_before_its_first_commit(tiny, failing, capsys):
    failing[0] = "by TensorStore"
    assert cli.main(tiny) == 1
    error = capsys.readouterr().err
    assert "the checkpoint of 0 commits could not be written: No space left on device (" in error
    assert "; there is no other; make room and go on with: python -m train --resume run\n" in error
    assert RunFolder("run").events.read_bytes() == b""
    failing.clear()
    assert cli.main(["--resume", "run"]) == 0
    assert RunFolder("run").finished(COMMITS)


@pytest.mark.slow
def test_a_run_whose_event_log_finds_the_disk_full_can_be_resumed(tiny, monkeypatch, capsys):
    write, remaining = gemjax.EventLog.write, [25]

    def full(self, event, time, **fields):
        remaining[0] -= 1
        if remaining[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/events.jsonl")
        write(self, event, time, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(gemjax.EventLog, "write", full)
        assert cli.main(tiny) == 1
    output = capsys.readouterr()
    lost = "the event log has lost 8 of 33 commits; the newest checkpoint is of 22"
    assert output.out.count(f"the commits before the error could not be saved: {lost}") == 1
    assert re.fullmatch(
        r"train: run/events\.jsonl could not be written: No space left on device \([\d.]+ \wiB are free\); the newest "
        r"checkpoint is of 22 commits; make room and go on with: python -m train --resume run\n",
        output.err,
    )
    assert cli.main(["--resume", "run"]) == 0
    assert len(eventlog.trace_of("run/events.jsonl", 3)) == COMMITS


@pytest.mark.parametrize("engine", ["simulate", pytest.param("devices", marks=pytest.mark.slow)])
def test_an_evaluation_whose_row_finds_the_disk_full_is_made_up(tiny, monkeypatch, engine):
    """On devices the run may have made all its commits when the row is written."""
    evaluated = lambda: [(row["commits"], row["train_loss"]) for row in read_lines("run/metrics.jsonl")]

    def full(path, line):
        if len(read_lines(path)) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append_whole(path, line)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "append_whole", full)
        assert cli.main([*tiny, "--engine", engine, "--eval-every", "11"]) == 1
    ((first, _),) = evaluated()
    assert cli.main(["--resume", "run"]) == 0
    before, (second, loss), *_ = rows = evaluated()
    assert (before[0], rows[-1][0]) == (first, COMMITS) == (11, COMMITS)
    assert 22 <= second <= COMMITS
    losses = [event["loss"] for event in read_lines("run/events.jsonl") if event["event"] == "commit"]
    assert loss == pytest.approx(sum(losses[first:second]) / (second - first))


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def test_the_advice_fits_an_error_other_than_a_full_disk(tiny, monkeypatch, capsys):
    def refused(*_, **__):
        raise CheckpointWriteError(errno.EACCES, "run/checkpoints: Permission denied")

    monkeypatch.setattr(gemjax.Checkpoints, "save", refused)
    assert cli.main(tiny) == 1
    error = capsys.readouterr().err
    assert error == "train: run/checkpoints: Permission denied; fix that and go on with: python -m train --resume run\n"


def test_a_line_is_appended_completely_or_not_at_all(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_whole(path, "1" * 40 + "\n")
    with no_file_beyond(60), pytest.raises(OSError, match="metrics") as full:
        append_whole(path, "2" * 40 + "\n")
    assert re.fullmatch(r".*metrics\.jsonl could not be written: .* \([\d.]+ \wiB are free\)", in_words(full.value))
    assert path.read_text() == "1" * 40 + "\n"


def test_a_file_that_does_not_fit_leaves_only_the_previous_one(tmp_path):
    path = tmp_path / "summary.json"
    write_whole(path, "before")
    with no_file_beyond(60), pytest.raises(OSError, match=r"summary\.json"):
        write_whole(path, "x" * 100_000)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["summary.json"]


LIMITED = """
import resource, sys
from train import cli
from train.run import callback, folder

poll, say = callback.RunCallback.poll, callback.say

def warn(console, text):
    say(console, text)
    callback.RunCallback.poll = wait

def wait(self, progress):
    poll(self, progress)
    sys.stdin.read()

resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
callback.say = warn
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_run_in_a_process_whose_files_may_not_grow(tmp_path):
    """The first checkpoints do not fit; after a warning it waits until the limit is lifted, and the next one is written."""
    flags = ["--engine", "simulate", "--model", "mlp", "--workers", "4", "--epochs", "12", "--checkpoint-every", "20"]
    flags += ["--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", LIMITED, *flags], cwd=Path(__file__).parents[3], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if "CACHE" not in name},
    )  # fmt: skip
    lines = iter(process.stdout.readline, "")
    first = next(line for line in lines if line.startswith("warning"))
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    rest, error = process.communicate()
    assert "could not be written: File too large" in first
    assert "the newest good one is of 0 commits" in first
    # Matplotlib may complain that it could not write its list of fonts.
    errors = [line for line in error.splitlines() if "matplotlib" not in line.lower()]
    assert (process.returncode, errors) == (0, [])
    assert "test accuracy" in rest
    assert all(name.isdigit() or name == ".lock" for name in os.listdir(tmp_path / "run" / "checkpoints"))
