"""The law on these devices: the replay of a recorded run gives the same parameters."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gemjax
from gemjax.protocol import PyTree

DEADLINE = 120.0  # Seconds after which a hung worker is retired, so that the check ends.
MOST_WORKERS = 16
DELAY = 0.005  # Seconds added to each gradient of worker 0.
# Rounding alone causes 1e-6 in float32, rarely 1e-5 (GEM divides by momenta that may be small).
ALLOWED = {"float32": 1e-4, "float64": 1e-12}
FEATURES, TARGETS, ROWS, BATCH = 32, 8, 512, 64


@dataclasses.dataclass(frozen=True)
class Method:
    """A method for which the law is checked.

    Attributes:
      make: function from the number of workers to the transformation.
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
    """One recorded run and its replay; each difference is the largest of a parameter, relative to the largest parameter.

    Attributes:
      method: key of ``METHODS``, and the precision of matrix products if that is not ``"highest"``.
      dtype: ``"float32"`` or ``"float64"``.
      workers: workers of the run.
      commits: commits of the run.
      staleness: median and largest staleness of the run.
      difference: difference between the run and its replay.
      allowed: largest difference that is accepted; ``None`` if the difference is shown but not judged.
      last_place: effect of increasing one initial parameter by one unit in the last place: the size of rounding.
      reordered: effect of reversing the order of the commits: the size of a violation. ``None`` with one worker, which has
        only one order.
      same_bits: True if a second replay gives the same bits.
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
        """Reason why the law is violated or undecided; empty if it holds."""
        if self.allowed is None:
            return ""
        if not self.difference <= self.allowed:  # NaN, too.
            return f"the replay differs from the run by {self.difference:.2g}, more than the allowed {self.allowed:.0e}"
        if self.reordered is not None and not self.reordered > self.allowed:
            return f"reversing the commits changes only {self.reordered:.2g}, so this run cannot reveal a violation"
        return ""


def check_law(
    name: str, dtype: str, placement: gemjax.Placement, num_commits: int = 60, *, precision: str = "highest"
) -> Law:
    """Run a method on devices and replay the run from its trace.

    The problem is well-conditioned least squares, so that rounding errors do not grow. Worker 0 is slowed down, so that
    staleness varies.

    Args:
      name: key of ``METHODS``.
      dtype: ``"float32"`` or ``"float64"``.
      placement: devices of the run. Only the first 16 workers take part, because a run of so few commits with more workers
        is less well conditioned.
      num_commits: commits of the run.
      precision: precision of matrix products. With ``"default"`` some accelerators round float32 to fewer bits, so the
        difference is judged only with ``"highest"``.
    """
    with double_precision(dtype == "float64"):
        placement = gemjax.Placement(placement.workers[:MOST_WORKERS], placement.central)
        method, workers = METHODS[name], len(placement.workers)
        loss_fn, params, batches = least_squares(dtype, precision)
        tx = method.make(workers)
        with gemjax.testing.Faults().slow(0, DELAY) as faults:
            result = gemjax.run_on_devices(
                tx, loss_fn, params, batches, num_commits,
                placement=placement, local=method.local, policy=gemjax.Policy(deadline=DEADLINE), gate=faults,
            )  # fmt: skip

        def replay(params: PyTree, trace: gemjax.Trace) -> PyTree:
            simulated = gemjax.simulate(
                tx, loss_fn, params, batches, trace, local=method.local, callback_every=num_commits
            )
            return jax.device_get(simulated.params)

        replayed = replay(params, result.trace)
        w = np.array(params["w"])
        w[0, 0] = np.nextafter(w[0, 0], np.inf, dtype=w.dtype)
        perturbed = params | {"w": jnp.asarray(w)}
        reversed_trace = gemjax.Trace(result.trace.worker[::-1], num_workers=workers)
        return Law(
            method=name if precision == "highest" else f"{name}, {precision}",
            dtype=dtype,
            workers=workers,
            commits=len(result.trace),
            staleness=(float(np.median(result.trace.staleness)), int(result.trace.staleness.max())),
            difference=difference(result.params, replayed),
            allowed=ALLOWED[dtype] if precision == "highest" else None,
            last_place=difference(replay(perturbed, result.trace), replayed),
            reordered=difference(replay(params, reversed_trace), replayed) if workers > 1 else None,
            same_bits=difference(replay(params, result.trace), replayed) == 0.0,
        )


def least_squares(dtype: str, precision: str = "highest") -> tuple[Callable, PyTree, gemjax.Epochs]:
    """Return ``(loss_fn, params, batches)`` of a regression of 8 targets on 32 features, with 264 parameters."""
    rng = np.random.default_rng(0)
    x, teacher = rng.normal(size=(ROWS, FEATURES)), rng.normal(size=(FEATURES, TARGETS))
    y = x @ teacher + 0.1 * rng.normal(size=(ROWS, TARGETS))
    params = {"w": jnp.asarray(0.1 * teacher[::-1], dtype), "b": jnp.zeros(TARGETS, dtype)}

    def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
        out = jnp.matmul(batch["x"], params["w"], precision=precision) + params["b"][None]
        return 0.5 * jnp.mean(jnp.sum((out - batch["y"]) ** 2, axis=1))

    return loss_fn, params, gemjax.Epochs({"x": x.astype(dtype), "y": y.astype(dtype)}, BATCH)


def difference(one: PyTree, other: PyTree) -> float:
    """Largest difference of a parameter, relative to the largest parameter of ``other``; NaN if either contains a NaN.

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
    """Switch float64 on or off in all threads, because the engines compile in several."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", enabled)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
