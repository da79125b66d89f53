"""Hundreds of hosts on paper: rates and bottlenecks, the measured driver, and the table of the page."""

import itertools
import json
import re
from pathlib import Path

import pytest

from train import cli
from train.bench import scale
from train.bench.bench import Bench
from train.bench.scale import Arrangement, Measured, measured_in, simulate
from train.config.parsing import parse_flags

PAGE = Path(__file__).parents[3] / "train" / "cluster.md"
GRADIENT, GIGABITS = 0.2, 10.0


def measured(seconds, per_byte):
    return Measured(seconds, per_byte, seconds, per_byte, 1.0)


def found(size=1_000_000, hosts=64, measured=measured(1e-4, 1e-11), **arrangement):  # noqa: B008 (frozen)
    return simulate(Arrangement("", **arrangement), size, hosts, GIGABITS, GRADIENT, measured)


def test_few_hosts_are_limited_by_their_gradients_alone():
    few = found(hosts=4)
    assert few["commits"] == pytest.approx(4 / (GRADIENT + 2 * (1e-4 + 4e6 / 1.25e9) + 3.2e-3), rel=0.02)
    assert few["bottleneck"] == "none"
    assert few["p50"] == 3


@pytest.mark.parametrize(
    ("of", "bottleneck", "seconds"),
    [(measured(5e-3, 1e-9), "the central variable", 9e-3), (measured(0.0, 1e-10), "network in", 3.2e-3)],
)
def test_many_hosts_are_limited_by_the_slowest_stage(of, bottleneck, seconds):
    many = found(hosts=512, measured=of)
    assert many["commits"] == pytest.approx(1 / seconds, rel=0.01)
    assert many["bottleneck"] == bottleneck
    assert many["p50"] == 511


@pytest.mark.slow
def test_each_remedy_acts_on_its_own_stage():
    network = {"hosts": 1024, "measured": measured(0.0, 1e-10)}
    alone = found(**network)
    assert found(hosts=512, measured=measured(1e-4, 1e-11), up=2.0)["commits"] < 0.6 * found(hosts=512)["commits"]
    assert found(**network, actors=8)["commits"] > 4 * alone["commits"]
    assert found(**network, period=16)["gradients"] > 8 * alone["gradients"]


def test_memory_and_bytes_are_those_of_the_arrays():
    """One array in float32 has 4 MB; one more is there during a commit, and GEM keeps two per worker."""
    two = found(actors=2)
    assert two["wire"] == 8
    assert two["asgd"] == pytest.approx(2 * 4e-3 / 2)
    assert two["gem"] == pytest.approx((2 + 2 * 64) * 4e-3 / 2)


def test_lines_go_through_the_measured_sizes(tmp_path):
    part = lambda ms: {
        "times": {name: {"median": ms / len(scale.PARTS)} for name in scale.PARTS}
        | {scale.AT_ACTORS: {"median": 2 * ms}}
    }
    (tmp_path / "cluster").write_text(json.dumps({"cluster": {"ray": "2", "1,000": part(2.0), "1,001,000": part(6.0)}}))
    (tmp_path / "wire").write_text(
        json.dumps({"cluster": {"MB/s in": 9.0, "1,001,000": {scale.WIRE: {"share": 0.75}}}})
    )
    measured = measured_in([str(tmp_path / name) for name in ("cluster", "wire")])
    assert measured.service(4_000, 1) == pytest.approx(2e-3)
    assert measured.service(4_004_000, 1) == pytest.approx(6e-3)
    assert measured.service(4_004_000, scale.HOSTS) == pytest.approx(12e-3)
    assert measured.share == 0.75


def test_figures_of_one_size_make_no_line(tmp_path, capsys):
    (tmp_path / "figures.json").write_text(json.dumps({"cluster": {"1,000": {"times": {}}}}))
    assert cli.main(["bench", "scale", "--measured", str(tmp_path / "figures.json")]) == 2
    assert "figures.json: figures of `bench cluster` at two or more sizes" in capsys.readouterr().err


@pytest.mark.slow
def test_the_table_of_the_page_is_what_its_command_prints():
    text = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m train (bench scale.*?)(?: +#.*)?$", text, re.MULTILINE)
    bench = parse_flags(Bench, command.split()[1:], "")
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (.+?) \| (.*) \| (\d+) % \| (.+?) \|$", text, re.MULTILINE)
    expected = itertools.product(bench.parameters, bench.hosts, scale.ARRANGEMENTS)
    for row, (size, hosts, arrangement) in zip(rows, expected, strict=True):
        found = simulate(arrangement, size, hosts, bench.gigabits, bench.gradient_seconds, measured_in(bench.measured))
        numbers = " | ".join(scale.short(found[name]) for name in scale.COLUMNS)
        words = (
            f"{size:,}",
            f"{hosts:,}",
            arrangement.name,
            numbers,
            f"{100 * found['computing']:.0f}",
            found["bottleneck"],
        )
        assert row == words
