"""What Ctrl-C does where there is nothing to save."""

import contextlib
import os
import signal
import sys


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
