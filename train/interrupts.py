"""What Ctrl-C does: ends the process where there is nothing to save, and asks a run to end where there is."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Self


def end_at_once() -> None:
    """From now on Ctrl-C ends the process with status 130 and one line.

    An exception would not do: raised in a callback of JAX's it is lost, and while JAX compiles it may crash the
    interpreter at its end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Not where it is ignored, as in the background.
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From now on Ctrl-C raises `KeyboardInterrupt`, as Python does by itself."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(status: int) -> None:
    """Ends the process, without what else the interpreter does at its end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(RuntimeError, OSError):  # It was being written to; or nobody reads it any more.
            stream.flush()
    os._exit(status)


def _end(*_: object) -> None:
    os.write(2, b"train: interrupted\n")
    leave(130)


class Interrupt(threading.Event):
    """Set by the first Ctrl-C; the second one interrupts at once.

    Attributes:
      wake: called by the first one, too, in the signal handler.
    """

    wake: Callable[[], None] = staticmethod(lambda: None)

    def __enter__(self) -> Self:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, *_: object) -> None:
        self.set()
        # Not by print, which may be what was interrupted.
        os.write(2, b"\nstopping after the commits at hand; Ctrl-C again stops at once, without a checkpoint\n")
        signal.signal(signal.SIGINT, self._before)
        self.wake()
