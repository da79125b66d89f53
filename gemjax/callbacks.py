"""Ready-made callbacks for :func:`gemjax.run_on_devices` and :func:`gemjax.simulate`.

Each is passed as ``callback=``; :func:`chain` combines several. All judge a run by one metric:

- the name of a number that the engine's ``evaluate=`` returns, such as a loss on held-out data; on devices no worker waits for
  it. Or
- ``evaluate(progress) -> float``, a function of :class:`gemjax.Progress`, such as a statistic of ``progress.history``. No
  commit is made while it is computed; chained callbacks with the same function compute it once per call.
"""

import math
import os
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from gemjax.engines.checks import check_callback
from gemjax.engines.result import Callback, Evaluated, Progress
from gemjax.engines.running.checkpoints import Checkpoints
from gemjax.engines.transition import RunState
from gemjax.protocol.checks import check_at_least, check_choice, check_positive_int
from gemjax.protocol.trace import Trace

Evaluate = Callable[[Progress], Any]


class EarlyStopping:
    """Callback that ends a run when a metric has stopped improving.

    A value of ``evaluate=`` is used as soon as its evaluation has finished; on devices that may be some commits later. The
    first evaluation must have the metric; later ones without it do not count. A function is computed at each call of the
    callback, if a commit was applied since the call before.

    To continue a run with the count so far, keep the object; if it ended the run, its patience starts again. A new object
    starts anew, and so does an object that is called with no more commits than before, as by another run.

    Args:
      evaluate: the metric: a column of ``result.evaluations``, or ``evaluate(progress) -> float``; NaN is no improvement.
      patience: number of evaluations in a row without an improvement after which the run ends, a positive int, default 10.
      min_delta: an improvement is a change by more than this, non-negative, default 0.
      mode: ``"min"`` (default) if smaller is better, ``"max"`` if larger is.

    Attributes:
      best: best metric so far; initially ``inf``, or ``-inf`` with ``mode="max"``.
      waited: number of evaluations in a row without an improvement.

    Raises:
      ValueError: if ``patience`` or ``min_delta`` is out of range, or ``mode`` is unknown.
      TypeError: if ``evaluate`` is neither a name nor a function, or, when called, does not return one number.

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> target = jnp.array([3.0, -1.0])
    >>> evaluate = lambda params, model_state: {"loss": loss_fn(params, target)}
    >>> stopping = EarlyStopping("loss", patience=2, min_delta=1e-3)
    >>> result = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, jnp.zeros(2), lambda worker, step: target,
    ...                          gemjax.arrivals.Gamma(4).trace(1000), callback=stopping, evaluate=evaluate)
    >>> result.stopped, stopping.best < 0.01
    (True, True)
    """

    def __init__(self, evaluate: Evaluate | str, *, patience: int = 10, min_delta: float = 0.0, mode: str = "min"):
        _check_evaluate(evaluate)
        check_positive_int("patience", patience)
        check_at_least("min_delta", min_delta, 0.0)
        self.evaluate, self.patience, self.min_delta, self.mode = evaluate, patience, min_delta, mode
        self.best, self.waited, self._commits = _worst(mode), 0, -1

    def __call__(self, progress: Progress) -> bool:
        ends = False
        for value, (commit, *_) in _new_values(self.evaluate, progress):
            if commit <= self._commits:
                self.best, self.waited = _worst(self.mode), 0
            self._commits = commit
            if _is_better(value, self.best, self.mode, self.min_delta):
                self.best, self.waited = value, 0
            else:
                self.waited += 1
            ends = ends or self.waited >= self.patience
        if ends:
            self.waited = 0
        return ends


