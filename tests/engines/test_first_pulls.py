"""Workers that take part for the first time long after a run began: they begin at the central variable."""

import jax.numpy as jnp
import numpy as np
import optax

import gemjax
from gemjax import arrivals

JOINED = 300
EASGD, LOCAL = gemjax.easgd(num_workers=4), gemjax.LocalSteps(optax.sgd(0.1), 1)
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


def test_a_worker_that_joins_a_run_on_devices_begins_at_its_central_variable():
    """After 60 commits it alone takes part, so the next commit is its first. A replay makes the same."""
    members = gemjax.Members(4, absent=[3])

    def callback(progress):
        if progress.commits >= 60 and 3 in members.absent:
            members.join(3)
            for worker in range(3):
                members.leave(worker)

    result = gemjax.run_on_devices(
        EASGD, *PROBLEM, 64, local=LOCAL, members=members, callback=callback, callback_every=1
    )
    first = int(np.argmax(result.trace.worker == 3))
    assert first >= 60
    losses = result.history["loss"][result.history["applied"]]
    assert losses[first] < 0.1  # That at the initial parameters is 0.5.
    replayed = gemjax.simulate(EASGD, *PROBLEM, result.trace, local=LOCAL)
    np.testing.assert_allclose(replayed.params, result.params, rtol=1e-5)
