"""Results, progress and failures of runs, and checks of the state to continue from."""

import contextlib
import dataclasses
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.rows import rows_per_batch
from gemjax.engines.checks import RunWarning, is_in_rounds
from gemjax.engines.memory import here
from gemjax.engines.transition import RunState, check_led_to
from gemjax.protocol import PyTree
from gemjax.protocol.hooks import Refusals, can_refuse
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import needs_rounds
from gemjax.protocol.trace import COLUMNS, Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = dict[str, np.ndarray]
LAST = 100  # A printed result has the mean loss over so many applied commits.
REFUSED = 100  # Refusals in a row per worker of which a run warns.
EXPLODED = 1e6  # A run whose loss grows by this factor has diverged.


def type_of_column(dtype: Any) -> np.dtype:
    """Return the dtype of a column of numbers of ``dtype``: one in which NumPy adds up thousands of them."""
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return np.dtype(np.float32)
    return np.dtype(dtype)


def as_column(numbers: Any) -> np.ndarray:
    """Return numbers, on a device or not, as a column of a history."""
    numbers = np.asarray(numbers)
    return numbers.astype(type_of_column(numbers.dtype), copy=False)


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
      state: the whole state, on the devices of the central variable, or in the host's memory if these have no room. After a run
        with ``central_hosts`` its large arrays besides parameters and model state are in the actors until the cluster ends or
        begins its next run; ``np.asarray`` copies one here.
      history: one row per commit, in order, including rejected ones, as columns: ``worker``, ``step``, ``time``, ``loss``,
        ``staleness``, ``pulled_at``, ``draw`` (as in :class:`gemjax.Trace`), ``applied``, ``dropped`` (refused by the
        method), and the requested metrics and diagnostics. ``pandas.DataFrame(result.history)`` works. A run continued from a
        :class:`Result` has the rows of both parts, with NaN in columns that only the other part reports; one continued from a
        bare :class:`gemjax.RunState` has the rows since then.
        Floats are of 32 bits at least, because NumPy adds up narrower ones in their own precision.
      trace: of :func:`gemjax.run_on_devices` and :func:`gemjax.run_on_cluster`, the applied commits of this run and those
        before it, ready for :func:`gemjax.simulate` (with the same ``seed``); of :func:`gemjax.simulate`, the rows of its trace
        up to here, including those of rejected and dropped commits.
      stopped: True if the callback ended the run early.
      evaluations: one row per evaluation by ``evaluate``, as columns: ``commit`` (commits, as :class:`Progress` counts them),
        ``time`` of that commit, and the numbers of the parameters after it, as float64 (NaN where the function did not return
        one). A run continued from a :class:`Result` has the rows of both parts. Empty without ``evaluate``.
    """

    state: RunState
    history: History
    trace: Trace
    stopped: bool = False
    evaluations: History = dataclasses.field(default_factory=dict)

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
        """Draw the run: loss, staleness and the commits of each worker against time (virtual, or in seconds).

        Rejected and dropped commits are ticks above the loss. Needs matplotlib.

        Returns:
          A ``matplotlib.figure.Figure`` one column wide, which notebooks display; ``result.plot().savefig("run.pdf")``.

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


class Evaluated(NamedTuple):
    """The parameters and the values of an evaluation.

    Attributes:
      commit: commits before the evaluation.
      params: the central variable after them.
      model_state: its model state.
      values: the numbers that ``evaluate=`` returned.
    """

    commit: int
    params: PyTree
    model_state: PyTree
    values: Mapping[str, float] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run, the argument of its callback (:mod:`gemjax.callbacks` has some ready-made).

    Attributes:
      commits: rows of ``progress.trace()``, including those of earlier runs that this one continues.
      total: the number of commits that the run is to reach.
      rejected: commits rejected so far, because they or the state after them were not finite.
      dropped: commits that the method refused so far.
      params: the central variable now; valid during the callback only, so copy it to keep it.
      model_state: its model state now (such as BatchNorm statistics); valid during the callback only.
      state: ``progress.state()`` is the whole state now, stacked by that call, on the devices of the central variable or, if
        these have no room, in the host's memory; valid during the callback only.
      trace: ``progress.trace()`` is the trace of the commits so far; a checkpoint needs it beside the state.
      history: the columns of the commits since the last call; empty if there were none.
      evaluations: the columns of all evaluations that are known so far, as in :class:`Result`.
      evaluated: the parameters of each new row of ``evaluations``, as tuples (``commit``, ``params``, ``model_state``,
        ``values``); valid during the callback only.
      evaluates: True if the engine has ``evaluate=``.
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
    evaluations: History = dataclasses.field(default_factory=dict)
    evaluated: tuple[Evaluated, ...] = ()
    evaluates: bool = True

    def __repr__(self) -> str:
        return (
            f"Progress({self.commits:,} of {self.total:,} commits, {self.rejected} rejected, {self.dropped} dropped, "
            f"{len(self.history.get('loss', ())):,} new rows of history)"
        )


