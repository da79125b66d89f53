"""Simulations that stop and continue: no bit differs from the run that did not stop."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import assert_close, assert_same_bits, poisoned
from engines.simulator.simulations import LATE, MLP, QUADRATIC, asgd, gem, multi_asgd, run

import gemjax


def stop_after(arrivals):
    left = [arrivals]

    def callback(progress):
        left[0] -= 1
        return left[0] == 0

    return callback


@pytest.mark.slow
@pytest.mark.parametrize("make", [gem, pytest.param(multi_asgd, marks=pytest.mark.nightly)])
def test_a_run_continued_at_any_commit_is_the_run_that_did_not_stop(make):
    """After a rejection, too."""
    at = [(int(LATE.worker[5]), int(LATE.step[5]))]
    problem = poisoned(MLP, at)
    whole = run(problem, make, LATE, callback_every=1)
    assert int(whole.state.rejected) == 1
    for cut in range(1, len(LATE)):
        first = run(problem, make, LATE, callback_every=1, callback=stop_after(cut))
        assert first.stopped
        assert len(first.trace) == cut
        second = run(problem, make, LATE, callback_every=1, state=first.state)
        assert_same_bits(second.state, whole.state)
        joined = {name: np.concatenate([first.history[name], second.history[name]]) for name in whole.history}
        assert_same_bits(joined, whole.history)
        resumed = run(problem, make, LATE, callback_every=1, state=first)
        assert_same_bits(resumed.state, whole.state)
        assert_same_bits(resumed.history, whole.history)


def test_a_result_of_another_trace_is_not_continued():
    first = run(QUADRATIC, gem, LATE, callback_every=4, callback=stop_after(1))
    other = gemjax.arrivals.RoundRobin(LATE.num_workers).trace(len(LATE))
    with pytest.raises(ValueError, match=r"Result of another trace: its \d+ commits are not the first rows of trace="):
        run(QUADRATIC, gem, other, state=first)


def test_a_pull_alone_uses_up_no_step():
    """Between a late pull and its commit the state has the step that the worker computes."""
    events = LATE.events()
    pulls = np.flatnonzero(~events.commits)
    assert len(pulls)
    for arrival in pulls.tolist():
        state = run(QUADRATIC, gem, LATE, callback_every=1, callback=stop_after(arrival + 1)).state
        assert int(state.step[int(events.worker[arrival])]) == events.step[arrival]


def test_the_given_state_is_not_donated():
    first = run(QUADRATIC, gem, LATE, callback_every=1, callback=stop_after(3))
    again = [run(QUADRATIC, gem, LATE, state=first.state) for _ in range(2)]
    assert_same_bits(again[0].state, again[1].state)


def test_a_finished_run_continues_with_nothing():
    whole = run(QUADRATIC, gem, LATE)
    again = run(QUADRATIC, gem, LATE, state=whole.state)
    assert_same_bits(again.state, whole.state)
    assert again.history == {}
    assert_same_bits(run(QUADRATIC, gem, LATE, state=whole).history, whole.history)


@pytest.mark.parametrize("make", [asgd, multi_asgd])
def test_a_state_of_another_run_is_refused(make):
    """With too few slots compiled code would not raise: it clamps an index out of range."""
    state = run(QUADRATIC, make, gemjax.arrivals.RoundRobin(2).trace(2)).state
    with pytest.raises(ValueError, match="state"):
        run(QUADRATIC, make, gemjax.arrivals.RoundRobin(4).trace(8), state=state)
    with pytest.raises(ValueError, match="state"):
        run(QUADRATIC, gem, gemjax.arrivals.RoundRobin(2).trace(8), state=state)


def test_a_bare_state_whose_workers_have_other_views_is_refused():
    """Each worker has as many commits in both traces, so all are at the same steps."""
    trace = gemjax.Trace(worker=[0, 1, 2, 0, 1, 2, 0, 1, 2], num_workers=3)
    other = gemjax.Trace(worker=[0, 1, 2, 0, 2, 1, 0, 1, 2], num_workers=3)
    problem = QUADRATIC
    first = run(problem, asgd, trace, stops=[6], callback=lambda progress: progress.commits == 6)
    run(problem, asgd, trace, state=first.state)
    with pytest.raises(ValueError, match="is not the state after 6 arrivals of trace=: the trace is another one"):
        run(problem, asgd, other, state=first.state)


@pytest.mark.slow
def test_a_resumed_run_whose_worker_pulled_several_times_in_one_cycle_is_continued():
    """A trace knows the last of these pulls only, and the first event of the resumed run is a pull, too."""
    problem, tx = gemjax.testing.quadratic(), gemjax.gem(0.02, num_workers=2)
    policy = gemjax.Policy(retries=8)
    with gemjax.testing.Faults().slow(0, 0.002).slow(1, 0.01).fail(1, 1, times=2) as faults:
        first = gemjax.run_on_devices(tx, *problem, 30, policy=policy, gate=faults)
    again = gemjax.testing.Faults()
    for worker, step in enumerate(np.asarray(first.state.step.value)):
        again.fail(worker, int(step))
    with again as faults:
        both = gemjax.run_on_devices(tx, *problem, 40, policy=policy, gate=faults, state=first)
    continued = gemjax.simulate(tx, *problem, both.trace, state=first)
    assert_close(continued.params, both.params, rtol=1e-5)


def test_an_injected_number_is_a_part_of_the_state():
    """It is set there; the one that the transformation is made with counts for a new run alone."""
    sgd, trace = optax.inject_hyperparams(optax.sgd), gemjax.Trace(worker=np.zeros(20, int))
    problem = lambda params, batch: jnp.sum(params), jnp.zeros(1), lambda worker, step: 0.0
    first = gemjax.simulate(sgd(1.0), *problem, trace, callback_every=10, callback=stop_after(1))
    continued = lambda state: float(gemjax.simulate(sgd(0.1), *problem, trace, state=state).params[0])
    assert continued(first.state) == -20.0
    slower = optax.tree.set(first.opt_state, learning_rate=jnp.float32(0.1))
    np.testing.assert_allclose(continued(first.state._replace(opt_state=slower)), -11.0, rtol=1e-6)
