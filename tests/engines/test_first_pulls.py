"""Workers that take part for the first time long after a run began: they begin at the central variable."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import arrivals

JOINED = 300
EASGD, LOCAL = gemjax.easgd(num_workers=4), gemjax.LocalSteps(optax.sgd(0.1), 1)
# Optimizers whose state begins with copies of the parameters.
COPYING = {
    "schedule-free": optax.contrib.schedule_free_sgd(0.1),
    "prodigy": optax.contrib.prodigy(1.0, estim_lr0=0.1),
}
PROBLEM = lambda params, batch: 0.5 * jnp.sum((params - 1.0) ** 2), jnp.zeros(1), lambda worker, step: 0.0


def test_its_first_commit_does_not_pull_the_central_variable_back():
    model = arrivals.Incidents(arrivals.RoundRobin(4), [arrivals.Joins(worker=3, at=JOINED / 3)])
    trace = model.trace(JOINED + 8)
    first = int(np.argmax(trace.worker == 3))
    assert JOINED - 3 <= trace.pulled_at[first] <= first <= JOINED + 4
    found = []
    gemjax.simulate(
        EASGD, *PROBLEM, trace, local=LOCAL, stops=[first, first + 1], callback_every=JOINED,
        callback=lambda progress: found.append((progress.commits, float(progress.params[0]))),
    )  # fmt: skip
    central = dict(found)
    assert central[first] > 0.999
    assert central[first + 1] > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("tx", [optax.sgd(0.1), COPYING["schedule-free"]], ids=["sgd", "schedule-free"])
def test_a_worker_that_joins_a_run_on_devices_begins_at_its_central_variable(tx):
    """After 60 commits it alone takes part, so the next commit is its first. A replay makes the same."""
    local = gemjax.LocalSteps(tx, 2)
    members = gemjax.Members(4, absent=[3])

    def callback(progress):
        if progress.commits >= 60 and 3 in members.absent:
            members.join(3)
            for worker in range(3):
                members.leave(worker)

    result = gemjax.run_on_devices(
        EASGD, *PROBLEM, 64, local=local, members=members, callback=callback, callback_every=1
    )
    first = int(np.argmax(result.trace.worker == 3))
    assert first >= 60
    losses = result.history["loss"][result.history["applied"]]
    assert losses[first] < 0.1  # That at the initial parameters is 0.5.
    replayed = gemjax.simulate(EASGD, *PROBLEM, result.trace, local=local)
    np.testing.assert_allclose(replayed.params, result.params, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tx", COPYING.values(), ids=COPYING)
def test_its_local_optimizer_begins_at_its_view(tx):
    """Its first commit is that of a run that begins at the central variable of its pull."""
    trace = gemjax.Trace([0, 1, 0, 1, 0, 2], [0, 0, 1, 2, 3, 5], num_workers=3)
    given = PROBLEM[0], jnp.full(1, 5.0), PROBLEM[2]
    options = {"local": gemjax.LocalSteps(tx, 4)}
    method = gemjax.downpour(0.3, num_workers=3)
    before = gemjax.simulate(method, *given, trace.first(5), **options)
    result = gemjax.simulate(method, *given, trace, **options)
    first = gemjax.Trace([2], [0], num_workers=3)
    alone = gemjax.simulate(method, given[0], before.params, given[2], first, **options)
    np.testing.assert_allclose(result.params, alone.params, rtol=1e-6)
    np.testing.assert_allclose(gemjax.testing.run_in_python(method, *given, trace, **options), result.params, rtol=1e-6)
