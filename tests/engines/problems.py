"""Small problems, poisoned batches and traces that the tests of the engines share."""

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.rows import METHODS

import gemjax
from gemjax import testing
from gemjax.engines.devices import scheduler
from gemjax.engines.devices.roster import Roster

# One with gradients and one with local steps.
FEW = ("gem", "lsgd-groups")


def every_method(*fast: str, only=lambda row: True, each_kind: bool = False, kinds: Sequence[str] = FEW):
    """Parametrize over the methods for which ``only`` is true; those that are not named are slow.

    With ``each_kind`` the methods beyond ``kinds`` are nightly.
    """
    assert set(fast) <= {row.name for row in METHODS}
    late = lambda row: pytest.mark.nightly if each_kind and row.name not in kinds else pytest.mark.slow
    marks = {row.name: (*(() if row.name in fast else (late(row),)), *row.without_rounds) for row in METHODS}
    return pytest.mark.parametrize(
        "make", [pytest.param(row, id=row.name, marks=marks[row.name]) for row in METHODS if only(row)]
    )


def distinct(row) -> bool:
    """Return True if no other row tests the same code in an engine; for tests that take long per method."""
    return not row.variant or row.name in ("easgd", "lsgd-groups", "dana-dc", "diloco", "streaming-diloco")


class Abreast:
    """Gate that blocks workers more than two steps ahead of another, so that short runs are mixed on any host.

    Args:
      num_workers: number of workers N.
      gate: called for a worker that is no longer blocked; may raise or block.
      lost: ``lost(worker, step)`` is True if no worker waits for this one any more; it may depend on anything.
    """

    def __init__(self, num_workers=4, gate=lambda worker, step: None, lost=None):
        self.steps, self.gate, self.lost = [0] * num_workers, gate, lost
        self.changed = threading.Condition()

    def _is_near(self, step):
        return all(s >= step - 2 or (self.lost is not None and self.lost(w, s)) for w, s in enumerate(self.steps))

    def __call__(self, worker, step):
        with self.changed:
            self.steps[worker] = step
            self.changed.notify_all()
            until = time.monotonic() + 60
            while not self._is_near(step) and time.monotonic() < until:
                self.changed.wait(60 if self.lost is None else 0.01)  # Nothing notifies of a worker that is lost.
        return self.gate(worker, step)


class Behind:
    """Gate that lets all others make exactly ``by`` commits each between a pull of ``worker`` and its next commit."""

    def __init__(self, num_workers, worker, by):
        self.steps, self.worker, self.by = [0] * num_workers, worker, by
        self.changed = threading.Condition()

    def _may_pass(self, worker, step):
        if worker == self.worker:
            return all(s >= self.by * (step + 1) for w, s in enumerate(self.steps) if w != worker)
        return step < self.by * (self.steps[self.worker] + 1)

    def __call__(self, worker, step):
        with self.changed:
            self.steps[worker] = step
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._may_pass(worker, step), timeout=60)


class NotedLog(gemjax.EventLog):
    """Event log that also keeps the kind and the worker of each event."""

    def __init__(self, path):
        super().__init__(path)
        self.noted = []

    def write(self, /, event, time, **fields):
        super().write(event, time, **fields)
        self.noted.append((event, fields.get("worker")))


def only_silent(monkeypatch, hangs):
    """Let the deadline of a gradient expire only if ``hangs(worker, step)``: a busy host may delay the others, too."""
    begin_round = Roster.begin_round
    monkeypatch.setattr(
        Roster, "begin_round", lambda self, now: [w for w in begin_round(self, now) if hangs(w, self.steps[w])]
    )


