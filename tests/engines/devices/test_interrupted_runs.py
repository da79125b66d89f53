"""Workers that are called back on devices: what they compute is dropped, local steps end early, and the law holds."""

import collections
import copy
import threading
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Behind, assert_close, distinct, every_method, problem_of, quadratic
from engines.test_law import WORKERS, assert_the_law, on_devices
from methods.rows import METHODS

import gemjax
from gemjax.engines.devices.hardware.programs.gradients import Stepwise

SLOW, OTHERS, LIMIT = 3, 4, 8  # The others make 12 commits while the slow worker computes.


def assert_interrupted(result, threshold=LIMIT):
    """Check that the slow worker was called back before each of its commits, and no old gradient was committed."""
    history = result.history
    slow = history["worker"] == SLOW
    assert slow.sum() >= 3
    assert (history["interrupted"][slow] >= 1).all()
    assert history["interrupted"].dtype == np.int64
    assert result.trace.staleness.max() < threshold
    assert int(result.state.dropped) == 0


@pytest.mark.slow
@every_method("gem", only=lambda row: distinct(row) and row.converges_stale and not row.refuses, each_kind=True)
def test_the_law_holds(make, x64):
    problem = problem_of(make)
    policy = gemjax.Policy(interrupt=LIMIT)
    result = on_devices(make, problem, policy=policy, gate=Behind(WORKERS, SLOW, by=OTHERS))
    assert_interrupted(result)
    assert_the_law(result, make, problem, rtol=1e-10, refused=True)


@pytest.mark.slow
@pytest.mark.parametrize("local", [None, pytest.param(gemjax.LocalSteps(optax.adam(0.02), (1, 2, 3, 2)), id="local")])
def test_ringmaster_then_refuses_nothing(local, x64, tmp_path):
    """The log is complete and in order, and its interruptions are those of the history."""
    make = lambda n: gemjax.ringmaster(1.0 if local else 0.05, n, threshold=LIMIT)
    make.local, problem = local, problem_of(next(row for row in METHODS if row.name == "asgd"))
    with gemjax.EventLog(tmp_path / "log") as log:
        policy = gemjax.Policy(interrupt=LIMIT)
        result = on_devices(make, problem, policy=policy, gate=Behind(WORKERS, SLOW, by=OTHERS), log=log)
    assert_interrupted(result)
    assert_the_law(result, make, problem, rtol=1e-10, refused=True)
    assert gemjax.eventlog.trace_of(tmp_path / "log", WORKERS) == result.trace
    events = list(gemjax.eventlog.read(tmp_path / "log"))
    kinds = collections.Counter(event["event"] for event in events)
    assert kinds["interrupt"] >= result.history["interrupted"].sum()  # Some at the end have no commit after them.
    assert gemjax.summarise(events).interrupted == kinds["interrupt"]
    summary = gemjax.summarise(result.history)
    assert summary.interrupted == result.history["interrupted"].sum()
    assert f"{summary.interrupted} computations were called back" in str(gemjax.verdict(summary))
    cycles = gemjax.timeline(events).only("interrupt")
    assert len(cycles["worker"]) == kinds["interrupt"]
    assert (cycles["time"] >= cycles["dispatch"]).all()


def test_groups_of_devices_that_workers_share_are_refused():
    """Two threads could start their collectives in different orders."""
    tx, local = gemjax.downpour(num_workers=4), gemjax.LocalSteps(optax.sgd(0.1), 2)
    placement = gemjax.place(4, worker_devices=4)
    with pytest.raises(ValueError, match="a group of devices of its own for each worker"):
        gemjax.run_on_devices(
            tx, *quadratic()[:3], 20, placement=placement, local=local, policy=gemjax.Policy(interrupt=9)
        )


@pytest.mark.slow
def test_local_steps_end_at_the_next_step(monkeypatch):
    """Worker 1 is held in its first step of five until it is called back; it makes no second one."""
    call, made, begun, entered = Stepwise.__call__, collections.Counter(), collections.Counter(), threading.Event()

    def held(self, interrupted, count, arguments):
        worker, run = int(arguments[4][0]), copy.copy(self)
        begun[worker] += 1
        attempt = begun[worker]

        def step(carry, j, *rest):
            made[worker, attempt] += 1
            if worker == 1 and attempt > 1:  # The first one is the warm-up.
                entered.set()
                assert interrupted.__self__.wait(60)
            return self._step(carry, j, *rest)

        run._step = types.SimpleNamespace(at=lambda *_: step)  # A program, which is compiled for its arguments.
        return call(run, interrupted, count, arguments)

    monkeypatch.setattr(Stepwise, "__call__", held)
    tx, problem, local = gemjax.downpour(num_workers=2), quadratic(), gemjax.LocalSteps(optax.sgd(0.02), 5)
    result = gemjax.run_on_devices(
        tx, *problem[:3], 8, placement=gemjax.place(2), policy=gemjax.Policy(interrupt=2), local=local,
        gate=lambda worker, step: entered.wait(60) and None,
    )  # fmt: skip
    assert made[1, 1] == made[0, 1] == 5
    assert made[1, 2] == 1
    assert all(made[1, attempt] <= 1 for attempt in range(3, begun[1] + 1))
    assert result.trace.worker.tolist() == [0] * 8
    replay = gemjax.simulate(tx, *problem[:3], result.trace, local=local)
    assert_close(result.params, replay.params, rtol=1e-5)


def test_an_interrupted_call_makes_no_gradient():
    ended = lambda *arguments: pytest.fail("the last program ran")
    stepwise = Stepwise(None, None, None, None, None)
    stepwise._begin, stepwise._end = lambda x: x, ended
    stepwise._step = types.SimpleNamespace(at=lambda *_: lambda carry, j, x: carry + 1 + 0 * j)
    answers = iter([False, False, False, True])
    assert stepwise(lambda: next(answers), 3, (jnp.zeros([]),)) is None
    stepwise._end = lambda carry, x, more: (float(carry), more)
    assert stepwise(lambda: False, 3, (jnp.zeros([]),), "more") == (3.0, "more")
