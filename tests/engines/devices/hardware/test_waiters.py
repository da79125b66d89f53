"""Waiting threads and the times that they record."""

import threading
import time

import pytest

from gemjax.engines.devices.hardware.waiters import Waiters


class Array:
    """Array on a device that is ready when the test releases it."""

    def __init__(self, *, ready=False):
        self.released = threading.Event()
        if ready:
            self.released.set()

    def is_ready(self):
        return self.released.is_set()

    def block_until_ready(self):
        assert self.released.wait(timeout=60)
        return self


def test_a_view_in_transfer_is_waited_for_and_its_arrival_recorded():
    view, gradient = Array(), Array()
    with Waiters(1) as waiters:
        waiters.watch(0, 7, 5, 0.25, {"float32": view}, {"float32": gradient})
        sent = time.perf_counter()
        view.released.set()
        gradient.released.set()
        arrival = waiters.next()
    assert (arrival.worker, arrival.number, arrival.step, arrival.dispatched) == (0, 7, 5, 0.25)
    assert arrival.error is None
    assert sent <= arrival.began <= arrival.ready


@pytest.mark.parametrize("late", [0, 1])
def test_first_finished_first_served(late):
    gradients = [Array(), Array()]
    with Waiters(2) as waiters:
        for worker, gradient in enumerate(gradients):
            waiters.watch(worker, 1, 0, 0.0, (), gradient)
        gradients[1 - late].released.set()
        assert waiters.next().worker == 1 - late
        gradients[late].released.set()
        assert waiters.next().worker == late


def test_an_exception_arrives_with_its_worker():
    class Failing(Array):
        def block_until_ready(self):
            raise RuntimeError("lost")

    with Waiters(2) as waiters:
        waiters.watch(1, 1, 3, 0.0, (), Failing())
        arrival = waiters.next()
    assert arrival.worker == 1
    assert "lost" in str(arrival.error)
