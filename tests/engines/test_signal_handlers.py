"""Handlers of signals during a run: those of one's own, and those set while it runs."""

import contextlib
import gc
import signal
import sys
import threading
import weakref

import jax
import numpy as np
import pytest
from engines import signals
from engines.problems import assert_same_bits
from engines.signals import PreemptedError, press, pressing, raising, run_on_devices, simulate

from gemjax.engines.devices.hardware.programs import commits
from gemjax.engines.running.interrupts import Held
from gemjax.engines.simulator import simulate as simulator

restored = signals.restored


def test_a_saved_handler_holds_nothing_back_after_the_run():
    saved = []
    simulate(callback=lambda progress: saved.append(signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, saved[0])
    try:
        with pytest.raises(KeyboardInterrupt):
            press()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def chained(number):
    """Set a handler that does something and calls the one before, as a callback may."""
    before = signal.getsignal(number)
    signal.signal(number, lambda *args: before(*args))


@pytest.mark.parametrize("nested", [False, True])
def test_a_handler_set_during_the_run_that_calls_the_one_before_is_held(nested):
    held = []

    def run():
        with Held(), Held() if nested else contextlib.nullcontext():
            if not nested:
                chained(signal.SIGINT)
            press()
            held.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert held


@pytest.mark.parametrize("then", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_a_handler_that_leaves_the_next_signal_to_another_one_is_held(then):
    held = []

    def stop(number, frame):
        signal.signal(number, then)
        sys.exit(143)

    def run():
        with Held():
            press(number=signal.SIGTERM)
            held.append(True)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit):
            run()
        assert signal.getsignal(signal.SIGTERM) is then
    finally:
        signal.signal(signal.SIGTERM, before)
    assert held


def test_a_callback_may_catch_its_ctrl_c():
    def callback(progress):
        with contextlib.suppress(KeyboardInterrupt):
            press()

    assert len(simulate(callback=callback).trace) == len(signals.TRACE)


def test_an_exception_of_ones_own_is_not_its_own_cause():
    def run():
        with Held():
            press(2)

    with raising(PreemptedError), pytest.raises(PreemptedError) as stopped:
        run()
    assert stopped.value.__cause__ is None


def test_the_memory_of_a_run_that_two_signals_end_is_freed_at_once():
    class Arrays:
        pass

    def run():
        arrays = Arrays()
        kept.append(weakref.ref(arrays))
        with Held():
            press(2)

    kept = []
    gc.disable()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            run()
        assert kept[0]() is None
    finally:
        gc.enable()


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


def test_an_exception_that_is_passed_over_is_raised_at_the_next_check():
    def run():
        with Held() as held:
            press()
            with contextlib.suppress(KeyboardInterrupt):
                press()
            held.check()
            pytest.fail("it was lost")

    with pytest.raises(KeyboardInterrupt):
        run()


def test_a_ctrl_c_counts_also_if_the_run_is_ended_otherwise():
    def run():
        with Held():
            press()
            raise GeneratorExit

    with pytest.raises(KeyboardInterrupt):
        run()


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
