"""The cuts of a run change no bit of it."""

import numpy as np
import pytest
from engines.problems import assert_same_bits, late, mlp, quadratic
from engines.simulator.simulations import programs
from hypothesis import given
from hypothesis import strategies as st

import gemjax
from gemjax.engines.simulator.chunks import chunks

LATE = late()
EVENTS = LATE.events()
GEM, MLP, QUADRATIC = gemjax.gem(0.05, num_workers=4), mlp(), quadratic()


def run(problem=QUADRATIC, **options):
    return gemjax.simulate(GEM, *problem[:3], LATE, model_state=problem.model_state, **options)


@pytest.mark.slow
@given(
    chunk_size=st.integers(1, 40),
    stops=st.lists(st.integers(-2, len(LATE) + 5), max_size=6),
    done=st.integers(0, len(EVENTS.worker)),
)
def test_pieces_follow_one_another_and_end_at_the_stops(chunk_size, stops, done):
    pieces = chunks(EVENTS, chunk_size, stops, done)
    ends = [done, *(end for _, end in pieces)]
    assert [begin for begin, _ in pieces] == ends[:-1]
    assert ends[-1] == len(EVENTS.worker)
    assert all(1 <= end - begin <= chunk_size for begin, end in pieces)
    ended = {int(EVENTS.commits[:end].sum()) for end in ends[1:] if EVENTS.commits[end - 1]}
    behind = int(EVENTS.commits[:done].sum())
    for stop in stops:
        if behind < stop <= len(LATE):
            assert stop in ended  # The last arrival of the piece is that commit.


@pytest.mark.slow
@given(chunk_size=st.integers(1, 40), stops=st.lists(st.integers(1, len(LATE)), max_size=6), data=st.data())
def test_a_continued_run_has_the_remaining_pieces(chunk_size, stops, data):
    whole = chunks(EVENTS, chunk_size, stops)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert chunks(EVENTS, chunk_size, stops, done=whole[cut][1]) == whole[cut + 1 :]


def test_no_piece_is_tiny():
    sizes = [end - begin for begin, end in chunks(gemjax.Trace([0] * 1010).events(), 100, stops=[505])]
    assert len(sizes) == 12
    assert min(sizes) >= 84


def test_the_callback_is_called_at_exactly_the_stops():
    calls = []
    run(stops=range(0, 100, 7), callback=lambda progress: calls.append(progress.commits), callback_every=100)
    assert calls == [7, 14, 21, 24]


@pytest.mark.slow
def test_at_a_stop_the_parameters_are_those_of_so_many_commits():
    seen = {}
    run(stops=[5, 16], callback=lambda progress: seen.update({progress.commits: np.asarray(progress.params["x"])}))
    for commits in (5, 16):
        alone = gemjax.simulate(GEM, *QUADRATIC[:3], LATE.first(commits))
        np.testing.assert_array_equal(seen[commits], alone.params["x"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"stops": [1]}, {"stops": [3, 11, 12]}, {"stops": [10], "callback_every": 3}])
def test_stops_change_no_bit(options):
    whole, cut = run(MLP), run(MLP, **options)
    assert_same_bits(cut.state, whole.state)
    assert_same_bits(cut.history, whole.history)


def test_a_continued_run_has_the_same_windows():
    """With windows the cuts may change the last digits, so a continued run keeps them."""
    options = {"window": 4, "callback_every": 10, "stops": [9]}
    whole = run(**options)
    first = run(**options, callback=lambda progress: progress.commits >= 9)
    assert first.stopped
    assert_same_bits(run(**options, state=first.state).state, whole.state)


def test_pieces_of_all_sizes_are_one_compiled_program():
    run(QUADRATIC, callback_every=8)
    before = programs()
    run(QUADRATIC, callback_every=8, stops=[3, 4, 17])
    assert programs() == before
