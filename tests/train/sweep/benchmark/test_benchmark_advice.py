"""The judgement of the benchmark: the page and its advice."""

import json
import re

from made_up_runs import SMALL, made_up

from train.sweep.benchmark import benchmark, outcome, page
from train.sweep.benchmark.settings import (
    FULL,
    LOCAL,
    ONE,
    QUICK,
    SYNCHRONOUS,
    UNEQUAL,
    Cell,
)


def test_no_number_is_shown_of_an_unfinished_cell():
    known = {run: made_up(run) for run in SMALL.next_runs(Cell("digits", 16, UNEQUAL, "gem"), {})[0]}
    content = outcome.document(SMALL, known)
    assert content["rows"] == []
    text = page.written(SMALL, content, "command")
    assert "No advice yet" in text
    assert "## Digits" not in text


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
