"""Local steps: a worker trains by itself for some steps and commits its displacement."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_at_least, check_between, check_method, check_positive_int, integer
from gemjax.protocol.hooks import NeedsLocalSteps, NeedsRounds

LONGEST = 1 << 20  # Steps per commit. Their batches are chosen all at once, which takes some 200 bytes for each.


class PeriodsEndError(ValueError):
    """Raised when a worker has made all commits for which it has periods."""


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """Local training between two commits: ``period`` steps of an optimizer of the worker's own.

    From the view s_w that it pulled, worker w takes τ optimizer steps on τ batches of its own and commits the displacement
    s_w - x_w in place of a gradient. For plain SGD that is the sum of the gradients times their rates. The optimizer's state
    stays with the worker and is not reset. Give it to an engine as ``local=``. Methods made for displacements
    (:func:`gemjax.downpour`, :func:`gemjax.easgd`, :func:`gemjax.lsgd`, …) have a learning rate of 1, because this optimizer
    has one already. Any other method takes the displacement for a gradient: the two rates multiply, and engines warn unless
    that of the method is 1.

    Args:
      tx: the worker's optimizer, any optax transformation. A schedule in it counts the worker's own steps. Its updates
        receive the extra arguments ``value``, that step's loss; ``anchors``, the points that the method sends, if any (see
        :func:`gemjax.rules.pull_to_anchors`); ``commits``, an int32 scalar, the commits that were applied to the central
        variable until the worker's pull; and ``local_step``, an int32 scalar, the number of this step since the pull, from 0.
        With :func:`gemjax.rules.scale_by_progress` the rates of workers of unequal speed follow the progress of the run
        together.
      period: τ ≥ 1, steps per commit: an int for all workers; a sequence of N ints, one per worker (dynamic local
        updates, see :func:`gemjax.rules.dynamic_periods`); or N sequences of ints, one per commit of that worker, as
        :class:`gemjax.arrivals.SemiSynchronous` makes them. A run may be continued with another one: batches and keys are
        numbered by the local steps that a worker has made, so none is repeated or skipped. Replay such a run piece by piece,
        each with its period. Only with a :class:`gemjax.Stream` the period must stay.

    Raises:
      TypeError: if ``tx`` is no optax transformation.
      ValueError: if a period is not a positive integer of at most 1,048,576.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.simulate(gemjax.downpour(num_workers=4), loss_fn, jnp.zeros(2), batches,
    ...                          gemjax.arrivals.RoundRobin(4).trace(60), local=gemjax.LocalSteps(optax.sgd(0.02), period=5))
    >>> result.params.round(2)
    Array([ 3., -1.], dtype=float32)
    """

    tx: "optax.GradientTransformation"
    period: Any = 1
    # Per worker, the local steps that it has made beyond those of these periods, if it made some with others.
    _beyond: Any = dataclasses.field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self):
        check_method("the optimizer of LocalSteps", self.tx)
        object.__setattr__(self, "period", _checked(self.period))

    @functools.cached_property
    def longest(self) -> int:
        """Largest number of steps of any commit."""
        return int(max(map(np.max, self.period))) if isinstance(self.period, tuple) else self.period

    def check(self, num_workers: int) -> None:
        """Check that the periods are for ``num_workers`` workers."""
        if isinstance(self.period, tuple) and len(self.period) != num_workers:
            raise ValueError(f"LocalSteps has periods for {len(self.period)} workers, but the run has {num_workers}")

    def continued(self, step: np.ndarray, made: np.ndarray) -> "LocalSteps":
        """Return the same periods for a run whose workers are at the commits ``step``, after ``made`` local steps each."""
        later = dataclasses.replace(self)
        object.__setattr__(later, "_beyond", made - later.made_before(step))
        return later

    def made_before(self, step: np.ndarray) -> np.ndarray:
        """Return the local steps that each worker has made before its commit ``step[..., worker]``."""
        step = np.asarray(step, np.int64)
        if isinstance(self.period, tuple) and not isinstance(self.period[0], int):
            made = [begins[np.minimum(step[..., w], len(begins) - 1)] for w, begins in enumerate(self._begins)]
            return np.stack(made, axis=-1) + self._beyond
        return step * np.array(self.period) + self._beyond

    def span(self, worker: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first local step, counted from the run's start, and the number of steps of each (worker, commit).

        Raises:
          PeriodsEndError: if a table of periods ends before ``step``.
        """
        worker, step = np.asarray(worker), np.asarray(step, np.int64)
        if isinstance(self.period, int):
            first, count = step * self.period, np.full_like(step, self.period)
        elif isinstance(self.period[0], int):
            count = np.array(self.period)[worker]
            first = step * count
        else:
            begins, pairs = self._begins, list(zip(worker.tolist(), step.tolist(), strict=True))
            for w, s in pairs:
                if s + 1 >= len(begins[w]):
                    raise PeriodsEndError(
                        f"LocalSteps has {len(begins[w]) - 1} periods for worker {w}, but none for its commit {s}"
                    )
            first, last = (np.array([begins[w][s + k] for w, s in pairs], int) for k in (0, 1))
            count = last - first
        if np.ndim(self._beyond):
            # Not below 0 for rows before the run continues, which engines select only for their shapes.
            first = np.maximum(first + self._beyond[worker], 0)
        return first, count

    @functools.cached_property
    def _begins(self) -> list[np.ndarray]:
        """Per worker, the local step at which each commit of its row begins, and at which the last one ends."""
        return [np.concatenate([[0], np.cumsum(row)]) for row in self.period]


