"""The page of checked claims: up to date, and what it says of made-up results."""

import json
import shutil
import types

from train import cli
from train.claims import gain
from train.claims import papers as configs
from train.claims import summary_table as results_table

RESULT = {
    "claim": "pretended", "title": "a claim", "source": "nobody, 2026", "scale": "full", "verdict": "held in part",
    "statements": [
        {"text": "low", "held": True, "measured": "0.1", "paper": "0.2"},
        {"text": "a|b", "held": False, "measured": "3", "paper": ""},
    ],
    "cost": {"runs": 4, "commits": 1234567, "run_minutes": 60.0, "processes": 2}, "seeds": [0, 1],
    "hardware": [{"device": "made up", "cores": 2, "jax": "0.10"}], "git_commits": ["abc"], "dates": ["2026-01-01"],
}  # fmt: skip


def test_the_page_is_up_to_date():
    """If not: python -m train results."""
    found = (results_table.RESULTS / results_table.PAGE).read_text(encoding="utf-8")
    assert found == results_table.page(results_table.load())


def test_the_page_says_verdict_cost_and_every_statement(tmp_path):
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    (tmp_path / "bench.json").write_text("{}")
    page = results_table.page(results_table.load(tmp_path))
    assert (
        "| [a claim](#pretended) (nobody, 2026; `pretended`) | **held in part** | 1 of 2 "
        "| 4 runs, seeds 0, 1 | 1,234,567 commits, 30 min |"
    ) in page
    assert "| `pretended` | made up (2 cores, jax 0.10, 2 runs at a time) | `abc` | 2026-01-01 |" in page
    assert "| held | low | 0.1 | 0.2 |\n| **not held** | a\\|b | 3 |  |" in page
    assert "![a claim](pretended.png)" in page


def test_claims_made_alike_share_a_row_and_lost_commits_are_explained():
    lost = results_table.LANDED["023ae49"][0]
    page = results_table.page([RESULT, RESULT | {"claim": "other"}, RESULT | {"git_commits": ["abc", lost]}])
    assert "| `pretended`, `other` | made up" in page
    assert f"| `abc`, `{lost}` |" in page
    assert f"The history does not have `{lost}`: their work landed as `023ae49`." in page
    assert "The history does not have" not in results_table.page([RESULT])


def test_what_is_not_the_published_setting_is_labelled_so(tmp_path):
    other = RESULT | {"scale": "cpu", "setting": "a small network"}
    (tmp_path / "pretended-cpu.json").write_text(json.dumps(other))
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    page = results_table.page(results_table.load(tmp_path))
    assert "#pretended) (nobody, 2026; `pretended`) |" in page
    assert "#pretended-cpu) (nobody, 2026; `pretended`). **Not the full setting: a small network** |" in page
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


def test_the_command_writes_the_page_beside_the_results(tmp_path, capsys):
    path = tmp_path / "README.md"
    assert cli.main(["results", "--results", str(tmp_path)]) == 0
    assert "No claim has been run yet." in path.read_text()
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    assert cli.main(["results", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {path} (claims: 1)\n")
    assert "**held in part**" in path.read_text()
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".md"] == ["README.md"]


def test_the_command_draws_the_gain_too(tmp_path, capsys):
    shutil.copy(results_table.RESULTS / f"{gain.CLAIM}.json", tmp_path)
    assert cli.main(["results", "--results", str(tmp_path)]) == 0
    assert f"wrote {tmp_path / 'gain.png'}" in capsys.readouterr().out
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")


def test_readme_tells_the_errors_that_its_picture_shows():
    result = json.loads((results_table.RESULTS / f"{gain.CLAIM}.json").read_text())
    at_30 = {row["series"]: 100 * (1 - row["test_accuracy"]["mean"]) for row in result["results"] if row["point"] == 30}
    readme = (results_table.RESULTS.parents[1] / "README.md").read_text()
    assert f"reaches {at_30['GEM']:.2f} % test error" in readme
    assert f"plain asynchronous SGD rises to {at_30['DOWNPOUR']:.0f} %" in readme
