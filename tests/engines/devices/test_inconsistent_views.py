"""Runs on devices whose workers read their views block by block, each of which the simulator repeats from its trace."""

import collections

import jax
import numpy as np
import optax
import pytest
from engines.devices.roster_runs import ERROR, Run
from engines.problems import assert_close, distinct, every_method, mlp, poisoned, problem_of
from engines.test_law import COMMITS, WORKERS, assert_the_law, in_the_simulator, on_devices
from methods.rows import KINDS

import gemjax
from gemjax.engines.devices.hardware.waiters import Waiters
from gemjax.telemetry import eventlog
from gemjax.testing import Faults

GEM = lambda n: gemjax.gem(0.05, num_workers=n)


@pytest.fixture
def mixed(monkeypatch):
    """Let each round wait for a gradient if one is coming, so that commits come between the reads of a view."""
    take = Waiters.next
    coming = lambda self: any(self._watched) or not self._ready.empty()
    monkeypatch.setattr(
        Waiters, "next", lambda self, timeout: take(self, 60 if timeout == 0 and coming(self) else timeout)
    )


def run(make, problem, num_commits=COMMITS, **options):
    result = on_devices(make, problem, num_commits, **{"atomic": False} | options)
    assert len(result.trace) == num_commits
    return result


def assert_mixed(trace, num_blocks=4):
    assert trace.num_blocks == num_blocks
    assert (np.diff(trace.read_at) >= 0).all(), "blocks are read in order"
    assert (trace.read_at.max(axis=1) > trace.pulled_at).sum() >= len(trace) // 4


@every_method("gem", only=lambda row: distinct(row) and not row.refuses, each_kind=True, kinds=KINDS)
def test_the_same_trace_gives_the_same_parameters(make, x64, mixed):
    problem = problem_of(make)
    result = run(make, problem, num_commits=16)
    assert_mixed(result.trace)
    np.testing.assert_array_equal(result.history["staleness"], result.trace.staleness)
    assert_the_law(result, make, problem, rtol=1e-10, retired=True)  # Its last reads are before no commit.


@every_method(only=lambda row: row.name in ("gem", "downpour"))
def test_it_holds_when_workers_fail_and_gradients_are_not_finite(make, x64, mixed):
    clean, period = problem_of(make), make.local.period if make.local else 1
    with Faults().fail(0, 2).fail(3, 0, times=2).fail(3, 4, times=9) as faults:
        result = run(make, poisoned(clean, [(1, 3 * period), (2, 0), (2, 5 * period)]), gate=faults)
    assert (~result.history["applied"]).sum() == 3
    assert_mixed(result.trace)
    assert_the_law(result, make, clean, rtol=1e-10, retired=True)


@pytest.mark.slow
def test_it_holds_for_a_central_variable_on_several_devices(x64, mixed):
    problem = mlp(jax.numpy.float64)
    placement = gemjax.place(WORKERS, central_devices=2)
    result = run(GEM, problem, 30, num_blocks=3, placement=placement)
    assert_mixed(result.trace, 3)
    assert_the_law(result, GEM, problem, rtol=1e-10, retired=True)


@pytest.mark.slow
def test_a_run_goes_on_from_its_result_and_from_its_checkpoint(x64, mixed, tmp_path):
    problem = mlp(jax.numpy.float64)
    options = {"checkpoints": tmp_path / "run", "resume": True}
    with gemjax.EventLog(tmp_path / "log") as log:
        first = run(GEM, problem, 20, log=log, **options)
    found, trace, _ = gemjax.Checkpoints(tmp_path / "run").load(
        gemjax.initial_state(GEM(WORKERS), problem.params, model_state=problem.model_state, num_blocks=4)
    )
    assert trace == first.trace
    np.testing.assert_array_equal(found.read_at.value, first.state.read_at.value)
    with gemjax.EventLog(tmp_path / "log") as log:
        resumed = run(GEM, problem, 40, log=log, **options)
    assert eventlog.trace_of(tmp_path / "log", WORKERS) == resumed.trace
    assert len(gemjax.timeline(eventlog.read(tmp_path / "log")).only("commit")["worker"]) == 40
    for result in (run(GEM, problem, 40, state=first), resumed):
        assert result.trace.first(20) == first.trace
        assert_mixed(result.trace)
        assert_the_law(result, GEM, problem, rtol=1e-10, retired=True)
        both = in_the_simulator(GEM, problem, result.trace, state=first)
        assert_close(result.params, both.params, rtol=1e-10)


@pytest.mark.slow
def test_a_simulation_goes_on_on_devices(x64, mixed):
    """Rows of a rejected gradient are in the trace of the simulation alone."""
    problem = poisoned(mlp(jax.numpy.float64), [(1, 2)])
    trace = gemjax.arrivals.Sweep(gemjax.arrivals.Gamma(WORKERS), num_blocks=4).trace(20)
    first = in_the_simulator(GEM, problem, trace)
    result = run(GEM, problem, 40, state=first)
    assert_mixed(result.trace)
    assert_close(result.params, in_the_simulator(GEM, problem, result.trace).params, rtol=1e-10)
    whole = gemjax.Trace(result.trace.worker, result.trace.pulled_at, result.trace.step, draw=result.trace.draw)
    weights = lambda result: np.asarray(result.params["in"]["w"])
    assert np.abs(weights(in_the_simulator(GEM, problem, whole)) - weights(result)).max() > 1e-5


