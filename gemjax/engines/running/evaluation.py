"""Evaluations during a run: when one is due, their rows, and the thread that makes them beside a run on devices."""

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from gemjax.batches.threads import start_thread
from gemjax.engines.checks import check_callback
from gemjax.engines.result import Evaluated, History, concatenate
from gemjax.protocol import PyTree
from gemjax.protocol.checks import integer
from gemjax.protocol.compat import settings_here

Evaluate = Callable[[PyTree, PyTree], Mapping[str, Any] | None]
PER_RUN = 20  # Evaluations, and calls of a callback, unless the caller says otherwise.
ROW = ("commit", "time")


def every_of(name: str, every: int | None, total: int) -> int:
    """Return the commits between two evaluations, or two calls of a callback; by default there are about twenty a run.

    >>> every_of("evaluate_every", None, 600), every_of("evaluate_every", 7, 600), every_of("evaluate_every", None, 3)
    (30, 7, 1)
    """
    if every is None:
        return max(1, round(total / PER_RUN))
    return integer(name, every, 1)


class Evaluation:
    """The evaluations of a run: their function, when one is due, and their rows.

    Args:
      evaluate: the user's function; ``None``: nothing is ever due.
      every: commits between two evaluations; ``None`` for the default.
      total: commits of the whole run.
      earlier: the rows of the run that this one continues.
    """

    def __init__(self, evaluate: Evaluate | None, every: int | None, total: int, earlier: History):
        check_callback(evaluate, "evaluate", "(params, model_state) -> dict of numbers")
        self.evaluate, self.every = evaluate, every_of("evaluate_every", every, total)
        self._earlier, self._rows = earlier, []
        self.newest = int(earlier["commit"][-1]) if earlier else 0  # Commit of the newest one, known or under way.

    def begin(self, commits: int) -> None:
        """Note that the run goes on after so many commits."""
        self.due = (max(commits, self.newest) // self.every + 1) * self.every

    def note(self, commit: int) -> None:
        """Note that the parameters after ``commit`` are evaluated."""
        self.newest = commit
        self.begin(commit)

    def is_missing(self, commits: int) -> bool:
        """Return True if the state after so many commits, the last of the run, is to be evaluated."""
        return self.evaluate is not None and commits > self.newest

    def values(self, params: PyTree, model_state: PyTree) -> dict[str, float] | None:
        """Call the function; return its numbers, or ``None`` if it has declined.

        Raises:
          TypeError: if a number has a name that each row has.
        """
        assert self.evaluate is not None
        found = self.evaluate(params, model_state)
        if found is None:
            return None
        values = {name: float(np.asarray(value).reshape(())) for name, value in found.items()}
        if taken := [name for name in ROW if name in values]:
            raise TypeError(f"evaluate returned a number named {taken[0]!r}, which each row has; give it another name")
        return values

    def add(self, commit: int, at: float, values: Mapping[str, float]) -> None:
        row = {"commit": np.array([commit]), "time": np.array([at])}
        self._rows.append(row | {name: np.array([value]) for name, value in values.items()})

    def columns(self) -> History:
        """Return all rows, including those of the earlier run, as columns."""
        return concatenate([self._earlier, *self._rows])


class Made(NamedTuple):
    """An evaluation that a thread has made."""

    evaluated: Evaluated
    at: float  # Time of the commit, on the run's clock.
    began: float  # time.perf_counter().
    seconds: float
    values: dict[str, float] | None  # None if the function declined.
    error: BaseException | None


class Evaluator:
    """A thread that evaluates copies of the parameters on a device, one after the other; others wait in its queue.

    Args:
      evaluation: the evaluations of the run, whose function the thread calls.
      device: where it is called.
      wake: called when an evaluation has been made.
    """

    def __init__(self, evaluation: Evaluation, device: jax.Device, wake: Callable[[], None]):
        self.evaluation, self.device, self._wake = evaluation, device, wake
        self._inbox: queue.SimpleQueue[tuple[Evaluated, float] | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Made] = queue.SimpleQueue()
        self._under_way, self._closed = 0, False
        self._settings = settings_here()

    def submit(self, evaluated: Evaluated, at: float) -> None:
        """Let the thread evaluate parameters that are on its device; return at once."""
        self.evaluation.note(evaluated.commit)
        self._under_way += 1
        self._inbox.put((evaluated, at))

    def made(self, *, wait: bool = False) -> Iterator[Made]:
        """Yield the evaluations that have been made since the last call; with ``wait``, until none is under way."""
        while self._under_way:
            try:
                made = self._made.get(block=wait)
            except queue.Empty:
                return
            self._under_way -= 1
            yield made

    def _serve(self) -> None:
        with self._settings(), jax.default_device(self.device):
            while (item := self._inbox.get()) is not None and not self._closed:
                evaluated, at = item
                began, values, error = time.perf_counter(), None, None
                try:
                    values = self.evaluation.values(evaluated.params, evaluated.model_state)
                except BaseException as raised:  # The scheduler raises it.
                    error = raised
                self._made.put(Made(evaluated, at, began, time.perf_counter() - began, values, error))
                del item, evaluated, error  # So that the copy is not kept until the next one.
                self._wake()

    def __enter__(self) -> Self:
        start_thread(self._serve, name="gemjax-evaluator")
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._inbox.put(None)
