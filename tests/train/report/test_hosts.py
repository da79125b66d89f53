"""The hosts of a run on a cluster in its report: workers, commits, and network time apart from waits."""

import re

import pytest
from cycles import free
from test_report import make_run

from train.config.config import Config
from train.report import hosts, report

NETWORK = 0.004


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make the folder of a run of two hosts with two workers each; every gradient spends 4 ms on the network."""
    events = free(rounds=12, wait=0.02, devices=["a:gpu:0", "a:gpu:1", "<b>:gpu:0", "<b>:gpu:0#2"], central="cpu:0")
    events[0] |= {"view_bytes": 2**20, "gradient_bytes": 2**18}
    for event in events:
        if event["event"] == "commit":
            event["network"] = NETWORK * (1 + event["worker"] // 2)  # The second host is farther away.
            event |= {"to_host": 0.0005, "wire": event["network"] - 0.0015, "to_device": 0.001}
    folder = make_run(tmp_path_factory.mktemp("runs"), events, Config(workers=4, engine="cluster", address="auto"))
    report.write_report(folder)
    return folder


@pytest.mark.slow
def test_the_report_has_a_row_per_host(folder):
    text = folder.report.read_text(encoding="utf-8")
    (table,) = re.findall(r"<h2>Hosts</h2>.*?</table>", text, re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", table)[1:]]
    assert [(*row[:3], *row[5:11]) for row in rows] == [
        ("a", "2", "2", "4 ms", "4 ms", "500 µs", "2.5 ms", "1 ms", "20 ms"),
        ("&lt;b&gt;", "2", "2", "8 ms", "8 ms", "500 µs", "6.5 ms", "1 ms", "20 ms"),
    ]
    assert sum(int(row[3]) for row in rows) == 48
    assert "on a Ray cluster" in text
    assert "per gradient, median; 95 % ≤ 8 ms" in text
    assert "Transferred: 1 MiB per view, 256 KiB per gradient." in text


@pytest.mark.slow
def test_a_run_on_one_host_has_no_table_of_hosts(tmp_path):
    folder = make_run(tmp_path / "run", free(rounds=4))
    report.write_report(folder)
    text = folder.report.read_text(encoding="utf-8")
    assert "<h2>Hosts</h2>" not in text
    assert "per gradient, median" not in text


def test_the_host_is_the_part_of_a_name_before_the_device():
    names = ("gpu:0", "cpu:0+cpu:1", "h:gpu:0", "fe80::1:tpu:0+tpu:1", "h:cpu:0#2")
    assert [hosts.host_of(name) for name in names] == ["", "", "h", "fe80::1", "h"]
