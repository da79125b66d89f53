"""The diagnostic ``learning_rate``: the applied rate of every method, at no cost without a request."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.rows import KINDS, METHODS, Row

import gemjax
from gemjax import arrivals, testing
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.diagnostics import Observer

N = 3
OWN_RATE = (
    "adam-matched-energy",
    "adam-per-worker",
    "ringmaster-muon",
)  # The rate is inside an optimizer of optax, which does not report it.


def schedule(count):
    """Return a rate that differs from count to count."""
    return 0.5 / (1.0 + count)


def rates(tx, commits):
    """Return the learning rate and the clock of some commits of worker 0, 1, 2, 0, … without a pull between them."""
    params, found = {"x": jnp.array([1.0, -2.0])}, []

    @jax.jit
    def commit(state, worker):
        observer = Observer(["learning_rate"])
        _, new = tx.update(params, state, params, worker=worker, observe=observer)
        return new, observer.collected()["learning_rate"]

    state = tx.init(params)
    for index in range(commits):
        clock = optax.tree.get(state, "clock")
        state, rate = commit(state, index % N)
        found.append((int(clock), float(rate)))
    return found


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=pytest.mark.nightly if row.variant and row.name not in KINDS else ())
        for row in METHODS
        if row.name not in OWN_RATE
    ],
)
def test_every_method_reports_the_rate_that_it_applied(row):
    found = rates(row(N, schedule), 5)
    expected = [schedule(clock) * row.factor(clock, N) for clock, _ in found]
    if row.name == "yellowfin":  # Its factor is tuned; see below.
        expected = [rate for _, rate in found]
        assert len(set(expected)) == len(expected)
    why = f"the factor of Row({row.name!r}) in tests/methods/rows.py is not what the method multiplies its rate by"
    np.testing.assert_allclose([rate for _, rate in found], expected, rtol=1e-6, err_msg=why)
    constant = rates(row(N, 0.25), 1)[0][1]
    np.testing.assert_allclose(constant, expected[0] / 2, rtol=1e-6)


def test_yellowfin_reports_the_rate_that_it_found():
    tx, gradient = gemjax.yellowfin(0.5), jnp.array([1.0, -2.0])

    @jax.jit
    def first(state):
        observer = Observer(["learning_rate"])
        updates, _ = tx.update(gradient, state, gradient, observe=observer)
        return updates, observer.collected()["learning_rate"]

    updates, rate = first(tx.init(gradient))
    np.testing.assert_allclose(updates, -rate * gradient, rtol=1e-6)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in METHODS if row.name in OWN_RATE])
def test_optimizers_of_optax_report_no_rate(row):
    with pytest.raises(ValueError, match="no member of this method reports learning_rate; it offers"):
        rates(row(N), 1)


@pytest.mark.parametrize(
    ("tx", "expected"),
    [
        (optax.inject_hyperparams(optax.adam)(schedule), [0.5, 0.25, 0.5 / 3]),
        (optax.inject_hyperparams(optax.adam)(gemjax.rules.StalenessSchedule(schedule)), [0.5, 0.25, 0.25 / 3]),
        (gemjax.per_worker(optax.inject_hyperparams(optax.adam)(schedule)), [0.5, 0.5, 0.5]),
        (optax.chain(optax.inject_hyperparams(optax.sgd)(0.5), gemjax.rules.scale_by_staleness()), [0.5, 0.5, 0.25]),
    ],
    ids=["schedule", "staleness", "per-worker", "scaled-behind"],
)
def test_injected_rates_are_reported(tx, expected):
    found = [rate for _, rate in rates(gemjax.asynchronous(tx, N), 3)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.1, schedule], ids=["constant", "schedule"])
def test_the_state_and_the_program_are_those_of_optax(rate):
    """Checkpoints therefore stay readable, and the diagnostic costs nothing unless requested."""
    tx, plain, params = scale_by_learning_rate(rate), optax.scale_by_learning_rate(rate), jnp.ones(3)
    state = tx.init(params)
    assert jax.tree.structure(state) == jax.tree.structure(plain.init(params))
    unrequested = jax.make_jaxpr(lambda g, s: tx.update(g, s, observe=Observer(["gap"])))(params, state)
    assert str(unrequested) == str(jax.make_jaxpr(plain.update)(params, state))


def test_an_engine_reports_it():
    loss_fn, params, batches = testing.quadratic()
    trace = arrivals.RoundRobin(N).trace(12)
    row = Row("staleness-aware", gemjax.staleness_aware, 0.1)
    result = gemjax.simulate(row(N, schedule), loss_fn, params, batches, trace, diagnostics="learning_rate")
    expected = schedule(np.arange(12)) / np.maximum(1, result.history["staleness"])
    np.testing.assert_allclose(result.history["learning_rate"], expected, rtol=1e-6)
