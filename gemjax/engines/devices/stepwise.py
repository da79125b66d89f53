"""Local steps as one program per step, which end early when their worker is called back."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gemjax.engines.programs import Program
from gemjax.engines.worker import WorkerStep


class Stepwise:
    """The local steps of a commit, which can be interrupted between two of them.

    XLA finishes a program that has begun, so each step is a program of its own, and is waited for before the next one.

    Args:
      step: the worker's functions, with local steps.
      at: ``at(function, *arguments)`` calls ``function(view, batch, worker, step)`` with what the arguments mean.
      finish: ``finish(function, *arguments)`` makes of the displacement, which ``function`` returns, what is sent; it may
        take more arguments.
    """

    def __init__(self, step: WorkerStep, at: Callable, finish: Callable):
        def begin(*arguments):
            return at(lambda view, batch, worker, _: step.begin(view, batch, worker), *arguments)

        def one_step(carry, j, *arguments):
            return at(lambda view, batch, worker, _: step.local_step(view, batch, worker, j, carry), *arguments)

        def end(carry, *arguments):
            return finish(lambda view, batch, worker, _: step.end(view, batch, worker, carry), *arguments)

        self._begin, self._step, self._end = Program(begin), Program(one_step, donate_argnums=0), Program(end)

    def __call__(self, interrupted: Callable[[], bool], count: int, arguments: tuple, *more: Any) -> Any:
        """Make ``count`` steps and return what is sent, or ``None`` as soon as ``interrupted()`` is true.

        ``arguments`` are those of ``at``; ``more`` are those that ``finish`` takes besides.
        """
        carry = self._begin(*arguments)
        step = self._step.at(carry, np.int32(0), *arguments)
        for j in range(count):
            if interrupted():
                return None
            carry = jax.block_until_ready(step(carry, np.int32(j), *arguments))
        return None if interrupted() else self._end(carry, *arguments, *more)
