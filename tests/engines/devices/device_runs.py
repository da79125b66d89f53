"""Runs on devices, their replays and their events, which the tests of the device engine share."""

import numpy as np
from engines.problems import quadratic

import gemjax
from gemjax.telemetry import eventlog

QUADRATIC = quadratic()
GEM = gemjax.gem(0.05, num_workers=4)
ASGD = gemjax.asgd(0.05, num_workers=4)


def run(problem=QUADRATIC, tx=GEM, num_commits=40, **options):
    options = {"num_workers": None if "placement" in options else 4, "model_state": problem.model_state} | options
    return gemjax.run_on_devices(tx, problem.loss_fn, problem.params, problem.batches, num_commits, **options)


def replay(result, problem=QUADRATIC, tx=GEM, **options):
    options = {"model_state": problem.model_state} | options
    return gemjax.simulate(tx, problem.loss_fn, problem.params, problem.batches, result.trace, **options)


def assert_consistent(result, num_commits, num_workers=4):
    """Check that the history and the trace agree (a Trace checks itself)."""
    history, applied = result.history, result.history["applied"]
    assert len(result.trace) == num_commits == applied.sum()
    assert result.trace.num_workers == num_workers
    for name in ("worker", "pulled_at", "step", "time", "staleness"):
        np.testing.assert_array_equal(history[name][applied], getattr(result.trace, name), err_msg=name)
    assert (history["dispatched"] <= history["began"]).all()
    assert (history["began"] <= history["ready"]).all()
    assert (history["ready"] <= history["time"] + 1e-6).all()
    assert history["dispatched"].min() >= 0
    assert int(result.state.arrivals) >= len(applied)
    assert int(result.state.rejected) == (~applied).sum()


def events(path, *names):
    return [event for event in eventlog.read(path) if event["event"] in names]
