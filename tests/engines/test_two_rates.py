"""Warnings of a method's learning rate in addition to that of local steps, but not where both are intended."""

import warnings

import optax
import pytest
from engines.problems import quadratic

import gemjax
from gemjax.engines.checks import warn_of_two_rates

QUADRATIC = quadratic()
LOCAL = gemjax.LocalSteps(optax.sgd(0.1))
TRACE = gemjax.arrivals.RoundRobin(4).trace(4)


def simulated(tx):
    return gemjax.simulate(tx, *QUADRATIC[:3], TRACE, local=LOCAL)


def on_devices(tx):
    return gemjax.run_on_devices(tx, *QUADRATIC[:3], 4, local=LOCAL)


def swept(tx):
    return gemjax.sweep(lambda kappa: tx, *QUADRATIC[:3], TRACE, {"kappa": [1.0]}, local=LOCAL)


@pytest.mark.slow
@pytest.mark.parametrize("enter", [simulated, on_devices, swept])
def test_two_learning_rates_are_warned_of(enter):
    message = (
        r"the method multiplies the displacements of local steps, .* by learning_rate=0\.05; give learning_rate=1\.0"
    )
    with pytest.warns(gemjax.RunWarning, match=message) as seen:
        enter(gemjax.gem(0.05, num_workers=4))
    assert len(seen) == 1
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("tx", "rate"),
    [
        (gemjax.gem(0.05, num_workers=4), 0.05),
        (gemjax.eamsgd(0.05, num_workers=4), 0.05),
        (gemjax.dana_zero(0.1, num_workers=4), 0.1),
        (optax.chain(optax.clip(1.0), gemjax.rennala(0.5, num_workers=4)), 0.5),
        # Intended: an outer rate of 1, methods for displacements, optimizers that divide by the length, custom rules.
        (gemjax.asgd(1.0, num_workers=4), None),
        (gemjax.rennala(1.0, num_workers=4), None),
        (gemjax.asgd(optax.cosine_decay_schedule(1.0, 100), num_workers=4), None),
        (gemjax.asgd(optax.linear_schedule(0.0, 1.0, 100), num_workers=4), None),
        (gemjax.yellowfin(num_workers=4), None),
        (gemjax.gap_aware_adam(0.01, num_workers=4), None),
        (gemjax.diloco(0.7, num_workers=4), None),
        (gemjax.easgd(0.5, num_workers=4), None),
        (gemjax.asynchronous(optax.chain(gemjax.rules.scale_by_staleness(), optax.sgd(0.5)), 4), None),
        (gemjax.asynchronous(optax.inject_hyperparams(optax.sgd)(0.5), 4), None),
        (optax.sgd(0.5), None),
    ],
)
def test_which_methods_have_two_learning_rates(tx, rate):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of_two_rates(tx, QUADRATIC.params, LOCAL)
        warn_of_two_rates(tx, QUADRATIC.params, None)
    assert [f"learning_rate={rate:g};" in str(one.message) for one in seen] == ([] if rate is None else [True])
