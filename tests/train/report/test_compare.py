"""A comparison of runs: the common target, the fields that differ, the picture and the page."""

import matplotlib.image
import pytest
from cycles import free

import gemjax
from train import cli
from train.config.config import Config
from train.report import compare
from train.run.folder import RunFolder


def make_run(path, accuracies, **options):
    """Make the records of a run with an evaluation every 10 commits and 2 seconds."""
    folder = RunFolder(path)
    Config(workers=4, **options).save(folder.config)
    with gemjax.EventLog(folder.events) as log:
        for event in free(rounds=12):
            log.write(**event)
    for row, accuracy in enumerate(accuracies, start=1):
        folder.add_metrics(commits=10 * row, time=2.0 * row, train_loss=1.0, test_loss=1 / row, test_accuracy=accuracy)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    make_run(tmp_path / "runs/one", [0.2, 0.8, 0.6], method="gem", learning_rate=0.1, data_dir="here")
    make_run(tmp_path / "runs/two", [0.5, 0.9, 0.9], method="asgd", learning_rate=0.1)
    return tmp_path


def test_runs_are_compared_at_the_best_accuracy_that_all_reach(runs, capsys):
    assert cli.main(["compare", "runs/*", "--out", "both", "--html", "both.html"]) == 0
    said = capsys.readouterr().out
    assert "80.00 % test accuracy" in said
    cells = [line.replace("│", " ").split() for line in said.splitlines()]
    rows = {line[0]: line for line in cells if line[:1] in (["one"], ["two"])}
    assert rows["one"][1:6] == ["20", "4", "60.00", "%", "0.3333"]
    assert rows["two"][1:3] == ["18", "3.5"]  # Three quarters of the way from 50 % after 10 commits to 90 % after 20.
    assert (rows["one"][-1], rows["two"][-1]) == ("gem", "asgd")  # Folders of data decide no result.
    assert "data dir" not in said
    assert matplotlib.image.imread("both", format="png").shape[1] > 1000
    text = (runs / "both.html").read_text(encoding="utf-8")
    assert all(word in text for word in ('<td class="word">one</td>', "data:image/svg+xml"))


def test_a_comparison_needs_two_runs_with_evaluations(runs, capsys):
    assert cli.main(["compare", "runs/one"]) == 2
    assert "two runs" in capsys.readouterr().err
    make_run(runs / "runs/three", [])
    assert cli.main(["compare", "runs/one", "runs/three"]) == 2
    assert "runs/three has no evaluation yet" in capsys.readouterr().err
    assert not (runs / "compare.png").exists()


def test_a_run_that_loses_its_accuracy_counts_from_when_it_had_it(runs):
    one, two = (compare.read(RunFolder(f"runs/{name}")) for name in ("one", "two"))
    assert compare.best_common([one, two]) == 0.8
    assert (one.at(0.8, "commits"), two.at(0.95, "time")) == (20.0, float("inf"))
    assert compare.differences([one, two]) == ["method"]
