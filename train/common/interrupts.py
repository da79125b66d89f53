"""Ctrl-C, SIGTERM and SIGHUP: they end the process where there is nothing to save, and ask a run to end where there is."""

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

# A terminal sends SIGINT for Ctrl-C and SIGHUP when it is closed; schedulers of clusters and containers send SIGTERM.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
DEFAULT = (signal.SIG_DFL, signal.default_int_handler)
ECHO = (
    1.0  # Seconds. `timeout`, shells and systemd send SIGTERM or SIGHUP twice, or one after the other, for one request.
)

_last = -ECHO  # When the last signal came.


class Interrupted(KeyboardInterrupt):
    """Raised where a signal interrupts work that is kept step by step.

    Args:
      number: the signal.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(number)
        self.number = number


def name_of(number: int) -> str:
    """Name of a signal, as people know it.

    >>> name_of(signal.SIGTERM), name_of(signal.SIGINT)
    ('SIGTERM', 'Ctrl-C')
    """
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def status_of(number: int) -> int:
    """Exit status of a process that a signal ends.

    >>> status_of(signal.SIGTERM)
    143
    """
    return 128 + number


def number_of(stop: KeyboardInterrupt) -> int:
    """The signal that raised `stop`; Python's own exception is of Ctrl-C."""
    return getattr(stop, "number", signal.SIGINT)


def end_at_once() -> None:
    """Ends the process with one line at the next signal. A signal that is ignored, as SIGHUP under `nohup`, stays ignored.

    An exception would not do: raised in a callback of JAX's it is lost, and while JAX compiles it may crash the
    interpreter at its end.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in DEFAULT:
            signal.signal(number, _end)


def raise_again() -> None:
    """Raises :class:`Interrupted` at the next signal, instead of ending the process."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _raise)


def leave(status: int) -> None:
    """Ends the process, without what else the interpreter does at its end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(RuntimeError, OSError):  # It was being written to, or its reader is gone.
            stream.flush()
    os._exit(status)


def _end(number: int, *_: object) -> None:
    _tell(f"train: interrupted by {name_of(number)}\n")
    leave(status_of(number))


def _raise(number: int, *_: object) -> None:
    if not _is_echo(number):
        _tell("")
        raise Interrupted(number)


def _is_echo(number: int) -> bool:
    """Whether a signal belongs to the same request as the one before it. Two Ctrl-C are two requests."""
    global _last
    before, _last = _last, time.monotonic()
    return number != signal.SIGINT and _last - before < ECHO


def _tell(text: str) -> None:
    """Writes to stderr, past what a signal may have interrupted there; nothing is written to a closed terminal any more."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):  # Closed; /dev/null, at most.
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), stream)
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


class Interrupt(threading.Event):
    """Asks a run to end: set by the first Ctrl-C, SIGTERM or SIGHUP. The second signal ends the process.

    Attributes:
      unsaved: whether the run has commits that no checkpoint holds. Without any, the first signal ends the process, too.
      number: the signal that set the event.
      wake: called by the first signal, in its handler.
    """

    unsaved = False
    number: int = signal.SIGINT
    wake: Callable[[], None] = staticmethod(lambda: None)

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Neither what is ignored, nor what is not Python's.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _on_signal(self, number: int, *_: object) -> None:
        if _is_echo(number) and self.is_set():
            return
        if self.is_set() or not self.unsaved:
            self.__exit__()
            signal.raise_signal(number)
            return
        self.number = number
        self.set()
        _tell(
            f"\n{name_of(number)}: stopping after the commits in flight, with a checkpoint; a second signal stops at once, "
            "without one\n"
        )
        self.wake()
