"""Handlers of signals during a run: those of one's own, and those set while it runs."""

import contextlib
import signal
import sys
import threading

import jax
import numpy as np
import pytest
from engines import signals
from engines.problems import assert_same_bits
from engines.signals import press, pressing, run_on_devices, simulate

from gemjax.engines.devices.hardware.programs import commits
from gemjax.engines.running.interrupts import Held
from gemjax.engines.simulator import simulate as simulator

restored = signals.restored


def test_another_handler_is_left_alone():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(None))
    try:
        simulate(callback=lambda progress: press())
        with Held():
            press(3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(heard) == 5 + 3


def test_a_callback_may_catch_its_ctrl_c():
    def callback(progress):
        with contextlib.suppress(KeyboardInterrupt):
            press()

    assert len(simulate(callback=callback).trace) == len(signals.TRACE)


@pytest.mark.parametrize("run", [run_on_devices, simulate])
def test_two_signals_in_a_callback_of_the_loss_to_python_end_the_run(run, monkeypatch):
    """JAX turns the second one into an error of its own, which counted as a fault of the worker, and the first one was lost."""
    problem, pressed = signals.PROBLEM, []

    def host(batch):
        if not pressed:
            pressed.append(None)
            press(2)
        return np.float32(0)

    def loss_fn(params, batch):
        return problem.loss_fn(params, batch) + jax.pure_callback(host, jax.ShapeDtypeStruct((), np.float32), batch)

    monkeypatch.setattr(signals, "PROBLEM", problem._replace(loss_fn=loss_fn))
    with pytest.raises(KeyboardInterrupt) as stop:
        run()
    assert pressed
    if run is run_on_devices:  # The simulator's state is lost with the chunk.
        assert len(stop.value.result.trace) < len(signals.TRACE)


def test_a_handler_that_a_callback_sets_stays():
    heard = []
    try:
        simulate(callback=lambda progress: signal.signal(signal.SIGINT, lambda *_: heard.append(None)) is None)
        press()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert len(heard) == 1


def test_in_another_thread_nothing_is_held():
    results = []
    thread = threading.Thread(target=lambda: results.append(simulate()))
    thread.start()
    thread.join()
    assert len(results[0].trace) == 40


@pytest.mark.parametrize("at", [1, 2, *(pytest.param(at, marks=pytest.mark.slow) for at in range(3, 6))])
def test_a_handler_of_ones_own_leaves_a_result_that_goes_on(at, monkeypatch, capfd):
    """Schedulers of clusters send SIGTERM; its usual handler exits."""
    history = simulator._history

    def interrupted(*args):
        if len(calls) == at - 1:
            signal.raise_signal(signal.SIGTERM)
        calls.append(None)
        return history(*args)

    calls, before = [], signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    monkeypatch.setattr(simulator, "_history", interrupted)
    try:
        with pytest.raises(SystemExit) as ended:
            simulate()
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.undo()
    found = ended.value.result
    assert int(found.state.commits) == len(found.trace) == len(found.history["loss"]) == 8 * at
    assert "SIGTERM: the simulation ends after the chunk in progress" in capfd.readouterr().err
    assert_same_bits(simulate(state=found).state, simulate().state)


def test_a_run_on_devices_that_a_handler_of_ones_own_ends_keeps_its_state(monkeypatch):
    monkeypatch.setattr(commits.Central, "commit", pressing(commits.Central.commit, 12, number=signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit) as ended:
            run_on_devices()
    finally:
        signal.signal(signal.SIGTERM, before)
    found = ended.value.result
    assert 8 <= int(found.state.commits) == len(found.trace) < 40
