"""Gradients as packed arrays: what a worker computes from a packed view, whole or in local steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.engines.devices.hardware.central import event_of
from gemjax.engines.devices.hardware.packing import Packer, packer_of
from gemjax.engines.devices.hardware.sharding import Place, split_batch
from gemjax.engines.programs import Program
from gemjax.engines.worker import WorkerStep
from gemjax.protocol import PyTree


class Packers(NamedTuple):
    """The packing of views and gradients."""

    views: Packer
    gradients: Packer


def packers(
    step: WorkerStep, batches: Any, central: Place, view: PyTree, local: PyTree, example: PyTree, largest: float
) -> Packers:
    """Return the packers of views with outcomes, and of gradients, from arrays or shapes; larger leaves are apart."""
    data, selection = example
    data = batches.data if data is None else data
    compute = functools.partial(gradient_at, step.gradient, batches, None)
    shapes = jax.eval_shape(compute, view[0], local, data, selection, event_of(0, 0))
    return Packers(packer_of(view, central, largest), packer_of(shapes._replace(local=()), central, largest))


def packed_gradient(gradient: Callable, batches: Any, packed_as: Packers) -> Callable:
    """Return ``compute(packed, local, data, selection, event, place) -> (packed gradient, new local)``.

    ``gradient`` is :meth:`gemjax.engines.worker.WorkerStep.gradient`.
    """

    def compute(packed, local, data, selection, event, place):
        sent = gradient_at(gradient, batches, place, packed_as.views.unpack(packed)[0], local, data, selection, event)
        return packed_as.gradients.pack(sent._replace(local=())), sent.local

    return compute


def gradient_at(gradient, batches, place, view, local, data, selection, event):
    """Compute a gradient from the selection of its batch."""
    batch = split_batch(place, batches.batch(data, selection))
    commits = jax.tree.map(lambda count: count.astype(jnp.int32), view.commits)
    return gradient(view._replace(local=local, commits=commits), batch, event[0], event[1])


class Stepwise:
    """The local steps of a commit, which can be interrupted between two of them.

    XLA finishes a program that has begun, so each step is a program of its own, and is waited for before the next one.

    Args:
      step: the worker's functions, with local steps.
      batches, packed_as, place: as for :func:`packed_gradient` and what it returns.
      finish: :func:`packed_gradient`, or another one like it whose function may take more arguments.
    """

    def __init__(self, step: WorkerStep, batches: Any, packed_as: Packers, place: Place | None, finish: Callable):
        def at(function, packed, *arguments):
            return gradient_at(function, batches, place, packed_as.views.unpack(packed)[0], *arguments)

        def begin(*arguments):
            return at(lambda view, batch, worker, _: step.begin(view, batch, worker), *arguments)

        def one_step(carry, j, *arguments):
            return at(lambda view, batch, worker, _: step.local_step(view, batch, worker, j, carry), *arguments)

        def end(carry, *arguments):
            displacement = lambda view, batch, worker, _: step.end(view, batch, worker, carry)
            return finish(displacement, batches, packed_as)(*arguments, place=place)

        self._begin, self._step, self._end = Program(begin), Program(one_step, donate_argnums=0), Program(end)

    def __call__(self, interrupted: Callable[[], bool], count: int, arguments: tuple, *more: Any) -> Any:
        """Make ``count`` steps and return what is sent, or ``None`` as soon as ``interrupted()`` is true.

        ``arguments`` are those of a packed gradient without the place; ``more`` are those that ``finish`` takes besides.
        """
        carry = self._begin(*arguments)
        step = self._step.at(carry, np.int32(0), *arguments)
        for j in range(count):
            if interrupted():
                return None
            carry = jax.block_until_ready(step(carry, np.int32(j), *arguments))
        return None if interrupted() else self._end(carry, *arguments, *more)
