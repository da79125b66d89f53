"""Pages of the folders: their links have targets, and their commands parse."""

import contextlib
import dataclasses
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tyro

from train.bench.bench import Bench
from train.claims import reproduce
from train.claims import summary_table as results_table
from train.claims.reproduce import Reproduce
from train.common import compilation
from train.common.files import write_whole
from train.config.config import Config
from train.race.race import Race
from train.report.compare import Compare
from train.report.replay.replay import Replay
from train.report.report import ReportFlags
from train.report.twice import Twice
from train.run import command
from train.sweep import sweep
from train.sweep.benchmark.benchmark import Benchmark
from train.sweep.grid import Grid

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "gemjax/README.md",
    "gemjax/commit.md",
    "gemjax/edges.md",
    "gemjax/reference.md",
    "gemjax/runs.md",
    "gemjax/results.md",
    "gemjax/methods/README.md",
    "gemjax/methods/compose.md",
    "gemjax/methods/add.md",
    *(COMMAND_LINE := ("train/README.md", "train/cluster.md", "train/measure.md")),
    "train/results/README.md",
    "colab/README.md",
)
PARSERS = {
    "race": lambda argv: tyro.cli(Race, args=argv),
    "sweep": sweep.parse,
    "benchmark": lambda argv: tyro.cli(Benchmark, args=argv),
    "reproduce": reproduce.parse,
    "results": lambda argv: tyro.cli(results_table.Results, args=argv),
    "report": lambda argv: tyro.cli(ReportFlags, args=argv),
    "replay": lambda argv: tyro.cli(Replay, args=argv),
    "compare": lambda argv: tyro.cli(Compare, args=argv),
    "twice": lambda argv: tyro.cli(Twice, args=argv),
    "bench": lambda argv: tyro.cli(Bench, args=argv),
}


def _text(page):
    return (ROOT / page).read_text(encoding="utf-8")


def _prose(text):
    """Return the page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def _anchors(text):
    """Return the anchors of all headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _commands():
    """Yield the arguments of each `python -m train` in the shell blocks of the pages."""
    for page in PAGES:
        for block in re.findall(r"^```bash\n(.*?)^```$", _text(page), re.DOTALL | re.MULTILINE):
            for line in re.split(r"&&|\n", block):
                words = shlex.split(line, comments=True)
                if words[:3] == ["python", "-m", "train"]:
                    yield pytest.param(words[3:], id=f"{page}: {' '.join(words[3:])}")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", _prose(_text(page))):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("page", [page for page in PAGES if page != "gemjax/reference.md"])  # It grows with the names.
def test_a_page_is_short(page):
    assert len(_text(page).splitlines()) <= (140 if page == "README.md" else 350)


@pytest.mark.parametrize("argv", list(_commands()))
def test_commands_parse(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/my-run").mkdir(parents=True)
    Config().save("runs/my-run/config.json")
    Path("runs/my-sweep").mkdir()
    Path("photos").mkdir()
    for name in ("rows.npz", "book.txt", "run.toml"):
        Path(name).touch()
    write_whole("runs/my-sweep/sweep.json", Grid().text())
    parse = PARSERS.get(argv[0], command.parse) if argv else command.parse
    is_printed = ">" in argv  # Such a command ends when it has printed.
    argv = argv[: argv.index(">")] if is_printed else argv
    with pytest.raises(SystemExit) if is_printed else contextlib.nullcontext():
        parse(argv if parse is command.parse else argv[1:])


@pytest.mark.parametrize("page", COMMAND_LINE)
def test_a_page_of_the_command_line_names_flags_that_exist(page):
    fields = {
        field.name
        for kind in (Config, Grid, Benchmark, Compare, Reproduce, Bench, Race, Twice)
        for field in dataclasses.fields(kind)
    }
    known = {
        "--help",
        "--help-all",
        "--config",
        "--print-config",
        compilation.FLAG,
        *(f"--{name.replace('_', '-')}" for name in fields),
    }
    text = re.sub(r"^```(?:yaml|ini)\n.*?^```$|(?:^|`)ray [^`\n]*", "", _text(page), flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= known


@pytest.mark.slow
def test_the_cluster_files_of_the_page_are_valid_for_ray():
    util = pytest.importorskip("ray.autoscaler._private.util")
    yaml = pytest.importorskip("yaml")
    files = re.findall(r"^```yaml\n(.*?)^```$", _text("train/cluster.md"), re.DOTALL | re.MULTILINE)
    assert len(files) == 2
    for text in files:
        config = util.prepare_config(yaml.safe_load(text))  # With Ray's defaults for the provider.
        util.validate_config(config)
        assert config["head_node_type"] in config["available_node_types"]
        for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
            assert all("RAY_AUTH_MODE=token" in command for command in config[commands] if "ray start" in command)


def test_the_citation_is_of_this_version():
    project = tomllib.loads(_text("pyproject.toml"))["project"]
    fields = dict(re.findall(r"^([a-z-]+): (.+)$", _text("CITATION.cff"), re.MULTILINE))
    assert (fields["version"], fields["license"]) == (project["version"], project["license"])
