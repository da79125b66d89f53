"""Ctrl-C during a run: the state survives it, and the second one ends the run at once."""

import contextlib
import dataclasses
import os
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import assert_same_bits, quadratic

import gemjax
from gemjax.engines.devices.hardware.programs import commits
from gemjax.engines.interrupts import Held
from gemjax.engines.simulator import simulate as simulator

PROBLEM, TRACE = quadratic(), gemjax.arrivals.Gamma(3).trace(40)


def press(times=1, number=signal.SIGINT):
    for _ in range(times):
        signal.raise_signal(number)


def gem():
    return gemjax.gem(0.05, num_workers=3)


def simulate(**options):
    return gemjax.simulate(gem(), PROBLEM.loss_fn, PROBLEM.params, PROBLEM.batches, TRACE, chunk_size=8, **options)


def run_on_devices(**options):
    return gemjax.run_on_devices(gem(), PROBLEM.loss_fn, PROBLEM.params, PROBLEM.batches, 40, **options)


@pytest.fixture(autouse=True)
def restored():
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def pressing(function, at, times=1, number=signal.SIGINT):
    """Return `function` with a signal before its result of call number `at` is assigned."""
    calls = []

    def call(*args, **kwargs):
        found = function(*args, **kwargs)
        calls.append(None)
        if len(calls) == at:
            press(times, number)
        return found

    return call


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


def test_a_simulation_that_was_interrupted_in_its_last_chunk_has_its_result(monkeypatch):
    compiled = simulator.compiled
    monkeypatch.setattr(simulator, "compiled", lambda *args, **kwargs: pressing(compiled(*args, **kwargs), 5))
    with pytest.raises(KeyboardInterrupt) as ended:
        simulate()
    assert len(ended.value.result.trace) == 40


def test_the_second_ctrl_c_ends_a_simulation_at_once(monkeypatch):
    compiled = simulator.compiled
    monkeypatch.setattr(simulator, "compiled", lambda *args, **kwargs: pressing(compiled(*args, **kwargs), 2, 2))
    with pytest.raises(KeyboardInterrupt) as ended:
        simulate()
    assert not hasattr(ended.value, "result")
    assert "The state of the run is lost" in ended.value.__notes__[0]


def _in_a_commit(monkeypatch):
    make = commits.Central.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self._commit = pressing(self._commit, 12)

    monkeypatch.setattr(commits.Central, "__init__", init)


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


class Read(gemjax.batches.Rows):
    """Rows that call a function when those of a worker's step are selected."""

    data = np.zeros((40, 4), np.float32)

    def __init__(self, at):
        self.at = at

    def select(self, worker, step):
        for one in zip(worker.tolist(), step.tolist(), strict=True):
            self.at(*one)
        return np.stack([step % 40], 1).astype(np.int32)


@pytest.mark.parametrize(("at", "commits"), [(2, 0), (11, 24)])
def test_a_simulation_that_reads_data_ends_before_their_chunk(at, commits):
    """Data of the next chunk are read while one computes."""
    seen = []

    def select(worker, step):
        seen.append((worker, step))
        if (worker, step) == (0, at):
            press()

    loss_fn = lambda params, batch: jnp.mean((params - batch.mean(0)) ** 2)
    trace = gemjax.arrivals.RoundRobin(3).trace(60)
    with pytest.raises(KeyboardInterrupt) as ended:
        gemjax.simulate(gem(), loss_fn, jnp.ones(4), Read(select), trace, chunk_size=12)
    assert len(ended.value.result.trace) == commits
    assert seen[-1] == (0, at)


class PreemptedError(Exception):
    """An exception that a handler of one's own may raise."""


@pytest.mark.parametrize("ends", [lambda: True, lambda: 1 / 0])
@pytest.mark.parametrize("kind", [SystemExit, PreemptedError])
def test_an_exit_while_data_are_read_counts_also_if_the_run_ends_there(ends, kind):
    """The data of a chunk that never comes."""

    def select(worker, step):
        if (worker, step) == (0, 11):
            press(number=signal.SIGTERM)

    def stop(number, frame):
        raise kind

    loss_fn = lambda params, batch: jnp.mean((params - batch.mean(0)) ** 2)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(kind) as ended:
            gemjax.simulate(
                gem(), loss_fn, jnp.ones(4), Read(select), gemjax.arrivals.RoundRobin(3).trace(60), chunk_size=12,
                callback=lambda progress: progress.commits == 24 and ends(),
            )  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(ended.value.result.trace) == 24


