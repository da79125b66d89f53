"""Many simulated runs in one program: over hyper-parameters and seeds."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import Computed, as_batches
from gemjax.engines.checks import check_callback, check_given, check_make, ends_run
from gemjax.engines.memory import bytes_of, default_device, that_fit
from gemjax.engines.per_seed import PerSeed
from gemjax.engines.result import History
from gemjax.engines.simulator.loops import check_positive, chunk_size_for, in_chunks, loop, prepare, width_of
from gemjax.engines.transition import RunState, Transition
from gemjax.engines.two_rates import warn_of_two_rates
from gemjax.protocol.diagnostics import names as diagnostic_names
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.trace import Events, Trace, check_trace

PyTree = Any


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The outcome of :func:`sweep`; every array has a leading axis of runs.

    Attributes:
      points: what was varied: for each name, and ``seed``, an array [runs].
      state: the whole state of every run.
      history: columns as those of :class:`gemjax.Result`, ``[runs, commits]`` where they depend on the run and
        ``[commits]`` where one trace for all decides them (``worker``, ``step``, ``time``, ``draw``).
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

    def table(self, last: int = 100) -> list[dict[str, Any]]:
        """One row a run: its point, the mean loss of its last ``last`` applied commits, and how many were not.

        ``pandas.DataFrame(result.table())`` works.
        """
        rows = []
        for run in range(len(self.points["seed"])):
            losses = self.history["loss"][run][self.history["applied"][run]][-last:] if self.history else np.zeros(0)
            rows.append(
                {name: values[run].item() for name, values in self.points.items()}
                | {"loss": float(losses.mean()) if len(losses) else float("nan")}
                | {"rejected": int(self.state.rejected[run]), "dropped": int(self.state.dropped[run])}
            )
        return rows


def sweep(
    make: Callable[..., Any],
    loss_fn: Callable,
    params: PyTree,
    batches: Any,
    trace: Trace | PerSeed,
    over: Mapping[str, Sequence[float]],
    *,
    seeds: Iterable[int] = (0,),
    model_state: PyTree = (),
    average_model_state: bool = False,
    local: LocalSteps | Callable[..., LocalSteps] | None = None,
    diagnostics: Iterable[str] = (),
    chunk_size: int | None = None,
    callback: Callable[[int, int], bool | None] | None = None,
) -> SweepResult:
    """Simulates one trace at every point of a grid of hyper-parameters, for several seeds, in one compiled program.

    The runs are a batch: one compilation, and on an accelerator one large computation in place of many small ones. All of
    them follow the same trace from the same parameters, so that what differs between them is what was varied; with
    :class:`gemjax.PerSeed` each seed has parameters, an order of data or a trace of its own, so that the spread over seeds is
    that of independent repetitions. Each run is that which :func:`gemjax.simulate` makes of the same arguments, up to
    rounding. One that diverges is a result like any other: its gradients that are not finite are rejected and counted.

    Args:
      make: makes the method: ``make(**point) -> transformation``, called with one traced number for each name of ``over``, so
        that ranges are not checked. What decides shapes, such as a number of workers, cannot be swept.
      loss_fn: as for :func:`gemjax.simulate`.
      params: initial central variable of all runs, or :class:`gemjax.PerSeed` of it.
      batches: as for :func:`gemjax.simulate`, the same in all runs; or :class:`gemjax.PerSeed` of objects that select from the
        same ``data`` (as :class:`gemjax.Epochs` with another seed does).
      trace: who commits when, in all runs; or :class:`gemjax.PerSeed` of traces of one length and one number of workers.
      over: values to try of each hyper-parameter; the grid is their product.
      seeds: decide, with (worker, step), the keys that ``loss_fn`` gets (dropout and the like), and what is
        given as :class:`gemjax.PerSeed`; the grid is run for each.
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`; or a function that makes it of a point as ``make`` does the method, with the same
        periods at every point.
      diagnostics: as for :func:`gemjax.simulate`.
      chunk_size: as for :func:`gemjax.simulate`.
      callback: called as ``callback(arrivals done, arrivals in all)`` after each chunk; may end the sweep by returning true.

    Returns:
      A :class:`gemjax.SweepResult`, runs in the order of ``itertools.product(*over.values(), seeds)``.

    Raises:
      ValueError: if there is nothing to try, or it is no number, or the method is made for another number of workers than
        the trace has, or the traces or batches of the seeds do not go together.
      MemoryError: if the runs together would keep more than the device holds.

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.sweep(lambda rate, kappa: gemjax.gem(rate, 0.9, 8, kappa=kappa), loss_fn, jnp.zeros(2), batches,
    ...                       gemjax.arrivals.Gamma(8).trace(300), {"rate": [0.001, 0.05], "kappa": [1.0, 2.0]})
    >>> [(row["rate"] > 0.01, row["loss"] < 0.1) for row in result.table()]
    [(False, False), (False, False), (True, True), (True, True)]
    """
    check_positive(chunk_size=chunk_size)
    check_given(loss_fn, params, model_state, where="params" if isinstance(params, PerSeed) else "")
    check_make(make)
    check_callback(callback)
    points = _grid(over, seeds)
    names = tuple(name for name in points if name != "seed")
    each = points["seed"][: len(points["seed"]) // math.prod(map(len, over.values()))].tolist()
    traces = _traces(trace, each)
    first = {name: points[name][0].item() for name in names}
    steps = local(**first) if callable(local) else local
    if steps is not None:
        warn_of_two_rates(make(**first), params.make(each[0]) if isinstance(params, PerSeed) else params, steps)
    data = _batches(batches, each, traces[0].num_workers)

    def transition(seed: Any, values: Sequence[Any]) -> Transition:
        point = dict(zip(names, values, strict=True))
        return Transition(
            make(**point), loss_fn, traces[0].num_workers, seed, diagnostic_names(diagnostics), average_model_state,
            local(**point) if callable(local) else local,
        )  # fmt: skip

    # Weakly typed, as Python's numbers are: parameters in half precision stay so.
    values = tuple(jnp.stack([jnp.asarray(value) for value in points[name].tolist()]) for name in names)
    lanes = jnp.asarray(points["seed"], jnp.uint32), values
    # What differs from seed to seed has an axis of runs, what does not is in memory once.
    runs, own = len(points["seed"]), isinstance(params, PerSeed)
    params = _stacked(_each(params, each), runs) if own else params
    init = lambda seed, values, params: transition(seed, values).init(params, model_state)[1]
    mapped = jax.vmap(init, (0, 0, 0 if own else None))
    mend = f"fewer of the {runs} runs at a time, fewer workers, or a method that keeps less a worker"
    needed = bytes_of(jax.eval_shape(mapped, *lanes, params))
    data = [that_fit(one, needed, default_device(), mend=mend) for one in data]
    data = data if steps is None else [LocalBatches(one, steps) for one in data]
    state = jax.jit(mapped)(*lanes, params)
    events = [one.events() for one in traces]
    arrivals = len(events[0].worker)
    apart = 0 if max(len(data), len(traces)) > 1 else None
    chunk_size = min(chunk_size or chunk_size_for(events[0], data[0], 1 if apart is None else runs), max(1, arrivals))
    rows_apart = None if jax.tree.leaves(data[0].data) else apart  # Rows that come with a chunk are each run's own.

    @functools.partial(jax.jit, donate_argnums=1)
    def run_chunk(lanes, state, data_of_all, length, *columns):
        def one(lane, state, data_of_one, columns):
            begun, _ = transition(*lane).init(state.params, state.model_state)
            run = loop(begun, data[0], width_of(chunk_size), 1, with_pulls=not events[0].commits.all())
            return run(state, data_of_one, length, *columns)

        return jax.vmap(one, (0, 0, rows_apart, apart))(lanes, state, data_of_all, columns)

    def prepared(cut: tuple[int, int]) -> tuple:
        made = [prepare(one, of, width_of(chunk_size), 1, cut) for of, one in _paired(events, data)]
        if apart is None:
            return made[0]
        rows, length, *columns = zip(*made, strict=True)
        rows, columns = (
            None if rows[0] is None else _stacked([*rows], runs),
            [_stacked([*one], runs) for one in columns],
        )
        return rows, length[0], *columns

    parts: list[Any] = []
    cuts = [(begin, min(begin + chunk_size, arrivals)) for begin in range(0, arrivals, chunk_size)]
    running = in_chunks(functools.partial(run_chunk, lanes), state, data[0].data, prepared, cuts)
    for (begin, end), state, reports in running:  # noqa: B007 (the last state is the result)
        parts.append(_first(reports, end - begin))
        if callback is not None and ends_run(callback(end, arrivals)):
            break
    return SweepResult(points, state, _history(events, parts, traces, runs if isinstance(trace, PerSeed) else 0))


def _each(value: Any, seeds: Sequence[int]) -> list:
    """One value a seed, or one for all."""
    return [value.make(seed) for seed in seeds] if isinstance(value, PerSeed) else [value]


def _batches(batches: Any, seeds: Sequence[int], num_workers: int) -> list:
    """The batches of each seed, or the ones of all.

    Raises:
      ValueError: if they are not of the same data or function, which all runs have in common.
    """
    found = [as_batches(one, num_workers) for one in _each(batches, seeds)]
    sources = [[one.fn] if isinstance(one, Computed) else jax.tree.leaves(one.data) for one in found]
    for seed, source in zip(seeds, sources, strict=False):
        if [id(leaf) for leaf in source] != [id(leaf) for leaf in sources[0]]:
            raise ValueError(
                f"the batches of seeds {seeds[0]} and {seed} are of different data or functions; with PerSeed they must select "
                "from the same arrays, made once outside of it (as gemjax.Epochs(data, 32, seed) do); sweep others in calls of "
                "their own, one a seed"
            )
    return found


def _paired(ones: list, others: list) -> list[tuple]:
    """Pairs of what may be one for all seeds."""
    count = max(len(ones), len(others))
    return [(ones[k % len(ones)], others[k % len(others)]) for k in range(count)]


def _stacked(values: list, runs: int) -> PyTree:
    """One tree a seed as one tree with an axis of runs; seeds vary fastest."""
    return jax.tree.map(lambda *leaves: np.stack(leaves)[np.arange(runs) % len(leaves)], *values)


def _traces(trace: Trace | PerSeed, seeds: Sequence[int]) -> list[Trace]:
    """The trace of each seed, or the one of all.

    Raises:
      ValueError: if they cannot be run side by side.
    """
    traces = _each(trace, seeds)
    for one in traces:
        check_trace(one)
    for seed, one in zip(seeds, traces, strict=False):
        if different := _difference(traces[0], one):
            raise ValueError(
                f"the traces of seeds {seeds[0]} and {seed} do not go together: {different}; they must be equally long, of as "
                "many workers, with late pulls in the same places; sweep what is not in calls of its own, one a seed"
            )
    return traces


def _difference(one: Trace, other: Trace) -> str:
    """Why two traces cannot be run side by side, in words; empty if they can."""
    if (len(one), one.num_workers) != (len(other), other.num_workers):
        return f"{len(one)} commits of {one.num_workers} workers, {len(other)} of {other.num_workers}"
    first, second = one.events().commits, other.events().commits
    if np.array_equal(first, second):
        return ""
    if len(first) != len(second):  # Every pull that is late is an arrival of its own.
        return f"{np.sum(~first)} pulls that are late (apart from their workers' commits), {np.sum(~second)}"
    place = np.argmax(first != second)
    return f"pulls that are late behind {np.sum(first[:place])} commits in one of them, but not in the other"


def _grid(over: Mapping[str, Sequence[float]], seeds: Iterable[int]) -> dict[str, np.ndarray]:
    """The product of all values, a column each."""
    if "seed" in over:
        raise ValueError("give seeds= instead of 'seed' among the hyper-parameters")
    if single := [name for name, values in over.items() if np.ndim(values) != 1]:
        raise ValueError(f"the values of {', '.join(single)} must be a list of numbers to try")
    columns = {name: list(values) for name, values in over.items()} | {"seed": list(seeds)}
    if fractional := [seed for seed in columns["seed"] if not isinstance(seed, (int, np.integer)) or seed < 0]:
        raise ValueError(f"seeds must be non-negative ints, got {fractional[0]!r}")
    wrong = [name for name, values in over.items() if not np.issubdtype(np.asarray(values).dtype, np.number)]
    if wrong:
        raise ValueError(
            f"only numbers can be swept, but {', '.join(wrong)} has other values; run one sweep for each of them"
        )
    if empty := [name for name, values in columns.items() if not values]:
        raise ValueError(f"nothing to try of {', '.join(empty)}: give at least one value each")
    rows = list(itertools.product(*columns.values()))
    return {name: np.array([row[k] for row in rows]) for k, name in enumerate(columns)}


def _first(reports: Any, count: int) -> Any:
    return jax.tree.map(lambda column: np.asarray(column)[:, :count], reports)


def _history(events: list[Events], parts: list, traces: list[Trace], runs: int) -> History:
    """Columns of all runs; ``runs`` is how many have a trace of their own, all or none."""
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
    return (_stacked(cut, runs) if runs else cut[0]) | {
        name: column[:, made] for name, column in (own | reports.metrics).items()
    }
