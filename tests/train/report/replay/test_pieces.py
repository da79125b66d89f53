"""Verdicts on pieces of a replay."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from train.report.replay.pieces import MORE_NUDGES, NUDGES, compare, judge, nudged, worst


class State(SimpleNamespace):
    """A state of two parameters, a statistic, and what views and the method keep."""

    def __init__(self, params, model_state=(), opt_state=(), view=()):
        super().__init__(params=params, model_state=model_state, opt_state=opt_state, view=view)

    def _replace(self, **fields):
        return State(**vars(self) | fields)


BEGIN = State({"w": jnp.array([1.0, -2.0])})


def moved(state, by):
    return state._replace(params={"w": state.params["w"] + by})


def piece(end, replay):
    return compare(BEGIN, end, (3, 7), replay)


def test_an_equal_replay_is_the_same_to_rounding():
    found = piece(moved(BEGIN, 0.5), lambda state: moved(state, 0.5))
    assert (found.verdict, found.difference, found.largest) == ("same to rounding", 0.0, 0.0)
    assert (found.begin, found.end, found.moved, found.nudges) == (3, 7, 0.5, NUDGES)
    assert found.is_telling


@pytest.mark.parametrize(("factor", "verdict"), [(5, "as far as rounding carries"), (1000, "differs")])
def test_a_difference_is_compared_with_the_effect_of_one_unit(factor, verdict):
    """The replay amplifies a change of its beginning a thousandfold."""

    def replay(state):
        return moved(BEGIN, 0.5 + 1000 * (state.params["w"] - BEGIN.params["w"]))

    unit = float(np.abs(replay(nudged(BEGIN, 0)).params["w"] - replay(BEGIN).params["w"]).max())
    found = piece(moved(BEGIN, 0.5 + factor * unit), replay)
    assert found.verdict == verdict
    assert found.nudges == NUDGES + MORE_NUDGES * (verdict == "differs")


def test_a_rare_effect_of_one_unit_is_looked_for_before_a_piece_differs():
    """One beginning in eight crosses a kink, as the run did."""

    def replay(state):
        calls.append(state)
        return moved(state, 0.5 + 0.01 * (len(calls) == 8))

    calls = []
    found = piece(moved(BEGIN, 0.51), replay)
    assert (found.verdict, found.nudges) == ("as far as rounding carries", 7)
    assert not found.is_telling


def test_model_state_that_differs_makes_the_verdict_worse():
    statistics = {"mean": jnp.array([1.0]), "least": jnp.array([jnp.inf]), "seen": jnp.array([3])}
    end = State({"w": BEGIN.params["w"]}, statistics)
    same = compare(end, end, (0, 1), lambda state: state)
    other = compare(end, end, (0, 1), lambda state: state._replace(model_state=statistics | {"mean": jnp.array([1.1])}))
    assert (same.verdict, other.verdict) == ("same to rounding", "differs")


def test_parameters_that_are_not_finite_differ():
    found = piece(moved(BEGIN, jnp.nan), lambda state: state)
    assert found.verdict == "differs"


def test_every_parameter_is_nudged_by_one_unit():
    for seed in range(3):
        found = np.asarray(nudged(BEGIN, seed).params["w"])
        np.testing.assert_array_equal(np.abs(found - [1.0, -2.0]) <= np.spacing(np.float32([1.0, 2.0])), True)
        assert (found != [1.0, -2.0]).all()


def test_copies_of_parameters_are_nudged_and_nothing_else():
    copies = {
        "position": jnp.array([[1.0, -2.0], [0.0, 3.0], [np.inf, np.nan]]),
        "count": jnp.int32(5),
        "rate": jnp.array(0.1),
    }
    found = nudged(BEGIN._replace(opt_state=copies, view=copies), 0)
    for tree in (found.opt_state, found.view):
        np.testing.assert_array_equal(
            tree["position"] != copies["position"], [[True, True], [False, True], [False, True]]
        )
        np.testing.assert_allclose(tree["position"], copies["position"], rtol=2e-7)
        assert (tree["count"], tree["rate"]) == (copies["count"], copies["rate"])


def test_a_method_that_goes_on_from_its_own_positions_alone_has_an_effect_of_one_unit():
    """Parameters of `lsgd` are what a run returns; its workers go on from their positions."""
    begin = BEGIN._replace(opt_state=BEGIN.params)
    replay = lambda state: state._replace(params={"w": 1000 * state.opt_state["w"]})
    found = compare(begin, moved(replay(begin), 2e-4), (0, 5), replay)
    assert found.effect > 0
    assert found.verdict == "as far as rounding carries"


def test_nothing_moves_in_a_piece_of_frozen_parameters():
    found = piece(BEGIN, lambda state: state)
    assert (found.relative(0.0), found.relative(1e-9)) == (0.0, float("inf"))
    assert judge(0.0, 0.0, 0.0) == "same to rounding"
    assert worst(["same to rounding", "differs", "as far as rounding carries"]) == "differs"