def test_a_simulation_of_a_run_on_devices_goes_on_on_devices(x64, mixed):
    """The rejected gradient of the first part has no row in the trace, that of the simulation has one."""
    clean = mlp(jax.numpy.float64)
    first = run(GEM, poisoned(clean, [(1, 2)]), 20)
    ahead = run(GEM, clean, 40, state=first).trace
    simulated = in_the_simulator(
        GEM, poisoned(clean, [(int(ahead.worker[30]), int(ahead.step[30]))]), ahead, state=first
    )
    assert (int(simulated.state.rejected), int(simulated.state.commits)) == (2, 39)
    result = run(GEM, clean, 50, state=simulated)
    assert_close(result.params, in_the_simulator(GEM, clean, result.trace).params, rtol=1e-10)


@pytest.mark.slow
def test_a_simulation_with_blocks_resumes_from_its_checkpoint(x64, tmp_path):
    problem = mlp(jax.numpy.float64)
    trace = gemjax.arrivals.Sweep(gemjax.arrivals.Gamma(WORKERS), num_blocks=4).trace(20)
    options = {"checkpoints": tmp_path, "resume": True}
    in_the_simulator(
        GEM, problem, trace, callback=lambda progress: progress.commits >= 10, callback_every=10, **options
    )
    resumed = in_the_simulator(GEM, problem, trace, **options)
    assert resumed.trace == trace
    assert_close(resumed.params, in_the_simulator(GEM, problem, trace).params, rtol=1e-12)


@pytest.mark.slow
def test_a_rule_sees_the_age_of_each_block(x64, mixed):
    """A rate per block that depends on the ages: the replay has the same ones, or its parameters would differ."""

    def damp():
        def update(updates, state, params=None, *, block_staleness, **extra_args):
            ages = gemjax.rules.spread_blocks(block_staleness, updates)
            return jax.tree.map(lambda update, age: update / (1 + age), updates, ages), state

        return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)

    problem, make = mlp(jax.numpy.float64), lambda n: gemjax.asynchronous(optax.chain(damp(), optax.sgd(0.05)), n)
    result = run(make, problem, 30)
    assert_mixed(result.trace)
    assert_close(result.params, in_the_simulator(make, problem, result.trace).params, rtol=1e-10)


@pytest.mark.slow
def test_views_of_a_barrier_are_consistent_and_the_simulator_goes_on_from_them(x64):
    problem, policy = mlp(jax.numpy.float64), gemjax.Policy(quorum=WORKERS)
    result = run(GEM, problem, 24, policy=policy)
    assert (result.trace.read_at == result.trace.pulled_at[:, None]).all()
    assert (np.sort(result.trace.staleness.reshape(-1, WORKERS)) == np.arange(WORKERS)).all()
    longer = run(GEM, problem, 32, policy=policy, state=result)
    both = in_the_simulator(GEM, problem, longer.trace, state=result)
    assert_close(longer.params, both.params, rtol=1e-10)


def blocks_of(run, rounds):
    """Return what a roster lets happen in some rounds without an event."""
    done = []
    for _ in range(rounds):
        run.roster.begin_round(run.now)
        done.append(run.go())
    return done


def test_one_block_is_read_per_round_and_gradients_that_have_finished_commit_first():
    run = Run(2, num_blocks=3)
    run.go()
    assert run.arrive(0) == [("commit", 0), ("read 1", 0)]
    assert run.roster.timeout(run.now) == 0.0
    run.roster.begin_round(run.now)
    assert run.arrive(1) == [("commit", 1), ("read 2", 0), ("dispatch", 0)]
    assert blocks_of(run, 3) == [[("read 1", 1)], [("read 2", 1), ("dispatch", 1)], []]
    assert run.roster.timeout(run.now) > 0


def test_workers_that_have_to_pull_again_take_turns():
    run = Run(2, num_blocks=3, max_staleness=0)
    for _ in range(300):
        run.roster.begin_round(run.now)
        run.go()
        for worker in list(run.computing):
            run.arrive(worker)
    counts = collections.Counter(worker for worker, _ in run.committed)
    assert sum(counts.values()) > 40
    assert counts[0] - counts[1] in (0, 1)


def test_a_worker_that_fails_or_leaves_while_it_reads_begins_with_a_pull():
    run = Run(3, num_blocks=3)
    run.go()
    run.arrive(0)
    assert run.leave(0) == [("leave", 0)]
    assert blocks_of(run, 2) == [[], []]
    assert run.join(0) == [("join", 0), ("pull", 0), ("read 1", 0)]
    run.roster.fault(0, ERROR)
    assert blocks_of(run, 3) == [
        [("fault", 0), ("pull", 0), ("read 1", 0)], [("read 2", 0), ("dispatch", 0)], []
    ]  # fmt: skip
