"""The judgement of the benchmark: the tables of its page."""

import json
import re

import pytest
from made_up_runs import SMALL, made_up

from train.sweep.benchmark import benchmark, choice, outcome, page
from train.sweep.benchmark.settings import (
    FIRST_ONLY,
    FULL,
    LOCAL,
    ONE,
    QUICK,
    SYNCHRONOUS,
    UNEQUAL,
    Entry,
)


def test_no_number_is_shown_of_an_unfinished_cell():
    known = {run: made_up(run) for run in SMALL.next_runs(Entry("digits", 16, UNEQUAL, "gem"), {})[0]}
    content = outcome.document(SMALL, known)
    assert content["rows"] == []
    text = page.written(SMALL, content, "command")
    assert "## Digits" not in text
    assert "###" not in text


def made(entry, **how):
    """Return made-up records of the runs of an entry, tuned and reported."""
    known = {}
    while new := {run: made_up(run, **how) for run in SMALL.next_runs(entry, known)[0] if run not in known}:
        known |= new
    return known


def test_a_later_target_is_taken_from_the_same_runs():
    """The accuracy of a made-up run rises linearly, so that the time to a target is in proportion to it."""
    one, gem, easgd = Entry("digits", 1, "homogeneous", ONE), *(
        Entry("digits", 16, UNEQUAL, name) for name in ("gem", "easgd")
    )  # fmt: skip
    known = made(one) | made(gem, pace=4.0) | made(easgd, accuracy=0.85, pace=8.0)
    rows = {row["method"]: row for row in outcome.document(SMALL, known)["rows"]}
    late, share = rows["gem"]["late"], outcome.LATE / outcome.KEPT
    assert late["target"] == pytest.approx(share * rows["gem"]["target"], abs=1e-4)
    assert late["time"] == pytest.approx([share * time for time in rows["gem"]["time"]], rel=1e-3)
    assert late["mean time"] == pytest.approx([(1 + share) / 2 * time for time in rows["gem"]["time"]], rel=1e-3)
    assert None not in rows["easgd"]["time"]
    assert rows["easgd"]["late"]["time"] == rows["easgd"]["late"]["mean time"] == [None] * 3


def test_the_later_target_has_advice_of_its_own():
    content = content_of(gem=(0.89, 100.0), easgd=(0.89, 150.0))
    text = page.written(QUICK, content, "command")
    assert "## A later target" not in text
    for row in content["rows"]:
        slower = 4.0 if row["method"] == "gem" else 1.5
        late = [slower * time for time in row["time"]]
        row["late"] = {"target": 0.882, "gradients": row["gradients"], "time": late, "mean time": row["time"]}
    for row in content["rows"]:
        if row["method"] == LOCAL:  # It ends below the later target.
            row["late"]["time"] = [None] * 3
    later = lambda: choice.later(QUICK, outcome.Findings(content))
    [row] = later()
    assert row[::2] == ("16 unequal", "`gem`", "`easgd`", "`gem`")
    assert row[3::2] == ("3.00 (3.00 to 3.00)", "3.00 (3.00 to 3.00)", "3.00 (3.00 to 3.00)")
    assert "## A later target" in page.written(QUICK, content, "command")
    content["rows"] += [
        dict(one, method="asgd", accuracy=[0.85] * 3) for one in content["rows"] if one["method"] == "gem"
    ]
    del content["rows"][-1]["late"]  # It ends too low, and so cannot hold the later target.
    assert later()[0][4] == "`easgd`"
    content["rows"][-1]["accuracy"] = [0.89] * 3  # It could hold the target, and was not measured there.
    assert later() == []


def content_of(**methods):
    """Return a file of one setting, from accuracy and time to the target of each method, per seed."""
    base = {ONE: (0.9, 1000.0), SYNCHRONOUS: (0.88, 600.0), FIRST_ONLY: (0.88, 450.0), LOCAL: (0.87, 300.0)} | methods
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


def rows_of(content):
    """Return the entries of the overview and of the list of methods near the fastest, by their first entry."""
    lines = [line.strip("| ").split(" | ") for line in page.written(QUICK, content, "command").splitlines()]
    return {entries[0]: entries[1:] for entries in lines if len(entries) in (2, 8)}


def test_the_overview_has_the_fastest_method_its_ties_and_its_ratios():
    rows = rows_of(content_of(gem=(0.89, 100.0), asgd=(0.895, 200.0), easgd=(0.86, 100.0)))
    ratios = ["6.00 (6.00 to 6.00)", "4.50 (4.50 to 4.50)", "3.00 (3.00 to 3.00)", "2.00 (2.00 to 2.00)"]
    assert rows["16 unequal workers"] == ["3 of 11", "`gem`, `easgd`", *ratios, "−1.0 (−1.0 to −1.0)"]
    assert (rows["`gem`"], rows["`easgd`"], "`asgd`" in rows) == (["1"], ["1"], False)


