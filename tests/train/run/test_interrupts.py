"""Ctrl-C, SIGTERM and SIGHUP: a run ends with a checkpoint, or at once if there is nothing to save."""

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shrunk import COMMITS, dense, flags

from train import cli
from train.common import interrupts
from train.common.interrupts import StopRequest
from train.run import figures
from train.run import train as training
from train.run.folder import RunFolder

STATUS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Give each test Python's own handlers."""
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)  # It takes longer than a run.
    default = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
    before = [signal.signal(number, how) for (number, _), how in zip(STATUS, default, strict=True)]
    yield
    for (number, _), how in zip(STATUS, before, strict=True):
        signal.signal(number, how)


@pytest.fixture
def ends(monkeypatch):
    """Record the exit statuses instead of ending the process."""
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)
    return ends


@pytest.mark.parametrize(("number", "status"), STATUS)
def test_a_signal_ends_the_process_at_once_until_raising_is_enabled(number, status, ends, capfd):
    interrupts.end_at_once()
    signal.raise_signal(number)
    assert ends == [status]
    assert capfd.readouterr().err == f"train: interrupted by {interrupts.name_of(number)}\n"
    interrupts.raise_again()
    with pytest.raises(KeyboardInterrupt) as stop:
        signal.raise_signal(number)
    assert interrupts.status_of(interrupts.number_of(stop.value)) == status


@pytest.mark.parametrize(("number", "_"), STATUS)
def test_an_ignored_signal_stays_ignored(number, _):
    """SIGHUP is ignored under `nohup`, SIGINT in the background of a script."""
    signal.signal(number, signal.SIG_IGN)
    interrupts.end_at_once()
    interrupts.raise_again()
    with StopRequest() as interrupt:
        interrupt.unsaved = True
        signal.raise_signal(number)
    assert not interrupt.is_set()
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize(("number", "_"), STATUS)
def test_the_second_signal_ends_a_run_at_once_unless_it_is_a_closed_terminal_s(number, _, ends, capfd):
    interrupts.end_at_once()
    woken = []
    with StopRequest() as interrupt:
        interrupt.unsaved, interrupt.wake, interrupt.go_on = True, lambda: woken.append(True), "run again"
        signal.raise_signal(number)
        assert (interrupt.is_set(), interrupt.number, woken, ends) == (True, number, [True], [])
        assert f"{interrupts.name_of(number)}: stopping after the commits in flight" in capfd.readouterr().err
        signal.raise_signal(signal.SIGHUP)
        assert (ends, capfd.readouterr().err) == ([], "")
        second = signal.SIGINT if number == signal.SIGHUP else number
        signal.raise_signal(second)
        assert ends == [interrupts.status_of(second)]
        assert capfd.readouterr().err.startswith("\ngo on with: run again\n")


def test_a_signal_that_ends_the_process_shows_the_cursor(monkeypatch, ends, capfd):
    """The line of progress has hidden it."""
    interrupts.end_at_once()
    for terminal, kind, expected in ((True, "xterm", "\x1b[?25h"), (True, "dumb", ""), (False, "xterm", "")):
        monkeypatch.setattr(os, "isatty", lambda _, terminal=terminal: terminal)
        monkeypatch.setenv("TERM", kind)
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().out == expected


def test_a_process_that_began_without_standard_output_ends_with_its_status(monkeypatch, ends):
    monkeypatch.setattr(sys, "stdout", None)
    interrupts.leave(0)
    assert ends == [0]


@pytest.mark.parametrize(("number", "status"), STATUS)
def test_a_run_without_commits_of_its_own_ends_at_once(number, status, ends):
    interrupts.end_at_once()
    with StopRequest() as interrupt:
        signal.raise_signal(number)
    assert not interrupt.is_set()
    assert ends == [status]


@pytest.mark.parametrize(
    ("number", "status"), [STATUS[0], *(pytest.param(*other, marks=pytest.mark.slow) for other in STATUS[1:])]
)
def test_a_run_that_a_signal_stops_continues_bit_for_bit(
    number, status, monkeypatch, tmp_path, capfd, tmp_path_factory
):
    dense(monkeypatch)
    monkeypatch.chdir(tmp_path)
    argv = flags("run", "--data-dir", str(tmp_path_factory.getbasetemp() / "data"), "--checkpoint-every", "0")
    poll = training.RunCallback.poll

    def signalled(self, progress):
        poll(self, progress)
        if progress.commits == 22:
            signal.raise_signal(number)

    drawn = []
    with monkeypatch.context() as patched:
        patched.setattr(training.RunCallback, "poll", signalled)
        patched.setattr(figures, "draw_run", lambda *_: drawn.append(capfd.readouterr()))
        assert cli.main(argv) == status
    (before,), name = drawn, interrupts.name_of(number)  # Drawing takes longer than a user may wait.
    assert f"stopped by {name} at 22 of 33 commits; go on with: python -m train --resume run" in before.out
    assert before.err.count("\n") == 2
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    folder = RunFolder("run")
    assert sorted(path.name for path in folder.saved.glob("[0-9]*")) == ["0", "22"]
    assert cli.main(["--resume", "run"]) == 0
    assert "continuing from the checkpoint at 22 commits" in capfd.readouterr().out
    assert sorted(path.name for path in folder.saved.glob("[0-9]*")) == ["22", str(COMMITS)]


