"""A SIGTERM while Ray starts, whose own handler is then in place, goes to the caller's handler."""

import signal
import subprocess
import sys

import pytest
from engines.cluster.fake_ray import FakeRay

import gemjax
from gemjax.engines.cluster import connection


class HandlerError(Exception):
    """Raised by a caller's handler."""


class Starting(FakeRay):
    """Ray that gets a SIGTERM while it starts.

    Attributes:
      handlers: the handler of SIGTERM at each shutdown.
    """

    def __init__(self):
        super().__init__()
        self.handlers = []

    def init(self, address, **options):
        super().init(address, **options)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    def shutdown(self):
        super().shutdown()
        self.handlers.append(signal.getsignal(signal.SIGTERM))


@pytest.fixture
def start(monkeypatch):
    """Return a function that starts Ray under a handler of the caller; it returns Ray."""
    before = signal.getsignal(signal.SIGTERM)

    def start(handler):
        ray = Starting()
        monkeypatch.setitem(sys.modules, "ray", ray)
        signal.signal(signal.SIGTERM, handler)
        with pytest.raises((HandlerError, SystemExit)) as raised, gemjax.Cluster(2):
            raise AssertionError("Ray has started")
        assert signal.getsignal(signal.SIGTERM) is handler
        return ray, raised.value

    yield start
    signal.signal(signal.SIGTERM, before)


def test_the_callers_handler_is_called_when_ray_has_ended(start):
    running = []

    def handler(number, frame):
        running.append(sys.modules["ray"].is_initialized())
        raise HandlerError(number)

    ray, stop = start(handler)
    assert isinstance(stop, HandlerError)
    assert running == [False]
    assert ray.handlers[0] is handler  # A second signal during the shutdown is the caller's, too.


def test_a_start_that_the_callers_handler_lets_go_on_has_ended(start):
    calls = []
    _, stop = start(lambda number, frame: calls.append(number))
    assert calls == [signal.SIGTERM]
    assert stop.code == signal.SIGTERM


def test_another_exit_while_ray_starts_is_left_alone():
    ended = []
    with pytest.raises(SystemExit, match="3"), connection.signals_kept(lambda: ended.append(1)):
        sys.exit(3)
    assert not ended


DEFAULT = """
import runpy, signal, sys
signals_kept = runpy.run_path(sys.argv[1])["signals_kept"]
with signals_kept(lambda: print("Ray has ended", flush=True)):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    signal.raise_signal(signal.SIGTERM)
"""


def test_without_a_handler_the_signal_ends_the_process():
    run = subprocess.run([sys.executable, "-c", DEFAULT, connection.__file__], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGTERM, "Ray has ended\n", "")


AFTERWARDS = """
import signal, sys, gemjax
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda number, frame: print("handler of", signal.Signals(number).name, flush=True))
with gemjax.Cluster(1):
    pass
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "expected"),
    [("own", (0, "handler of SIGTERM\n")), pytest.param("default", (-signal.SIGTERM, ""), marks=pytest.mark.nightly)],
)
def test_the_callers_handler_is_called_after_a_cluster_is_closed(handler, expected):
    """The system has the default one after `ray.shutdown`, though Python shows the caller's."""
    run = subprocess.run([sys.executable, "-c", AFTERWARDS, handler], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout) == expected, run.stderr
