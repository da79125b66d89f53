"""Short descriptions of results, data and traces."""

import types

import jax.numpy as jnp
import numpy as np

import gemjax
from gemjax import arrivals, testing
from gemjax.engines.result import of_applied

LOSS, PARAMS, BATCHES = testing.quadratic()


def test_a_run_is_described_in_a_line():
    seen = []
    batches = lambda worker, step: jnp.where((worker == 1) & (step == 2), jnp.nan, jnp.asarray(BATCHES(worker, step)))
    result = gemjax.simulate(
        gemjax.asgd(0.1, 4),
        LOSS,
        PARAMS,
        batches,
        arrivals.RoundRobin(4).trace(1200),
        callback=lambda p: seen.append(repr(p)),
        callback_every=600,
    )
    loss = result.history["loss"][-100:].mean()
    assert (
        repr(result)
        == f"Result(1,199 commits of 4 workers, loss {loss:.4g}, staleness median 3, 1 rejected, 0 dropped)"
    )
    assert seen[0] == "Progress(600 of 1,200 commits, 1 rejected, 0 dropped, 600 new rows of history)"
    begun = gemjax.simulate(gemjax.asgd(0.1, 1), LOSS, PARAMS, BATCHES, gemjax.Trace([], num_workers=1))
    assert repr(begun) == "Result(0 commits of 1 worker, 0 rejected, 0 dropped)"


def test_a_sweep_is_described_in_a_line():
    swept = gemjax.sweep(
        lambda rate: gemjax.asgd(rate, 2), LOSS, PARAMS, BATCHES, arrivals.RoundRobin(2).trace(6), {"rate": [0.1, 0.2]}
    )
    assert repr(swept) == "SweepResult(2 runs of 6 commits over rate, seed)"


def test_the_trace_of_applied_commits_is_found_though_some_rejected_ones_have_no_row():
    """Rejected rows of a run on devices are missing in its trace, but not those of the simulation that continues it."""
    rows = gemjax.Trace([0, 1, 0, 1])
    history = {name: getattr(rows, name) for name in ("worker", "pulled_at", "step", "time", "draw")}
    at = np.array([0, 0, 1, 2, 3])  # The second row was rejected on devices, the last one in the simulation.
    history = {name: column[at] for name, column in history.items()} | {"applied": np.array([1, 0, 1, 1, 0], bool)}
    assert of_applied(types.SimpleNamespace(commits=3), rows, history) == rows.first(3)
    assert of_applied(types.SimpleNamespace(commits=4), rows, history) is rows
