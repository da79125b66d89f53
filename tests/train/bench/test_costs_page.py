"""Figures of costs that the pages state are those of the stored measurement."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
STORED = json.loads((ROOT / "train" / "results" / "bench_cpu.json").read_text(encoding="utf-8"))


def words(page):
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_utilisation_of_the_page_is_the_measured_one():
    first, second, third = (f"{100 * share:.1f}" for share in STORED["devices"]["utilisation"].values())
    assert f"compute {first}, {second} and {third} % of the time" in words("train/measure.md")


def test_both_pages_have_the_measured_time_of_a_commit():
    loops = {size: found["bare loop of these, a commit"] for size, found in STORED["devices"]["overhead"].items()}
    assert f"takes {round(loops['160,000'], -2):,.0f} µs at 160,000 parameters" in words("train/measure.md")
    edges = (
        f"takes about {loops['160,000'] / 1e3:.1f} ms there, and one of 10 million {loops['10,000,000'] / 1e6:.1f} s"
    )
    assert edges in words("gemjax/edges.md")


def test_the_rates_of_traces_are_the_measured_ones():
    rates = {name: round(rate / 1e6) for name, rate in STORED["arrivals, commits/s"].items()}
    queue = rates.pop("gamma, queue")
    low, high = min(rates.values()), max(rates.values())
    stated = f"at {low} to {high} million commits per second, and at {queue} million with a queue"
    assert stated in words("train/measure.md")
