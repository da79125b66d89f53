"""Simulated runs over a grid of hyper-parameters and seeds, in one compiled program."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.local import LocalBatches
from gemjax.batches.per_seed import PerSeed
from gemjax.batches.rows import rows_per_batch
from gemjax.engines.checks import check_callback, check_given, warn_of_two_rates, warn_without_rounds
from gemjax.engines.memory import bytes_of, default_device, offload_if_needed
from gemjax.engines.programs import Kept
from gemjax.engines.result import History, with_numbers, without_numbers
from gemjax.engines.running.evaluation import every_of
from gemjax.engines.simulator import vmap
from gemjax.engines.simulator.chunks import chunks
from gemjax.engines.simulator.grid import batches_of, grid, paired, stacked, starts_of, traces_of
from gemjax.engines.simulator.lanes import Lane, first_rows, in_one_batch, is_faster_batched, joined, one_by_one
from gemjax.engines.simulator.loops import in_chunks, loop, prepare, renamed_chunk_size, width_for
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import Loss, PyTree
from gemjax.protocol.checks import check_bool, check_positive_int
from gemjax.protocol.diagnostics import names as diagnostic_names
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.trace import Events, Trace, draws_after

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES, FAITHFUL = Kept(), Kept()


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The outcome of :func:`sweep`. Every array has a leading axis of runs.

    Attributes:
      points: an array [runs] for ``seed`` and for each name in ``over``.
      state: the final state of every run.
      history: columns as in :class:`gemjax.Result`, of shape ``[runs, commits]``. Columns that are the same in all runs because
        they share one trace (``worker``, ``step``, ``time``, ``draw``) have shape ``[commits]``.
    """

    points: dict[str, np.ndarray]
    state: RunState
    history: History

    def __repr__(self) -> str:
        runs, commits = len(self.points["seed"]), self.history["loss"].shape[1] if self.history else 0
        return f"SweepResult({runs} runs of {commits:,} commits over {', '.join(self.points)})"

    @property
    def params(self) -> PyTree:
        """The central variable of every run."""
        return self.state.params

    def plot(self) -> "Figure":
        """Draw the final loss of :meth:`table` against the swept number with the most values, each run as a point.

        Lines join the medians over seeds, one per combination of the other swept numbers. Needs matplotlib.

        Returns:
          A ``matplotlib.figure.Figure`` one column wide, which notebooks display.

        Raises:
          ImportError: if matplotlib is not installed.
          ValueError: if no run has a finite loss.

        >>> import gemjax, jax.numpy as jnp
        >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
        >>> swept = gemjax.sweep(lambda rate: gemjax.asgd(rate, num_workers=2), loss_fn, jnp.zeros(2), lambda worker, step: 1.0,
        ...                      gemjax.arrivals.Gamma(2).trace(40), {"rate": [0.01, 0.03, 0.1]}, seeds=[0, 1])
        >>> axes = swept.plot().axes[0]
        >>> axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()
        ('rate', 'final loss', 'log')
        """
        from gemjax.telemetry.plotting import plot_sweep

        return plot_sweep(self.table(), [name for name in self.points if name != "seed"])

    def table(self, last: int = 100) -> list[dict[str, Any]]:
        """Return one row per run: its point, its final loss, and its numbers of rejected and dropped commits.

        The final loss is the mean over the last ``last`` applied commits, a positive int. A ``pandas.DataFrame`` takes the
        table.
        """
        check_positive_int("last", last)
        rows = []
        for run in range(len(self.points["seed"])):
            losses = self.history["loss"][run][self.history["applied"][run]][-last:] if self.history else np.zeros(0)
            rows.append(
                {name: values[run].item() for name, values in self.points.items()}
                | {"loss": float(losses.mean(dtype=np.float64)) if len(losses) else float("nan")}
                | {"rejected": int(self.state.rejected[run]), "dropped": int(self.state.dropped[run])}
            )
        return rows


