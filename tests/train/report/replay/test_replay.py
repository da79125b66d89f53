"""Runs that are replayed from checkpoint to checkpoint: faithful ones, and those with an altered log or checkpoint."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import pytest
from engines.problems import Abreast
from shrunk import COMMITS, dense, flags

import gemjax
from train import cli
from train.common.machine import precision
from train.config.config import Config
from train.report.replay import replay
from train.run import engine, figures
from train.run.folder import RunFolder
from train.task.data import load
from train.task.methods import arguments, state_shapes
from train.task.task import make_task

SAME = "same to rounding"


@pytest.fixture
def made(monkeypatch, tmp_path, tmp_path_factory):
    """Return a function that makes a small run with all its checkpoints and returns its folder."""
    dense(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)  # It takes longer than such a run.
    monkeypatch.setattr(engine, "CALLBACK_EVERY", 11)
    monkeypatch.setattr(engine, "CALLBACK_SECONDS", 1e6)  # So that the pieces do not depend on the machine's speed.

    def make(*more):
        data = str(tmp_path_factory.getbasetemp() / "data")
        assert cli.main(flags("run", "--keep-checkpoints", "0", "--data-dir", data, *more)) == 0
        return RunFolder("run")

    return make


def replayed(folder, status=0):
    """Replay a run with an expected exit status and return its `replay.json`."""
    assert cli.main(["replay", str(folder.path)]) == status
    return json.loads(folder.replay.read_text())


def pieces(found):
    return [(piece["begin"], piece["end"], piece["verdict"]) for piece in found["pieces"]]


def altered(folder, number, alter):
    """Replace a checkpoint by one with another state."""
    like = _like(folder)
    with folder.checkpoints(0) as checkpoints:
        state, trace, metadata = checkpoints.load(like, number)
    with gemjax.Checkpoints(folder.path / "replacing") as checkpoints:
        checkpoints.save(alter(state), trace, metadata)
    shutil.rmtree(folder.saved / str(number))
    (folder.path / "replacing" / str(number)).rename(folder.saved / str(number))


def _like(folder):
    config = Config.load(folder.config)
    with precision(config.x64):
        return state_shapes(config, arguments(config, make_task(config)), jax.devices()[0])


def test_a_simulation_replays_bit_for_bit(made, capsys):
    found = replayed(made())
    assert pieces(found) == [(0, 11, SAME), (11, 22, SAME), (22, COMMITS, SAME)]
    assert found["verdict"] == SAME
    assert [piece["difference"] for piece in found["pieces"]] == [0.0] * 3
    assert all(piece["effect"] > 0 for piece in found["pieces"])
    out = capsys.readouterr().out
    assert f"{SAME}: 3 of 3 pieces end within one unit in the last place\n" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["ringmaster", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("malenia", "rennala"))]
)
def test_pieces_begin_between_gradients_that_a_worker_loses_in_a_row(made, method):
    """The log has no line for a refused gradient, and its worker is at a later step than the commits tell."""
    more = ("--method", method, "--cluster", "heterogeneous", "--workers", "8", "--checkpoint-every", "5", "--x64")
    folder = made(*more)
    found = replayed(folder)
    assert found["verdict"] == SAME
    assert len(found["pieces"]) > 15
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    lost = [event["worker"] for event in events if event["event"] == "drop"]
    assert len(lost) > len(set(lost))


@pytest.mark.slow
def test_an_altered_checkpoint_differs_at_its_end_and_at_its_beginning(made):
    folder = made()
    altered(folder, 22, lambda s: s._replace(params=jax.tree.map(lambda leaf: leaf + 1e-4, s.params)))
    found = replayed(folder, 1)
    assert pieces(found) == [(0, 11, SAME), (11, 22, "differs"), (22, COMMITS, "differs")]
    assert found["verdict"] == "differs"


@pytest.mark.slow
def test_neither_a_replay_nor_a_resumed_run_takes_other_data(made, capsys, monkeypatch):
    """Of the same size; before, such a run went on with them, and its replay blamed the checkpoints."""
    folder = made("--engine", "simulate")
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    monkeypatch.setattr(load, "checksum", lambda dataset: "00001234")
    for command in (["replay", "run"], ["--resume", "run", "--epochs", "9"]):
        capsys.readouterr()
        assert cli.main(command) == 2
        assert "the data of digits are not those that run was begun with" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_the_data_may_lie_elsewhere(made, capsys, tmp_path):
    """As on another machine."""
    folder = made()
    data = Path(json.loads(folder.config.read_text())["data_dir"])
    there = data.rename(tmp_path / "elsewhere")
    data.touch()  # Otherwise they would be prepared again.
    try:
        assert cli.main(["replay", "run"]) == 2
        assert str(data) in capsys.readouterr().err
        assert cli.main(["replay", "run", "--data-dir", str(there)]) == 0
    finally:
        data.unlink()
        there.rename(data)


@pytest.mark.slow
def test_a_learning_rate_that_changes_within_a_piece_is_followed(made):
    folder = made("--epochs", "0.6")
    assert cli.main(["--resume", "run", "--epochs", "1", "--learning-rate", "0.03"]) == 0
    assert folder.provenance.settings == []
    changed = 20
    assert (folder.saved / str(changed)).is_dir()
    assert replayed(folder)["verdict"] == SAME
    shutil.rmtree(folder.saved / str(changed))
    found = replayed(folder)
    assert found["verdict"] == SAME
    assert changed not in [piece["end"] for piece in found["pieces"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--method", "easgd", "--period", "2", "--local-momentum", "0.5", "--schedule", "cosine", "--augment"),
        pytest.param(("--x64", "--method", "dana_dc"), marks=pytest.mark.nightly),
    ],
)
def test_a_simulation_of_any_kind_replays(made, more):
    folder = made(*more)
    found = replayed(folder)
    assert found["verdict"] == SAME
    summary = folder.read_summary()
    assert found["pieces"][-1]["end"] == summary["commits"] - summary["dropped"]


@pytest.mark.slow
def test_a_run_that_cannot_be_replayed_is_refused_in_one_line(made, capsys):
    folder = made()
    whole = shutil.copytree("run", "whole")

    def refusal():
        capsys.readouterr()
        assert cli.main(["replay", "run"]) == 2
        error = capsys.readouterr().err
        shutil.rmtree("run")
        shutil.copytree(whole, "run")
        assert error.count("\n") == 1
        return error

    folder.events.unlink()
    assert "run cannot be replayed: it has no events.jsonl" in refusal()
    folder.events.write_text("".join(folder.events.read_text().splitlines(keepends=True)[:15]))
    assert "lines are missing at the end of the log" in refusal()
    shutil.rmtree(folder.saved)
    assert "it has no checkpoint after a commit yet" in refusal()
    for number in (11, 22, COMMITS):
        shutil.rmtree(folder.saved / str(number))
    assert "it has no checkpoint after a commit yet" in refusal()
    assert cli.main(["replay", "elsewhere"]) == 2


@pytest.mark.slow
def test_the_report_shows_the_last_replay(made):
    folder = made()
    replayed(folder)
    assert cli.main(["report", "run"]) == 0
    assert f"<dt>replay</dt><dd>{SAME} " in folder.report.read_text()


@pytest.mark.slow
def test_a_replay_changes_no_other_file(made):
    folder = made()
    unfinished = folder.saved / "40.orbax-checkpoint-tmp"  # Of a run that is still going on.
    unfinished.mkdir()
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}
    replayed(folder)
    after = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}
    assert unfinished.is_dir()
    assert after.keys() - before.keys() == {folder.replay}
    assert before.items() <= after.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (),
        *(
            pytest.param(more, marks=pytest.mark.nightly)
            for more in (("--x64",), ("--method", "easgd", "--period", "2"), ("--central", "host"))
        ),
    ],
)
def test_a_run_on_devices_replays_also_after_it_was_resumed(made, more):
    folder = made("--engine", "devices", "--epochs", "0.5", *more)
    assert cli.main(["--resume", "run", "--epochs", "1"]) == 0
    found = replayed(folder)
    assert found["verdict"] in (SAME, "as far as rounding carries")
    assert all(piece["telling"] for piece in found["pieces"])
    config = Config.load(folder.config)
    assert dataclasses.replace(config, epochs=1.0) == config
    largest = max(piece["largest"] for piece in found["pieces"])
    assert largest < (1e-13 if config.x64 else 1e-5)


def keep_abreast(monkeypatch, gate):
    """Let workers of later runs be at most two steps ahead of another, so that each reaches its faults."""
    run = functools.partial(gemjax.run_on_devices, gate=Abreast(3, gate))
    monkeypatch.setattr(gemjax, "run_on_devices", run)


@pytest.mark.slow
def test_an_altered_run_on_devices_differs(made, monkeypatch):
    """Two workers, which make as many commits, have changed places in the whole log, which is consistent with itself."""
    with gemjax.testing.Faults().hang(0, COMMITS // 3).hang(1, COMMITS // 3).hang(2, COMMITS // 3) as faults:
        keep_abreast(monkeypatch, faults)
        folder = made("--engine", "devices", "--checkpoint-every", "0")
    other = {0: 1, 1: 0, 2: 2}
    lines = [json.loads(line) for line in folder.events.read_text().splitlines()]
    swapped = [line | {"worker": other[line["worker"]]} if "worker" in line else line for line in lines]
    folder.events.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in swapped))
    assert pieces(replayed(folder, 1)) == [(0, COMMITS, "differs")]


@pytest.mark.slow
def test_lost_gradients_are_replayed(made, monkeypatch):
    """Gradients that raised, or were not finite, have no commit; their workers pulled again."""
    with gemjax.testing.Faults().fail(worker=0, step=2).poison(worker=1, step=3) as faults:
        keep_abreast(monkeypatch, faults)
        folder = made("--engine", "devices")
    assert len(faults.injected) == 2
    assert replayed(folder)["verdict"] in (SAME, "as far as rounding carries")


@pytest.mark.nightly
def test_a_simulation_that_lost_all_gradients_for_a_while_replays(made, capsys):
    """Each worker lost several in a row and pulled at one clock; the first to commit again has no late pull in the trace."""
    folder = made("--method", "dana_zero", "--learning-rate", "0.02")
    assert cli.main(["--resume", "run", "--learning-rate", "1e37", "--epochs", "20"]) == 2
    assert "commits were all rejected" in capsys.readouterr().err
    assert cli.main(["--resume", "run", "--learning-rate", "0.01", "--epochs", "2"]) == 0
    found = replayed(folder)
    assert found["verdict"] == SAME
    assert (COMMITS, COMMITS, SAME) in pieces(found)
    assert f"       33 to 33           0           -           0  {SAME}\n" in capsys.readouterr().out
    assert pieces(found)[-1][1] > COMMITS


@pytest.mark.slow
def test_a_checkpoint_that_a_run_adds_while_its_log_is_read_is_left_to_the_next_replay(made, monkeypatch):
    folder = made()
    events, newest = folder.events.read_bytes(), folder.saved / "33"
    with folder.checkpoints(read_only=True) as checkpoints:
        _, _, metadata = checkpoints.load(_like(folder), 22)
    read = replay.eventlog.trace_of

    def read_of_earlier(*arguments):
        trace = read(*arguments)
        folder.events.write_bytes(events)
        if away.exists():
            away.rename(newest)
        return trace

    away = newest.rename(folder.path / "away")
    folder.events.write_bytes(events[: metadata["events"]])
    monkeypatch.setattr(replay.eventlog, "trace_of", read_of_earlier)
    found = replayed(folder)
    assert [piece["end"] for piece in found["pieces"]] == [11, 22]
    assert newest.exists()


@pytest.mark.slow
@pytest.mark.parametrize("left", [pytest.param([22, 33], marks=pytest.mark.nightly), [33], []], ids=len)
def test_checkpoints_that_a_run_replaces_meanwhile_are_passed_over(made, monkeypatch, capsys, left):
    folder = made()
    read = replay.eventlog.trace_of

    def read_and_replace(*arguments):
        for number in {11, 22, 33} - {*left}:
            shutil.rmtree(folder.saved / str(number), ignore_errors=True)
        return read(*arguments)

    monkeypatch.setattr(replay.eventlog, "trace_of", read_and_replace)
    if left:
        assert [piece["end"] for piece in replayed(folder)["pieces"]] == left
    else:
        assert cli.main(["replay", "run"]) == 2
        assert "its checkpoints were removed meanwhile, as a run that goes on removes them" in capsys.readouterr().err