def displacements(*, in_rounds: bool = False) -> "Method":
    """No-op that marks a method as expecting local-step displacements, so that engines require ``local=``.

    Args:
      in_rounds: True for a method that is defined in rounds: each of its steps takes one displacement of each worker, all from
        the same view, as with :func:`gemjax.diloco`. Workers then wait for each other by default; default False.

    Returns:
      A transformation whose state is the mark.

    >>> displacements().init(None)
    NeedsLocalSteps()
    """

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        return updates, state

    mark = NeedsRounds() if in_rounds else NeedsLocalSteps()
    return optax.GradientTransformationExtraArgs(lambda params: mark, update_fn)


def pull_to_anchors(*strengths: float) -> "Method":
    """Pull each local step towards the points that the method sent along with the view.

    Use it in a *local* optimizer, behind its learning rate. After the step x ← x + u it applies x ← x - p_j (x - a_j) for each
    anchor a_j in turn. With :func:`gemjax.lsgd` the anchors are the positions of the leaders at the worker's last exchange, the
    global leader first, then that of its group; this is the proximal extension of LSGD.

    Args:
      *strengths: p_j in [0, 1], one per anchor.

    Returns:
      A stateless transformation that needs ``params`` and the extra argument ``anchors``, which engines supply.

    Raises:
      ValueError: if a strength is outside [0, 1]; when used, if the method sends another number of anchors (lsgd sends them
        with ``anchors=True``: one for one group, two for several).

    >>> import jax.numpy as jnp
    >>> tx = optax.chain(optax.sgd(0.5), pull_to_anchors(0.5))
    >>> updates, _ = tx.update(jnp.array([2.0]), tx.init(jnp.array([1.0])), jnp.array([1.0]), anchors=(jnp.array([4.0]),))
    >>> updates  # 1 - 0.5 * 2 = 0, then halfway to 4.
    Array([1.], dtype=float32)
    """
    for strength in strengths:
        check_between("a strength", strength, 0, 1)

    def update_fn(updates, state, params=None, *, anchors: Sequence[PyTree] = (), **extra_args):
        del extra_args

        def pulled(u, p, *points):
            x = p + u
            for strength, point in zip(strengths, points, strict=True):
                x = x - jnp.asarray(strength, x.dtype) * (x - point)
            return x - p

        return jax.tree.map(pulled, updates, params, *anchors), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def scale_by_progress(schedule: optax.Schedule, period: float, num_workers: int) -> "Method":
    """Scale local steps by a schedule that follows the progress of the run, instead of the steps of one worker.

    A schedule in a local optimizer counts that worker's steps: a fast worker ends it before a slow one. This transformation
    goes by the commits of all. After c of them each of N workers has made c τ / N local steps on average, with τ steps per
    commit. At the j-th step after a pull (from 0) the factor is ``schedule``(c τ / N + min(j, τ)), where c counts the applied
    commits until the pull. So the rates of all workers are equal to within one period of each, and workers that wait for each
    other have those that a count of their own steps would give.

    Use it in a *local* optimizer whose learning rate is 1, behind all else but :func:`gemjax.rules.pull_to_anchors`. A run that
    is continued with another period counts all its commits with that one: where workers have made ``m`` local steps each, in
    ``c`` commits of all, give ``lambda step: schedule(step + m - c * period / num_workers)``.

    Args:
      schedule: the learning rate after a number of local steps per worker, a float scalar; see ``optax.cosine_decay_schedule``.
      period: τ ≥ 1, the local steps per commit; their mean over the workers if these differ.
      num_workers: N ≥ 1.

    Returns:
      A stateless transformation that needs the extra arguments ``commits`` and ``local_step``, which engines supply.

    Raises:
      ValueError: if ``period`` or ``num_workers`` is less than 1.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> rate = optax.cosine_decay_schedule(0.2, decay_steps=1000)  # A run of 800 commits of four workers, with 5 steps each.
    >>> local = gemjax.LocalSteps(optax.chain(optax.adam(1.0), scale_by_progress(rate, 5, 4)), period=5)
    >>> tx = scale_by_progress(lambda step: 1 / (1 + step), period=16, num_workers=4)
    >>> tx.update(jnp.float32(1.0), tx.init(()), commits=jnp.int32(12), local_step=jnp.int32(15))[0]  # 1 / (1 + 48 + 15).
    Array(0.015625, dtype=float32)
    """
    check_at_least("period", period, 1.0)
    check_positive_int("num_workers", num_workers)

    def update_fn(updates, state, params=None, **extra_args):
        del params
        # Whole rounds by themselves, because a division by N is a product with 1 / N, rounded.
        rounds, rest = jnp.divmod(extra_args["commits"], num_workers)
        done = rounds * jnp.asarray(period, jnp.result_type(float)) + rest * (period / num_workers)
        rate = schedule(done + jnp.minimum(extra_args["local_step"], period))
        return jax.tree.map(lambda update: jnp.asarray(rate, update.dtype) * update, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def _checked(period: Any, depth: int = 2) -> Any:
    """Return ``period`` as an int, a tuple of ints, or a tuple of tuples of ints."""
    if isinstance(period, np.ndarray):
        period = period.tolist()
    if depth and isinstance(period, Sequence) and not isinstance(period, str):
        return tuple(_checked(one, depth - 1) for one in period)
    return integer("the period of LocalSteps", period, 1, LONGEST)
