"""Ctrl-C during a run: the state survives it, and the second one ends the run at once."""

import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import signals
from engines.problems import assert_same_bits
from engines.signals import PROBLEM, TRACE, gem, press, pressing, run_on_devices, simulate

import gemjax
from gemjax.engines.devices.hardware.programs import commits
from gemjax.engines.simulator import simulate as simulator

restored = signals.restored


def test_a_simulation_ends_after_the_chunk_in_progress(monkeypatch, capfd):
    compiled = simulator.compiled
    monkeypatch.setattr(simulator, "compiled", lambda *args, **kwargs: pressing(compiled(*args, **kwargs), 3))
    with pytest.raises(KeyboardInterrupt) as ended:
        simulate()
    monkeypatch.undo()
    found = ended.value.result
    assert len(found.trace) == 24
    assert_same_bits(found.state, simulate(callback=lambda progress: progress.commits == 24).state)
    assert "ends after the chunk in progress" in capfd.readouterr().err
    whole = simulate()
    assert_same_bits(simulate(state=found).state, whole.state)


def test_a_simulation_that_was_interrupted_in_a_chunk_before_an_evaluation_has_its_row(monkeypatch):
    evaluate = lambda params, model_state: {"first": params["x"][0]}
    whole = simulate(evaluate=evaluate, evaluate_every=8)
    compiled = simulator.compiled
    monkeypatch.setattr(simulator, "compiled", lambda *args, **kwargs: pressing(compiled(*args, **kwargs), 3))
    with pytest.raises(KeyboardInterrupt) as ended:
        simulate(evaluate=evaluate, evaluate_every=8)
    monkeypatch.undo()
    found = ended.value.result
    assert found.evaluations["commit"].tolist() == [8, 16, 24]
    continued = simulate(evaluate=evaluate, evaluate_every=8, state=found)
    assert_same_bits(continued.evaluations, whole.evaluations)


def test_the_second_ctrl_c_ends_a_simulation_at_once(monkeypatch):
    compiled = simulator.compiled
    monkeypatch.setattr(simulator, "compiled", lambda *args, **kwargs: pressing(compiled(*args, **kwargs), 2, 2))
    with pytest.raises(KeyboardInterrupt) as ended:
        simulate()
    assert not hasattr(ended.value, "result")
    assert "The state of the run is lost" in ended.value.__notes__[0]


def _in_a_commit(monkeypatch):
    monkeypatch.setattr(commits.Central, "commit", pressing(commits.Central.commit, 12))


def _in_a_report(monkeypatch):
    monkeypatch.setattr(commits.CentralPrograms, "read", pressing(commits.CentralPrograms.read, 9))


@pytest.mark.parametrize("where", [_in_a_commit, _in_a_report])
def test_a_run_on_devices_ends_between_two_commits(where, monkeypatch):
    where(monkeypatch)
    with pytest.raises(KeyboardInterrupt) as ended:
        run_on_devices()
    monkeypatch.undo()
    found = ended.value.result
    assert 8 <= len(found.trace) < 40
    replayed = gemjax.simulate(gem(), PROBLEM.loss_fn, PROBLEM.params, PROBLEM.batches, found.trace)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, 1e-4, 1e-6), replayed.params, found.params)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_finished_run_on_devices_has_its_result_also_if_it_is_interrupted_then(times, monkeypatch):
    gather = commits.CentralPrograms.reached
    monkeypatch.setattr(commits.CentralPrograms, "reached", pressing(gather, 1, times))
    with pytest.raises(KeyboardInterrupt) as ended:
        run_on_devices()
    assert len(ended.value.result.trace) == 40


def test_a_run_that_fails_after_ctrl_c_is_interrupted_with_its_result(monkeypatch):
    """A loop around the run that catches the failure ends, too."""
    compiled = simulator.compiled

    def failing(*args, **kwargs):
        def run_chunk(*inputs):
            press()
            raise ValueError("out of memory")

        return run_chunk

    monkeypatch.setattr(simulator, "compiled", failing)
    with pytest.raises(KeyboardInterrupt) as ended:
        simulate()
    assert len(ended.value.result.trace) == 0
    assert "out of memory" in str(ended.value.__cause__)
    monkeypatch.setattr(simulator, "compiled", compiled)


@pytest.mark.parametrize("run", [simulate, run_on_devices])
def test_a_callback_is_interrupted_at_once(run):
    def callback(progress):
        press()
        pytest.fail("the callback went on")

    with pytest.raises(KeyboardInterrupt) as ended:
        run(callback=callback)
    assert len(ended.value.result.trace) == 8 if run is simulate else len(ended.value.result.trace) < 40


def test_a_run_that_waits_for_hung_workers_is_interrupted():
    released, unpressed = threading.Event(), threading.Lock()

    def gate(worker, step):
        if step == 1:
            if unpressed.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGINT)
            released.wait(60)

    try:
        with pytest.raises(KeyboardInterrupt) as ended:
            run_on_devices(gate=gate)
    finally:
        released.set()
    assert hasattr(ended.value, "result")


# --- State and history


def test_what_a_callback_writes_into_the_parameters_stays_its_own():
    params = {"x": jnp.ones(4)}
    loss_fn = lambda params, batch: jnp.sum((params["x"] - batch) ** 2)

    def callback(progress):
        progress.params["x"] = jnp.full(4, 100.0)
        progress.state().params.clear()

    run = lambda **options: gemjax.simulate(
        gem(), loss_fn, params, lambda worker, step: 0.0, TRACE, callback_every=8, **options
    )
    assert_same_bits(run(callback=callback).params, run().params)


def test_an_exception_between_a_chunk_and_its_history_leaves_both(monkeypatch):
    """Such as a lack of memory; it comes from no handler, so that it is not held back."""
    history, calls = simulator._history, []

    def failing(*args):
        calls.append(None)
        if len(calls) == 3:
            raise MemoryError
        return history(*args)

    monkeypatch.setattr(simulator, "_history", failing)
    with pytest.raises(MemoryError) as ended:
        simulate()
    monkeypatch.undo()
    found = ended.value.result
    assert int(found.state.commits) == len(found.trace) == len(found.history["loss"]) == 24
    assert_same_bits(simulate(state=found).state, simulate().state)