class BestCheckpoint:
    """Callback that saves a checkpoint whenever a metric improves.

    The metric is that of :class:`EarlyStopping`. If it is a column of ``evaluate=``, the checkpoint has the parameters and the
    model state that were evaluated. On devices the run has gone on meanwhile: the rest of the state, and the trace, are some
    commits newer. To continue a run bit for bit, save :class:`gemjax.Checkpoints` as well.

    The folder holds only the best checkpoint, with its metric. A continued run, in this process or another, replaces it only by
    a better one. Give each run its own folder.

    Args:
      folder: folder of the checkpoint, created if it does not exist; not the folder of the run's other checkpoints.
      evaluate: the metric: a column of ``result.evaluations``, or ``evaluate(progress) -> float``; NaN is no improvement.
      mode: ``"min"`` (default) if smaller is better, ``"max"`` if larger is.

    Attributes:
      best: metric of the checkpoint in the folder; ``inf`` (``-inf`` with ``mode="max"``) before the first.
      checkpoints: the :class:`gemjax.Checkpoints` of the folder; ``checkpoints.latest`` is its number of commits.

    Raises:
      ValueError: if ``mode`` is unknown, or the folder has checkpoints that were not saved by such a callback.
      TypeError: if ``evaluate`` is neither a name nor a function, ``folder`` is a function, or, when called, ``evaluate`` does
        not return one number.

    >>> import gemjax, tempfile, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> target = jnp.array([3.0, -1.0])
    >>> best = BestCheckpoint(tempfile.mkdtemp(), "loss")
    >>> result = gemjax.simulate(gemjax.asgd(0.1, num_workers=4), loss_fn, jnp.zeros(2), lambda worker, step: target,
    ...                          gemjax.arrivals.Gamma(4).trace(200), callback=best,
    ...                          evaluate=lambda params, model_state: {"loss": loss_fn(params, target)}, evaluate_every=50)
    >>> state, trace, _ = best.load(result.state)
    >>> bool(loss_fn(state.params, target) == best.best), len(trace) == best.checkpoints.latest
    (True, True)
    """

    def __init__(self, folder: str | os.PathLike, evaluate: Evaluate | str, *, mode: str = "min"):
        _check_evaluate(evaluate)
        self.evaluate, self.mode, self.best = evaluate, mode, _worst(mode)
        self.checkpoints = Checkpoints(folder, keep=1)
        self.checkpoints.replaces_later = True
        metadata = self.checkpoints.metadata
        if metadata is None:
            return
        if metadata.get("mode") != mode or not isinstance(metadata.get("metric"), float):
            raise ValueError(
                f"{self.checkpoints.folder} holds checkpoints that BestCheckpoint(mode={mode!r}) did not save: give it its own "
                "folder"
            )
        self.best = metadata["metric"]

    def __call__(self, progress: Progress) -> None:
        if not (new := _new_values(self.evaluate, progress)):
            return
        if not (better := [one for one in new if _is_better(one[0], self.best, self.mode)]):
            return
        value, reached = (min if self.mode == "min" else max)(better, key=lambda one: one[0])
        state = progress.state()._replace(params=reached.params, model_state=reached.model_state)
        # Replaces the previous one, which has more commits if the run was continued from an earlier checkpoint.
        self.checkpoints.save(state, progress.trace(), {"metric": value, "mode": self.mode, "commit": reached.commit})
        self.best = value

    def load(self, like: RunState) -> tuple[RunState, Trace, dict[str, Any]]:
        """Load the best checkpoint as :meth:`gemjax.Checkpoints.load` does.

        Args:
          like: a state of the same structure, such as ``result.state`` or :func:`gemjax.initial_state`.

        Returns:
          ``(state, trace, metadata)``; ``state.params`` is the central variable, ``metadata["metric"]`` the metric,
          ``metadata["commit"]`` the number of commits after which it was evaluated.

        Raises:
          FileNotFoundError: if nothing was saved.
          CheckpointError: if the checkpoint is damaged, or of another method, schedule, model or number of workers.
        """
        return self.checkpoints.load(like)


def chain(*callbacks: Callback | None) -> Callback:
    """Combine several callbacks into one that calls all in order, and ends the run if any of them returns true.

    ``None`` is left out.

    >>> import gemjax, tempfile
    >>> evaluate = lambda progress: progress.history["loss"].mean()      # Computed once per call.
    >>> callback = chain(BestCheckpoint(tempfile.mkdtemp(), evaluate), EarlyStopping(evaluate, patience=5))
    """
    for index, callback in enumerate(callbacks):
        check_callback(callback, f"callback {index} of the chain", "")
    given = [callback for callback in callbacks if callback is not None]

    def call_all(progress: Progress) -> bool:
        answers = [bool(callback(progress)) for callback in given]
        return any(answers)

    return call_all


def _check_evaluate(evaluate: Evaluate | str) -> None:
    if not isinstance(evaluate, str):
        check_callback(
            evaluate, "evaluate", "(progress) -> number, or the name of one that evaluate= of the engine returns"
        )


def _worst(mode: str) -> float:
    check_choice("mode", mode, ("min", "max"))
    return math.inf if mode == "min" else -math.inf


def _is_better(value: float, best: float, mode: str, by: float = 0.0) -> bool:
    return value < best - by if mode == "min" else value > best + by


def _new_values(evaluate: Evaluate | str, progress: Progress) -> list[tuple[float, Evaluated]]:
    """Return the values of the metric that are new since the last call, each with what was evaluated."""
    if not isinstance(evaluate, str):
        if not np.any(progress.history.get("applied", False)):  # No commit was applied since the last call.
            return []
        return [(_value(evaluate, progress), Evaluated(progress.commits, progress.params, progress.model_state))]
    # A run without evaluate= has only the evaluations of the run that it continues.
    names = sorted(progress.evaluations) if progress.evaluates else []
    if evaluate not in names and (names or not progress.evaluates):
        raise ValueError(
            f"there are no evaluations named {evaluate!r}, only {names}; let evaluate= of the engine return "
            f"{{{evaluate!r}: …}}"
        )
    return [(float(one.values[evaluate]), one) for one in progress.evaluated if evaluate in one.values]


def _value(evaluate: Evaluate, progress: Progress) -> float:
    """Evaluate the metric once per progress, so that several callbacks share it."""
    known = vars(progress).setdefault("_evaluated", [])
    for fn, value in known:
        # Only bound methods are compared by ==, because that of a callable object may compare arrays.
        if fn is evaluate or (isinstance(fn, types.MethodType) and fn == evaluate):
            return value
    known.append((evaluate, float(evaluate(progress))))
    return known[-1][1]
