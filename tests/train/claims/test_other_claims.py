"""Claims on CIFAR-10 and text, judged on made-up results that bear them out and that do not."""

import math

import pytest
from test_claims import BY_NAME, measured

from train.claims.papers import dc_asgd_table, delayed_nesterov
from train.claims.results import Measured


def accuracies(claim, scale, reached, **changes):
    """Made-up results in which `reached(series, point)` is the test accuracy."""
    return measured(claim, scale, lambda series, n: 0.1, test_accuracy=reached, **changes)


def held(claim, found):
    return [statement.held for statement in claim.judge(found)]


def published(series, n):
    """DANA's table; where it has no number, methods other than DANA fail."""
    table = BY_NAME["dana_accuracy"].paper["test_accuracy"]
    known = table.get(series, table["DANA-DC"] if "DANA" in series else {})
    return known.get(n, 0.88 if "DANA" in series else 0.1)


@pytest.mark.parametrize("scale", ["cpu", "full"])
def test_danas_accuracy_is_reproduced_at_the_published_numbers_and_not_where_others_keep_up(scale):
    claim = BY_NAME["dana_accuracy"]

    def judged(reached):
        found = accuracies(claim, scale, reached)
        for run, record in found.records:
            if record["test_accuracy"]:
                record["test_accuracy"] += 0.002 * (run.config.seed - 1)
        return [statement.verdict for statement in claim.judge(found)]

    good, similar, differs = "reproduced", "reproduced in direction", "differs"
    assert judged(published) == [good, similar, similar]
    assert judged(lambda series, n: 0.9163) == [similar, differs, differs]
    assert judged(lambda series, n: 0.95 if series == "LWP" else published(series, n)) == [good, similar, differs]
    assert judged(lambda series, n: 0.85 if n > 1 and "DANA" in series else published(series, n))[0] == differs
    assert judged(lambda series, n: 0.8 if series == "Multi-ASGD" else published(series, n)) == [good, differs, similar]
    assert judged(lambda series, n: 0.15) == [differs] * 3
    assert judged(lambda series, n: published(series, n) if n == 1 else None) == [differs] * 3


def test_danas_accuracy_is_compared_to_the_scatter_over_seeds():
    claim = BY_NAME["dana_accuracy"]

    def judged(spread, lead):
        """NAG-ASGD is ahead of DANA-DC by `lead` with 4 workers; its seeds lie `spread` apart."""
        found = accuracies(
            claim, "cpu", lambda series, n: published(series, n) + lead * (series == "NAG-ASGD" and n == 4)
        )
        for run, record in found.records:
            if (run.series, run.point) == ("NAG-ASGD", 4):
                record["test_accuracy"] += spread * (run.config.seed - 1)
        return held(claim, found)[2]

    assert judged(0.02, 0.01)
    assert not judged(0.001, 0.01)


def test_one_seed_that_failed_counts_as_a_guess():
    claim = BY_NAME["dana_accuracy"]
    found = accuracies(claim, "cpu", published)
    for run, record in found.records:
        if (run.series, run.config.seed) == ("DANA-DC", 0):
            record["test_accuracy"] = None
    assert held(claim, found) == [False] * 3


def gaps(claim, scale, sizes, first=1.0):
    """Made-up results in which the gap is of a method's size between warm-up and the first fall of the rate alone."""

    def diagnostics(series, n):
        size = sizes.get(series, sizes["ASGD"])
        one = {"median": 7.0, "time": [0.02, 0.2, 0.5, 1.0], "curve": [first * size, size, size, 0.01 * size]}
        return {"gap": one, "normalised_gap": one}

    return measured(claim, scale, lambda series, n: 0.1, diagnostics=diagnostics)


def test_danas_gap_holds_where_look_ahead_is_like_no_momentum():
    claim = BY_NAME["dana_gap"]
    sizes = {"ASGD": 1.0, "NAG-ASGD": 10.0, "LWP": 8.0, "DANA-Slim": 1.1, "DANA-Zero": 1.2}
    assert all(held(claim, gaps(claim, "full", sizes)))
    assert all(held(claim, gaps(claim, "cpu", sizes)))
    wide = sizes | {"DANA-Zero": 9.0, "NAG-ASGD": 2.0}
    assert held(claim, gaps(claim, "cpu", wide)) == [False] * 3
    assert held(claim, gaps(claim, "full", dict.fromkeys(sizes, 1.0), first=100.0)) == [False, True, False]
    found = gaps(claim, "cpu", sizes)
    for run, record in found.records:
        if (run.series, run.config.seed) == ("NAG-ASGD", 2):
            record["diagnostics"]["gap"] = record["diagnostics"]["gap"] | {"curve": [1.0] * 4}
    assert held(claim, found) == [False, True, True]