def sweep(
    make: "Callable[..., Any]",
    loss_fn: "Loss",
    params: "PyTree",
    batches: Any,
    trace: "Trace | PerSeed",
    over: "Mapping[str, Sequence[float]] | Sequence[Mapping[str, float]]",
    *,
    seeds: "Iterable[int]" = (0,),
    model_state: "PyTree" = (),
    average_model_state: bool = False,
    local: "LocalSteps | Callable[..., LocalSteps] | None" = None,
    diagnostics: "Iterable[str]" = (),
    callback: "Callable[[int, int], bool | None] | None" = None,
    callback_every: int | None = None,
    stops: "Iterable[int]" = (),
    at_stop: "Callable[[int, int, RunState], None] | None" = None,
    batched: bool | None = None,
    chunk_size: int | None = None,
) -> "SweepResult":
    """Simulate one trace at every point of a grid of hyper-parameters, for several seeds, in one compiled program.

    All runs follow the same trace from the same parameters, so that they differ only in what is varied. With
    :class:`gemjax.PerSeed` each seed has parameters, an order of data or a trace of its own, so that the spread over seeds is
    that of independent repetitions. Each run equals the run of :func:`gemjax.simulate` with the same arguments, up to rounding.
    A run that diverges is a result like any other: its commits are rejected and counted, as in :func:`gemjax.simulate`.

    The program is compiled once, and found by a second call as in :func:`gemjax.simulate`. It computes all runs as one batch
    (``vmap``), or one run per call with the hyper-parameters as arguments. A batch fills an accelerator and shares the overhead
    of small operations; on a CPU the runs of a larger network evict each other from the cache. One by one, gradients and
    activations of only one run are in memory.

    Args:
      make: ``make(**point) -> transformation``. It is called with a traced number for each name of ``over``, whose range no
        method can check. A number that decides shapes, such as that of workers, cannot be swept.
      loss_fn: as for :func:`gemjax.simulate`.
      params: initial central variable of all runs, or :class:`gemjax.PerSeed` of it.
      batches: as for :func:`gemjax.simulate`, the same in all runs; or :class:`gemjax.PerSeed` of objects that select from the
        same ``data`` (for example :class:`gemjax.Epochs` with different seeds).
      trace: order of commits in all runs; or :class:`gemjax.PerSeed` of traces with equal lengths and numbers of workers.
      over: values to try of each hyper-parameter. The grid is their product, for ``{}`` one point. Or a list of
        points, each with the same names.
      seeds: the grid is run for each seed. A seed decides the arguments given as :class:`gemjax.PerSeed` and, with (worker,
        step), the keys that ``loss_fn`` gets (for dropout and the like).
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`; or a function of a point, as ``make`` is, with the same periods at every point.
      diagnostics: as for :func:`gemjax.simulate`.
      callback: called as ``callback(arrivals done, arrivals in all)`` after each compiled call, which all runs complete before
        the next one starts. Ends the sweep by returning true.
      callback_every: the largest number of arrivals between two calls, positive; default: a twentieth of the trace. There
        are never more than 1,024, and fewer if data stay on the host and their rows would exceed 256 MiB.
      stops: numbers of commits after which ``at_stop`` is called, the same for all seeds.
      at_stop: called as ``at_stop(commits, run, state)`` for each run, with its number in the order of the result. The state is
        valid during the call only.
      batched: compute all runs as one batch (true) or one by one (false). Default: as one batch, except on a CPU if a run has
        more than 3,000 parameters. Measured with 4 to 48 runs of GEM on two cores, the batch has 1.6 times the speed of one by
        one at 1,000 parameters, 0.6 to 1.1 at 4,000 and 0.5 to 0.7 from 10,000 to 300,000 (dense layers); a small convolutional
        network 1.1 at 1,000, 1.0 at 3,000 and 0.6 at 10,000. With numbers drawn by rbg or unsafe_rbg, of which JAX
        draws others in a batch, and with calls back to Python that ``jax.vmap`` refuses, they are always one by one, also with
        ``batched=True``.
      chunk_size: old name of ``callback_every``, for one more release.

    Returns:
      A :class:`gemjax.SweepResult`, with runs in the order of ``itertools.product(*over.values(), seeds)``.

    Raises:
      ValueError: if the method is made for another number of workers than the trace has, or if the traces, batches or
        parameters of different seeds cannot be run side by side.
      MemoryError: if the states of all runs do not fit the device.

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> make_tx = lambda rate, kappa: gemjax.gem(rate, 0.9, num_workers=8, kappa=kappa)
    >>> result = gemjax.sweep(make_tx, loss_fn, jnp.zeros(2), batches,
    ...                       gemjax.arrivals.Gamma(8).trace(300), {"rate": [0.001, 0.05], "kappa": [1.0, 2.0]})
    >>> [(row["rate"] > 0.01, row["loss"] < 0.1) for row in result.table()]
    [(False, False), (False, False), (True, True), (True, True)]
    """
    callback_every = renamed_chunk_size(callback_every, chunk_size)
    check_callback(callback)
    check_callback(at_stop, "at_stop", "(commits, run, state)")
    seeds, stops, observed = list(seeds), [*map(int, stops)], diagnostic_names(diagnostics)
    points = grid(over, seeds)
    names = tuple(name for name in points if name != "seed")
    each = points["seed"][: len(seeds)].tolist()
    traces = traces_of(trace, each)
    first, num_workers = {name: points[name][0].item() for name in names}, traces[0].num_workers
    steps = local(**first) if callable(local) else local
    data, starts = batches_of(batches, each, num_workers), starts_of(params, each)
    check_given(loss_fn, starts[0], model_state)
    sizes = {rows_per_batch(one) for one in data}
    size = sizes.pop() if len(sizes) == 1 else 0
    if batched is not None:
        check_bool("batched", batched)
    else:
        batched = is_faster_batched(starts[0])

    def transition(lane: Lane, params: PyTree, model_state: PyTree) -> Transition:
        seed, values = lane
        point = dict(zip(names, values, strict=True))
        return Transition(
            tx=_made(make, point), loss_fn=loss_fn, num_workers=num_workers, seed=seed,
            diagnostics=observed, average_model_state=average_model_state,
            local=local(**point) if callable(local) else local, num_blocks=traces[0].num_blocks,
        ).bind(params)  # fmt: skip

    def begin(lane: Lane, params: PyTree, model_state: PyTree) -> RunState:
        state = transition(lane, params, model_state).init(params, model_state)
        return without_numbers(state._replace(batch_size=jnp.int32(size)))

    # Python's numbers are weakly typed, traced or stacked: parameters in half precision stay so.
    columns = (points[name].tolist() for name in names)
    lanes = [(np.int64(seed), values) for seed, *values in zip(points["seed"], *columns, strict=True)]
    runs = len(lanes)
    advice = f"fewer of the {runs} runs at a time, fewer workers, or a method that keeps less per worker"
    same = make, names, loss_fn, num_workers, observed, average_model_state, local, size, traces[0].num_blocks
    arrays = starts[0], model_state
    of_one = SHAPES.get(same, lambda: jax.eval_shape(begin, lanes[0], *arrays), arrays)
    needed = {name: runs * size for name, size in bytes_of(of_one).items()}
    if steps is not None:
        for _, values in lanes:
            with contextlib.suppress(ValueError):  # A point may be out of range.
                made = make(**dict(zip(names, values, strict=True)))
                warn_of_two_rates(made, starts[0], steps)
                warn_without_rounds(made, starts[0], steps, *traces)
                break
    data = [offload_if_needed(one, needed, default_device(), advice=advice) for one in data]
    data = data if steps is None else [LocalBatches(one, steps) for one in data]
    events = [one.events() for one in traces]
    arrivals, several = len(events[0].worker), max(len(data), len(traces)) > 1
    width = width_for(events[0], data[0], runs if several else 1)
    if callback is not None or callback_every is not None:
        callback_every = every_of("callback_every", callback_every, arrivals)
    at_most = min(callback_every or width, width)
    traced = data[0]._traced()
    kinds = {"with_pulls": not events[0].commits.all(), "with_reads": not all(one.whole.all() for one in events)}

    def step(lane: Lane, state: RunState, shared: PyTree, rows: PyTree, length: Any, columns: list):
        run = loop(transition(lane, state.params, state.model_state), traced, width, 1, **kinds)
        return run(state, shared if rows is None else rows, length, *columns)

    def prepared(cut: tuple[int, int]) -> tuple:
        return None, [prepare(one, of, width, 1, cut) for of, one in paired(events, data)]

    def drawn(end: int) -> list[np.ndarray]:
        """Return the draws that workers hold after ``end`` arrivals, of each trace."""
        made = [(one.worker[:end][one.commits[:end]], one.draw[:end][one.commits[:end]]) for one in events]
        return [draws_after(np.arange(traces[0].num_workers), *columns) for columns in made]

    parts: list[Any] = []
    end = 0
    cuts = [(first, min(first + at_most, arrivals)) for first in range(0, arrivals, at_most)]
    cuts = chunks(events[0], at_most, stops) if stops else cuts
    ends = np.cumsum(events[0].commits)
    if batched and cuts:
        make_one = lambda lane: transition(lane, *arrays)
        batched = FAITHFUL.get(
            (same, traced),
            lambda: vmap.is_faithful(make_one, lanes[0], data[0], events[0], of_one, commits=True),
            (arrays, data[0].data),
        )
    compiled: Callable = in_one_batch if batched else one_by_one
    state, run_chunk = compiled(begin, step, lanes, starts, model_state, (same, traced, width, *kinds.values()))
    running = in_chunks(run_chunk, state, data[0].data, prepared, cuts)
    for (first, end), state, reports in running:
        parts.append(first_rows(reports, end - first))
        commits, before = int(ends[end - 1]), int(ends[first - 1]) if first else 0
        if at_stop is not None and commits in stops and commits != before:  # Pulls alone pass no stop.
            draws = drawn(end)
            for run in range(runs):
                # In containers of its own, into which `at_stop` may write.
                one = lambda leaf: leaf[run] if batched else leaf  # noqa: B023
                own = jax.tree.map(one, state if batched else state[run])
                at_stop(commits, run, with_numbers(own, own.step.value, draws[run % len(events)], steps))
        if callback is not None and callback(end, arrivals):
            break
    state = state if batched else joined(state)
    each_run = np.stack(drawn(end))[np.arange(runs) % len(events)]
    state = with_numbers(state, state.step.value, each_run, steps)
    return SweepResult(points, state, _history(events, parts, traces, runs if isinstance(trace, PerSeed) else 0))


