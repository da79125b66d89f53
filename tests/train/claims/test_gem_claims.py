"""Claims of GEM's paper: judged at the published numbers, and each statement where it does not hold."""

import json

import numpy as np
import pytest
from test_claims import BY_NAME, measured

from train.claims.papers import gem_figure_4
from train.claims.papers.gem_setting import CURVES, curve

SAME, DIRECTION, DIFFERS, OPEN = "reproduced", "reproduced in direction", "differs", "not decidable here"


def scattered(found, by=0.05):
    """Return the results with training losses that lie `by` apart from seed to seed."""
    for run, one in found.records:
        if one["train_loss"] is not None:
            one["train_loss"] *= 1 + by * (run.config.seed - 1)
    return found


def apart(found, kind, what, by=0.15):
    """Return the results with curves whose second halves lie `by` apart from seed to seed."""
    for run, one in found.records:
        values = np.array(one[kind][what])
        values[len(values) // 2 :] *= (1 + by) ** (run.config.seed - 1)
        one[kind] = one[kind] | {what: values.tolist()}
    return found


def verdicts(claim, found):
    return [statement.verdict for statement in claim.judge(found)]


def changed(paper, series=None, factor=1.0):
    """Return the published losses as a function, those of `series` changed by a factor or a function of their point."""
    by = factor if callable(factor) else lambda point: factor
    return lambda name, point: paper[name][point] * (by(point) if name == series else 1.0)


@pytest.mark.parametrize(
    ("series", "factor", "place", "expected"),
    [
        (None, 1.0, 0, SAME), (None, 1.0, 1, SAME), (None, 1.0, 2, SAME),
        ("GEM", 1.5, 0, DIRECTION), ("GEM", lambda n: n / 10, 0, DIFFERS),
        ("DOWNPOUR", 3.0, 1, DIRECTION), ("DOWNPOUR", lambda n: 1.0 if n == 10 else 2.0 / n, 1, DIFFERS),
        ("adaptive staleness", 0.4, 2, DIRECTION), ("adaptive staleness", lambda n: n / 10, 2, DIFFERS),
    ],
)  # fmt: skip
def test_figure_1(series, factor, place, expected):
    claim = BY_NAME["gem_figure_1"]
    found = measured(claim, "full", changed(claim.paper["train_loss"], series, factor))
    assert verdicts(claim, scattered(found))[place] == expected


def test_downpour_has_two_published_losses():
    claim = BY_NAME["gem_figure_1"]
    paper = claim.paper["train_loss"]
    of_1b = {10: 0.101}
    found = measured(claim, "full", lambda s, n: of_1b.get(n, paper[s][n]) if s == "DOWNPOUR" else paper[s][n])
    statement = claim.judge(scattered(found))[1]
    assert statement.verdict == SAME
    assert statement.paper == "0.0844 / 0.131 in 1d; 0.0838 / 0.101 in 1b"


def test_figure_1_on_digits_is_judged_by_directions():
    claim = BY_NAME["gem_figure_1"]
    losses = {"GEM": lambda n: 0.4 / n, "DOWNPOUR": lambda n: 0.1 * n**2, "adaptive staleness": lambda n: 0.5}
    assert verdicts(claim, measured(claim, "small", lambda s, n: losses[s](n))) == [DIRECTION] * 3
    losses["GEM"] = lambda n: 1.0
    assert verdicts(claim, measured(claim, "small", lambda s, n: losses[s](n))) == [DIFFERS, DIFFERS, DIFFERS]


def test_figure_2_needs_three_seeds():
    claim = BY_NAME["gem_figure_2"]

    def judged(reached, apart, loss=0.02, keep=(0, 1, 2)):
        found = measured(claim, "full", lambda s, n: loss)
        for run, one in found.records:
            one["test_accuracy"] = reached + apart * (run.config.seed - 1)
        return verdicts(claim, found.where(lambda run: run.config.seed in keep))

    assert judged(0.9935, 0.0005) == [DIRECTION, SAME]
    assert judged(0.9890, 0.0005) == [DIRECTION, DIFFERS]
    assert judged(0.9890, 0.0020) == [DIRECTION, SAME]
    assert judged(0.9935, 0.0005, keep=(0,)) == [DIRECTION, OPEN]
    assert judged(0.9935, 0.0005, loss=0.07) == [DIFFERS, SAME]


def test_figure_3_is_the_mean_over_workers_in_the_papers_window():
    claim = BY_NAME["gem_figure_3"]
    paper = claim.paper["pi_median"]["CV 0.1"]

    def judged(values, early=7.0):
        found = measured(claim, "full", lambda s, n: 0.1)
        for run, one in found.records:
            value = values(run.series, run.point) * (1 + 0.05 * (run.config.seed - 1))
            steps = np.arange(1, 41) * one["commits"] / run.point / 40
            means = np.where((steps < 120) | (steps > 400), early, value).tolist()
            one["diagnostics"] = {
                "pi_median": {"median": 9.0, "mean": 9.0, "time": [], "curve": [], "mean_curve": means}
            }
        return verdicts(claim, found)

    assert judged(lambda s, n: paper[n]) == [SAME, SAME]
    assert judged(lambda s, n: paper[n] * (0.3 if s == "CV 0.1" else 1)) == [DIRECTION, SAME]
    assert judged(lambda s, n: n / 10) == [DIFFERS, DIFFERS]


def figure_4(times=1.0, order=(1, 2, 4, 8, 16), loss=1.0):
    """Return results whose losses over time are the published ones, of the workers in `order`."""
    claim = BY_NAME["gem_figure_4"]
    names = dict(zip((1, 2, 4, 8, 16), order, strict=True))

    def along(series, n):
        seconds, losses = curve("4", names[n])
        if n > 1:
            losses = loss * losses
        return {
            "commits": [*range(1, 1 + len(losses))],
            "time": (4 * n * seconds).tolist(),
            "train_loss": losses.tolist(),
        }

    found = measured(claim, "full", lambda s, n: 0.1, curve=along, time=lambda s, n: 60.0 if n == 1 else 60.0 * times)
    return claim, apart(found, "curve", "train_loss")


def test_figure_4_compares_losses_at_equal_time():
    assert verdicts(*figure_4()) == [SAME, SAME]
    assert verdicts(*figure_4(loss=0.3)) == [DIRECTION, SAME]
    assert verdicts(*figure_4(order=(1, 16, 8, 4, 2))) == [DIFFERS, SAME]
    assert verdicts(*figure_4(times=1.3)) == [SAME, DIFFERS]
    assert gem_figure_4.unit(figure_4()[1]) == pytest.approx(0.25, rel=0.02)


def test_figure_5_ends_where_the_papers_does():
    claim = BY_NAME["gem_figure_5"]
    sgd = "momentum SGD, sequential"
    losses = {"GEM": np.linspace(0.085, 0.0259, 30), sgd: np.interp(range(30), (0, 13, 29), (0.085, 0.0523, 0.091))}

    def judged():
        looks = lambda s, p: {
            "commits": [937 * (k + 1) for k in range(len(losses[s]))],
            "test_loss": losses[s].tolist(),
            "test_accuracy": losses[s].tolist(),
        }
        return verdicts(
            claim, apart(measured(claim, "full", lambda s, p: 0.1, evaluations=looks), "evaluations", "test_loss")
        )

    assert judged() == [SAME, SAME, SAME]
    losses[sgd] = 3 * losses[sgd]
    assert judged() == [SAME, DIRECTION, SAME]
    losses[sgd] = np.concatenate([losses[sgd][:-3], [2.3] * 3])  # It fails at the end.
    assert judged() == [SAME, DIRECTION, DIRECTION]
    losses[sgd] = np.linspace(0.085, 0.02, 30)
    assert judged()[1:] == [DIFFERS, DIFFERS]
    losses["GEM"] = losses["GEM"][:12]  # As if it had failed.
    assert judged() == [DIFFERS, DIFFERS, DIFFERS]


@pytest.mark.parametrize(
    ("series", "factor", "place", "expected"),
    [
        (None, 1.0, 0, SAME), (None, 1.0, 1, SAME), (None, 1.0, 2, DIRECTION),
        ("GEM", 1.5, 0, DIRECTION), ("GEM", 20.0, 0, DIFFERS),
        ("momentum SGD, sequential", 2.0, 1, DIRECTION), ("momentum SGD, sequential", 0.1, 1, DIFFERS),
        ("DOWNPOUR", lambda n: 0.01 if n == 20 else 1.0, 2, DIFFERS),
    ],
)  # fmt: skip
def test_figure_6(series, factor, place, expected):
    claim = BY_NAME["gem_figure_6"]
    paper = {name: {10: 3.0, **points} for name, points in claim.paper["train_loss"].items()}
    paper["GEM"] = claim.paper["train_loss"]["GEM"]
    assert verdicts(claim, scattered(measured(claim, "full", changed(paper, series, factor))))[place] == expected


def test_figure_8_has_its_optimum_between_the_ends():
    claim = BY_NAME["gem_figure_8"]
    paper = claim.paper["train_loss"]["5 workers"]

    def judged(losses):
        return verdicts(claim, scattered(measured(claim, "full", lambda s, kappa: losses[kappa])))

    assert judged(paper) == [SAME]
    assert judged(paper | {4.0: 0.2}) == [DIRECTION]
    assert judged(paper | {1.0: 0.03}) == [DIFFERS]
    assert judged(paper | {4.0: 0.06}) == [DIFFERS]

    # A gain that is smaller than its scatter over seeds is none.
    found = measured(claim, "full", lambda s, kappa: (paper | {4.0: 0.2})[kappa])
    for run, one in found.records:
        if run.point == 2.0:
            one["train_loss"] *= 1 + 0.3 * (run.config.seed - 1)
    assert verdicts(claim, found) == [DIFFERS]


def test_investigations_state_the_papers_curve_and_ours():
    claim = BY_NAME["gem_adaptive_staleness"]
    rates = {"η = 0.05": 0.05, "η = 0.025": 0.025, "η = 0.01": 0.01, "η = 0.01, over τ": 0.01}

    def along(series, n):
        steps = np.arange(1, 187) * 5.0
        losses = np.where(steps < 4.6 / rates[series], 2.0, 0.4)  # 460 commits at a rate of 0.01.
        return {"commits": (n * steps).tolist(), "time": steps.tolist(), "train_loss": losses.tolist()}

    commits, rate, _ = claim.judge(measured(claim, "full", lambda s, n: 0.4, curve=along))
    assert commits.paper == "322 / 390 / 482"
    assert rate.measured == "0.014 / 0.012 / 0.01"


def test_the_published_curves_name_their_source():
    text = json.loads(CURVES.read_text())
    assert "arXiv:1805.08469" in text["citation"]
    assert all(len(one["x"]) == len(one["y"]) for curves in text["curves"].values() for one in curves.values())
