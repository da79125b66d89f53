"""Calls into Orbax without its messages on stderr."""

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gemjax.checkpoints.turns import reading
from gemjax.engines.interrupts import Held

LATE = "Event loop is closed"  # What asyncio raises where TensorStore answers.


def quietly(call: Callable[[], Any], translate: Callable[[Exception], Exception]) -> tuple[Any, Exception | None]:
    """Return ``(call(), None)`` of a call that reads, or ``(None, translate(error))`` if it raises.

    What Orbax warns of or logs is discarded. The original error is released here, together with the unfinished tasks that its
    traceback holds: their destructors print tracebacks of their own. The exception of a signal handler is held back: after an
    interrupted call of Orbax the next one would find nothing.
    """
    with Held(), reading(), discarding():
        try:
            return call(), None
        except Exception as error:
            translated = translate(error)
        gc.collect()
    return None, translated


@contextlib.contextmanager
def discarding() -> Iterator[None]:
    """Discard the warnings and log messages of Orbax."""
    hook, level = sys.unraisablehook, logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        # What a signal handler raises, such as KeyboardInterrupt, goes to those who find such exceptions.
        sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Exception) else hook(lost)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(level)


def ignore_late_answers() -> None:
    """Discard tracebacks of TensorStore's answers to a write that has failed at another array; from now on.

    Orbax closes the event loop of a write at its first error, while other arrays of it are still being written.
    """
    before = sys.unraisablehook
    if getattr(before, "ignores_late_answers", False):
        return

    def hook(unraisable):
        of_library = unraisable.object is None and isinstance(unraisable.exc_value, RuntimeError)
        if not (of_library and str(unraisable.exc_value) == LATE):
            before(unraisable)

    hook.ignores_late_answers = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook
