"""The page of checked claims: up to date, and what it says of made-up results."""

import json
import re
import types

import pytest

from train import cli
from train.claims import papers as configs
from train.claims import summary_table as results_table
from train.claims.claim import file_name
from train.claims.execution import costs
from train.claims.execution.cache import PUBLISHED as PUBLISHED_RUNS
from train.claims.execution.cache import Pool
from train.claims.outcome import summary
from train.claims.results import Measured

RESULT = {
    "claim": "pretended", "title": "a claim", "source": "An author, 2026", "scale": "full", "part": "paper's setting",
    "verdict": "1 reproduced, 1 not decidable here", "statements": [
        {"text": "low", "verdict": "reproduced", "measured": "0.1", "paper": "0.2", "compared": "ratio 0.5", "why": ""},
        {"text": "a|b", "verdict": "not decidable here", "measured": "3", "paper": "", "compared": "", "why": "one seed"},
    ],
    "cost": {"runs": 4, "commits": 1234567, "run_minutes": 60.0, "processes": 2}, "seeds": [0, 1],
    "hardware": [{"device": "made up", "cores": 2, "jax": "0.10"}], "git_commits": ["abc"], "dates": ["2026-01-01"],
}  # fmt: skip


def test_the_page_is_up_to_date():
    """The remedy for a failure is `python -m train results`."""
    found = (results_table.RESULTS / results_table.PAGE).read_text(encoding="utf-8")
    assert found == results_table.page(results_table.load())


def test_the_page_says_verdict_cost_and_every_statement(tmp_path):
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    (tmp_path / "bench.json").write_text("{}")
    page = results_table.page(results_table.load(tmp_path))
    assert "| [An author, 2026](#pretended) | low | 0.2 | 0.1 | ratio 0.5 | **reproduced** |" in page
    assert "|  | a\\|b |  | 3 |  | **not decidable here** (one seed) |" in page
    machine = "made up (2 cores, jax 0.10, 2 runs at a time)"
    assert f"| 4, seeds 0, 1 | 1,234,567 commits, 30 min | {machine} | `abc` | 2026-01-01 |" in page
    assert page.index("a claim") < page.index("<details>") < page.index("made up")
    assert "![a claim](pretended.png)" in page


def test_an_investigation_has_findings_and_no_verdict():
    finding = {"text": "loss", "verdict": "", "measured": "1", "paper": "2", "compared": "", "why": ""}
    page = results_table.page([RESULT, RESULT | {"claim": "own", "part": "own investigation", "statements": [finding]}])
    own = page[page.index("## Own investigations") :]
    assert "| question | quantity | paper | ours |" in own
    assert "| [An author, 2026](#own) | loss | 2 | 1 |\n" in own


def test_claims_without_a_result_are_named(monkeypatch):
    monkeypatch.setattr(configs, "CLAIMS", ("pretended", "waiting"))
    monkeypatch.setattr(configs, "claim", lambda name: types.SimpleNamespace(setting={}))
    monkeypatch.setattr(configs, "module", lambda name: types.ModuleType(name, ""))
    assert "\nNo result yet: [`waiting`](../claims/papers/waiting.py)." in results_table.page([RESULT])
    assert "No result yet" not in results_table.page([RESULT, RESULT | {"claim": "waiting"}])


def test_lost_commits_are_explained():
    lost = results_table.LANDED["023ae49"][0]
    page = results_table.page([RESULT, RESULT | {"claim": "other"}, RESULT | {"git_commits": ["abc", lost]}])
    assert f"| `abc`, `{lost}` |" in page
    assert f"The history does not have `{lost}`: their work landed as `023ae49`." in page
    assert "The history does not have" not in results_table.page([RESULT])


def test_what_is_not_the_published_setting_is_labelled_so(tmp_path):
    other = RESULT | {"scale": "cpu", "part": "reduced setting", "setting": "a small network"}
    (tmp_path / "pretended-cpu.json").write_text(json.dumps(other))
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    page = results_table.page(results_table.load(tmp_path))
    assert "[An author, 2026](#pretended-cpu)" in page
    assert "(An author, 2026). Setting: a small network." in page
    assert "(pretended-cpu.json)" in page


