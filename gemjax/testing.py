"""Tools for tests of asynchronous code: injected faults, a plain reference loop, toy problems."""

import collections
import functools
import threading
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.base import select
from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.transition import Transition
from gemjax.protocol import PyTree, slots
from gemjax.protocol.delays import spread_blocks
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.nodes import counting_refusals, refused
from gemjax.protocol.staleness import pull_with_anchors, read_again
from gemjax.protocol.trace import Trace, check_trace


class InjectedFaultError(RuntimeError):
    """Error that a worker raises because a test planned it."""


class Faults:
    """Faults keyed by (worker, that worker's step), injected through ``gate=`` of a run on devices or on a cluster.

    Use it as a context manager: leaving it releases hung workers, and in a further block all faults are injected again.

    >>> with Faults().hang(worker=2, step=5).fail(worker=0, step=3).slow(worker=1, seconds=0.05) as faults:
    ...     faults(worker=3, step=0)  # No fault here: returns at once.

    Attributes:
      injected: faults injected so far, as (kind, worker, step) in order.
    """

    def __init__(self):
        self._hangs: dict[tuple[int, int], threading.Event] = {}
        self._failures: dict[tuple[int, int], int] = {}
        self._poisoned: set[tuple[int, int]] = set()
        self._slow: list[tuple[int, float, int, float]] = []
        self._made: collections.Counter[tuple[str, int, int]] = collections.Counter()
        self._let_go: set[tuple[int, int]] = set()  # Since the last block ended.
        self._ended = threading.Event()
        self.injected: list[tuple[str, int, int]] = []

    def hang(self, worker: int, step: int) -> "Faults":
        """Make the worker hang in that step until :meth:`let_go` releases it; one that hangs there already is released."""
        if (worker, step) in self._hangs:  # A worker may hang there now.
            self._hangs[worker, step].set()
        self._hangs[worker, step] = threading.Event()
        self._let_go.discard((worker, step))
        return self

    def let_go(self, worker: int, step: int) -> None:
        """Release a worker that hangs in that step, or will reach it; may be called from any thread.

        Raises:
          KeyError: if no hang was planned there.
        """
        self._hangs[worker, step].set()
        self._let_go.add((worker, step))

    def fail(self, worker: int, step: int, times: int = 1) -> "Faults":
        """Make the worker raise at that step, in the first ``times`` attempts."""
        self._failures[worker, step] = times
        self._made.pop(("fail", worker, step), None)
        return self

    def poison(self, worker: int, step: int) -> "Faults":
        """Make the gradient of the worker NaN in the first attempt at that step."""
        self._poisoned.add((worker, step))
        self._made.pop(("poison", worker, step), None)
        return self

    def slow(self, worker: int, seconds: float, first: int = 0, last: float = float("inf")) -> "Faults":
        """Make the worker take ``seconds`` longer for each of its steps from ``first`` to ``last``; several calls add up."""
        self._slow.append((worker, float(seconds), first, last))
        return self

    def __call__(self, worker: int, step: int) -> Any:
        at = (worker, step)
        if (hang := self._hangs.get(at)) is not None and not hang.is_set():
            self.injected.append(("hang", *at))
            hang.wait()
        for slow, seconds, first, last in self._slow:
            if slow == worker and first <= step <= last:
                self.injected.append(("slow", *at))
                self._ended.wait(seconds)
        if self._made["fail", *at] < self._failures.get(at, 0):
            self._made["fail", *at] += 1
            self.injected.append(("fail", *at))
            raise InjectedFaultError(f"injected at worker {worker}, step {step}")
        if at in self._poisoned and not self._made["poison", *at]:
            self._made["poison", *at] += 1
            self.injected.append(("poison", *at))
            return _poison
        return None

    def __enter__(self) -> Self:
        if self._ended.is_set():  # All faults are injected again.
            self._ended, self._hangs = threading.Event(), {at: threading.Event() for at in self._hangs}
            self._made.clear()
            for at in self._let_go:
                self._hangs[at].set()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._let_go.clear()
        for hang in self._hangs.values():
            hang.set()


def _poison(gradient: PyTree) -> PyTree:
    """Return a gradient with NaN in place of its floats, in whatever arrays an engine has packed it."""

    def poisoned(x):
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x  # A cluster also passes the transfer seconds.
        return np.full_like(x, np.nan) if isinstance(x, np.ndarray) else x * jnp.nan

    return jax.tree.map(poisoned, gradient)


