"""Hundreds of hosts on paper: rates and bottlenecks, the measured driver, and the table of the page."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from train import cli
from train.bench import scale
from train.bench.bench import Bench
from train.bench.scale import Arrangement, Driver, driver_of, simulate

PAGE = Path(__file__).parents[3] / "train" / "cluster.md"
GRADIENT, GIGABITS = 0.2, 10.0


def found(size=1_000_000, hosts=64, driver=Driver(1e-4, 1e-11), **arrangement):  # noqa: B008 (frozen)
    return simulate(Arrangement("", **arrangement), size, hosts, GIGABITS, GRADIENT, driver)


def test_few_hosts_are_limited_by_their_gradients_alone():
    few = found(hosts=4)
    assert few["commits"] == pytest.approx(4 / (GRADIENT + 2 * (1e-4 + 4e6 / 1.25e9) + 3.2e-3), rel=0.02)
    assert few["bottleneck"] == "none"
    assert few["p50"] == 3


@pytest.mark.parametrize(
    ("driver", "bottleneck", "seconds"),
    [(Driver(5e-3, 1e-9), "the driver's thread", 9e-3), (Driver(0.0, 1e-10), "network in", 3.2e-3)],
)
def test_many_hosts_are_limited_by_the_slowest_stage(driver, bottleneck, seconds):
    many = found(hosts=512, driver=driver)
    assert many["commits"] == pytest.approx(1 / seconds, rel=0.01)
    assert many["bottleneck"] == bottleneck
    assert many["in_mb"] == pytest.approx(4 / seconds, rel=0.01)
    assert many["p50"] == 511


@pytest.mark.slow
def test_each_remedy_acts_on_its_own_stage():
    network = {"hosts": 1024, "driver": Driver(0.0, 1e-10)}
    alone = found(**network)
    assert found(**network, up=0.25, down=0.25)["commits"] > 2 * alone["commits"]
    assert found(**network, actors=8)["commits"] > 4 * alone["commits"]
    assert found(**network, period=16)["gradients"] > 8 * alone["gradients"]


def test_the_driver_is_a_line_through_the_measured_sizes(tmp_path):
    part = lambda ms: {"times": {name: {"median": ms / len(scale.PARTS), "mean": 0.0} for name in scale.PARTS}}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"cluster": {"ray": "2", "workers": 4, "1,000": part(2.0), "1,001,000": part(6.0)}}))
    driver = driver_of(str(path))
    assert driver.service(4_000) == pytest.approx(2e-3)
    assert driver.service(4_004_000) == pytest.approx(6e-3)
    assert driver.source == f"measured, {path}"


def test_figures_of_one_size_make_no_line(tmp_path, capsys):
    (tmp_path / "figures.json").write_text(json.dumps({"cluster": {"1,000": {}}}))
    assert cli.main(["bench", "scale", "--measured", str(tmp_path / "figures.json")]) == 2
    assert "figures.json has no figures of `bench cluster` at two or more sizes" in capsys.readouterr().err


@pytest.mark.slow
def test_the_table_of_the_page_is_what_its_command_prints():
    text = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m train bench scale(.*?)(?: +#.*)?$", text, re.MULTILINE)
    options = dict(re.findall(r"--(\S+) (\S+)", command))
    usual = {field.name: field.default for field in dataclasses.fields(Bench)}
    driver = driver_of(options.get("measured") and str(PAGE.parents[1] / options["measured"]))
    rows = re.findall(
        r"^\| ([\d,]+) \| (.+?) \| ([\d,]+) \| .* \| ([\d,]+) \| ([\d,]+) \| (\d+) % \| (.+?) \|$", text, re.MULTILINE
    )
    assert len(rows) == 2 * len(scale.ARRANGEMENTS)
    arrangements = {arrangement.name: arrangement for arrangement in scale.ARRANGEMENTS}
    for hosts, name, *shown in rows:
        row = simulate(
            arrangements[name], int(options["parameters"]), int(hosts.replace(",", "")), usual["gigabits"],
            usual["gradient_seconds"], driver,
        )  # fmt: skip
        numbers = [f"{row[key]:,.0f}" for key in ("commits", "p50", "p95")]
        assert shown == [*numbers, f"{100 * row['computing']:.0f}", row["bottleneck"]]
