"""Signals during a run: what their handlers raise is held back while its state is between two commits."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

# Signals with which users, schedulers and timers end a run.
ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")

_takers: list[Callable[[Any], bool]] = []


def take_ignored(take: Callable[[Any], bool], first: bool = False) -> None:
    """Call ``take`` with each exception that Python ignores; one for which it returns True is passed on no further.

    One hook in ``sys`` calls all such functions, and stays. If each had a hook of its own, a thread that puts back the hook of
    before would remove those of other threads.

    Args:
      take: function of the argument of ``sys.unraisablehook``. Given again, it is called once.
      first: call it before the functions that are there.
    """
    if take not in _takers:
        _takers.insert(0 if first else len(_takers), take)
    report = sys.unraisablehook
    if getattr(report, "asks_takers", False):
        return

    def hook(ignored: Any) -> None:
        if not any(take(ignored) for take in _takers.copy()):
            report(ignored)

    hook.asks_takers = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def take_no_more(take: Callable[[Any], bool]) -> None:
    """Call ``take`` no more. Without effect if it is not called."""
    with contextlib.suppress(ValueError):
        _takers.remove(take)


class Held:
    """Exceptions of signal handlers, such as Ctrl-C, held back until the state of a run can be read.

    A commit takes the memory of the state before it, so an exception in between would lose the run. Inside ``with Held()``
    Python's handlers of ``ENDING`` are called at once, but the first exception of one is raised only in :meth:`open`, at
    :meth:`check` or at the end, and the second one anywhere, as is one with a true attribute ``at_once``. Python ignores what
    is raised in a finalizer or in a callback of the garbage collector, of which JAX has one; an exception that is lost there is
    held back, too. So is the second one if other code catches it. If the run fails meanwhile, the first one is raised at the
    end, with the ``result`` of that error. Handlers are replaced only in the main thread, because no other one gets signals.

    Args:
      said: sentence for standard error, behind the name of a signal whose exception is held back; empty for none.
    """

    def __init__(self, said: str = ""):
        self._said = said
        self._opened = True
        self._raised: BaseException | None = None
        self._let: BaseException | None = None  # The last exception of a handler that was raised at once.
        self._before: dict[int, Callable] = {}

    def __enter__(self) -> Self:
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (getattr(signal, name) for name in ENDING if hasattr(signal, name)):
                    if callable(before := signal.getsignal(number)):
                        self._before[number] = before
                        signal.signal(number, self._on_signal)
                take_ignored(self._take, first=True)
            self._opened = False
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._restore()
        self._let = None  # Another hook may keep this object, and the exception keeps the frames of the run.
        stop, self._raised = self._raised, None
        if stop is not None and stop is not error and not isinstance(error, (KeyboardInterrupt, SystemExit)):
            vars(stop).update({} if error is None else vars(error))
            raise stop from error

    def let_through(self) -> None:
        """Hold nothing back from here on."""
        self._opened = True

    def hold(self, error: BaseException) -> None:
        """Hold back an exception that came out of :meth:`open`, if a handler raised it; another one that is held gives way."""
        if error is self._let:
            self._raised = error

    def let_out(self, error: BaseException) -> None:
        """Raise what a handler raised inside of :meth:`open`, if it led to ``error``; other errors may be tried again.

        An ``Exception`` counts if it is ``error`` or its cause. Further back, other code may have made its own error of it,
        as of a time-out that it has set; Ctrl-C counts anywhere.
        """
        found: BaseException | None = error
        seen: set[int] = set()
        while found is not None and id(found) not in seen:  # An error may be its own cause.
            if found is self._let and (len(seen) < 2 or not isinstance(found, Exception)):
                raise found
            seen.add(id(found))
            found = found.__cause__ or found.__context__

    def check(self) -> None:
        """Raise the exception that was held back, if there is one."""
        stop, self._raised = self._raised, None
        if stop is not None:
            self._let = stop
            raise stop

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let handlers raise anywhere inside, where no commit is under way."""
        try:
            self._opened = True
            self.check()
            yield
        finally:
            self._opened = False

    def _restore(self) -> None:
        self.let_through()  # A callback may have saved the handler, and it is set again later.
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:  # A callback may have set another one.
                signal.signal(number, before)
        take_no_more(self._take)

    def _take(self, ignored: Any) -> bool:
        """Hold back what a handler raised, if Python ignores it."""
        if self._let is None or ignored.exc_value is not self._let:
            return False
        self._raised, self._let = self._let, None
        return True

    def _on_signal(self, number: int, frame: Any) -> None:
        try:
            self._before[number](number, frame)
        except BaseException as stop:
            if self._opened or self._raised is not None or getattr(stop, "at_once", False):
                self._let = stop
                # A program of JAX that calls back to Python turns it into an error of its own, which may be passed over.
                self._raised = None if self._opened else stop
                raise
            self._raised = stop
            if self._said:
                name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
                with contextlib.suppress(OSError):
                    os.write(2, f"\n{name}: {self._said}\n".encode())