# Called between commits; ends the run if it returns True.
Callback = Callable[[Progress], bool | None]


class RunFailedError(RuntimeError):
    """Failure of a run in which no commit is applied any more; the message has the last events.

    Attributes:
      result: the :class:`Result` up to the failure, to be saved or continued; its state is that after the last applied commit.
    """

    result: Result | None = None


def rejections_to_fail(num_workers: int, *, ends_unapplied: bool = False) -> int:
    """Return the rejections in a row at which a run fails: 3 N + 7, or N if it ends without any applied commit."""
    return num_workers if ends_unapplied else 3 * num_workers + 7


def check_rejections(in_a_row: int, least: int, commits: int, history: Callable[[], History]) -> None:
    """Raise :class:`RunFailedError` if ``least`` or more commits in a row were rejected, after ``commits`` applied ones."""
    if in_a_row < least:
        return
    columns = history()  # Empty if all commits were made in an earlier call.
    rows = zip(*(columns.get(name, ()) for name in ("worker", "step", "loss")), strict=True)
    last = "; ".join(f"worker {w} step {s}: loss {loss}" for w, s, loss in list(rows)[-3:])
    advice = "the central variable does not change any more. Lower the learning rate, clip gradients, or check the data"
    if not commits:
        advice = (
            "no commit was ever applied. Check that the initial params and model_state, the loss and the data are finite, and "
            "that the learning rate is not much too high"
        )
    raise RunFailedError(
        f"the last {in_a_row} commits were all rejected because their loss, their gradient or the state after them was not "
        f"finite{last and f' ({last})'}; {advice}"
    )


def check_end(state: "RunState", num_workers: int, history: Callable[[], History]) -> None:
    """Raise :class:`RunFailedError` if the last 3 N + 7 commits of a run were rejected, or N if none was ever applied."""
    commits = int(state.commits)
    least = rejections_to_fail(num_workers, ends_unapplied=not commits)
    check_rejections(int(state.rejected_in_a_row), least, commits, history)


def warn_at_the_end(result: Result, stacklevel: int, *, refused: int | None = None, barrier: bool = False) -> None:
    """Warn of a run at whose end the loss has exploded, or most commits were rejected.

    Commits whose state would overflow are rejected one by one, so a diverged run can end with finite parameters. An applied
    commit between rejections lets a run go on. Warn if the method refused each of the last ``refused`` commits.
    With ``barrier``, warn as well if the method is defined in rounds and the run was not in rounds.
    """
    if not (columns := result.history):
        return
    try:
        if barrier and needs_rounds(result.opt_state) and not is_in_rounds(result.trace):
            warnings.warn(
                "the method is defined in rounds, whose steps average displacements of all workers from the same view, but a "
                "worker was missing, or its commit rejected, in some rounds, so that steps mixed views; give num_workers= as "
                "many as take part, or a method without rounds, such as gemjax.delayed_nesterov",
                RunWarning, stacklevel=stacklevel + 1,
            )  # fmt: skip
        if refused is not None and len(columns["dropped"]) >= refused and columns["dropped"][-refused:].all():
            warn_of_refusals(refused, stacklevel + 1)
        if what := _divergence(columns):
            advice = "lower the learning rate, clip gradients, or check the data"
            warnings.warn(f"the run has diverged: {what}; {advice}", RunWarning, stacklevel=stacklevel + 1)
    except RunWarning as error:  # Warnings are errors for the caller, who shall not lose the result.
        leave_result(error, lambda: result)
        raise


