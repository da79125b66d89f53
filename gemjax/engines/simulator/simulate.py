"""The simulator, which runs a whole trace in one compiled program."""

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import optax

from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.checks import (
    check_callback,
    check_given,
    checked_seed,
    warn_of_two_rates,
    warn_without_rounds,
)
from gemjax.engines.memory import bytes_of, default_device, offload_if_needed
from gemjax.engines.programs import Kept
from gemjax.engines.result import (
    LAST,
    REFUSED,
    Callback,
    Evaluated,
    History,
    Progress,
    Result,
    as_column,
    begin_from,
    check_rejections,
    concatenate,
    continue_numbers,
    leave_result,
    leaving,
    rejections_to_fail,
    warn_at_the_end,
    with_numbers,
    without_numbers,
)
from gemjax.engines.running.checkpoints.checkpoints import Checkpoints
from gemjax.engines.running.checkpoints.saving import Saving
from gemjax.engines.running.evaluation import Evaluate, Evaluation, every_of
from gemjax.engines.running.interrupts import Held
from gemjax.engines.running.progress import ProgressLine
from gemjax.engines.simulator import vmap
from gemjax.engines.simulator.chunks import chunks
from gemjax.engines.simulator.continuing import begin, rows_of
from gemjax.engines.simulator.loops import compiled, in_chunks, prepare, renamed_chunk_size, width_for
from gemjax.engines.transition import RunState, Transition, first_shapes
from gemjax.protocol import Loss, PyTree
from gemjax.protocol.checks import integer
from gemjax.protocol.diagnostics import names
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.slots import Slots
from gemjax.protocol.trace import Events, Trace, check_trace, draws_after

FAITHFUL = Kept()