def test_the_gaps_runs_are_those_of_danas_accuracy():
    gap, accuracy = BY_NAME["dana_gap"], BY_NAME["dana_accuracy"]
    for scale, more in {"cpu": set(), "small": {"DANA-Zero"}, "full": {"DANA-Zero"}}.items():
        keys = {run.key("1") for run in accuracy.runs[scale]}
        assert {run.series for run in gap.runs[scale] if run.point == 8 and run.key("1") not in keys} == more


def test_delay_compensation_holds_at_the_published_table():
    claim = BY_NAME["dc_asgd_table"]
    table = claim.paper["test_error"]
    found = accuracies(claim, "full", lambda series, n: 1 - table[series][n])
    assert all(held(claim, found))
    found = accuracies(claim, "full", lambda series, n: 0.9)
    assert held(claim, found) == [False] * 3
    found = accuracies(claim, "full", lambda series, n: 1 - table[series][n] - 0.02 * (n == 1))
    assert held(claim, found) == [False, False, True]
    found = accuracies(claim, "full", lambda series, n: 1 - table[series][n] + 0.02 * (n == 1))
    assert held(claim, found) == [True, False, False]


def test_the_compensation_that_a_seed_of_its_own_prefers_is_reported():
    claim = BY_NAME["dc_asgd_table"]
    found = accuracies(claim, "cpu", lambda series, n: 0.6 if series.endswith(f": {40 if n == 4 else 400}") else 0.5)
    tuned = {run.point: run.config.strength for run, _ in found.records if run.series == dc_asgd_table.TUNED}
    assert tuned == {4: 40.0, 8: 400.0}
    assert "λ = 40 / 400, tuned" in claim.judge(found)[1].measured


def led(claim, errors, sooner=("LSGD",)):
    """Made-up results at full scale: `errors(series, n)` at the end, which the methods in `sooner` have from the start."""

    def looks(series, n):
        error = errors(series, n)
        early = error if series.split(", ")[1] in sooner else 0.5
        return {"commits": [1, 2], "test_loss": [1.0, 1.0], "test_accuracy": [1 - early, 1 - error]}

    found = accuracies(claim, "full", lambda series, n: 1 - errors(series, n), evaluations=looks)
    for _, record in found.records:
        record["commits"] = 2
    return held(claim, found)


def test_leaders_are_ahead_at_the_published_numbers():
    claim = BY_NAME["lsgd_comparison"]
    table = claim.paper["test_error"]
    published = lambda series, n: table[series][n]
    assert led(claim, published) == [True] * 3
    assert led(claim, published, sooner=("LSGD", "EASGD")) == [True, False, True]
    assert led(claim, lambda series, n: 0.17 if series == "CNN7, EASGD" else published(series, n)) == [
        True,
        True,
        False,
    ]
    nearer = lambda series, n: 0.16 if (series, n) == ("CNN7, LSGD", 4) else published(series, n)
    assert led(claim, nearer) == [True, True, False]
    behind = lambda series, n: 0.12 if series == "ResNet-20, LSGD" else published(series, n)
    assert led(claim, behind) == [False] * 3
    assert led(claim, lambda series, n: 0.9) == [False] * 3


def test_leads_are_of_the_seeds_that_both_have():
    """Pairs of equal seeds in any order; one seed that fails is no lead."""
    runs = BY_NAME["delayed_nesterov"].runs["cpu"]
    of = lambda series: [run for run in runs if (run.series, run.point) == (series, 0.2)]
    one, other = of(delayed_nesterov.SYNC), of(delayed_nesterov.PLAIN)
    losses = {one[0]: 3.0, one[1]: 5.0, other[1]: 4.5, other[0]: 2.0}
    places = (one[0].series, 0.2), (other[0].series, 0.2)
    excess = lambda rows: Measured("cpu", [(run, {"test_loss": loss, "diagnostics": {}}) for run, loss in rows]).excess(
        "test_loss", *places
    )
    assert excess(losses.items()).values == (1.0, 0.5)
    assert excess(list(losses.items())[1:]).values == (0.5,)
    assert not excess((losses | {one[0]: math.inf, other[1]: 6.0}).items()).positive
    assert excess((losses | {one[0]: math.inf}).items()).positive


