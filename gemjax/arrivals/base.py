"""What every arrival model is, and the merge of independent workers into a trace."""

import dataclasses
from typing import ClassVar

import numpy as np

from gemjax.protocol.staleness import check_num_workers
from gemjax.protocol.trace import Trace


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """Base of the arrival models: members say how long one worker's gradients take."""

    num_workers: int
    # Whether it is no more than durations, which another model can be put around.
    composes: ClassVar[bool] = True

    def __post_init__(self):
        check_num_workers(self.num_workers)

    def durations(self, worker: int, rng: np.random.Generator, count: int) -> np.ndarray:
        """float64 [count]; the next ``count`` durations of ``worker``, all positive."""
        raise TypeError(
            f"{type(self).__name__} does not say how long gradients take; use RoundRobin, ConstantSpeeds, Gamma, …"
        )

    def finishes(self, worker: int, durations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When ``worker`` finishes gradients that take so long one after the other, and when it pulled for each.

        Returns:
          ``(finished, pulled)``, float64 vectors. ``pulled`` is not a number where it pulled right after its last commit,
          which is the rule. There may be fewer than durations; a worker that is gone for good finishes its last at infinity.
        """
        del worker
        return np.cumsum(durations), np.full(len(durations), np.nan)

    @property
    def losses(self) -> int:
        """Gradients that a worker may begin and not finish, at most."""
        return 0

    def trace(self, num_commits: int, seed: int = 0) -> Trace:
        """The first ``num_commits`` commits.

        Args:
          num_commits: length T of the trace, a non-negative int.
          seed: decides every duration.

        Returns:
          A :class:`gemjax.Trace` whose ``time`` is virtual: the units of the model.

        Raises:
          ValueError: if ``num_commits`` is negative, or so many commits never happen because all workers have left.
        """
        check_num_commits(num_commits)
        return _merge(self, num_commits, seed)


def check_inner(outer: object, model: Arrivals) -> None:
    """Raises ``TypeError`` unless ``model`` can stand inside ``outer``."""
    if not isinstance(model, Arrivals) or not model.composes:
        raise TypeError(
            f"{type(outer).__name__} goes around a model that is no more than durations (Gamma, Scaled, Delayed, …), got "
            f"{type(model).__name__}; put that one outermost"
        )


def check_num_commits(num_commits: int) -> None:
    """Raises ``ValueError`` for a negative number of commits."""
    if num_commits < 0:
        raise ValueError(f"num_commits must not be negative, got {num_commits}")


def stream(seed: int, worker: int) -> np.random.Generator:
    """The random stream of a worker."""
    return np.random.Generator(np.random.Philox(key=[seed, worker]))


def per_worker(name: str, value, num_workers: int, *, lowest: float) -> tuple[float, ...]:
    """``value`` as a tuple of one float a worker.

    Raises:
      ValueError: if there are not as many as workers, or one is not finite and above (at, for 0) ``lowest``.
    """
    values = (
        tuple(np.broadcast_to(np.asarray(value, float), num_workers).tolist())
        if np.ndim(value) == 0
        else tuple(float(one) for one in value)
    )
    if len(values) != num_workers:
        raise ValueError(f"{name} must be a number or one for each of the {num_workers} workers, got {len(values)}")
    if not all(np.isfinite(one) and one >= lowest for one in values):
        raise ValueError(f"{name} must be finite and at least {lowest:g}, got {value}")
    return values


def _merge(model: Arrivals, num_commits: int, seed: int) -> Trace:
    """The first ``num_commits`` finishes of all workers, ties by worker number."""
    num_workers, enough = model.num_workers, num_commits + model.losses

    def finishes(worker: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        # Drawn anew from the start when more are needed: the stream, and so the beginning, is the same.
        return model.finishes(worker, model.durations(worker, stream(seed, worker), count))

    counts = [int(1.1 * num_commits / num_workers) + 8 + model.losses] * num_workers
    drawn = [finishes(worker, count) for worker, count in enumerate(counts)]
    while True:
        merged = np.concatenate([finished for finished, _ in drawn])
        horizon = np.partition(merged, num_commits - 1)[num_commits - 1] if 0 < num_commits <= len(merged) else np.inf
        short = [w for w in range(num_workers) if drawn[w][0][-1] < horizon and counts[w] < enough]
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
