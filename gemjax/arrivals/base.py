"""Base classes of arrival models, and the merge of independent workers into a trace."""

import dataclasses
from typing import ClassVar

import numpy as np

from gemjax.protocol.checks import check_at_least, check_positive_int, integer
from gemjax.protocol.trace import Trace


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """Base of the arrival models; a subclass defines how long one worker's gradients take."""

    num_workers: int
    # True if the model consists of durations alone, so that another model can wrap it.
    composes: ClassVar[bool] = True

    def __post_init__(self):
        check_positive_int("num_workers", self.num_workers)

    def durations(self, worker: int, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return the first ``count`` durations of ``worker``, float64 [count], finite and ≥ 0; a larger count extends them."""
        raise NotImplementedError

    def finishes(self, worker: int, durations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the times at which ``worker`` finishes consecutive gradients of these durations, and pulls for them.

        Returns:
          ``(finished, pulled)``, float64 vectors. ``pulled`` is NaN where the worker pulls right after its last commit, which
          is the rule. There may be fewer than durations; a worker that has left for good finishes its last one at infinity.
        """
        del worker
        return np.cumsum(durations), np.full(len(durations), np.nan)

    @property
    def losses(self) -> int:
        """Largest number of gradients that a worker may begin and not finish."""
        return 0

    def trace(self, num_commits: int, seed: int = 0) -> Trace:
        """Return the first ``num_commits`` commits.

        Args:
          num_commits: length T of the trace, a non-negative int.
          seed: decides every duration.

        Returns:
          A :class:`gemjax.Trace` whose ``time`` is virtual: the units of the model.

        Raises:
          ValueError: if ``num_commits`` is negative, or all workers leave before that many commits.
        """
        integer("num_commits", num_commits, 0)
        return _merge(self, num_commits, seed)


@dataclasses.dataclass(frozen=True)
class Around(Arrivals):
    """Base of models that wrap another ``model`` and have its workers."""

    num_workers: int = dataclasses.field(init=False, default=0)
    model: Arrivals = None  # pyrefly: ignore[bad-assignment] (required; fields with defaults come before it)

    def __post_init__(self):
        check_inner(self, self.model)
        object.__setattr__(self, "num_workers", self.model.num_workers)
        super().__post_init__()


def check_inner(outer: object, model: Arrivals) -> None:
    """Raise ``TypeError`` unless ``outer`` can wrap ``model``."""
    if not isinstance(model, Arrivals) or not model.composes:
        raise TypeError(
            f"{type(outer).__name__} wraps a model that consists of durations alone (Gamma, Scaled, Delayed, …), got "
            f"{type(model).__name__}; put that one outermost"
        )


def stream(seed: int, worker: int) -> np.random.Generator:
    """Return the random stream of a worker."""
    return np.random.Generator(np.random.Philox(key=np.array([integer("seed", seed, 0, 2**64 - 1), worker], np.uint64)))


def draw(model: Arrivals, worker: int, seed: int, count: int) -> np.ndarray:
    """Return the first ``count`` durations of a worker, as :func:`durations_of` does."""
    return durations_of(model, worker, stream(seed, worker), count)


def durations_of(model: Arrivals, worker: int, rng: np.random.Generator, count: int) -> np.ndarray:
    """Return the durations of a worker of a model, which may be one of the user's own.

    Raises:
      ValueError: if they are not as many, or one is negative or NaN.
    """
    drawn = np.asarray(model.durations(worker, rng, count), float)
    if drawn.shape != (count,) or not (drawn >= 0).all():
        found = f"a shape of {list(drawn.shape)}" if drawn.shape != (count,) else drawn[~(drawn >= 0)][0]
        raise ValueError(
            f"{type(model).__name__}.durations(worker={worker}, rng, count={count}) must return {count} numbers ≥ 0, got "
            f"{found}; repeat what was measured, as np.resize(measured, count) does"
        )
    return drawn


def per_worker(name: str, value, num_workers: int) -> tuple[float, ...]:
    """Return ``value`` as a tuple of one float per worker.

    Raises:
      ValueError: if their number is not that of the workers, or one is not finite or is negative.
    """
    values = (value,) * num_workers if np.ndim(value) == 0 else tuple(value)
    if len(values) != num_workers:
        raise ValueError(f"{name} must be a number or one for each of the {num_workers} workers, got {len(values)}")
    for one in values:
        check_at_least(name, one, 0.0)
    return tuple(map(float, values))


def _merge(model: Arrivals, num_commits: int, seed: int) -> Trace:
    """Return the first ``num_commits`` finishes of all workers; ties are ordered by worker number."""
    num_workers, enough = model.num_workers, num_commits + model.losses

    def finishes(worker: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        # If more are needed, all are drawn again: the stream is the same, so its beginning is, too.
        return model.finishes(worker, draw(model, worker, seed, count))

    counts = [int(1.1 * num_commits / num_workers) + 8 + model.losses] * num_workers
    drawn = [finishes(worker, count) for worker, count in enumerate(counts)]
    while True:
        merged = np.concatenate([finished for finished, _ in drawn])
        horizon = np.partition(merged, num_commits - 1)[num_commits - 1] if 0 < num_commits <= len(merged) else np.inf
        # A worker whose last finish is at the horizon may have more at that time, if durations underflow to 0.
        lasts = [finished[-1] for finished, _ in drawn]  # Infinite for one that has left.
        short = [w for w, last in enumerate(lasts) if last <= horizon and last < np.inf and counts[w] < enough]
        if not short:
            break
        for worker in short:
            counts[worker] = min(enough, 2 * counts[worker])
            drawn[worker] = finishes(worker, counts[worker])
    owner = np.repeat(np.arange(num_workers, dtype=np.int32), [len(finished) for finished, _ in drawn])
    order = np.argsort(merged, kind="stable")[:num_commits]
    time, worker = merged[order], owner[order]
    if (happen := int(np.isfinite(time).sum())) < num_commits:
        raise ValueError(f"only {happen} of {num_commits} commits happen before the last worker has left for good")
    pulled = np.concatenate([pulled for _, pulled in drawn])[order]
    late = np.flatnonzero(~np.isnan(pulled))
    trace = Trace(worker, time=time, num_workers=num_workers)
    if not len(late):
        return trace
    pulled_at = trace.pulled_at.copy()
    pulled_at[late] = np.searchsorted(time, pulled[late], side="right")
    return Trace(worker, pulled_at, time=time, num_workers=num_workers)
