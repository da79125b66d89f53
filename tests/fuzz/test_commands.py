"""Random command lines and damaged run folders have the properties that the command line promises.

- A command ends with status 0, or with status 2 and one line ``train: …`` on stderr, and never with a traceback.
- A refused command changes no file.
- A command writes into no other folder than its own.
- It ends within seconds.
- A resumed run whose folder was damaged is refused, or makes the commits that it would have made without the damage.
"""

import contextlib
import gc
import shutil
import signal
from pathlib import Path

import hypothesis
import pytest
from fuzz.commands import DAMAGES, command_lines, contents, empty
from fuzz.strategies import examples
from hypothesis import strategies as st
from shrunk import Dense, flags

import gemjax
from train import cli
from train.bench import bench
from train.claims import reproduce, summary_table
from train.race import race
from train.report import report
from train.run import figures
from train.run import train as training
from train.sweep import sweep
from train.task import models

SECONDS = 60
pytestmark = pytest.mark.slow


class ReachedError(Exception):
    """The heavy work of a command, which these tests leave out, would begin."""


def reached(*_, **__):
    raise ReachedError


@pytest.fixture
def no_work(monkeypatch):
    """Replace the work that follows the checks of a command line."""
    for module, name in (
        (training, "make_task"), (sweep, "make_task"), (reproduce, "reproduce"), (bench.bench_simulate, "ratios"),
        (bench.bench_devices, "measure"), (bench.bench_arrivals, "rates"),
        (bench.bench_methods, "compare"), (race, "make_task"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, reached)
    monkeypatch.setattr(gemjax, "cpu_devices", lambda count: None)
    monkeypatch.setattr(cli.compilation, "use", lambda cache: None)
    monkeypatch.setattr(summary_table, "write_whole", reached)  # By default into the project.


@pytest.fixture
def small(monkeypatch):
    """Replace what takes longest in a run and a report."""
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    monkeypatch.setattr(report, "draw", lambda *_: [])
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Make the folder of a finished run of 33 commits."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(models, "DigitsCNN", Dense)
        assert cli.main(flags(path, "--eval-every", "11")) == 0
    return path


def status_of(argv, capsys) -> tuple[int | None, str]:
    """Run a command line, check how it ends, and return its status (``None``: its work begins) and its message."""

    def hangs(*_):
        raise AssertionError(f"the command did not end within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    capsys.readouterr()
    try:
        status = cli.main(argv)
    except SystemExit as stop:  # After the text of `--help`.
        status = stop.code or 0
    except ReachedError:
        status = None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    error = capsys.readouterr().err
    if status in (1, 2):
        assert error.startswith("train: ")
        assert error.endswith("\n")
        assert error[:-1].isprintable(), error
        assert len(error) < 3000
    else:
        assert status in (0, None)
        assert error == ""
    hypothesis.event(f"status {status}")
    return status, error


@examples(30)
@hypothesis.given(argv=command_lines())
def test_command_lines(no_work, finished, tmp_path, monkeypatch, capsys, argv):
    empty(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    shutil.copytree(finished, "run")
    Path("file").write_text("text")
    before = contents(tmp_path)
    status, error = status_of(argv, capsys)
    after = contents(tmp_path)
    if status == 2:
        assert after == before, error
    assert {name: after.get(name, "deleted") for name in before} == before
    new = after.keys() - before.keys()
    hypothesis.note(f"status {status}: {error}, new: {sorted(new)[:5]}")
    assert not any(Path("/", name).parts[1] != "place" for name in new), "outside of its folder"


RESUME = ["--resume", "run", "--epochs", "1.2"]


@pytest.fixture(scope="module")
def resumed(finished, tmp_path_factory):
    """Return the events of that run, resumed to 40 commits."""
    folder = tmp_path_factory.mktemp("resumed")
    shutil.copytree(finished, folder / "run")
    with pytest.MonkeyPatch.context() as patched, contextlib.chdir(folder):
        patched.setattr(models, "DigitsCNN", Dense)
        assert cli.main(RESUME) == 0
    return (folder / "run" / "events.jsonl").read_bytes()


# When Orbax has failed, threads of TensorStore may still call its event loop, which is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@examples(8)
@hypothesis.given(
    damages=st.lists(DAMAGES, min_size=1, max_size=2),
    argv=st.sampled_from([["report", "run"], ["--resume", "run"], RESUME, RESUME]),
)
def test_damaged_folders(small, finished, resumed, tmp_path, capsys, damages, argv):
    empty(tmp_path)
    with contextlib.chdir(tmp_path):
        Path("file").write_text("text")
        shutil.copytree(finished, "run")
        for damage in damages:
            hypothesis.note(damage.apply(Path("run")))
        before = contents(tmp_path)
        status, error = status_of(argv, capsys)
        gc.collect()  # Tasks that Orbax has abandoned report it here.
        after = contents(tmp_path)
        hypothesis.note(f"status {status}: {error}")
        if status == 2:
            assert after == before
        assert all(name.startswith("run") for name in after.keys() ^ before.keys())
        assert after["file"] == b"text"
        same = Path("run/config.json").read_bytes() == (finished / "config.json").read_bytes() if status == 0 else False
        if argv == RESUME and same:
            assert after["run/events.jsonl"] == resumed