def test_a_lead_inside_the_scatter_over_seeds_decides_nothing():
    claim = BY_NAME["lsgd_comparison"]
    ends = {"LSGD": 0.60, "EASGD": 0.60, "DOWNPOUR": 0.58, "SGD": 0.5}

    def judged(lead):
        found = accuracies(claim, "cpu", lambda series, n: ends[series.split(", ")[1]])
        for run, record in found.records:
            if run.series == "pooled CNN, DOWNPOUR":
                record["test_accuracy"] = 0.60 - lead[run.config.seed]
        return claim.judge(found)[0]

    assert judged([0.02, 0.021, 0.022, 0.02, 0.02]).held
    unsure = judged([-0.02, 0.0, 0.02, 0.04, 0.06])
    assert unsure.verdict == "not decidable here"
    assert unsure.why == (
        "leads inside the scatter over seeds: 2.0 ± 3.9 points on pooled CNN, DOWNPOUR (4), "
        "2.0 ± 3.9 points on pooled CNN, DOWNPOUR (16)"
    )
    assert judged([-0.06, -0.04, -0.02, 0.0, 0.02]).verdict == "not decidable here"
    assert judged([-0.02, -0.021, -0.022, -0.02, -0.02]).verdict == "differs"


def test_leaders_are_reported_at_the_rate_that_the_tuning_seed_chose():
    claim = BY_NAME["lsgd_comparison"]
    best = {"SGD": 0.1, "LSGD": 0.3, "EASGD": 0.03, "DOWNPOUR": 0.01}

    def reached(series, n):
        method, *rate = series.split(", ")[1:]
        return 0.6 if rate == [f"η = {best[method]:g}"] else 0.5

    found = accuracies(claim, "cpu", reached)
    reported = [run for run, _ in found.records if run.config.seed not in claim.tuning]
    assert {(run.series.split(", ")[1], run.config.learning_rate) for run in reported} == set(best.items())
    assert len(reported) == 5 * 7


def outer(claim, losses, train=0.1, **changes):
    """Made-up results with these test losses at the rate 0.2, and larger ones at the others; changed ones for some series."""
    loss = lambda series, rate: (losses | changes)[series] + 0.1 * (rate != 0.2)
    time = lambda series, rate: 100.0 if series.startswith("sync") else 40.0
    return measured(claim, "cpu", lambda series, rate: train, test_loss=loss, time=time)


def test_delayed_nesterov_is_held_to_the_synchronous_run():
    claim = BY_NAME["delayed_nesterov"]
    sync, plain, nesterov, delayed, dynamic = delayed_nesterov.SERIES
    ratio = math.log(delayed_nesterov.PUBLISHED[dynamic]) / math.log(delayed_nesterov.PUBLISHED[sync])
    losses = {sync: 1.5, plain: 1.51, nesterov: 1.6, delayed: 1.52, dynamic: 1.5 * ratio}
    judged = lambda **changes: held(claim, outer(claim, losses, **changes))
    assert judged() == [True] * 3
    assert "0.999, of the paper's 0.999" in claim.judge(outer(claim, losses))[2].compared
    assert judged(**{nesterov: 1.45}) == [False, False, True]
    assert judged(**{dynamic: 1.53}) == [True, True, False]
    assert judged(**{delayed: 1.7}) == [True, False, True]
    assert judged(**{sync: math.inf}) == [False, True, False]
    assert held(claim, outer(claim, losses, train=3.0)) == [False] * 3  # Nothing has been learned.
    assert judged(**{nesterov: math.inf}) == [True] * 3


def test_each_series_has_every_outer_rate_and_is_judged_at_its_best():
    claim = BY_NAME["delayed_nesterov"]
    found = outer(claim, dict.fromkeys(delayed_nesterov.SERIES, 1.5))
    assert {run.point == run.config.outer_learning_rate for run, _ in found.records} == {True}
    assert {run.pretraining for run, _ in found.records} == {2.0}
    assert len(found.records) == (3 * 2 + 2) * len(delayed_nesterov.SERIES)
    assert {run.point for run, _ in found.records if run.config.seed in delayed_nesterov.MORE_SEEDS} == {0.2}
    seeds = [run.config.seed for run, _ in found.records]
    assert seeds == sorted(seeds)
    assert all("(rate 0.2)" in statement.measured for statement in claim.judge(found))
