"""Workers of a cluster that are called back: their local steps end early, and nothing of them is sent."""

import collections
import copy
import sys
import threading
import time
import types

import jax
import optax
import pytest
from engines.cluster.faults import WorkerFaults
from engines.devices.test_interrupted_runs import LIMIT, OTHERS, SLOW, assert_interrupted
from engines.problems import Behind, assert_close, fading, mlp, problem_of, quadratic
from engines.test_law import SEED, WORKERS, assert_the_law
from methods.rows import METHODS

import gemjax
from gemjax.engines.cluster.actor import Actor
from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.devices.hardware.programs.gradients import Stepwise

ROWS = {row.name: row for row in METHODS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
)
def test_local_steps_end_at_the_next_step(fake, monkeypatch, rounds):
    """Worker 1 is held in its first step of five until it is called back; it makes no second one and sends no gradient."""
    call, made, begun, entered = Stepwise.__call__, collections.Counter(), collections.Counter(), threading.Event()
    called_back, replies, gradient, interrupt = threading.Event(), [], Actor.gradient, Actor.interrupt

    def held(self, interrupted, count, arguments, *more):
        worker, run = int(arguments[4][0]), copy.copy(self)
        begun[worker] += 1
        attempt = begun[worker]

        def step(carry, j, *rest):
            made[worker, attempt] += 1
            if worker == 1 and attempt == 2:  # The first one is the warm-up.
                entered.set()
                assert called_back.wait(60)
            return self._step(carry, j, *rest)

        run._step = types.SimpleNamespace(at=lambda *_: step)  # A program, which is compiled for its arguments.
        return call(run, interrupted, count, arguments, *more)

    def noted(self, run, view, local, task, *error):
        reply = gradient(self, run, view, local, task, *error)
        replies.append((task, reply.gradient))
        return reply

    monkeypatch.setattr(Stepwise, "__call__", held)
    monkeypatch.setattr(Actor, "gradient", noted)
    monkeypatch.setattr(Actor, "interrupt", lambda *arguments: (interrupt(*arguments), called_back.set()))
    tx, problem, local = gemjax.downpour(num_workers=2), mlp(), gemjax.LocalSteps(fading(0.02), 5)
    if rounds:
        tx = gemjax.asynchronous(optax.chain(gemjax.rules.round_to(), tx), 2)
    with gemjax.Cluster(2) as cluster:
        result = gemjax.run_on_cluster(
            tx, *problem[:3], 12, cluster=cluster, model_state=problem.model_state,
            policy=gemjax.Policy(interrupt=2), local=local, gate=lambda worker, step: entered.wait(60) and None,
        )  # fmt: skip
    assert made[1, 2] == 1
    assert [gradient for task, gradient in replies if (task.worker, task.attempt) == (1, 2)] == [None]
    assert result.trace.staleness.max() < 2
    replay = gemjax.simulate(tx, *problem[:3], result.trace, local=local, model_state=problem.model_state)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        ("lsgd-groups", None),
        ("downpour", 2),
        *(pytest.param(name, None, marks=pytest.mark.nightly) for name in ("ringmaster", "downpour", "gem")),
    ],
)
def test_the_law_holds(name, hosts, cluster, x64, monkeypatch):
    monkeypatch.setattr(cluster, "central_hosts", hosts)
    row = ROWS[name]
    make = lambda n: gemjax.ringmaster(0.05, n, threshold=LIMIT)
    make = make if name == "ringmaster" else row
    problem, local = problem_of(row), getattr(make, "local", None)
    result = gemjax.run_on_cluster(
        make(WORKERS), *problem[:3], 60, cluster=cluster, model_state=problem.model_state, local=local, seed=SEED,
        policy=gemjax.Policy(interrupt=LIMIT), gate=Behind(WORKERS, SLOW, by=OTHERS),
    )  # fmt: skip
    assert_interrupted(result)
    assert_the_law(result, make, problem, rtol=1e-10, refused=True)


@pytest.mark.slow
def test_the_call_overtakes_a_gradient(cluster, monkeypatch, tmp_path):
    """Worker 1 hangs in the first local step of its second commit until its actor has heard the call."""
    faults, programs = WorkerFaults(tmp_path).hang(1, 5), sys.modules["gemjax.engines.cluster.programs"]
    interrupt, read, replies = programs.ClusterPrograms.interrupt, programs._reply, []

    def heard(self, worker):
        interrupt(self, worker)
        call = self.cluster.actors[worker].interrupt.remote(self._run, self._attempts[worker])
        imported_ray().get(call, timeout=60)
        faults.let_go(1, 5)

    def noted(reference):
        reply = read(reference)
        replies.append(reply.gradient)
        return reply

    def gate(worker, step):
        until = time.monotonic() + 60
        while worker != 1 and step and not faults.happened() and time.monotonic() < until:
            threading.Event().wait(0.01)  # Nothing notifies of what happens in another process.

    monkeypatch.setattr(programs.ClusterPrograms, "interrupt", heard)
    monkeypatch.setattr(programs, "_reply", noted)
    tx, problem, local = gemjax.downpour(num_workers=4), quadratic(), gemjax.LocalSteps(optax.sgd(0.02), 5)
    result = gemjax.run_on_cluster(
        tx, *problem[:2], faults.around(problem.batches), 40, cluster=cluster, policy=gemjax.Policy(interrupt=12),
        local=local, gate=gate,
    )  # fmt: skip
    assert faults.happened() == [("hang", 1, 5)]
    assert None in replies
    assert result.trace.staleness.max() < 12
    replay = gemjax.simulate(tx, *problem[:3], result.trace, local=local)
    assert_close(result.params, replay.params, rtol=1e-4)