def test_a_method_that_failed_with_one_seed_is_not_the_fastest_and_a_lost_reference_is_a_lower_bound():
    content = content_of(gem=(0.89, 100.0), asgd=(0.82, 120.0), synchronous_sgd=(0.7, None))
    gem = next(row for row in content["rows"] if row["method"] == "gem")
    gem["time"][1] = gem["gradients"][1] = None
    overview = rows_of(content)["16 unequal workers"]
    assert overview[1] == "`asgd`"
    assert overview[2].startswith("≥ 16.67 (")
    text = page.written(QUICK, content, "command")
    assert re.search(r"\| `gem` .*reached with 2 of 3 seeds \| — \| — \| — \|", text)


def test_a_method_that_loses_the_target_again_is_not_the_fastest():
    content = content_of(gem=(0.6, 100.0), asgd=(0.82, 150.0))
    rows = rows_of(content)
    assert (rows["16 unequal workers"][1], rows["`asgd`"], "`gem`" in rows) == ("`asgd`", ["1"], False)
    text = page.written(QUICK, content, "command")
    assert re.search(r"\| `gem` .*reached at 1,000, lost again with 3 of 3 seeds \| — \| — \| — \|", text)


def test_tasks_of_one_kind_share_a_choice_once_both_have_all_well_known_methods():
    content = content_of(gem=(0.89, 100.0), asgd=(0.88, 150.0), dana_dc=(0.89, 90.0))
    others = [row | {"task": "other"} for row in content["rows"]]
    chosen = lambda: choice.choices(QUICK, outcome.Findings(content))[0]
    content["rows"] += [row for row in others if row["method"] not in ("gem", "dana_dc")]  # `gem` is well known.
    assert [setting[0] for setting in chosen().settings] == ["digits"]
    content["rows"] += [row for row in others if row["method"] == "gem"]
    assert [setting[0] for setting in chosen().settings] == ["digits"]  # It has more methods.
    content["rows"] += [row for row in others if row["method"] == "dana_dc"]
    assert [setting[0] for setting in chosen().settings] == ["digits", "other"]
    assert (chosen().fastest, rows_of(content)["`dana_dc`"]) == (["dana_dc"], ["2"])


def test_a_choice_is_against_the_best_synchronous_training():
    advice = lambda **methods: choice.table(QUICK, outcome.Findings(content_of(**methods)))[0][:3]
    place = "16 unequal", "images"
    assert advice(gem=(0.89, 200.0)) == (*place, "`gem`")
    assert advice(gem=(0.89, 350.0)) == (*place, "local SGD")  # Which takes 300.
    assert advice(gem=(0.89, 500.0), local_sgd=(0.7, None)) == (*place, "m-synchronous SGD")
    assert advice(gem=(0.7, None)) == (*place, "local SGD")
    assert advice(gem=(0.89, 300.0)) == (*place, "local SGD or `gem`")
    gain = lambda **methods: choice.table(QUICK, outcome.Findings(content_of(**methods)))[0][3]
    assert gain(gem=(0.89, 200.0)) == "1.50 (1.50 to 1.50)"
    assert gain(gem=(0.89, 600.0)) == "0.50 (0.50 to 0.50) with `gem`"


def test_a_baseline_whose_short_runs_end_below_the_target_is_not_the_best():
    content = content_of(gem=(0.89, 500.0), local_sgd=(0.7, None))
    [short] = [row for row in content["rows"] if row["method"] == "local_sgd"]
    short["end"] = [100.0] * 3
    [row] = choice.table(QUICK, outcome.Findings(content))
    assert row[2] == "m-synchronous SGD"
    assert not row[3].startswith("≥")


def test_a_task_with_few_methods_does_not_take_methods_out_of_the_count():
    content = content_of(dana_dc=(0.89, 100.0), asgd=(0.88, 150.0))
    content["definition"]["narrow"] = ["characters"]
    content["rows"] += [row | {"task": "characters"} for row in content["rows"] if row["method"] != "dana_dc"]
    assert rows_of(content)["`dana_dc`"] == ["1"]


def test_a_setting_that_only_an_uncommon_method_holds_is_not_counted():
    content = content_of(gem=(0.89, 100.0), asgd=(0.88, 150.0))
    lost = {"cluster": "homogeneous", "time": [None] * 3, "gradients": [None] * 3}
    here = [row for row in content["rows"] if row["workers"] == 16]
    held = next(row for row in here if row["method"] == "gem") | {"cluster": "homogeneous", "method": "dana_dc"}
    content["rows"] += [row | lost for row in here] + [held]
    assert rows_of(content)["within 1.25 times of the fastest method"] == ["settings, of 1"]


def test_the_committed_pages_follow_from_their_files():
    for design in (FULL, QUICK):
        path = benchmark.RESULTS / f"{design.name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            assert path.with_suffix(".md").read_text() == page.written(design, content, benchmark.command(design))
