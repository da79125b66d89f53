"""Signals during a run: what their handlers raise waits until the commit that is under way is made."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

# Signals with which users, schedulers and timers end a run.
ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")


class Held:
    """Exceptions of signal handlers, such as that of Ctrl-C, held back while a commit is under way.

    A commit takes the memory of the state before it, so an exception in between would lose the run. Inside ``with Held()``
    Python's handlers of ``ENDING`` are called at once. The first exception of a handler outside of :meth:`interruptible` waits
    for the next :meth:`check` or :meth:`interruptible`, or the end; a second one is raised. Only the main thread gets signals.

    Args:
      said: sentence for standard error, behind the name of a signal whose exception is held back; empty for none.
    """

    def __init__(self, said: str = ""):
        self._said = said
        self._interruptible = False
        self._stop: BaseException | None = None  # What is held back.
        self._raised: BaseException | None = None  # What was raised inside of the last `interruptible`.
        self._before: dict[int, Callable] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in ENDING if hasattr(signal, name)):
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._interruptible = True  # A callback may have saved the handler, and may set it again later.
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:  # A callback may have set another one.
                signal.signal(number, before)
        stop, self._stop, self._raised = self._stop, None, None  # An exception keeps the frames of the run.
        if stop is not None and stop is not error and not isinstance(error, (KeyboardInterrupt, SystemExit)):
            vars(stop).update({} if error is None else vars(error))  # With the result of the run.
            raise stop from error

    def check(self) -> None:
        """Raise the exception that was held back, if there is one."""
        stop, self._stop = self._stop, None
        if stop is not None:
            self._raised = stop
            raise stop

    def raise_again(self) -> None:
        """Raise what a handler raised inside of the last :meth:`interruptible`, if it did: an error from there may hide it."""
        if self._raised is not None:
            raise self._raised

    def hold(self, error: BaseException) -> None:
        """Hold back an exception that came out of :meth:`interruptible`, if a handler raised it."""
        if error is self._raised:
            self._stop = error

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let handlers raise anywhere inside, where no commit is under way."""
        try:
            self._interruptible, self._raised = True, None
            self.check()
            yield
        finally:
            self._interruptible = False

    def _on_signal(self, number: int, frame: Any) -> None:
        try:
            self._before[number](number, frame)
        except BaseException as stop:
            if self._interruptible or self._stop is not None:
                self._raised, self._stop = stop, None if self._interruptible else stop
                raise
            self._stop = stop
            if self._said:
                name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
                with contextlib.suppress(OSError):
                    os.write(2, f"\n{name}: {self._said}\n".encode())