def _divergence(columns: History) -> str:
    """Return what shows that a run has diverged, or ``""``."""
    applied = columns["applied"][~columns["dropped"]]
    last = applied[-LAST:]
    if (lost := int((~last).sum())) > max(len(last) // 2, 7):
        return f"{lost} of the last {len(last)} commits were rejected, because they or the state after them were not finite"
    losses = columns["loss"][columns["applied"]].astype(np.float64)
    if not len(losses) or not (loss := np.median(losses[-LAST:])) > EXPLODED * max(1.0, abs(losses[0])):
        return ""
    return f"the median loss of the last {len(losses[-LAST:])} commits is {loss:.3g}, and the first was {losses[0]:.3g}"


def warn_of_refusals(in_a_row: int, stacklevel: int) -> None:
    """Warn that a rule refused the last ``in_a_row`` commits, such as drop_stale after its schedule has reached 0."""
    warnings.warn(
        f"the method has refused the last {in_a_row} commits; the central variable does not change any more. Let the rule "
        "that refuses (the threshold of drop_stale, or a rule of your own) accept every commit of staleness 0",
        RunWarning,
        stacklevel=stacklevel + 1,
    )


def leave_result(error: BaseException, make: Callable[[], Result]) -> None:
    """Add the attribute ``result`` to ``error`` if the state can still be read; otherwise a note."""
    try:
        vars(error)["result"] = make()
    except Exception as unreadable:
        error.add_note(f"The state of the run is lost, except for checkpoints: {unreadable!r}")


@contextlib.contextmanager
def leaving(made: list[Result]) -> Iterator[None]:
    """Add the result that is in ``made`` to an exception that comes after it, such as Ctrl-C while a run is closed."""
    try:
        yield
    except BaseException as error:
        if made and not hasattr(error, "result"):
            leave_result(error, lambda: made[0])
        raise


def concatenate(parts: list[History]) -> History:
    """Concatenate histories, with NaN where a part lacks a column."""
    parts = [part for part in parts if part]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([_column(part, name) for part in parts]) for name in names}


def _column(part: History, name: str) -> np.ndarray:
    return part[name] if name in part else np.full(len(next(iter(part.values()))), np.nan, np.float32)


def begin_from(
    state: RunState | Result | None, recorded: Trace | None = None
) -> tuple[RunState | None, Trace | None, History]:
    """Unpack ``state=`` of an engine into the state, the trace and the history to continue from.

    Raises:
      ValueError: if a trace is given in addition to a result, which has its own.
    """
    if not isinstance(state, Result):
        return state, recorded, {}
    if recorded is not None:
        raise ValueError(
            "state= is a Result, which holds the recorded trace; leave recorded= out, or give state=result.state"
        )
    return state.state, state.trace, state.history


def check_valid(state: RunState) -> None:
    """Raise ``ValueError`` if arrays of ``state`` were donated to a later commit."""
    if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(state)):
        raise ValueError(
            "state is no longer valid, because the run went on: progress.state() is that of the call of the callback only; "
            "save it there, or keep jax.tree.map(jnp.copy, progress.state())"
        )


def of_applied(state: RunState, recorded: Trace, history: History) -> Trace:
    """Return the trace of a result without its rejected and dropped rows, which a simulation has, if it has such rows."""
    applied = history["applied"]
    if int(state.commits) == len(recorded) or int(state.commits) != applied.sum():
        return recorded
    columns = {name: history[name][applied] for name in COLUMNS}
    if recorded.read_at is not None:  # It counts rows.
        # The first refused commits, those of runs on devices before the simulation, have no row.
        applied = np.delete(applied, np.flatnonzero(~applied)[: len(applied) - len(recorded)])
        columns["read_at"] = np.concatenate([[0], np.cumsum(applied)])[recorded.read_at[applied]]
    return Trace(**columns, num_workers=recorded.num_workers)