def test_the_page_says_what_the_claims_docstring_found_at_that_scale(monkeypatch):
    module = types.ModuleType(
        "pretended", "A claim.\n\nCost: none.\nFound: all\nof it.\nFound (cpu): half.\n\nDeviations:\n"
    )
    monkeypatch.setattr(configs, "CLAIMS", ("pretended",))
    monkeypatch.setattr(configs, "module", {"pretended": module}.__getitem__)
    monkeypatch.setattr(configs, "claim", lambda name: types.SimpleNamespace(setting={}))
    assert "\n\nAll\nof it.\n" in results_table.page([RESULT])
    assert "\n\nHalf.\n" in results_table.page([RESULT | {"scale": "cpu"}])


def test_the_command_writes_the_page_beside_the_results(tmp_path, capsys):
    path = tmp_path / "README.md"
    (tmp_path / "pretended.json").write_text(json.dumps(RESULT))
    assert cli.main(["results", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {path} (claims: 1)\n")
    assert "**reproduced**" in path.read_text()
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".md"] == ["README.md"]


def test_the_numbers_of_readmes_results_are_those_of_the_page():
    readme = (results_table.RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    sentences = readme[readme.index("## Results") : readme.index("[All claims")]
    page = results_table.page(results_table.load())
    numbers = re.findall(r"\d+\.\d+", sentences)
    rows = "".join(line for line in page[: page.index("## Runs, costs")].splitlines() if line.startswith("| ["))
    rows += "".join(line for line in page.splitlines() if line.startswith("|  |"))  # Further quantities of a figure.
    assert len(numbers) > 10
    assert [number for number in numbers if number not in re.findall(r"\d+\.\d+", rows)] == []


PUBLISHED = [
    pytest.param(claim, scale, id=f"{name}-{scale}")
    for name in configs.CLAIMS
    for claim in [configs.claim(name)]
    for scale in claim.runs
    if (results_table.RESULTS / f"{file_name(name, scale)}.json").exists()
]


FEW_SEEDS = {  # Series and points that are shown, or that a rate is chosen by, but that no verdict is about.
    "gem_figure_2": {("code", 100), ("algorithm", 100)},
    "gem_figure_8": {(f"{workers} workers", kappa) for workers in (2, 10, 20, 30) for kappa in (1, 2, 3, 4)},
    "delayed_nesterov": {
        *[("synchronous (DiLoCo)", rate) for rate in (0.07, 0.2)],
        *[("no outer momentum", rate) for rate in (0.07, 0.2)],
        *[("Nesterov at every commit", rate) for rate in (0.2, 0.7)],
        *[("delayed Nesterov", rate) for rate in (0.07, 0.2)],
        *[("delayed Nesterov, dynamic steps", rate) for rate in (0.07, 0.2)],
    },
}


@pytest.mark.parametrize(("claim", "scale"), PUBLISHED)
def test_no_claim_is_judged_on_one_seed_or_by_short_runs(claim, scale):
    """Figure 3 of GEM ends at 421 commits per worker; investigations of our own have no verdict."""
    if claim.own:
        return
    stored = json.loads((results_table.RESULTS / f"{file_name(claim.name, scale)}.json").read_text(encoding="utf-8"))
    few = {(row["series"], row["point"]) for row in stored["results"] if len(row["seeds"]) < 3}
    assert few == FEW_SEEDS.get(claim.name, set())
    steps = [costs.gradients(run) / run.config.workers for run in claim.runs[scale]]
    assert min(steps) >= (421 if claim.name == "gem_figure_3" else 500)


@pytest.mark.parametrize(("claim", "scale"), PUBLISHED)
def test_a_published_result_is_that_of_its_published_runs(claim, scale, tmp_path):
    pool = Pool(tmp_path, PUBLISHED_RUNS / f"{file_name(claim.name, scale)}.json")
    known = pool.known(claim.runs[scale])
    measured = Measured(scale, list(known.items()))
    while claim.then is not None and (more := pool.known(run for run in claim.then(measured) if run not in known)):
        known |= more
        measured = Measured(scale, list(known.items()))
    stored = json.loads((results_table.RESULTS / f"{file_name(claim.name, scale)}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(summary(claim, measured, list(claim.judge(measured))))) == stored
