"""Calls into Orbax without its messages on stderr."""

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gemjax.checkpoints.turns import reading


def quietly(call: Callable[[], Any], translate: Callable[[Exception], Exception]) -> tuple[Any, Exception | None]:
    """Return ``(call(), None)`` of a call that reads, or ``(None, translate(error))`` if it raises.

    What Orbax warns of or logs is discarded. The original error is released here, together with the unfinished tasks that its
    traceback holds: their destructors print tracebacks of their own.
    """
    with reading(), discarding():
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
        sys.unraisablehook = lambda unraisable: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(level)
