"""What every engine returns, and how it tells that a run failed."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gemjax.engines.checks import check_option
from gemjax.engines.transition import RunState
from gemjax.protocol.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PyTree = Any
History = dict[str, np.ndarray]
LAST = 100  # Applied commits whose mean loss a result prints.


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
      state: the whole state.
      history: one row per commit, in order, rejected ones included, as columns: ``worker``, ``step``, ``time``, ``loss``,
        ``staleness``, ``pulled_at``, ``draw`` (as in :class:`gemjax.Trace`), ``applied``, ``dropped`` (the method refused
        it), and the metrics and diagnostics asked for. ``pandas.DataFrame(result.history)`` works. A run that was continued
        from a :class:`Result` has the rows of both parts, and NaN in a column that only the other part reports. A run that
        was continued from a bare :class:`gemjax.RunState` has the rows since then.
      trace: of :func:`gemjax.run_on_devices`, the applied commits of this run and those before it, ready for
        :func:`gemjax.simulate` (with the same ``seed``); of :func:`gemjax.simulate`, the rows of its trace up to here, those of
        rejected and dropped commits included.
      stopped: whether the callback ended the run early.
    """

    state: RunState
    history: History
    trace: Trace
    stopped: bool = False

    def __repr__(self) -> str:
        workers = f"{self.trace.num_workers} worker{'s' * (self.trace.num_workers != 1)}"
        what = [f"{int(self.state.commits):,} commits of {workers}"]
        if self.history and self.history["applied"].any():
            loss, staleness = (self.history[name][self.history["applied"]] for name in ("loss", "staleness"))
            what.append(
                f"loss {np.mean(loss[-LAST:], dtype=np.float64):.4g}, staleness median {np.median(staleness):g}"
            )
        what.append(f"{int(self.state.rejected)} rejected, {int(self.state.dropped)} dropped")
        return f"Result({', '.join(what)}{', stopped early' * self.stopped})"

    @property
    def params(self) -> PyTree:
        """The central variable."""
        return self.state.params

    @property
    def model_state(self) -> PyTree:
        """The central variable's model state."""
        return self.state.model_state

    @property
    def opt_state(self) -> PyTree:
        """The method's state, staleness counters included."""
        return self.state.opt_state

    def plot(self) -> "Figure":
        """Draws the run: loss, staleness and the commits of each worker against time (virtual, or in seconds).

        Rejected and dropped commits are ticks above the loss. Needs matplotlib.

        Returns:
          A ``matplotlib.figure.Figure`` of one column's width, which a notebook shows; ``result.plot().savefig("run.pdf")``.

        Raises:
          ImportError: if matplotlib is not installed.
          ValueError: if no commit was applied.

        >>> import gemjax, jax.numpy as jnp
        >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
        >>> result = gemjax.simulate(gemjax.gem(0.05, num_workers=8), loss_fn, jnp.zeros(2), lambda worker, step: 1.0,
        ...                          gemjax.arrivals.Gamma(8).trace(400))
        >>> [axes.get_ylabel() for axes in result.plot().axes]
        ['loss', 'staleness (commits)', 'commits per worker']
        """
        from gemjax.telemetry.plotting import plot_run

        return plot_run(self.history, self.trace.num_workers)


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run, the argument of its callback (:mod:`gemjax.callbacks` has some ready-made).

    Attributes:
      commits: the trace's rows behind us: commits since the run began (earlier runs that it continues included).
      total: the commits it is to reach.
      rejected: commits rejected so far, for not being finite.
      dropped: commits that the method refused so far.
      params: the central variable now; valid during the callback only, so copy what you keep.
      model_state: its model state now (BatchNorm statistics and the like); likewise.
      state: ``progress.state()`` is the whole state now (stacked when asked for); valid during the callback only.
      trace: ``progress.trace()`` is the trace of the commits so far; what a checkpoint needs beside the state.
      history: the columns of the commits since the last call; empty if there were none.
    """

    commits: int
    total: int
    rejected: int
    dropped: int
    params: PyTree
    model_state: PyTree
    state: Callable[[], RunState]
    trace: Callable[[], Trace]
    history: History

    def __repr__(self) -> str:
        return (
            f"Progress({self.commits:,} of {self.total:,} commits, {self.rejected} rejected, {self.dropped} dropped, "
            f"{len(self.history.get('loss', ())):,} new rows of history)"
        )


# Called between commits; a true return value ends the run there.
Callback = Callable[[Progress], bool | None]


class RunFailedError(RuntimeError):
    """No commit gets through any more. Carries the last events in its message.

    Attributes:
      result: of a run on devices, the :class:`Result` up to there, to be saved or continued; otherwise ``None``.
    """

    result: Result | None = None


class RunWarning(UserWarning):
    """What a run goes on with, but should be known: nothing has happened for long, a placement that makes workers wait."""


def check_rejections(in_a_row: int, num_workers: int, history: Callable[[], History]) -> None:
    """Raises :class:`RunFailedError` once every worker was rejected several times in a row."""
    if in_a_row < 3 * num_workers + 7:
        return
    columns = history()
    last = [
        f"worker {w} step {s}: loss {loss}"
        for w, s, loss in list(zip(columns["worker"], columns["step"], columns["loss"], strict=True))[-3:]
    ]
    raise RunFailedError(
        f"the last {in_a_row} commits were all rejected because their loss or gradient was not finite ({'; '.join(last)}); "
        "the central variable has stopped moving. Lower the learning rate, clip gradients, or look at the data"
    )


def concatenate(parts: list[History]) -> History:
    """One history of several, one after the other; a column that a part lacks is NaN there."""
    parts = [part for part in parts if part]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([_column(part, name) for part in parts]) for name in names}


def _column(part: History, name: str) -> np.ndarray:
    return part[name] if name in part else np.full(len(part["worker"]), np.nan, np.float32)


def begin_from(
    state: RunState | Result | None, recorded: Trace | None = None
) -> tuple[RunState | None, Trace | None, History]:
    """Unpacks ``state=`` of an engine into the state, the trace and the history to continue from.

    Raises:
      TypeError: if ``state`` or ``recorded`` is of another class.
      ValueError: if a trace is given beside a result, which has its own.
    """
    if state is not None and not isinstance(state, (Result, RunState)):
        raise TypeError(
            f"state is of type {type(state).__name__}, but must be a gemjax.Result or a gemjax.RunState; give the result of "
            "the earlier run"
        )
    check_option("recorded", recorded, Trace, "the trace of the earlier run, result.trace")
    if not isinstance(state, Result):
        return state, recorded, {}
    if recorded is not None:
        raise ValueError(
            "state= is a Result, which holds the recorded trace; leave recorded= out, or give state=result.state"
        )
    return state.state, state.trace, state.history