def _made(make: Callable[..., Any], point: Mapping[str, Any]) -> Any:
    """Return ``make(**point)`` for traced numbers; an error of JAX about them gets a note."""
    try:
        return make(**point)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError) as error:
        error.add_note(
            "a sweep calls make with traced numbers, which Python cannot branch on; for such a hyper-parameter call "
            "gemjax.simulate once per value"
        )
        raise


def _history(events: list[Events], parts: list, traces: list[Trace], runs: int) -> History:
    """Return the columns of all runs; ``runs`` is the number of runs with traces of their own, which is all or none."""
    if not parts:
        return {}
    reports = jax.tree.map(lambda *columns: np.concatenate(columns, axis=1), *parts)
    made = events[0].commits[: reports.loss.shape[1]]
    shared = [
        {"worker": one.worker, "step": one.step, "time": trace.time[one.row], "draw": one.draw}
        for one, trace in zip(events, traces, strict=True)
    ]
    cut = [{name: column[: len(made)][made] for name, column in one.items()} for one in shared]
    own = {name: getattr(reports, name) for name in ("loss", "staleness", "pulled_at", "applied", "dropped")}
    return (stacked(cut, runs) if runs else cut[0]) | {
        name: column[:, made] for name, column in (own | reports.metrics).items()
    }
