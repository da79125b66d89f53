"""The law on these devices: a run that is replayed from its record gives the same parameters."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gemjax

PyTree = Any
SILENCE = 120.0  # Seconds after which a worker that has not finished is given up, so that the check ends.
MOST_WORKERS = 16
LATER = 0.005  # Seconds that worker 0 takes longer for a gradient.
# Rounding alone comes to 1e-6 in float32, seldom to 1e-5 (GEM divides by momenta that may be small).
ALLOWED = {"float32": 1e-4, "float64": 1e-12}
FEATURES, TARGETS, ROWS, BATCH = 32, 8, 512, 64


@dataclasses.dataclass(frozen=True)
class Method:
    """A method that the law is checked with.

    Attributes:
      make: the transformation for N workers.
      local: local steps of the workers, if any.
    """

    make: Callable[[int], optax.GradientTransformation]
    local: gemjax.LocalSteps | None = None


METHODS = {
    "gem": Method(lambda n: gemjax.gem(0.01, 0.9, n)),
    "dana_zero": Method(lambda n: gemjax.dana_zero(0.01, 0.9, num_workers=n)),
    "dc_asgd": Method(lambda n: gemjax.dc_asgd(0.05, num_workers=n)),
    "easgd, local steps": Method(lambda n: gemjax.easgd(num_workers=n), gemjax.LocalSteps(optax.sgd(0.02), 4)),
}


@dataclasses.dataclass(frozen=True)
class Law:
    """One recorded run and its replay. Differences are the largest of a parameter, over the largest parameter.

    Attributes:
      method: key of ``METHODS``, and the precision of matrix products if that is not ``"highest"``.
      dtype: ``"float32"`` or ``"float64"``.
      workers: workers of the run.
      commits: commits of the run.
      staleness: median and largest staleness of the run.
      difference: between the run and its replay.
      allowed: what the difference may be; ``None`` where it is shown and not judged.
      last_place: effect on the replay of one initial parameter that is one unit in the last place larger; the size of
        rounding.
      reordered: effect of the same commits in the opposite order; the size of a violation. ``None`` with one worker, which
        has one order only.
      same_bits: whether a second replay gives the same bits.
    """

    method: str
    dtype: str
    workers: int
    commits: int
    staleness: tuple[float, int]
    difference: float
    allowed: float | None
    last_place: float
    reordered: float | None
    same_bits: bool

    @property
    def violation(self) -> str:
        """Why the law does not hold, or cannot be told to hold; empty if it does."""
        if self.allowed is None:
            return ""
        if not self.difference <= self.allowed:  # NaN, too.
            return f"the replay differs from the run by {self.difference:.2g}, allowed are {self.allowed:.0e}"
        if self.reordered is not None and not self.reordered > self.allowed:
            return f"another order of commits changes only {self.reordered:.2g}, so this run decides nothing"
        return ""


def check_law(
    name: str, dtype: str, placement: gemjax.Placement, num_commits: int = 60, *, precision: str = "highest"
) -> Law:
    """Runs a method on devices and replays the run from its trace.

    The problem is least squares, well conditioned, so that rounding does not grow. Worker 0 is slowed down, so that staleness
    varies.

    Args:
      name: key of ``METHODS``.
      dtype: ``"float32"`` or ``"float64"``.
      placement: devices of the run, of whose workers the first 16 take part: with more of them a run of so few commits is
        less well conditioned.
      num_commits: commits of the run.
      precision: of matrix products. Some accelerators round float32 to fewer bits by ``"default"``; then the difference is not
        judged.
    """
    with double_precision(dtype == "float64"):
        placement = gemjax.Placement(placement.workers[:MOST_WORKERS], placement.central)
        method, workers = METHODS[name], len(placement.workers)
        loss_fn, params, batches = least_squares(dtype, precision)
        tx = method.make(workers)
        with gemjax.testing.Faults().slow(0, LATER) as speeds:
            result = gemjax.run_on_devices(
                tx, loss_fn, params, batches, num_commits,
                placement=placement, local=method.local, policy=gemjax.Policy(deadline=SILENCE), gate=speeds,
            )  # fmt: skip

        def replay(params: PyTree, trace: gemjax.Trace) -> PyTree:
            simulated = gemjax.simulate(tx, loss_fn, params, batches, trace, local=method.local, chunk_size=num_commits)
            return jax.device_get(simulated.params)

        replayed = replay(params, result.trace)
        w = np.array(params["w"])
        w[0, 0] = np.nextafter(w[0, 0], np.inf, dtype=w.dtype)
        nudged = params | {"w": jnp.asarray(w)}
        opposite = gemjax.Trace(result.trace.worker[::-1], num_workers=workers)
        return Law(
            method=name if precision == "highest" else f"{name}, {precision}",
            dtype=dtype,
            workers=workers,
            commits=len(result.trace),
            staleness=(float(np.median(result.trace.staleness)), int(result.trace.staleness.max())),
            difference=difference(result.params, replayed),
            allowed=ALLOWED[dtype] if precision == "highest" else None,
            last_place=difference(replay(nudged, result.trace), replayed),
            reordered=difference(replay(params, opposite), replayed) if workers > 1 else None,
            same_bits=difference(replay(params, result.trace), replayed) == 0.0,
        )


def least_squares(dtype: str, precision: str = "highest") -> tuple[Callable, PyTree, gemjax.Epochs]:
    """``(loss_fn, params, batches)``: regression of 8 targets on 32 features, 264 parameters."""
    rng = np.random.default_rng(0)
    x, teacher = rng.normal(size=(ROWS, FEATURES)), rng.normal(size=(FEATURES, TARGETS))
    y = x @ teacher + 0.1 * rng.normal(size=(ROWS, TARGETS))
    params = {"w": jnp.asarray(0.1 * teacher[::-1], dtype), "b": jnp.zeros(TARGETS, dtype)}

    def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
        out = jnp.matmul(batch["x"], params["w"], precision=precision) + params["b"][None]
        return 0.5 * jnp.mean(jnp.sum((out - batch["y"]) ** 2, axis=1))

    return loss_fn, params, gemjax.Epochs({"x": x.astype(dtype), "y": y.astype(dtype)}, BATCH)


def difference(one: PyTree, other: PyTree) -> float:
    """Largest difference of a parameter, over the largest parameter of ``other``; NaN if there is one in either.

    >>> difference({"w": np.array([1.0, 4.0])}, {"w": np.array([1.0, 5.0])})
    0.2
    """
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    ]
    return float(np.max([np.abs(a - b).max() for a, b in pairs]) / np.max([np.abs(b).max() for _, b in pairs]))


@contextlib.contextmanager
def double_precision(enabled: bool) -> Iterator[None]:
    """Switches float64 on or off for all threads; the engines compile in several."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", enabled)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