class Clock:
    """The scheduler's clock, which a test may set ``ahead``, as if the time had passed."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        monkeypatch.setattr(scheduler, "time", self)

    def perf_counter(self):
        return time.perf_counter() + self.ahead


class Problem(NamedTuple):
    """Arguments of every engine."""

    loss_fn: Any
    params: Any
    batches: Any
    model_state: Any = ()


def mlp(dtype=jnp.float32) -> Problem:
    """Return a two-layer network whose loss depends on keys (dropout) and model state (a running mean)."""
    rng = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(rng.normal(0, 0.7, shape), dtype)

    params = {"in": {"w": array(3, 8), "b": array(8)}, "out": {"w": array(8, 2), "b": array(2)}}
    teacher = array(3, 2)

    def loss_fn(params, model_state, batch, key):
        hidden = jnp.tanh(batch @ params["in"]["w"] + params["in"]["b"][None])
        hidden = hidden * (jax.random.bits(key, hidden.shape, "uint8") < 200).astype(hidden.dtype)
        mean = jnp.asarray(0.9, dtype) * model_state["mean"] + jnp.asarray(0.1, dtype) * hidden.mean(0)
        centred = hidden - jax.lax.stop_gradient(mean)[None]
        error = centred @ params["out"]["w"] + params["out"]["b"][None] - jnp.sin(batch @ teacher)
        return jnp.mean(error**2), ({"mean": mean, "seen": model_state["seen"] + 1}, {"error": jnp.abs(error).max()})

    def batches(worker, step):
        return jnp.sin(jnp.arange(15, dtype=dtype) * (worker + 1) + step).reshape(5, 3)

    return Problem(loss_fn, params, batches, {"mean": jnp.zeros(8, dtype), "seen": jnp.int32(0)})


def quadratic(dimension: int = 4) -> Problem:
    """Return ``gemjax.testing.quadratic`` with noise that compiles quickly."""
    loss_fn, params, _ = testing.quadratic(dimension)
    return Problem(loss_fn, params, lambda worker, step: 0.1 * jnp.sin(jnp.arange(dimension) + 3.0 * worker + step))


def quadratic_with_dropout(dtype="float32") -> Problem:
    """Return a problem like :func:`mlp`, with keys and model state, that compiles quickly."""
    curvature = jnp.array([1.0, 0.6, 0.3], dtype)

    def loss_fn(params, model_state, batch, key):
        kept = (jax.random.bits(key, (3,), "uint8") < 200).astype(dtype)
        x = params["x"] * kept - params["b"]
        mean = jnp.asarray(0.9, dtype) * model_state["mean"] + jnp.asarray(0.1, dtype) * jax.lax.stop_gradient(x)
        loss = 0.5 * jnp.sum(curvature * (x - 0.1 * mean) ** 2) + jnp.sum(batch * params["x"])
        return loss, ({"mean": mean, "seen": model_state["seen"] + 1}, {"error": jnp.abs(x).max()})

    def batches(worker, step):
        return 0.1 * jnp.sin(jnp.arange(3, dtype=dtype) + 3 * worker.astype(dtype) + step.astype(dtype))

    params = {"x": jnp.ones(3, dtype), "b": jnp.asarray(0.5, dtype)}
    return Problem(loss_fn, params, batches, {"mean": jnp.zeros(3, dtype), "seen": jnp.int32(0)})


def samples_of_several_versions() -> Problem:
    """Return a problem whose samples are weighted by the staleness of their versions, in double precision."""

    def loss_fn(params, batch):
        weights = gemjax.rules.weigh_samples(batch["version"], batch["clock"], max_staleness=6)
        return jnp.mean(weights * (batch["x"] @ params["w"] - params["b"] - 1.0) ** 2)

    def batches(worker, step):
        x = jnp.sin(jnp.arange(24.0, dtype=jnp.float64) * (worker + 1) + step).reshape(8, 3)
        return {"x": x, "version": step + jnp.arange(8) % 5 - worker, "clock": step + 4}

    return Problem(loss_fn, {"w": jnp.zeros(3, jnp.float64), "b": jnp.zeros([], jnp.float64)}, batches)


def problem_of(row) -> Problem:
    """Return the problem, in double precision, for a test that compiles each method in several engines.

    It is :func:`mlp` for GEM and where matrices are treated apart, and :func:`quadratic_with_dropout` for the others.
    """
    return mlp(jnp.float64) if row.partitioned or row.name in ("gem", "muloco") else quadratic_with_dropout("float64")


def poisoned(problem: Problem, at, kind: str = "loss") -> Problem:
    """Return ``problem`` with a loss, or only a gradient, that is not finite at the (worker, step) pairs ``at``."""
    with_state = bool(jax.tree.leaves(problem.model_state))

    def batches(worker, step):
        bad = jnp.zeros([], bool)
        for w, s in at:
            bad |= (worker == w) & (step == s)
        return bad, problem.batches(worker, step)

    def poison(params, bad):
        x = jax.tree.leaves(params)[0].ravel()[0]
        if kind == "loss":
            return jnp.where(bad, jnp.nan, 0.0).astype(x.dtype)
        # sqrt at 0: the value is 0, the slope infinite.
        here = jnp.where(bad, x - jax.lax.stop_gradient(x), jnp.ones_like(x))
        return jnp.where(bad, jnp.sqrt(here), jnp.zeros_like(x))

    def loss_fn(params, model_state, batch, key):
        bad, batch = batch
        loss, aux = problem.loss_fn(params, model_state, batch, key)
        return loss + poison(params, bad), aux

    def plain_loss_fn(params, batch):
        bad, batch = batch
        return problem.loss_fn(params, batch) + poison(params, bad)

    return problem._replace(loss_fn=loss_fn if with_state else plain_loss_fn, batches=batches)


def without(trace: gemjax.Trace, rows) -> gemjax.Trace:
    """Return the trace without ``rows``, at which their workers pulled instead."""
    kept = np.setdiff1d(np.arange(len(trace)), rows)
    pulled_at = trace.pulled_at - np.searchsorted(np.sort(rows), trace.pulled_at)
    return gemjax.Trace(trace.worker[kept], pulled_at[kept], trace.step[kept], trace.time[kept], trace.num_workers)


def late(num_workers: int = 4, num_commits: int = 24) -> gemjax.Trace:
    """Return a trace with late pulls, lost steps and a worker that begins late."""
    longer = gemjax.arrivals.Gamma(num_workers, machine_variation=0.4).trace(num_commits + 5, seed=3)
    return without(longer, [2, 7, 8, 13, num_commits])


def fading(rate: float) -> optax.GradientTransformation:
    """Return a local optimizer with momentum whose rate falls with the progress of the run."""

    def update_fn(updates, state, params=None, *, commits, local_step, **extra_args):
        scale = lambda update: update / (1 + 0.1 * commits.astype(update.dtype) + 0.01 * local_step)
        return jax.tree.map(scale, updates), state

    fade = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    return optax.chain(optax.sgd(rate, momentum=0.5), fade)


def assert_same_bits(actual, desired):
    """Check that the trees are equal, bit for bit."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        assert a.dtype == d.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(d))


def assert_close(actual, desired, rtol):
    """Check that the trees are equal up to ``rtol`` of each leaf's largest number."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        d = np.asarray(d, np.float64)
        np.testing.assert_allclose(
            np.asarray(a, np.float64), d, rtol=0, atol=rtol * max(1e-30, np.abs(d).max(initial=0))
        )