class EndedError(BaseException):
    """End of the process, in a test."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["poll", pytest.param("finish", marks=pytest.mark.nightly)])
def test_the_second_ctrl_c_ends_a_training_run_without_a_checkpoint(
    moment, monkeypatch, tmp_path, capfd, tmp_path_factory
):
    """It comes before the run has stopped, or before its last checkpoint is written; earlier checkpoints remain valid."""

    def end(status):
        raise EndedError(status)

    def interrupted(self, *args):
        if moment == "finish" or args[0].commits == 22:
            for _ in range(2 if moment == "poll" else 1):
                signal.raise_signal(signal.SIGINT)
        return work(self, *args)

    def once(self, progress):
        poll(self, progress)
        if progress.commits == 22:
            signal.raise_signal(signal.SIGINT)

    dense(monkeypatch)
    monkeypatch.chdir(tmp_path)
    interrupts.end_at_once()
    poll, work = training.RunCallback.poll, getattr(training.RunCallback, moment)
    with monkeypatch.context() as patched:
        patched.setattr(os, "_exit", end)
        patched.setattr(training.RunCallback, "poll", once)
        patched.setattr(training.RunCallback, moment, interrupted)
        with pytest.raises(EndedError, match="130"):
            cli.main(flags("run", "--data-dir", str(tmp_path_factory.getbasetemp() / "data")))
    errors = capfd.readouterr().err.split("\n")
    go_on = "go on with: python -m train --resume run"
    assert errors[:1] + errors[2:] == ["", "", go_on, "train: interrupted by Ctrl-C", ""]
    assert (
        "Ctrl-C: stopping after the commits in flight, with a checkpoint; Ctrl-C or SIGTERM now stops at once"
        in errors[1]
    )
    folder = RunFolder("run")
    assert not folder.summary.exists()
    assert "22" not in os.listdir(folder.saved) or moment == "finish"
    assert cli.main(["--resume", "run"]) == 0
    assert "continuing from the checkpoint at" in capfd.readouterr().out
    assert folder.finished(COMMITS)


@pytest.mark.parametrize("moment", ["save_first", "make_up"])
def test_a_run_that_a_signal_ends_before_a_commit_names_the_command_that_continues_it(
    moment, monkeypatch, tmp_path, capfd, tmp_path_factory
):
    """The engine compiles for a while then, and a resumed run writes the evaluations that it lacks."""

    def interrupted(self, *_):
        signal.raise_signal(signal.SIGTERM)

    def end(status):
        raise EndedError(status)

    dense(monkeypatch)
    monkeypatch.chdir(tmp_path)
    argv = flags("run", "--data-dir", str(tmp_path_factory.getbasetemp() / "data"))
    interrupts.end_at_once()
    with monkeypatch.context() as patched:
        patched.setattr(os, "_exit", end)
        for command in [argv] if moment == "save_first" else [argv, ["--resume", "run"]]:
            patched.setattr(training.RunCallback, moment, interrupted)
            patched.setattr(training, "run_engine", lambda *_: interrupted(None))
            with pytest.raises(EndedError, match="143"):
                cli.main(command)
            go_on = "\ngo on with: python -m train --resume run\ntrain: interrupted by SIGTERM\n"
            assert capfd.readouterr().err == go_on
    assert cli.main(["--resume", "run"]) == 0
    assert RunFolder("run").finished(COMMITS)


@pytest.mark.parametrize("second", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first", "second"])
def test_a_signal_while_the_summary_is_made_names_the_command(second, monkeypatch, tmp_path, capfd, tmp_path_factory):
    """All commits are saved then, or all until the first signal; the picture takes seconds."""

    def interrupted(*_):
        signal.raise_signal(signal.SIGTERM)

    def end(status):
        raise EndedError(status)

    def stopped(self, progress):
        poll(self, progress)
        if progress.commits == 22 and second:
            signal.raise_signal(signal.SIGTERM)

    dense(monkeypatch)
    monkeypatch.chdir(tmp_path)
    interrupts.end_at_once()
    poll = training.RunCallback.poll
    with monkeypatch.context() as patched:
        patched.setattr(os, "_exit", end)
        patched.setattr(training.RunCallback, "poll", stopped)
        patched.setattr(figures, "draw_run", interrupted)
        with pytest.raises(EndedError, match="143"):
            cli.main(flags("run", "--data-dir", str(tmp_path_factory.getbasetemp() / "data")))
    go_on = "\ngo on with: python -m train --resume run\ntrain: interrupted by SIGTERM\n"
    assert capfd.readouterr().err.endswith(go_on)
    assert not RunFolder("run").summary.exists()
    assert cli.main(["--resume", "run"]) == 0
    assert RunFolder("run").finished(COMMITS)


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_writes_a_checkpoint(tmp_path):
    """The system sends SIGHUP, and from then on writing to the terminal fails."""
    flags = [
        *["--engine", "simulate", "--model", "mlp", "--workers", "4", "--epochs", "400", "--out"],
        str(tmp_path / "run"),
    ]
    folder, (terminal, end) = RunFolder(tmp_path / "run"), pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", f"import os; os.setsid(); os.close(os.open({os.ttyname(end)!r}, os.O_RDWR)); "
         "import runpy; runpy.run_module('train', run_name='__main__')", *flags],
        stdin=end, stdout=end, stderr=end, cwd=Path(__file__).parents[3],
    ) as process:  # fmt: skip
        os.close(end)
        try:
            while not (folder.events.exists() and folder.events.stat().st_size) and process.poll() is None:
                if select.select([terminal], [], [], 0.05)[0]:
                    os.read(terminal, 1 << 16)
            os.close(terminal)
            assert process.wait(300) == 129
        finally:
            process.kill()
    assert folder.saved.exists()
    assert all(name.isdigit() or name == ".lock" for name in os.listdir(folder.saved))
    assert folder.summary.exists()