def simulate(
    tx: "optax.GradientTransformation",
    loss_fn: "Loss",
    params: "PyTree",
    batches: Any,
    trace: "Trace",
    *,
    model_state: "PyTree" = (),
    average_model_state: bool = False,
    local: "LocalSteps | None" = None,
    seed: int = 0,
    diagnostics: "Iterable[str]" = (),
    state: "RunState | Result | None" = None,
    callback: "Callback | None" = None,
    callback_every: int | None = None,
    stops: "Iterable[int]" = (),
    evaluate: "Evaluate | None" = None,
    evaluate_every: int | None = None,
    progress: bool = False,
    checkpoints: "str | os.PathLike | Checkpoints | None" = None,
    resume: bool = False,
    checkpoint_seconds: float = 600.0,
    window: int | None = None,
    chunk_size: int | None = None,
) -> "Result":
    """Simulate asynchronous training along a trace, compiled, on one device.

    Row t of the trace is the commit of a worker on the view that it pulled ``staleness[t]`` rows before. Gradients and commits
    are computed by the functions of the other engines, so the same trace gives the same parameters. Views and per-worker state
    are stacked in memory, and a commit changes those of one worker: its cost does not depend on N.

    Programs are cached by the identity of ``tx``, ``loss_fn``, ``local`` and ``batches``, as in ``jax.jit``; the eight newest
    are kept. A second call with the same objects is neither traced nor compiled again, whatever its seed and the length of its
    trace. (With data on the host, or periods of many local steps, a shorter trace may need another program.) So a value that is
    read from outside of a function, or from an attribute of the loss or batches object, is that of the first call; for another
    value make the object anew. Objects that are made anew are traced. They compile nothing if their program equals one of the
    eight, unless it calls back to Python.

    Args:
      tx: a gemjax method, a chain that contains one, or any optax transformation.
      loss_fn: ``loss_fn(params, batch) -> loss``, or ``loss_fn(params, model_state, batch, key) -> (loss, (model_state,
        metrics))`` with ``metrics`` a dict of scalars.
      params: initial central variable, a pytree of float arrays.
      batches: a traceable ``fn(worker, step) -> batch``, or an object such as :class:`gemjax.Epochs`. Data that do not fit
        the device beside the run's state stay on the host (:class:`gemjax.OnHost`).
      trace: the order of commits; from :mod:`gemjax.arrivals`, from a run on devices, or made by hand.
      model_state: initial model state, a pytree of arrays (BatchNorm statistics, counters, PRNG keys), default none.
      average_model_state: False (default): a commit replaces the central model state; True: its floats are averaged in with
        weight 1/N (integers and PRNG keys are replaced).
      local: local steps of the workers between their commits, which ``batches`` and keys then count; ``None`` (default): a
        commit is one gradient.
      seed: decides, with (worker, step), the keys that ``loss_fn`` receives.
      diagnostics: quantities to report per commit besides the loss, such as ``gap``; gemjax/results.md has a table of them.
        Each costs time.
      state: an earlier :class:`gemjax.Result` of the same trace to continue from, or its ``state``; ``params`` and
        ``model_state`` are then not used. The run continues bit for bit as if it had not stopped. ``history`` begins with the
        rows of an earlier ``Result``, or after a bare :class:`gemjax.RunState` with this call. The state is copied.
      callback: called after every ``callback_every`` commits, at ``stops``, after an evaluation and at the end; ends the run if
        it returns True. If an evaluation follows, it is called once more. Late pulls, as behind a barrier, may follow the last
        commit; then it is called after them, too, and the columns of its ``history`` have no rows.
      callback_every: commits between two calls, positive; default: a twentieth of the trace. With ``window=1`` it changes no
        bit of the results, except that a run fails by rejected commits only where a compiled call ends: at each call of
        ``callback``, and at least every 1,024 arrivals (more often if data stay on the host and their rows would exceed 256
        MiB).
      stops: numbers of commits after which ``callback`` is called, too (by virtual time: see the example below). They change
        results only as ``callback_every`` does. All compiled calls run one program.
      evaluate: ``evaluate(params, model_state) -> dict of numbers``, such as the loss on held-out data, or ``None`` for no row.
        It is called after each ``evaluate_every`` commits (rows of the trace) and at the end of the run, before ``callback``.
      evaluate_every: commits between two evaluations, positive; default: a twentieth of the trace.
      progress: True to print a line to standard error, updated if that is a terminal: commits, their rate, the time left, the
        loss.
      checkpoints: folder of the run's checkpoints, or a :class:`gemjax.Checkpoints`. A checkpoint is written in the background
        at most every ``checkpoint_seconds``, and at the end, also of a run that fails or that Ctrl-C ends. Default: none.
      resume: True to continue from the newest checkpoint in ``checkpoints``, if there is one, with the whole ``history``. A
        resumed simulation equals an uninterrupted one bit for bit; on devices the order of arrivals is a new one. False
        (default): the folder must have none.
      checkpoint_seconds: least seconds between two checkpoints, positive; default 600. A killed run loses what came
        after the last complete one.
      window: the largest number of gradients computed at once. The views of distinct workers that arrive one after the other
        are fixed before the first of them commits. Their gradients can therefore be one batched computation, which fills an
        accelerator; the commits follow in order, and the result is the same up to rounding. ``None`` (default): 1 on a CPU, up
        to 32 elsewhere. It is always 1 with numbers drawn by rbg or unsafe_rbg, because JAX draws others in a batch, and with
        calls back to Python that ``jax.vmap`` refuses.
      chunk_size: old name of ``callback_every``, for one more release.

    Returns:
      A :class:`gemjax.Result`. Its ``history["time"]`` is the trace's time.

    Warns:
      RunWarning: if ``tx`` is a method for gradients with a learning rate other than 1 and there are local steps, which have
        a rate of their own; if ``tx`` is defined in rounds, as :func:`gemjax.diloco`, and ``trace`` is not (such as one of
        :class:`gemjax.arrivals.Barrier`); at the end, if the run has diverged: the median loss of the last 100 applied commits
        is over a million times the first one (or 1, if that is larger), or more than half of the last 100 commits, and more
        than 7, were rejected.

    Raises:
      TypeError: if an argument is of the wrong type, such as a method that is not called.
      ValueError: if the method or the batches are made for another number of workers than the trace has, or ``state`` is of
        another run.
      CheckpointError: (a ValueError) if the newest checkpoint is of another method, schedule, model or number of workers, or
        damaged.
      CheckpointWriteError: (an OSError) if the last checkpoint cannot be written; for an earlier one there is a warning.
      MemoryError: if the run would keep more than the device holds.
      RunFailedError: if commits are rejected and none is applied. A commit is rejected if its loss or gradient is not finite,
        or if it would make a number of the parameters or the state infinite or NaN, or the norm of the parameters (or of a
        momentum or buffer) too large for its type: 1.8e19 in float32. Everything is then as before, except for the
        step, which is used up. Every exception during the run has an attribute ``result``, to be saved or continued, unless
        the state can no longer be read. What a handler of a signal raises, as Ctrl-C does, is raised after the chunk in
        progress and its evaluation, and so has it; a second exception is raised at once.

    >>> import gemjax, jax.numpy as jnp
    >>> from gemjax import arrivals
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.simulate(gemjax.gem(0.05, num_workers=8), loss_fn, jnp.zeros(2), batches,
    ...                          arrivals.Gamma(8).trace(400))
    >>> result.params.round(2)
    Array([ 3., -1.], dtype=float32)
    >>> int(result.history["staleness"].max()) > 6
    True

    Evaluate every 10 units of virtual time; the callback is also called between stops:

    >>> import numpy as np
    >>> trace, ticks, losses = arrivals.Gamma(8, mean=1.0).trace(400), np.arange(10.0, 41.0, 10.0), {}
    >>> stops = np.searchsorted(trace.time, ticks, side="right")       # Commits by each of these times.
    >>> def callback(progress):
    ...     if progress.commits in stops:
    ...         losses[progress.commits] = loss_fn(progress.params, batches(0, 0))
    >>> result = gemjax.simulate(gemjax.asgd(0.01, num_workers=8), loss_fn, jnp.zeros(2), batches, trace, stops=stops,
    ...                          callback=callback)
    >>> len(losses), losses[stops[0]] > losses[stops[-1]]
    (4, Array(True, dtype=bool))
    """
    check_given(loss_fn, params, model_state)
    check_trace(trace)
    callback_every = renamed_chunk_size(callback_every, chunk_size)
    calls = {integer("stops", stop, 0) for stop in stops}
    if callback is not None or callback_every is not None:
        callback_every = every_of("callback_every", callback_every, len(trace))
        calls |= {*range(callback_every, len(trace) + 1, callback_every)}
    check_callback(callback)
    seed = checked_seed(seed)
    saving = Saving(checkpoints, resume, checkpoint_seconds)
    transition = Transition(
        tx=tx, loss_fn=loss_fn, num_workers=trace.num_workers, diagnostics=names(diagnostics),
        average_model_state=average_model_state, local=local, num_blocks=trace.num_blocks or _blocks_of(state),
    ).bind(params)  # fmt: skip
    state = saving.begin(state, lambda: _like(transition, params, model_state), default_device())
    evaluations = state.evaluations if isinstance(state, Result) else {}
    evaluation = Evaluation(evaluate, evaluate_every, len(trace), evaluations)
    state, earlier, history = begin_from(state)
    with contextlib.suppress(TypeError, ValueError):  # The checks below have better messages.
        needed = bytes_of(first_shapes(transition, params, model_state))
        needed |= {} if state is None else {"the state to continue from": sum(bytes_of(state).values())}
        batches = offload_if_needed(as_batches(batches, trace.num_workers), needed, default_device())
    state = begin(transition, params, model_state, state)
    warn_of_two_rates(tx, params, local)
    warn_without_rounds(tx, params, local, trace)
    batches = as_batches(batches, trace.num_workers)
    batches._check_range(in_files=True)  # In the block above errors of types are left to checks such as this one.
    state, local = continue_numbers(state, batches, local)
    batches = batches if local is None else LocalBatches(batches, local)
    events = trace.events()
    if window is None:
        window = 1 if jax.default_backend() == "cpu" else 32
    window = min(integer("window", window, 1), trace.num_workers)

    stopped, (begun, done) = False, rows_of(state, earlier, history, trace, events)
    due = {*range(evaluation.every, len(trace), evaluation.every), len(trace)} if evaluate is not None else set()
    ends = np.cumsum(events.commits)
    parts: dict[Any, History] = {None: history}
    draws: dict[Any, np.ndarray] = {None: np.array(state.draw.value)}  # After the newest chunk.
    state = without_numbers(state)
    line = ProgressLine(progress, len(trace))
    called_at, parts_given = begun, 1  # What the callback has been given.
    evaluated: list[Evaluated] = []  # Those that the callback has not been given.
    latest: Any = None, state, None  # Cut, state and reports of the newest chunk, replaced at once.

    def reached() -> tuple[RunState, int]:
        """Add the newest chunk to the history; return its state and the number of commits."""
        cut, state, reports = latest
        if cut not in parts:
            chunk = Events(*(column[slice(*cut)] for column in events))
            before = next(reversed(parts))
            draws[cut] = draws_after(draws[before], chunk.worker[chunk.commits], chunk.draw[chunk.commits])
            parts[cut] = _history(chunk, reports, trace)
            del draws[before]
        state = with_numbers(state, state.step.value, draws[cut], local)
        return state, begun if cut is None else int(ends[cut[1] - 1])

    def evaluate_reached() -> None:
        """Evaluate the newest state."""
        state, commits = reached()
        values = evaluation.values(_apart(state.params), _apart(state.model_state))
        evaluation.note(commits)
        if values is not None:
            evaluation.add(commits, float(trace.time[commits - 1]), values)
            if callback is not None:
                evaluated.append(Evaluated(commits, _apart(state.params), _apart(state.model_state), values))

    def call(callback: Callback) -> bool:
        """Call the callback; return True if it ends the run."""
        nonlocal called_at, parts_given
        state, commits = reached()
        newest_first = itertools.islice(reversed(parts.values()), len(parts) - parts_given)
        made = Progress(
            commits=commits,
            total=len(trace),
            rejected=int(state.rejected),
            dropped=int(state.dropped),
            params=_apart(state.params),
            model_state=_apart(state.model_state),
            state=functools.partial(_apart, state),
            trace=functools.partial(trace.first, commits),
            history=concatenate([*newest_first][::-1]),
            evaluations=evaluation.columns(),
            evaluated=tuple(evaluated),
            evaluates=evaluate is not None,
        )
        called_at, parts_given = commits, len(parts)
        evaluated.clear()
        with held.interruptible():
            return bool(callback(made)) and commits < len(trace)

    def recent_loss() -> float:
        losses = next(reversed(parts.values())).get("loss", np.zeros(0))[-LAST:]
        return float(np.mean(losses[np.isfinite(losses)], dtype=np.float64)) if np.isfinite(losses).any() else math.nan

    with Held("the simulation ends after the chunk in progress; again: at once, without its state") as held:
        try:
            with held.interruptible():
                width = width_for(events, batches)
                cuts = chunks(events, width, [*calls, *due], done)
                if window > 1 and cuts and not _is_faithful(transition, batches, events, state):
                    window = 1
            run_chunk = compiled(transition, batches, width, window, not events.commits.all(), not events.whole.all())
            run_chunk = functools.partial(run_chunk, np.int64(seed))

            def prepared(cut: tuple[int, int]) -> tuple:
                try:
                    with held.interruptible():
                        return prepare(batches, events, width, window, cut)
                except BaseException as error:
                    held.hold(error)  # For the chunk in progress, after which none may follow.
                    raise

            line.begin()
            line.start(begun)
            saving.start(begun)
            for latest in in_chunks(run_chunk, state, batches.data, prepared, cuts):
                state, commits = reached()
                if commits in due and evaluation.is_missing(commits):
                    evaluate_reached()
                held.check()
                if latest[0] == cuts[0] != cuts[-1]:
                    line.start(commits)  # Its program has been compiled.
                line.update(commits, recent_loss)
                is_called = evaluated or latest[0] == cuts[-1] or (commits in calls and commits > called_at)
                if callback is not None and is_called:
                    stopped = call(callback)
                if saving.is_due(commits):
                    saving.save(_result((state, commits), parts, trace, True, evaluation))
                unapplied = commits == len(trace) and not int(state.commits)
                least = rejections_to_fail(trace.num_workers, ends_unapplied=unapplied)
                rows = lambda: concatenate([*parts.values()])
                check_rejections(int(state.rejected_in_a_row), least, int(state.commits), rows)
                if stopped:
                    break
            if evaluation.is_missing(reached()[1]):
                evaluate_reached()
            if callback is not None and evaluated:
                call(callback)
            line.end(reached()[1], recent_loss)
            result = _result(reached(), parts, trace, stopped, evaluation)
            held.check()
        except BaseException as error:
            # The state of a chunk that failed, or that a second Ctrl-C ended, is lost.
            leave_result(error, lambda: _result(jax.block_until_ready(reached()), parts, trace, True, evaluation))
            saving.after(error)
            raise
        with leaving([result]):
            saving.end(result)
    warn_at_the_end(result, stacklevel=2, refused=REFUSED * trace.num_workers)
    return result


