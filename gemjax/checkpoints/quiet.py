"""Calls into Orbax without its messages on stderr."""

import contextlib
import gc
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

from gemjax.checkpoints.files import UNFINISHED
from gemjax.checkpoints.turns import is_writing, reading
from gemjax.engines.running.interrupts import Held, take_ignored, take_no_more

_changing = threading.RLock()  # A signal handler may read a checkpoint, too.
_inside = 0  # Threads that discard messages.
_silence = contextlib.ExitStack()
LATE = "Event loop is closed"  # What asyncio raises where TensorStore answers.
LOGGERS = "absl", "asyncio"
# What Python warns of in tasks that an error has left, and what Orbax warns of; entries of ``warnings.filters``.
WARNINGS = (
    ("ignore", re.compile("coroutine .* was never awaited"), RuntimeWarning, None, 0),
    ("ignore", None, Warning, re.compile(r"(orbax|etils|tensorstore)\b"), 0),
)
RAISED = "_SignalingThread.run() raised"  # What Orbax logs of a thread.


def quietly(call: Callable[[], Any], translate: Callable[[Exception], Exception]) -> tuple[Any, Exception | None]:
    """Return ``(call(), None)`` of a call that reads, or ``(None, translate(error))`` if it raises.

    What Orbax warns of or logs is discarded, with what other threads log to ``LOGGERS`` meanwhile. The original error is
    released here, together with the unfinished tasks that its traceback holds: their destructors print tracebacks of their
    own. The exception of a signal handler is held back: after an interrupted call of Orbax the next one would find nothing.
    """
    ignore_repeated_errors()  # TensorStore may answer when the call has ended.
    with Held(), reading(), discarding():
        try:
            return call(), None
        except Exception as error:
            translated = translate(error)
        gc.collect()
    return None, translated


@contextlib.contextmanager
def discarding() -> Iterator[None]:
    """Discard the warnings and log messages of Orbax, and the exceptions of its finalizers.

    Threads may do so at the same time: the first one begins, and the last one ends it.
    """
    global _inside
    begun = False
    try:
        with _changing:
            if not _inside:
                _silence.enter_context(_silent())
            _inside += 1
            begun = True
        yield
    finally:
        with _changing:
            _inside -= begun
            if not _inside:
                _silence.close()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    # Nothing of the process is replaced: other threads log and warn meanwhile, and may use ``warnings.catch_warnings``.
    loggers = [logging.getLogger(name) for name in LOGGERS]
    try:
        take_ignored(_discard)
        for logger in loggers:
            logger.addFilter(_nothing)
        cast("list", warnings.filters)[:0] = WARNINGS
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_nothing)
        take_no_more(_discard)
        filters = cast("list", warnings.filters)  # Another thread may replace them at any time.
        for entry in WARNINGS:
            with contextlib.suppress(ValueError):
                while True:  # It may have put back a copy of before.
                    filters.remove(entry)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _discard(ignored: Any) -> bool:
    # Those of signal handlers go to the runs, which are asked first, or are no Exception, as KeyboardInterrupt is none.
    return isinstance(ignored.exc_value, Exception)


def ignore_repeated_errors() -> None:
    """Discard what tells the error of a read or write again, which that raises itself; from now on.

    These are tracebacks that Orbax and asyncio log of its threads and tasks, and those of TensorStore's answers to a call that
    has failed at another array: Orbax closes the event loop at the first error, while others are still read or written.
    """
    take_ignored(_is_late)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_news)  # Given again, it is called once.


def _is_late(ignored: Any) -> bool:
    of_library = ignored.object is None and isinstance(ignored.exc_value, RuntimeError)
    return of_library and str(ignored.exc_value) == LATE


def _is_news(record: logging.LogRecord) -> bool:
    if record.levelno != logging.ERROR:
        return True
    in_thread = is_writing() and RAISED in str(record.msg)
    # Not formatted: a message with wrong arguments is reported by its handler.
    return not in_thread and f"{UNFINISHED}-{os.getpid()}-" not in f"{record.msg} {record.args}"
