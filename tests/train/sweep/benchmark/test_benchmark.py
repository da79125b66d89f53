"""The benchmark from end to end on made-up records: resumption, the page, and refusals; and real runs."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest
from made_up_runs import SMALL, made_up
from matplotlib import image

from gemjax.engines.programs import Program
from train import cli
from train.claims.execution.batch import record_together
from train.sweep.benchmark import benchmark, outcome
from train.sweep.benchmark.settings import (
    ONE,
    QUICK,
    REFERENCES,
    SEARCH_SPACES,
    SYNCHRONOUS,
    UNEQUAL,
    Entry,
)

RUNS = 12 + 4 + 3  # Of a method,
MORE = 30 + 10 + 3  # and of m-synchronous SGD.
PACE = {"gem": 4.0, "asgd": 3.0, "easgd": 2.0, "diloco": 1.0, "momentum_asgd": 1.0, "m_synchronous_sgd": 1.0}


class Inline:
    """A replacement for processes; `made` lists the requested runs, and the run numbered `stop` is interrupted."""

    made: list = []  # noqa: RUF012
    stop = None
    count = 1
    hardware = {"device": "made up", "backend": "cpu"}  # noqa: RUF012

    def __init__(self, count=None):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def make(self, groups, machine, progress, *, together):
        assert together
        for run in [run for group in groups for run in group]:
            if len(self.made) == self.stop:
                raise KeyboardInterrupt
            self.made.append(run)
            yield run, made_up(run, pace=PACE[run.config.method]) | {"hardware": self.hardware}


@pytest.fixture
def inline(monkeypatch, tmp_path):
    monkeypatch.setattr(Inline, "made", [])
    monkeypatch.setattr(Inline, "stop", None)
    monkeypatch.setattr(benchmark, "Processes", Inline)
    monkeypatch.setattr(benchmark, "QUICK", SMALL)
    monkeypatch.chdir(tmp_path)
    return Inline


# --- Made-up records


@pytest.mark.slow
def test_an_interrupted_benchmark_resumes_and_repeats_no_run(inline, capsys):
    inline.stop = 50
    assert cli.main(["benchmark", "--quick"]) == 130
    assert "Resume with: python -m train benchmark --quick" in " ".join(capsys.readouterr().out.split())
    done = list(inline.made)
    inline.stop = None
    assert cli.main(["benchmark", "--quick"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{6 * RUNS + MORE}/{6 * RUNS + MORE} runs done, 100 % of the gradients" in shown
    assert len(inline.made) == len(set(inline.made)) == 6 * RUNS + MORE
    assert inline.made[: len(done)] == done
    assert cli.main(["benchmark", "--quick"]) == 0
    assert len(inline.made) == 6 * RUNS + MORE
    assert image.imread("runs/benchmark/benchmark-quick.png").ndim == 3


@pytest.mark.slow
def test_the_page_reports_a_part_as_a_part_and_a_method_is_added_by_one_command(inline, tmp_path):
    out = tmp_path / "out"
    command = ["benchmark", "--quick", "--out", str(out)]
    assert cli.main([*command, "--methods", "asgd"]) == 0
    text = (out / "benchmark-quick.md").read_text()
    assert "| pairs of a method and a setting that belong to it, measured so far | 5 of 7 |" in text
    assert "| 16 unequal workers | 1 of 3 | `asgd` |" in text
    assert "`gem`" not in text
    before = len(inline.made)
    # Another machine has the file alone: its rows are kept, and not measured again.
    elsewhere = ["--work", str(tmp_path / "elsewhere")]
    assert cli.main([*command, "--methods", "gem", *elsewhere]) == 0
    text = (out / "benchmark-quick.md").read_text()
    assert "| pairs of a method and a setting that belong to it, measured so far | 6 of 7 |" in text
    assert "**`gem`**" in text
    assert "| `asgd` |" in text
    assert len(inline.made) == before + RUNS
    assert "| runs so far | 138 |\n| process minutes so far | 2.3 |" in text
    assert cli.main(command) == 0
    assert "measured so far | 7 of 7 |" in (out / "benchmark-quick.md").read_text()
    before = len(inline.made)
    assert cli.main([*command, "--anew", *elsewhere]) == 0  # The runs of `gem` are in its work folder.
    assert len(inline.made) == before + 5 * RUNS + MORE


@pytest.mark.slow
def test_targets_stay_while_a_row_is_kept_that_was_measured_with_them(inline, tmp_path):
    assert cli.main(["benchmark", "--quick"]) == 0
    content = json.loads((tmp_path / "runs/benchmark/benchmark-quick.json").read_text())
    asked = benchmark.Benchmark(quick=True)
    known = benchmark.load(SMALL, SMALL.entries(), asked.pool, {})
    better = {run: dict(record, test_accuracy=0.99) for run, record in known.items()}
    one = {run: record for run, record in better.items() if run.config.workers == 1}
    anew = outcome.document(SMALL, one, content)
    assert anew["targets"] == content["targets"] == {"digits": anew["rows"][0]["target"]}
    assert {row["target"] for row in anew["rows"]} == {*content["targets"].values()}
    assert anew["rows"][0]["accuracy"] == [0.99] * 3
    assert outcome.document(SMALL, better, content)["targets"]["digits"] > content["targets"]["digits"]


@pytest.mark.slow
def test_rows_without_the_later_target_repeat_their_reported_runs_alone(inline, tmp_path):
    command = ["benchmark", "--quick", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    path = tmp_path / "benchmark-quick.json"
    content = json.loads(path.read_text())
    older = {
        row["method"]: row.pop("late") for row in content["rows"] if row["method"] in ("gem", "asgd", ONE, SYNCHRONOUS)
    }
    for row in content["rows"]:
        if row["method"] == "asgd":  # It ends too low for the later target.
            row["accuracy"] = [0.9 * row["target"]] * 3
    path.write_text(json.dumps(content))
    before, numbers = len(inline.made), {row["method"]: row["numbers"] for row in content["rows"]}
    elsewhere = ["--work", str(tmp_path / "elsewhere")]
    assert cli.main([*command, *elsewhere]) == 0
    assert [run.config.method for run in inline.made[before:]] == ["diloco"] * 3 + ["gem"] * 3
    rows = {row["method"]: row for row in json.loads(path.read_text())["rows"]}
    assert {name: rows[name]["numbers"] for name in rows} == numbers
    assert {name: rows[name].get("late") for name in older} == {**older, "asgd": None, ONE: None}
    assert rows["gem"]["cost"]["runs"] == RUNS + 3
    assert cli.main([*command, *elsewhere]) == 0
    assert len(inline.made) == before + 6
    content = json.loads(path.read_text())
    late = content["rows"][-1].pop("late")
    path.write_text(json.dumps(content))
    assert cli.main(command) == 0  # All runs of the row are in this work folder, and count once.
    row = json.loads(path.read_text())["rows"][-1]
    assert (row["late"], row["cost"]["runs"], len(inline.made)) == (late, RUNS, before + 6)


@pytest.mark.slow
def test_rows_of_another_definition_are_dropped(inline, tmp_path):
    assert cli.main(["benchmark", "--quick"]) == 0
    content = json.loads((tmp_path / "runs/benchmark/benchmark-quick.json").read_text())
    assert len(outcome.document(SMALL, {}, content)["rows"]) == 7
    assert outcome.document(dataclasses.replace(SMALL, gradients=9600), {}, content)["rows"] == []


@pytest.mark.slow
def test_rows_of_methods_that_are_tuned_in_another_way_now_are_measured_again(inline, tmp_path, monkeypatch):
    assert cli.main(["benchmark", "--quick"]) == 0
    content = json.loads((tmp_path / "runs/benchmark/benchmark-quick.json").read_text())
    now = dataclasses.replace(SEARCH_SPACES["gem"], values=lambda workers: (1.0, 3.0))
    monkeypatch.setitem(SEARCH_SPACES, "gem", now)
    kept = outcome.earlier(SMALL, content)
    assert {entry.method for entry in kept} == {"asgd", "easgd", *REFERENCES}


@pytest.mark.slow
def test_a_dry_run_prints_the_budget(capsys, tmp_path):
    assert cli.main(["benchmark", "--dry-run", "--work", str(tmp_path)]) == 0
    assert "every method is tuned with 40,000 gradients per setting" in " ".join(capsys.readouterr().out.split())
    assert not list(tmp_path.iterdir())


# --- Real runs


@pytest.mark.nightly
def test_the_quick_benchmark_shrunk_is_real(monkeypatch, tmp_path):
    design = dataclasses.replace(
        SMALL, gradients=640, rungs=((12, 1 / 4), (2, 1 / 2)), seeds=(0, 1), methods=("asgd", "easgd")
    )
    monkeypatch.setattr(benchmark, "QUICK", design)
    command = ["benchmark", "--quick", "--processes", "1", "--work", str(tmp_path)]
    assert cli.main(command) == 0
    content = json.loads((tmp_path / "benchmark-quick.json").read_text())
    rows = {row["method"]: row for row in content["rows"]}
    assert set(rows) == {"asgd", "easgd", *REFERENCES}
    assert min(rows[ONE]["accuracy"]) > 0.8
    assert max(rows[ONE]["end"]) > 5 * max(rows["asgd"]["end"])
    assert max(rows["asgd"]["end"]) < min(rows[SYNCHRONOUS]["end"])
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / design.name).iterdir()}
    assert len(files) == 5 * (12 + 2 + 2) + (30 + 5 + 2)  # The last are those of m-synchronous SGD.
    assert cli.main(command) == 0
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / design.name).iterdir()}


@pytest.mark.slow
def test_points_lengths_and_seeds_share_one_program(monkeypatch):
    texts, equal = [], Program._equal
    monkeypatch.setattr(
        Program, "_equal", lambda program, traced, arguments: texts.append(traced.lower().as_text())
        or equal(program, traced, arguments),
    )  # fmt: skip
    entry, known = Entry("digits", 16, UNEQUAL, "gem"), {}
    design = dataclasses.replace(SMALL, gradients=1600, rungs=((2, 1 / 8),), seeds=(0, 1))
    for _ in range(2):
        runs, _ = design.next_runs(entry, known)
        known |= dict(zip(runs, record_together(runs, {}), strict=True))
    assert len(known) == 4
    names = [text.split()[1] for text in texts]
    assert names.count("@jit_step") >= 2  # Each batch of runs traces anew, and finds the first program.
    assert len(set(texts)) == len(set(names))


@pytest.mark.slow
def test_a_killed_benchmark_keeps_its_finished_runs(tmp_path):
    command = [sys.executable, "-m", "train", "benchmark", "--quick", "--processes", "1", "--work", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--methods", "asgd"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd=benchmark.RESULTS.parents[1],
    )
    folder, entry = tmp_path / QUICK.name, QUICK.entries()[0]
    try:
        for _ in range(4000):
            if len(list(folder.glob("*.json"))) >= 12:
                break
            with pytest.raises(subprocess.TimeoutExpired):  # It still runs.
                process.wait(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    asked = benchmark.Benchmark(quick=True, work=str(tmp_path))
    known = benchmark.load(QUICK, [entry], asked.pool, {})
    assert len(known) >= 12
    assert not set(benchmark.missing(QUICK, entry, known)) & set(known)
    assert len(benchmark.missing(QUICK, entry, known)) <= 4
