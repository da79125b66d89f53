"""Runs that are killed again and again, at random moments of their lives: a simulation ends as the one that was not."""

import pytest
from engines.problems import assert_same_bits
from kills import a_whole_run, killed_again_and_again, loaded, summary_of, whole_lines

SIMULATED = (
    "digits --engine simulate --workers 3 --epochs 5 --batch-size 32 --seed 3 --checkpoint-every 20 --eval-seconds 9"
)


@pytest.mark.slow
def test_a_simulation_killed_at_random_moments_ends_as_the_one_that_was_not(tmp_path):
    """The parameters, the whole state, the trace, the event log and the evaluations, bit for bit."""
    whole = a_whole_run(tmp_path, SIMULATED)

    def check(folder):
        for name in ("events", "metrics"):
            assert getattr(whole.folder, name).read_bytes().startswith(whole_lines(getattr(folder, name)))

    expected = loaded(whole.folder)
    for cut in killed_again_and_again(whole, 12, seed=5, check=check):
        found = loaded(cut)
        assert_same_bits(found.state, expected.state)
        assert found.trace == expected.trace
        assert cut.events.read_bytes() == whole.folder.events.read_bytes()
        assert cut.metrics.read_bytes() == whole.folder.metrics.read_bytes()
        assert summary_of(cut) == summary_of(whole.folder)
        assert cut.picture.exists()