def continued(state: RunState, recorded: Trace) -> RunState:
    """Return the state from which a run on devices continues, after a check that it belongs to the trace.

    A replay does not know the draws of rejected commits, so its state may lack a draw beyond those of the trace, from which new
    ones are counted. Then the largest one is replaced, and so are draws that the trace has used.
    """
    num_workers = state.step.num_workers
    if (made := (int(state.commits), num_workers)) != (found := (len(recorded), recorded.num_workers)):
        raise ValueError(
            f"the state to continue from has made {made[0]} commits of {made[1]} workers, but recorded= has {found[0]} of "
            f"{found[1]}; give the trace that belongs to it (the result's, or the checkpoint's), without rejected and dropped "
            "rows of a simulation"
        )
    check_led_to(state, recorded, "recorded=")
    draws, last = np.array(state.draw.value), recorded.draw.max(initial=-1)
    used = np.isin(draws, recorded.draw)
    if not used.any():
        used[np.argmax(draws)] = draws.max() < last
    draws[used] = 1 + max(draws.max(), last) + np.arange(used.sum())
    return state._replace(draw=Slots(jnp.asarray(draws), num_workers))


def continue_numbers(state: RunState, batches: Any, local: LocalSteps | None) -> tuple[RunState, LocalSteps | None]:
    """Return the state and the local steps of a run that begins with ``state``, with numbers that go on from there.

    Args:
      state: with all slots.
      batches: the run's batches, not grouped for local steps.
      local: the run's local steps.

    Raises:
      ValueError: if batches have another number of rows than those before, or a shared stream another period.
    """
    before, size, step = int(state.batch_size), rows_per_batch(batches), np.asarray(state.step.value)
    if step.any() and before and size and before != size:
        raise ValueError(
            f"the run to continue from has made its steps on batches of {before} rows, but batches= has {size} per batch; give "
            f"batch_size={before}, because batches are numbered: workers would repeat rows or skip them"
        )
    if local is not None:
        made, of_these = np.asarray(state.local_step.value), local.made_before(step)
        local = local.continued(step, made)
        if batches.shared and (made != of_these).any():
            worker = int(np.argmax(made != of_these))
            raise ValueError(
                "batches= is a stream that all workers share, and the run to continue from had another period of LocalSteps: "
                f"worker {worker} has made {made[worker]} local steps in {step[worker]} commits; give that period, because its "
                "draws are numbered, or batches that workers do not share (gemjax.Epochs, gemjax.Shards)"
            )
    return state._replace(batch_size=jnp.int32(size or before)), local


def without_numbers(state: RunState) -> RunState:
    """Return ``state`` without what the host counts, so that compiled programs do not carry it."""
    return state._replace(draw=(), local_step=())


def with_numbers(state: RunState, step: Any, draws: Any, local: LocalSteps | None) -> RunState:
    """Return ``state``, or the stacked states of several runs, with its draws, and the local steps made before ``step``."""
    place = getattr(state.step.value, "sharding", None)
    counts = lambda numbers: Slots(jax.device_put(np.asarray(numbers, np.int32), place), state.step.num_workers)
    state = state._replace(draw=counts(draws))
    return state if local is None else state._replace(local_step=counts(local.made_before(np.asarray(step))))


def checked_state(state: RunState, initial: RunState, *, elsewhere: bool = False) -> RunState:
    """Return ``state`` for a run that begins with ``initial``, with that run's settings of the rules that refuse commits.

    A compiled run would not fail for the state of another run, because it clamps an index beyond the slots of the state. Unless
    ``elsewhere`` is true, arrays of other processes and of files are brought here.

    Raises:
      ValueError: if ``state`` cannot continue that run.
    """
    found, expected = _kinds(state), _kinds(initial)
    if found == expected and _around_refusals(state) == _around_refusals(initial):
        return jax.tree.unflatten(jax.tree.structure(initial), jax.tree.leaves(state if elsewhere else here(state)))
    different = [name for name in expected | found if found.get(name) != expected.get(name)] or ["its containers"]
    raise ValueError(
        "the state to continue from is of another method, schedule, model or number of workers; "
        f"what differs: {len(different)}, the first is {different[0]!r}: found {found.get(different[0], 'none')}, "
        f"expected {expected.get(different[0], 'none')}; give the method with its schedules, params=, model_state=, the "
        "number of workers and of blocks (read_at) as the run had them"
    )


def _around_refusals(tree: PyTree) -> Any:
    """Return the structure of ``tree`` without that of the nodes that refuse commits, whose thresholds may change."""
    return jax.tree.structure(tree, is_leaf=lambda node: isinstance(node, Refusals) or can_refuse(node))


def _kinds(tree: PyTree) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path).removeprefix("."): f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
