"""The benchmark from end to end on made-up records: tuning, resumption, judgement, the page and its advice."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from matplotlib import image

from train import cli
from train.claims.execution.batch import numbers, record_together
from train.claims.runs import num_commits
from train.config.datasets import DATASETS
from train.config.methods import METHODS
from train.run.groups.store import unsealed
from train.sweep.benchmark import benchmark, outcome, page, settings
from train.sweep.benchmark.benchmark import Benchmark
from train.sweep.benchmark.settings import (
    CONTESTANTS,
    FIRST,
    FULL,
    LOCAL,
    ONE,
    QUICK,
    REFERENCES,
    SYNCHRONOUS,
    UNEQUAL,
    Cell,
)
from train.task.cluster import mean_period
from train.task.methods import local_steps, make_method

SMALL = dataclasses.replace(
    QUICK, settings=QUICK.settings[:1], methods=("asgd", "gem", "easgd"), seeds=(0, 1, 2), evaluations=3
)
BEST = 0.02  # The rate at which made-up runs have the least loss.
PACE = {"gem": 4.0, "asgd": 3.0, "easgd": 2.0, "diloco": 1.0, "momentum_asgd": 1.0}


def made_up(run, accuracy=0.9, pace=1.0):
    """Return a record in which the accuracy rises linearly to its end, `pace` commits per unit of time."""
    total = num_commits(run.config, DATASETS[run.config.dataset].rows)
    looks = [total * (k + 1) // run.evaluations for k in range(run.evaluations)]
    return {
        "test_accuracy": accuracy + 0.001 * run.config.seed if run.config.seed < 100 else accuracy,
        "final_loss": abs(run.config.learning_rate - BEST),
        "evaluations": {"commits": looks, "test_accuracy": [accuracy * look / total for look in looks]},
        "curve": {"commits": [total // 2, total], "time": [total / 2 / pace, total / pace]},
        "time": total / pace,
        "seconds": 1.0,
    }


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

    def make(self, groups, machine, progress, *, alike):
        assert alike
        for run in [run for group in groups for run in group]:
            if len(self.made) == self.stop:
                raise KeyboardInterrupt
            self.made.append(run)
            yield run, made_up(run, pace=PACE[run.config.method]), None


@pytest.fixture
def inline(monkeypatch, tmp_path):
    monkeypatch.setattr(Inline, "made", [])
    monkeypatch.setattr(Inline, "stop", None)
    monkeypatch.setattr(benchmark, "Processes", Inline)
    monkeypatch.setattr(benchmark, "QUICK", SMALL)
    monkeypatch.chdir(tmp_path)
    return Inline


# --- Tuning


@pytest.mark.parametrize("name", CONTESTANTS)
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_every_method_has_the_same_budget(name, workers):
    candidates = CONTESTANTS[name].candidates(workers)
    assert len({tuple(one.items()) for one in candidates}) == 12
    configs = [FULL.config(Cell("cifar", workers, UNEQUAL, name), one, 1, 0) for one in candidates]
    rows = DATASETS["cifar10_jpeg"].rows
    gradients = {num_commits(config, rows) * mean_period(config) for config in configs}
    assert gradients == {FULL.gradients}
    factor = CONTESTANTS[name].factor(workers)
    rates = [config.learning_rate / factor for config in configs]
    assert min(rates) == pytest.approx(0.0006)
    assert max(rates) >= 0.2 * 0.999
    assert all(config.cluster.endswith("barrier") == (name in (SYNCHRONOUS, LOCAL)) for config in configs)


def test_every_method_of_the_library_takes_part_and_the_budget_is_that_of_the_rungs():
    assert set(FULL.methods) == set(METHODS)
    assert FULL.budget == 40_000
    assert len(FULL.cells()) == 12 * (len(METHODS) + 2) + 6 * (9 + 2) + 3
    core = [cell for cell in FULL.cells() if FULL.is_core(cell)]
    assert len(core) == 2 * (len(METHODS) - len(FIRST)) + 1 + 18 * (len(FIRST) + 2) + 3
    assert Benchmark().cells == core
    assert {cell.setting for cell in Benchmark(methods=("diloco",)).cells if cell.method == "diloco"} == {
        setting for setting in FULL.settings if setting[0] != "characters"
    }
    assert FULL.gradients // 64 >= 250
    first = FULL.cells()[:11]
    assert first[0] == Cell("cifar", 1, "homogeneous", ONE)
    assert all(cell.setting == ("cifar", 16, UNEQUAL) for cell in first[1:])
    assert len(set(FULL.cells())) == len(FULL.cells())


def test_each_rung_keeps_the_best_candidates_and_other_seeds_are_reported():
    cell, known = Cell("digits", 16, UNEQUAL, "gem"), {}
    sizes, shares = [], []
    while True:
        runs, best = SMALL.next_runs(cell, known)
        if all(run in known for run in runs):
            break
        sizes.append(len(runs))
        shares.append({num_commits(run.config, 1437) for run in runs})
        known |= {run: made_up(run) for run in runs}
    assert sizes == [12, 4, 3]
    assert shares == [{600}, {1200}, {4800}]
    assert best["learning_rate"] == BEST
    assert {run.config.seed for run in runs} == {0, 1, 2}
    assert settings.TUNING not in SMALL.seeds


def test_a_candidate_that_failed_is_never_kept():
    cell = Cell("digits", 16, UNEQUAL, "asgd")
    runs, _ = SMALL.next_runs(cell, {})
    known = {run: made_up(run) | {"final_loss": None if run.config.learning_rate == BEST else 1.0} for run in runs}
    following, _ = SMALL.next_runs(cell, known)
    assert BEST not in {run.config.learning_rate for run in following}


@pytest.mark.parametrize("name", CONTESTANTS)
def test_all_numbers_that_are_tuned_are_arguments_of_the_program(name):
    contestant = CONTESTANTS[name]
    candidate = contestant.candidates(4)[0]
    config = QUICK.config(Cell("digits", 4, UNEQUAL, name), candidate, 1, 0)
    assert set(candidate) <= set(numbers(config))

    def begin(point, params):
        tx, local = make_method(config, 100.0, **point), local_steps(config, 100.0, **point)
        state = tx.init(params)
        return state if local is None else (state, local.tx.init(params))

    jax.eval_shape(begin, {name: getattr(config, name) for name in numbers(config)}, {"w": jnp.zeros(3)})


# --- From end to end


@pytest.mark.slow
def test_an_interrupted_benchmark_resumes_and_repeats_no_run(inline, capsys):
    inline.stop = 50
    assert cli.main(["benchmark", "--quick"]) == 130
    assert "Resume with: python -m train benchmark --quick" in " ".join(capsys.readouterr().out.split())
    done = list(inline.made)
    inline.stop = None
    assert cli.main(["benchmark", "--quick"]) == 0
    assert len(inline.made) == len(set(inline.made)) == 6 * (12 + 4 + 3)
    assert inline.made[: len(done)] == done
    assert cli.main(["benchmark", "--quick"]) == 0
    assert len(inline.made) == 6 * 19
    assert image.imread("runs/benchmark/benchmark-quick.png").ndim == 3


def test_the_page_reports_a_part_as_a_part_and_a_method_is_added_by_one_command(inline, tmp_path):
    out = tmp_path / "out"
    command = ["benchmark", "--quick", "--out", str(out)]
    assert cli.main([*command, "--methods", "asgd"]) == 0
    text = (out / "benchmark-quick.md").read_text()
    assert "Measured so far: 4 of 6 pairs" in text
    assert "| digits, 16 unequal workers | 1 of 3 | `asgd` |" in text
    assert "`gem`" not in text
    before = len(inline.made)
    # Another machine has the file alone: its rows are kept, and not measured again.
    elsewhere = ["--work", str(tmp_path / "elsewhere")]
    assert cli.main([*command, "--methods", "gem", *elsewhere]) == 0
    text = (out / "benchmark-quick.md").read_text()
    assert "Measured so far: 5 of 6 pairs" in text
    assert "**`gem`**" in text
    assert "| `asgd` |" in text
    assert len(inline.made) == before + 19
    assert "Cost so far: 95 runs, 1.6 process minutes" in text
    assert cli.main(command) == 0
    assert "All 1 settings are measured, with" in (out / "benchmark-quick.md").read_text()
    before = len(inline.made)
    assert cli.main([*command, "--anew", *elsewhere]) == 0  # The runs of `gem` are in its work folder.
    assert len(inline.made) == before + 5 * 19


def test_no_number_is_shown_of_an_unfinished_cell():
    known = {run: made_up(run) for run in SMALL.next_runs(Cell("digits", 16, UNEQUAL, "gem"), {})[0]}
    content = outcome.document(SMALL, known)
    assert content["rows"] == []
    text = page.written(SMALL, content, "command")
    assert "No advice yet" in text
    assert "## Digits" not in text


def test_rows_of_another_definition_are_dropped(inline, tmp_path):
    assert cli.main(["benchmark", "--quick"]) == 0
    content = json.loads((tmp_path / "runs/benchmark/benchmark-quick.json").read_text())
    assert len(outcome.document(SMALL, {}, content)["rows"]) == 6
    assert outcome.document(dataclasses.replace(SMALL, gradients=9600), {}, content)["rows"] == []


def test_rows_of_methods_that_are_tuned_in_another_way_now_are_measured_again(inline, tmp_path, monkeypatch):
    assert cli.main(["benchmark", "--quick"]) == 0
    content = json.loads((tmp_path / "runs/benchmark/benchmark-quick.json").read_text())
    now = dataclasses.replace(CONTESTANTS["gem"], values=lambda workers: (1.0, 3.0))
    monkeypatch.setitem(CONTESTANTS, "gem", now)
    kept = outcome.earlier(SMALL, content)
    assert {cell.method for cell in kept} == {"asgd", "easgd", *REFERENCES}


@pytest.mark.slow
@pytest.mark.parametrize("field", ["seconds", "curve", "evaluations", "time", "test_accuracy"])
def test_a_run_without_what_is_measured_is_refused_by_name(inline, tmp_path, capsys, field):
    assert cli.main(["benchmark", "--quick"]) == 0
    path = sorted((tmp_path / "runs/benchmark/benchmark-quick").iterdir())[0]
    record = unsealed(json.loads(path.read_text()))
    del record[field]
    path.write_text(json.dumps(record))
    capsys.readouterr()
    assert cli.main(["benchmark", "--quick"]) == 2
    wrong = f"{path.relative_to(tmp_path)} is damaged (it has no {field}); delete it to compute it again"
    assert capsys.readouterr().err == f"train: {wrong}\n"


@pytest.mark.parametrize("field", outcome.FIELDS)
def test_a_row_without_a_field_is_refused_before_anything_is_computed(inline, tmp_path, capsys, field):
    path = tmp_path / "benchmark-quick.json"
    row = {"task": "digits", "workers": 1, "cluster": "homogeneous", "method": ONE, "target": 0.9, "numbers": {}}
    row |= {"accuracy": [0.9], "gradients": [1.0], "time": [None], "end": [1.0], "tuning": "x"}
    row |= {"cost": {"runs": 1, "minutes": 1.0}}
    found = {"definition": {}, "targets": {}, "rows": [row], "cost": {}, "hardware": []}
    path.write_text(json.dumps(found))
    assert cli.main(["benchmark", "--quick", "--dry-run", "--out", str(tmp_path)]) == 0
    del row[field]
    path.write_text(json.dumps(found))
    assert cli.main(["benchmark", "--quick", "--out", str(tmp_path)]) == 2
    assert f"it has no {field}" in capsys.readouterr().err
    assert inline.made == []


@pytest.mark.parametrize("text", ["{", "[]", '{"definition": {}}', "[" * 100_000], ids=["cut", "list", "parts", "deep"])
def test_a_damaged_file_of_the_benchmark_is_refused_before_anything_is_computed(inline, tmp_path, capsys, text):
    path = tmp_path / "runs/benchmark/benchmark-quick.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cli.main(["benchmark", "--quick"]) == 2
    assert "benchmark-quick.json is not the result of a benchmark" in capsys.readouterr().err
    assert path.read_text() == text
    assert inline.made == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "gemm"], "--methods must be"),
        (["--workers", "3"], "--workers must be"),
        (["--processes", "0"], "at least 1"),
    ],
)
def test_what_the_benchmark_does_not_have_is_refused(flags, words, capsys):
    assert cli.main(["benchmark", "--quick", *flags]) == 2
    assert words in capsys.readouterr().err


def test_a_dry_run_prints_the_budget(capsys, tmp_path):
    assert cli.main(["benchmark", "--dry-run", "--work", str(tmp_path)]) == 0
    assert "every method is tuned with 40,000 gradients per setting" in " ".join(capsys.readouterr().out.split())
    assert not list(tmp_path.iterdir())


def test_the_claim_that_it_replaces_says_so(capsys):
    assert cli.main(["reproduce", "every_method"]) == 2
    assert "python -m train benchmark" in capsys.readouterr().err


# --- The judgement


def content_of(**methods):
    """Return a file of one setting, from accuracy and time to the target of each method, per seed."""
    base = {ONE: (0.9, 1000.0), SYNCHRONOUS: (0.88, 600.0), LOCAL: (0.87, 300.0)} | methods
    rows = []
    for name, (accuracy, time) in base.items():
        place = ("digits", 1, "homogeneous") if name == ONE else ("digits", 16, UNEQUAL)
        spread = [0.98, 1.0, 1.02]
        rows.append(
            dict(zip(("task", "workers", "cluster"), place, strict=True))
            | {
                "method": name, "target": 0.81, "numbers": {"learning_rate": 0.1}, "accuracy": [accuracy] * 3,
                "time": [None if time is None else time * one for one in spread], "end": [2000.0] * 3,
                "gradients": [None if time is None else 1000.0 * one for one in spread],
            }
        )  # fmt: skip
    return {"definition": outcome.definition(QUICK), "rows": rows, "cost": {"runs": 1, "minutes": 1.0}, "hardware": []}


def test_the_advice_names_the_fastest_method_its_ties_and_both_ratios():
    one, two, three, four = outcome.advice(content_of(gem=(0.89, 100.0), asgd=(0.895, 200.0), easgd=(0.86, 100.0)))
    assert one == (
        "With 16 unequal workers take `gem` (`easgd` ties with it): on digits it reaches the target 6.00 times (6.00 to 6.00) "
        "sooner than synchronous SGD and 3.00 times (3.00 to 3.00) sooner than local SGD."
    )
    assert "`gem` ends at −1.0 (−1.0 to −1.0) points" in two
    assert "`asgd` ends highest, at −0.5" in two
    assert three == "Plain `asgd` with a tuned rate takes 2.00 times (2.00 to 2.00) the time of `gem` there."
    assert (
        four
        == "In the one setting measured so far `gem` and `easgd` are within 1.25 times of the fastest asynchronous method."
    )


def test_a_method_that_failed_with_one_seed_is_not_advised_and_a_lost_reference_is_a_lower_bound():
    content = content_of(gem=(0.89, 100.0), asgd=(0.82, 120.0), synchronous_sgd=(0.7, None))
    content["rows"][3]["time"][1] = content["rows"][3]["gradients"][1] = None  # GEM.
    sentences = outcome.advice(content)
    assert sentences[0].startswith(
        "With 16 unequal workers take `asgd`: on digits it reaches the target at least 16.67 times"
    )
    text = page.written(QUICK, content, "command")
    assert re.search(r"\| `gem` .*reached with 2 of 3 seeds \| — \| — \|", text)
    assert "| ≥ 16.67 (" in text
    assert "Plain `asgd` with a tuned rate ties with the fastest there" in sentences[2]


def test_a_method_that_loses_the_target_again_is_not_advised():
    content = content_of(gem=(0.6, 100.0), asgd=(0.82, 150.0))
    assert outcome.advice(content)[0].startswith("With 16 unequal workers take `asgd`: on digits")
    assert "`asgd` is within 1.25 times" in outcome.advice(content)[3]
    text = page.written(QUICK, content, "command")
    assert re.search(r"\| `gem` .*reached at 1,000, lost again with 3 of 3 seeds \| — \| — \|", text)


def test_the_advice_compares_equal_workers_with_synchronous_sgd():
    content = content_of(gem=(0.89, 100.0), asgd=(0.88, 150.0))
    equal = content_of(gem=(0.89, 300.0), asgd=(0.88, 250.0), synchronous_sgd=(0.88, 200.0))
    content["rows"] += [row | {"cluster": "homogeneous"} for row in equal["rows"] if row["workers"] == 16]
    assert outcome.advice(content)[2] == (
        "Plain `asgd` with a tuned rate takes 1.50 times (1.50 to 1.50) the time of `gem` there. With 16 equal workers the "
        "fastest, `asgd`, takes 1.25 times (1.25 to 1.25) as long as synchronous SGD."
    )


def test_a_task_with_few_methods_does_not_narrow_the_advice():
    content = content_of(dana_dc=(0.89, 100.0), asgd=(0.88, 150.0))
    content["definition"]["narrow"] = ["characters"]
    content["rows"] += [row | {"task": "characters"} for row in content["rows"] if row["method"] != "dana_dc"]
    first, _, third, fourth = outcome.advice(content)
    assert first.startswith("With 16 unequal workers take `dana_dc`: on digits it")
    assert first.endswith("On characters the fastest of 1 is `asgd`.")
    assert "1.50 times" in third
    assert fourth.startswith("In the one setting measured so far")  # That with all methods.
    equal = [row | {"cluster": "homogeneous"} for row in content["rows"] if row["workers"] == 16]
    content["rows"] += [row for row in equal if row["method"] != "dana_dc"]
    assert outcome.advice(content)[3] == (  # No setting more would take a method away.
        "Over the 4 settings in which an asynchronous method holds the target, `asgd` is most often within 1.25 times of the "
        "fastest of them: in 4."
    )


def test_a_setting_that_only_an_uncommon_method_holds_is_not_counted():
    content = content_of(gem=(0.89, 100.0), asgd=(0.88, 150.0))
    lost = {"cluster": "homogeneous", "time": [None] * 3, "gradients": [None] * 3}
    here = [row for row in content["rows"] if row["workers"] == 16]
    held = next(row for row in here if row["method"] == "gem") | {"cluster": "homogeneous", "method": "dana_dc"}
    content["rows"] += [row | lost for row in here] + [held]
    assert outcome.advice(content)[3].startswith("In the one setting")


def test_an_unfinished_setting_does_not_narrow_the_advice():
    content = content_of(gem=(0.89, 100.0), asgd=(0.88, 150.0), dana_dc=(0.89, 90.0))
    before = outcome.advice(content)
    assert before[0].startswith("With 16 unequal workers take `dana_dc`")
    others = [row | {"task": "other"} for row in content["rows"]]
    content["rows"] += [row for row in others if row["method"] not in ("gem", "dana_dc")]  # `gem` is well known.
    assert outcome.advice(content) == before
    content["rows"] += [row for row in others if row["method"] == "gem"]
    later = outcome.advice(content)
    assert later[:3] == before[:3]
    assert later[3] == (
        "Over the 2 settings in which an asynchronous method holds the target, `gem` is most often within 1.25 times of the "
        "fastest of them: in 2."
    )
    lost = {"workers": 64, "time": [None] * 3, "gradients": [None] * 3}
    content["rows"] += [row | lost for row in content["rows"] if row["task"] == "other" and row["workers"] == 16]
    assert outcome.advice(content)[3] == later[3]


def test_the_committed_pages_follow_from_their_files():
    for plan in (FULL, QUICK):
        path = benchmark.RESULTS / f"{plan.name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            assert path.with_suffix(".md").read_text() == page.written(plan, content, benchmark.command(plan))


# --- Real runs


@pytest.mark.slow
def test_the_quick_benchmark_shrunk_is_real(monkeypatch, tmp_path):
    plan = dataclasses.replace(
        SMALL, gradients=640, rungs=((12, 1 / 4), (2, 1 / 2)), seeds=(0, 1), methods=("asgd", "easgd")
    )
    monkeypatch.setattr(benchmark, "QUICK", plan)
    command = ["benchmark", "--quick", "--processes", "1", "--work", str(tmp_path)]
    assert cli.main(command) == 0
    content = json.loads((tmp_path / "benchmark-quick.json").read_text())
    rows = {row["method"]: row for row in content["rows"]}
    assert set(rows) == {"asgd", "easgd", *REFERENCES}
    assert min(rows[ONE]["accuracy"]) > 0.8
    assert max(rows[ONE]["end"]) > 5 * max(rows["asgd"]["end"])
    assert max(rows["asgd"]["end"]) < min(rows[SYNCHRONOUS]["end"])
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / plan.name).iterdir()}
    assert len(files) == 5 * (12 + 2 + 2)
    assert cli.main(command) == 0
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / plan.name).iterdir()}


@pytest.mark.slow
def test_points_lengths_and_seeds_share_one_program(monkeypatch):
    lowered = []
    real = jax.jit

    def counting(function, **options):
        jitted = real(function, **options)
        if getattr(function, "__name__", "") != "step":
            return jitted

        def call(*args):
            lowered.append(hash(jitted.lower(*args).as_text()))
            return jitted(*args)

        return call

    monkeypatch.setattr(jax, "jit", counting)
    cell, known = Cell("digits", 16, UNEQUAL, "gem"), {}
    plan = dataclasses.replace(SMALL, gradients=1600, rungs=((2, 1 / 8),), seeds=(0, 1))
    for _ in range(2):
        runs, _ = plan.next_runs(cell, known)
        known |= dict(zip(runs, record_together(runs, {}, alike=True), strict=True))
    assert len(known) == 4
    assert len(set(lowered)) == 1


@pytest.mark.slow
def test_a_killed_benchmark_keeps_its_finished_runs(tmp_path):
    command = [sys.executable, "-m", "train", "benchmark", "--quick", "--processes", "1", "--work", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--methods", "asgd"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd=benchmark.RESULTS.parents[1],
    )
    folder, cell = tmp_path / QUICK.name, QUICK.cells()[0]
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
    known = benchmark.load(QUICK, [cell], asked.pool, {})
    assert len(known) >= 12
    assert not set(benchmark.missing(QUICK, cell, known)) & set(known)
    assert len(benchmark.missing(QUICK, cell, known)) <= 4
