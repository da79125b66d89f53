"""Runs in which a signal arrives, and the fixture that checks the handlers after them."""

import contextlib
import signal

import pytest
from engines.problems import quadratic

import gemjax

PROBLEM, TRACE = quadratic(), gemjax.arrivals.Gamma(3).trace(40)


def press(times=1, number=signal.SIGINT):
    for _ in range(times):
        signal.raise_signal(number)


def gem():
    return gemjax.gem(0.05, num_workers=3)


def simulate(**options):
    return gemjax.simulate(gem(), PROBLEM.loss_fn, PROBLEM.params, PROBLEM.batches, TRACE, callback_every=8, **options)


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


class PreemptedError(Exception):
    """An exception that a handler of one's own may raise."""


@contextlib.contextmanager
def raising(kind):
    """Let the handler of Ctrl-C raise an exception inside."""

    def stop(number, frame):
        raise kind

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