def test_a_run_on_devices_that_selects_data_ends_there():
    seen = []

    def select(worker, step):
        seen.append((worker, step))
        if step == 3:
            press()

    loss_fn = lambda params, batch: jnp.mean((params - batch.mean(0)) ** 2)
    with pytest.raises(KeyboardInterrupt) as ended:
        gemjax.run_on_devices(gem(), loss_fn, jnp.ones(4), Read(select), 40)
    assert len(ended.value.result.trace) >= 3
    assert [step for _, step in seen].count(3) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_finished_run_on_devices_has_its_result_also_if_it_is_interrupted_then(times, monkeypatch):
    gather = commits.CentralPrograms.reached
    monkeypatch.setattr(commits.CentralPrograms, "reached", pressing(gather, 1, times))
    with pytest.raises(KeyboardInterrupt) as ended:
        run_on_devices()
    assert len(ended.value.result.trace) == 40


def test_a_ctrl_c_while_the_result_is_gathered_ends_that(monkeypatch):
    """The devices may be those that hang."""
    monkeypatch.setattr(commits.CentralPrograms, "reached", pressing(commits.CentralPrograms.reached, 1))
    with pytest.raises(KeyboardInterrupt) as ended:
        run_on_devices(callback=lambda progress: 1 / 0)
    assert not hasattr(ended.value, "result")
    assert isinstance(ended.value.__context__, ZeroDivisionError)


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


def test_a_saved_handler_holds_nothing_back_after_the_run():
    saved = []
    simulate(callback=lambda progress: saved.append(signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, saved[0])
    try:
        with pytest.raises(KeyboardInterrupt):
            press()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("run", [simulate, run_on_devices])
def test_a_callback_is_interrupted_at_once(run):
    def callback(progress):
        press()
        pytest.fail("the callback went on")

    with pytest.raises(KeyboardInterrupt) as ended:
        run(callback=callback)
    assert len(ended.value.result.trace) == (8 if run is simulate else 40)


def test_a_run_in_the_callback_of_another_one_keeps_its_own_state(monkeypatch):
    compiled, inner = simulator.compiled, []

    def callback(progress):
        with monkeypatch.context() as patch:
            patch.setattr(simulator, "compiled", lambda *args, **kwargs: pressing(compiled(*args, **kwargs), 2))
            try:
                simulate()
            except KeyboardInterrupt as error:
                inner.append(len(error.result.trace))
        return True

    assert simulate(callback=callback).stopped
    assert inner == [16]


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


def test_an_exception_that_says_so_is_raised_at_once():
    def stop(number, frame):
        error = KeyboardInterrupt()
        error.at_once = True
        raise error

    def run():
        with Held():
            press()
            pytest.fail("it was held back")

    signal.signal(signal.SIGINT, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def test_a_signal_while_handlers_are_replaced_leaves_none_behind(monkeypatch):
    found = signal.getsignal

    def getsignal(number):
        if number == signal.SIGTERM:
            press()
        return found(number)

    monkeypatch.setattr(signal, "getsignal", getsignal)
    with pytest.raises(KeyboardInterrupt), Held():
        pytest.fail("it was held back")


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


def test_what_a_callback_writes_into_the_parameters_stays_its_own():
    params = {"x": jnp.ones(4)}
    loss_fn = lambda params, batch: jnp.sum((params["x"] - batch) ** 2)

    def callback(progress):
        progress.params["x"] = jnp.full(4, 100.0)
        progress.state().params.clear()

    run = lambda **options: gemjax.simulate(
        gem(), loss_fn, params, lambda worker, step: 0.0, TRACE, chunk_size=8, **options
    )
    assert_same_bits(run(callback=callback).params, run().params)


@pytest.mark.parametrize("at", range(1, 6))
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


@pytest.mark.parametrize("bad", [(), (3, 7, 11, 17)])
def test_a_result_of_two_moments_is_refused(bad):
    """Rejected gradients have rows in the trace of a simulation, and none in that of a run on devices."""
    batches = lambda worker, step: jnp.where(jnp.isin(3 * step + worker, jnp.array([-1, *bad])), jnp.nan, 0.0)
    run = lambda **options: gemjax.simulate(
        gem(),
        lambda params, batch: jnp.sum((params - batch) ** 2),
        jnp.ones(3),
        batches,
        TRACE,
        chunk_size=4,
        **options,
    )
    early, late = (run(callback=lambda progress, at=at: progress.commits == at) for at in (20, 24))
    assert int(late.state.rejected) == len(bad)
    assert_same_bits(run(state=late).state, run().state)
    wrong = [dataclasses.replace(early, state=late.state), dataclasses.replace(late, state=early.state)]
    for mixed in wrong + ([] if bad else [dataclasses.replace(late, trace=early.trace)]):
        with pytest.raises(ValueError, match=r"has made \d+ commits, but whose (trace|history) has \d+"):
            run(state=mixed)


def test_a_run_on_devices_that_a_handler_of_ones_own_ends_keeps_its_state(monkeypatch):
    make = commits.Central.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self._commit = pressing(self._commit, 12, number=signal.SIGTERM)

    monkeypatch.setattr(commits.Central, "__init__", init)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit) as ended:
            run_on_devices()
    finally:
        signal.signal(signal.SIGTERM, before)
    found = ended.value.result
    assert 8 <= int(found.state.commits) == len(found.trace) < 40
