"""README's table of claims: up to date, and what it says of made-up results."""

import json
from pathlib import Path

import pytest

from train import cli, results_table

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


def test_the_table_in_readme_is_up_to_date():
    """If not: python -m train results --write README.md."""
    text = README.read_text(encoding="utf-8")
    assert results_table.replaced(text, results_table.markdown(results_table.load())) == text


def test_a_row_says_verdict_statements_and_cost(tmp_path):
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    (tmp_path / "bench.json").write_text("{}")
    table = results_table.markdown(results_table.load(tmp_path))
    assert (
        "| **held in part** | low: 0.1 (paper: 0.2) | a\\|b: 3 | 4, seeds 0, 1 | 1,234,567 commits, 30 min |" in table
    )
    assert "Made on made up (2 cores, jax 0.10, 2 runs at a time), commit `abc`, 2026-01-01: `pretended`." in table


def test_what_is_not_the_published_setting_is_labelled_so(tmp_path):
    other = RESULT | {"scale": "cpu", "setting": "a small network"}
    (tmp_path / "pretended-cpu.json").write_text(json.dumps(other))
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    table = results_table.markdown(results_table.load(tmp_path))
    assert "(train/results/pretended.png) (nobody, 2026; `pretended`) |" in table
    assert (
        "(train/results/pretended-cpu.png) (nobody, 2026; `pretended`). **Not the published setting: a small network** |"
        in table
    )


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
    path.write_text("no marks")
    assert cli.main(["results", "--write", str(path), "--results", str(tmp_path)]) == 2
    assert "expected the line" in capsys.readouterr().err
    with pytest.raises(ValueError, match="each once"):
        results_table.replaced(f"{results_table.END}{results_table.BEGIN}", "")
