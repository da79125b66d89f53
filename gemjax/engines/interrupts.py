"""Ctrl-C during a run, held back while its state is between two commits."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, Self


class Held:
    """Ctrl-C, held back until the state of a run can be read.

    A commit takes the memory of the state before it, so an exception in between would lose the run. Inside ``with Held()`` the
    first Ctrl-C therefore raises ``KeyboardInterrupt`` only in :meth:`open`, at :meth:`check` or at the end, and the second one
    anywhere. If the run fails meanwhile, the first one is raised at the end, with the ``result`` of that error. Only Python's
    own handler is replaced, and only in the main thread, because no other one gets signals.

    Args:
      said: line for standard error at a Ctrl-C that is held back; empty for none.
    """

    def __init__(self, said: str = ""):
        self._said = said
        self._asked = self._opened = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            # A run inside the callback of another one holds for itself.
            if before is signal.default_int_handler or isinstance(getattr(before, "__self__", None), Held):
                self._before = before
                signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.let_through()  # A callback may have saved the handler, and it is set again later.
        if signal.getsignal(signal.SIGINT) == self._on_signal:  # A callback may have set another one.
            signal.signal(signal.SIGINT, self._before)
        if self._asked and not isinstance(error, KeyboardInterrupt):
            stop = KeyboardInterrupt()
            vars(stop).update({} if error is None else vars(error))
            raise stop from error

    def let_through(self) -> None:
        """Hold nothing back from here on."""
        self._opened = True

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C has been pressed."""
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let Ctrl-C raise anywhere inside, where no commit is under way."""
        try:
            self._opened = True
            self.check()
            yield
        finally:
            self._opened = False

    def _on_signal(self, *_: Any) -> None:
        if self._opened or self._asked:
            self._asked = False
            raise KeyboardInterrupt
        self._asked = True
        if self._said:
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self._said}\n".encode())
