"""Ctrl-C, SIGTERM and SIGHUP: they end the process if nothing is unsaved, and otherwise ask the run to end."""

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

# A terminal sends SIGINT for Ctrl-C and SIGHUP when it is closed; schedulers of clusters and containers send SIGTERM.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
DEFAULT = (signal.SIG_DFL, signal.default_int_handler)
SHOW_CURSOR = b"\x1b[?25h"  # A line of progress hides it in a terminal.


class StoppedBySignal(KeyboardInterrupt):
    """A signal that interrupted work of which every finished step is kept.

    Args:
      number: the signal.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(number)
        self.number = number


def name_of(number: int) -> str:
    """Return the familiar name of a signal.

    >>> name_of(signal.SIGTERM), name_of(signal.SIGINT)
    ('SIGTERM', 'Ctrl-C')
    """
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def status_of(number: int) -> int:
    """Return the exit status of a process that a signal ends.

    >>> status_of(signal.SIGTERM)
    143
    """
    return 128 + number


def number_of(stop: KeyboardInterrupt) -> int:
    """Return the signal that raised `stop`: Ctrl-C for Python's own exception."""
    return getattr(stop, "number", signal.SIGINT)


def end_at_once() -> None:
    """Let the next signal end the process with one line. An ignored signal, such as SIGHUP under `nohup`, stays ignored.

    An exception would not do: in a callback of JAX it is lost, and during a compilation it may crash the interpreter's exit.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in DEFAULT:
            signal.signal(number, _end)


def raise_again() -> None:
    """Let the next signal raise :class:`StoppedBySignal` instead of ending the process."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _raise)


def discard(stream: int) -> None:
    """Discard all output to a file descriptor from now on."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream)


def leave(status: int) -> None:
    """End the process at once, without the normal exit of the interpreter."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it was closed when the process began.
        with contextlib.suppress(RuntimeError, OSError):  # The stream is in use, or its reader is gone.
            stream.flush()
    os._exit(status)


def _end(number: int, *_: object) -> None:
    _write(f"train: interrupted by {name_of(number)}\n")
    with contextlib.suppress(OSError):
        if os.isatty(1) and os.environ.get("TERM") not in ("dumb", "unknown"):
            os.write(1, SHOW_CURSOR)
    leave(status_of(number))


def _raise(number: int, *_: object) -> None:
    _write("")
    raise StoppedBySignal(number)


def _write(text: str) -> None:
    """Write to stderr, unbuffered; the streams of a closed terminal lead nowhere from then on."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):  # A closed terminal, or /dev/null.
                discard(stream)
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


class StopRequest(threading.Event):
    """A request to end a run: set by the first Ctrl-C, SIGTERM or SIGHUP. A second Ctrl-C or SIGTERM ends the process.

    A further SIGHUP is ignored: when a terminal is closed, the system sends one, and its shell another.

    Attributes:
      unsaved: True from the first commit of this process until the last checkpoint is written. Otherwise the first signal ends
        the process, too.
      number: signal that set the event.
      go_on: command that continues the run; empty before it can be continued. It is printed when a signal ends the process.
      wake: called by the first signal, in its handler.
    """

    unsaved = False
    go_on = ""
    number: int = signal.SIGINT
    wake: Callable[[], None] = staticmethod(lambda: None)

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Ignored signals, and handlers outside Python, stay.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _on_signal(self, number: int, *_: object) -> None:
        if self.is_set() and number == getattr(signal, "SIGHUP", None):
            return
        if self.is_set() or not self.unsaved:
            self.__exit__()
            if self.go_on:
                _write(f"\ngo on with: {self.go_on}\n")
            signal.raise_signal(number)
            return
        self.number = number
        self.set()
        _write(
            f"\n{name_of(number)}: stopping after the commits in flight, with a checkpoint; Ctrl-C or SIGTERM now stops at "
            "once, without one\n"
        )
        self.wake()