def _result(
    reached: tuple[RunState, int], parts: dict[Any, History], trace: Trace, stopped: bool, evaluation: Evaluation
) -> Result:
    state, commits = reached
    return Result(state, concatenate([*parts.values()]), trace.first(commits), stopped, evaluation.columns())


def _blocks_of(state: Any) -> int:
    """Return the number of blocks that a given state has; its views may all be consistent, as those of a barrier are."""
    read_at = getattr(state.state if isinstance(state, Result) else state, "read_at", ())
    return read_at.value.shape[-1] if isinstance(read_at, Slots) else 0


def _like(transition: Transition, params: PyTree, model_state: PyTree) -> RunState:
    """Return the shapes of a state, with the places of the parameters that are given."""
    shapes = first_shapes(transition, params, model_state)
    place = lambda leaf, given: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(given, "sharding", None))
    return shapes._replace(params=jax.tree.map(place, shapes.params, params))


def _apart(tree: PyTree) -> PyTree:
    """Return the same arrays in containers of their own, into which a callback may write."""
    return jax.tree.map(lambda leaf: leaf, tree)


def _is_faithful(transition: Transition, batches: Any, events: Events, state: RunState) -> bool:
    """Return True if gradients in a window are those one by one; it is found once for the same objects."""
    found = lambda: vmap.is_faithful(lambda _: transition, None, batches, events, state, commits=False)
    return FAITHFUL.get((transition, batches._traced()), found, (state, batches.data))


def _history(chunk: Events, reports: Any, trace: Trace) -> History:
    """Return the chunk's commits as columns, without arrivals that only pulled."""
    reports = jax.tree.map(lambda column: as_column(column)[: len(chunk.worker)], reports)
    columns = {
        "worker": chunk.worker,
        "step": chunk.step,
        "time": trace.time[chunk.row],
        "loss": reports.loss,
        "staleness": reports.staleness,
        "pulled_at": reports.pulled_at,
        "draw": chunk.draw,
        "applied": reports.applied,
        "dropped": reports.dropped,
    } | reports.metrics
    return {name: column[chunk.commits] for name, column in columns.items()}
