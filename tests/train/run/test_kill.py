"""Simulations that are killed repeatedly at random moments end as an uninterrupted one."""

import pytest
from engines.problems import assert_same_bits
from kills import complete_lines, killed_repeatedly, load, summary_of, uninterrupted_run

SIMULATED = (
    "digits --model mlp --engine simulate --workers 3 --epochs 5 --batch-size 32 --seed 3 --checkpoint-every 20 "
    "--eval-seconds 9"
)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_simulation_killed_at_random_moments_ends_as_an_uninterrupted_one(kills, tmp_path):
    """Parameters, state, trace, event log and evaluations are equal bit for bit."""
    whole = uninterrupted_run(tmp_path, SIMULATED)

    def check(folder):
        for name in ("events", "metrics"):
            assert getattr(whole.folder, name).read_bytes().startswith(complete_lines(getattr(folder, name)))

    expected = load(whole.folder)
    for folder in killed_repeatedly(whole, kills, seed=1, check=check):
        found = load(folder)
        assert_same_bits(found.state, expected.state)
        assert found.trace == expected.trace
        assert folder.events.read_bytes() == whole.folder.events.read_bytes()
        assert folder.metrics.read_bytes() == whole.folder.metrics.read_bytes()
        assert summary_of(folder) == summary_of(whole.folder)
        assert folder.picture.exists()
