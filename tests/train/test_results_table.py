"""README's table of claims: up to date, and what it says of made-up results."""

import json
import types
from pathlib import Path

import pytest

from train import cli, configs, results_table

README = Path(__file__).parents[2] / "README.md"
RESULT = {
    "claim": "pretended", "title": "a claim", "source": "nobody, 2026", "scale": "full", "verdict": "held in part",
    "statements": [
        {"text": "low", "held": True, "measured": "0.1", "paper": "0.2"},
        {"text": "a|b", "held": False, "measured": "3", "paper": ""},
    ],
    "cost": {"runs": 4, "commits": 1234567, "run_minutes": 60.0, "processes": 2}, "seeds": [0, 1],
    "hardware": [{"device": "made up", "cores": 2, "jax": "0.10"}], "git_commits": ["abc"], "dates": ["2026-01-01"],
}  # fmt: skip


def test_the_table_in_readme_and_the_page_are_up_to_date():
    """If not: python -m train results --write README.md."""
    text = README.read_text(encoding="utf-8")
    results = results_table.load()
    assert results_table.replaced(text, results_table.markdown(results)) == text
    assert (results_table.RESULTS / results_table.PAGE).read_text(encoding="utf-8") == results_table.page(results)


def test_a_row_says_verdict_and_cost_and_the_page_every_statement(tmp_path):
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    (tmp_path / "bench.json").write_text("{}")
    results = results_table.load(tmp_path)
    table, page = results_table.markdown(results), results_table.page(results)
    assert (
        "| [a claim](train/results/README.md#pretended) (nobody, 2026; `pretended`) | **held in part** | 1 of 2 "
        "| 4 runs, seeds 0, 1 | 1,234,567 commits, 30 min |"
    ) in table
    for text in (table, page):
        assert "Made on made up (2 cores, jax 0.10, 2 runs at a time), commit `abc`, 2026-01-01: `pretended`." in text
    assert "| held | low | 0.1 | 0.2 |\n| **not held** | a\\|b | 3 |  |" in page
    assert "![a claim](pretended.png)" in page


def test_what_is_not_the_published_setting_is_labelled_so(tmp_path):
    other = RESULT | {"scale": "cpu", "setting": "a small network"}
    (tmp_path / "pretended-cpu.json").write_text(json.dumps(other))
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    results = results_table.load(tmp_path)
    table, page = results_table.markdown(results), results_table.page(results)
    assert "#pretended) (nobody, 2026; `pretended`) |" in table
    assert "#pretended-cpu) (nobody, 2026; `pretended`). **Not the full setting: a small network** |" in table
    assert "(nobody, 2026). **Not the full setting: a small network**: **held in part**" in page
    assert "(pretended-cpu.json)" in page


def test_the_page_says_what_the_claims_docstring_found_at_that_scale(monkeypatch):
    module = types.ModuleType(
        "pretended", "A claim.\n\nCost: none.\nFound: all\nof it.\nFound (cpu): half.\n\nDeviations:\n"
    )
    monkeypatch.setattr(configs, "CLAIMS", ("pretended",))
    monkeypatch.setattr(configs, "module", {"pretended": module}.__getitem__)
    assert "\n\nFound: all\nof it.\n\n" in results_table.page([RESULT])
    assert "\n\nFound (cpu): half.\n\n" in results_table.page([RESULT | {"scale": "cpu"}])


def test_only_what_is_between_the_marks_is_written(tmp_path, capsys):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{results_table.BEGIN}\nold\n{results_table.END}\nafter\n")
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    assert cli.main(["results", "--write", str(path), "--results", str(tmp_path)]) == 0
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "**held in part**" in text
    assert (tmp_path / "README.md").read_text().startswith("# Published claims")
    path.write_text("no marks")
    assert cli.main(["results", "--write", str(path), "--results", str(tmp_path)]) == 2
    assert "expected the line" in capsys.readouterr().err
    with pytest.raises(ValueError, match="each once"):
        results_table.replaced(f"{results_table.END}{results_table.BEGIN}", "")