def run_in_python(
    tx: optax.GradientTransformation,
    loss_fn: Any,
    params: PyTree,
    batches: Any,
    trace: Trace,
    *,
    model_state: PyTree = (),
    local: LocalSteps | None = None,
    seed: int = 0,
) -> PyTree:
    """Run a trace as a plain loop over ``update`` and ``pull``: the naive reference of every engine.

    Commits are made one by one. Only the gradient, the update and the pull are compiled, each by itself. The model state of
    the last commit is the central one. No commit is rejected: a gradient that is not finite is applied.

    Returns:
      The final central variable.
    """
    check_trace(trace)
    transition = Transition(tx=tx, loss_fn=loss_fn, num_workers=trace.num_workers, seed=seed, local=local)
    transition = transition.bind(params)
    initial = transition.init(params, model_state)
    batches, opt_state = as_batches(batches, trace.num_workers), initial.opt_state
    batches = batches if local is None else LocalBatches(batches, local)
    # A function of arrays: a batch of local steps is a closure, which cannot pass through jit.
    gradient = jax.jit(lambda view, data, chosen, worker, step: transition.gradient(
        view, batches.batch(data, chosen), worker, step
    ))  # fmt: skip
    # Fresh lambdas, so that jit finds no earlier trace. Outside of jit each call would compile its conditionals again.
    update = jax.jit(lambda sent, state, params, worker: transition.update(sent, state, params, worker))
    pull = jax.jit(lambda state, params, worker: pull_with_anchors(state, params, worker))
    # At the first use: a source that gathers its data on the host may have more than a device can hold.
    on_device = functools.cache(lambda: jax.device_put(batches.data))
    views = [transition.view_of(slots.take(initial, worker)) for worker in range(trace.num_workers)]
    applied, own = 0, [0] * trace.num_workers
    for worker, step, commits, _, draw, blocks in zip(*trace.events(), strict=True):
        worker, step = int(worker), int(step)
        view = views[worker]
        if not blocks.all():
            choose = functools.partial(jax.tree.map, jnp.where, spread_blocks(jnp.asarray(blocks), params))
            read, opt_state = read_again(opt_state, params, choose, view.params, worker)
            views[worker] = view._replace(params=read)
            continue
        if commits:
            chosen = select(batches, np.array([worker]), np.array([step]), np.array([draw]))
            data, selection = batches.gather(jax.tree.map(lambda column: column[0], chosen))
            sent = gradient(view, on_device() if data is None else data, selection, worker, step)
            before = opt_state
            updates, opt_state = update(sent, opt_state, params, worker)
            if refused(before, opt_state):
                opt_state = counting_refusals(before, opt_state)
            else:
                params, model_state = optax.apply_updates(params, updates), sent.model_state
                view, applied = view._replace(local=sent.local), applied + 1
                own[worker] += 1
        pulled, opt_state, anchors = pull(opt_state, params, worker)
        counts = () if local is None else (jnp.int32(applied), jnp.int32(own[worker]))
        own_state = slots.with_own_keys(model_state, worker)
        views[worker] = view._replace(params=pulled, model_state=own_state, anchors=anchors, commits=counts)
    return params


def quadratic(
    dimension: int = 4, condition: float = 10.0, noise: float = 0.1, seed: int = 0
) -> tuple[Any, PyTree, Any]:
    """Make a noisy quadratic, ``(loss_fn, params, batches)`` for any engine, with its minimum 0 at the origin.

    Args:
      dimension: number of parameters.
      condition: ratio of the largest (1) to the smallest curvature.
      noise: standard deviation of the gradient's noise.
      seed: seed of the noise.

    >>> loss_fn, params, batches = quadratic()
    >>> loss_fn(params, jnp.zeros(4)).shape
    ()
    """
    curvature = jnp.logspace(0.0, -jnp.log10(condition), dimension)

    def loss_fn(params, batch):
        return 0.5 * jnp.sum(curvature.astype(params["x"].dtype) * params["x"] ** 2) + jnp.sum(batch * params["x"])

    def batches(worker, step):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), worker), step)
        return noise * jax.random.normal(key, (dimension,))

    return loss_fn, {"x": jnp.ones(dimension)}, batches
