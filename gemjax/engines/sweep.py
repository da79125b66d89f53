"""Many simulated runs in one program: over hyper-parameters and seeds."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches import as_batches
from gemjax.diagnostics import names as diagnostic_names
from gemjax.engines.loops import chunk_size_for, in_chunks, loop, width_of
from gemjax.engines.memory import bytes_of, default_device, that_fit
from gemjax.engines.result import History
from gemjax.engines.transition import RunState, Transition
from gemjax.local_steps import LocalBatches, LocalSteps
from gemjax.trace import Events, Trace, check_trace

PyTree = Any


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The outcome of :func:`sweep`; every array has a leading axis of runs.

    Attributes:
      points: what was varied: for each name, and ``seed``, an array [runs].
      state: the whole state of every run.
      history: columns as those of :class:`gemjax.Result`, ``[runs, commits]`` where they depend on the run and
        ``[commits]`` where the trace decides them (``worker``, ``step``, ``time``, ``draw``).
    """

    points: dict[str, np.ndarray]
    state: RunState
    history: History

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
            applied = self.history["applied"][run]
            losses = self.history["loss"][run][applied][-last:]
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
    trace: Trace,
    over: Mapping[str, Sequence[float]],
    *,
    seeds: Iterable[int] = (0,),
    model_state: PyTree = (),
    average_model_state: bool = False,
    local: LocalSteps | None = None,
    diagnostics: Iterable[str] = (),
    chunk_size: int | None = None,
    callback: Callable[[int, int], bool | None] | None = None,
) -> SweepResult:
    """Simulates one trace at every point of a grid of hyper-parameters, for several seeds, in one compiled program.

    The runs are a batch: one compilation, and on an accelerator one large computation in place of many small ones. All of
    them follow the same trace from the same parameters, so that what differs between them is what was varied. Each is the
    run that :func:`gemjax.simulate` makes of the same arguments, up to rounding.

    Args:
      make: makes the method: ``make(**point) -> transformation``, called with one traced number for each name of ``over``, so
        that ranges are not checked. What decides shapes, such as a number of workers, cannot be swept.
      loss_fn: as for :func:`gemjax.simulate`.
      params: initial central variable of all runs.
      batches: as for :func:`gemjax.simulate`; the same in all runs.
      trace: who commits when, in all runs.
      over: values to try of each hyper-parameter; the grid is their product.
      seeds: decide, with (worker, step), the keys that ``loss_fn`` gets (dropout and the like, not data or initial
        parameters); the grid is run for each.
      model_state: initial model state, default none.
      average_model_state: as for :func:`gemjax.simulate`.
      local: as for :func:`gemjax.simulate`.
      diagnostics: as for :func:`gemjax.simulate`.
      chunk_size: as for :func:`gemjax.simulate`.
      callback: called as ``callback(arrivals done, arrivals in all)`` after each chunk; may end the sweep by returning true.

    Returns:
      A :class:`gemjax.SweepResult`, runs in the order of ``itertools.product(*over.values(), seeds)``.

    Raises:
      ValueError: if there is nothing to try, or it is no number, or the method is made for another number of workers than
        the trace has.
      MemoryError: if the runs together would keep more than the device holds.

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> result = gemjax.sweep(lambda rate, kappa: gemjax.gem(rate, 0.9, 8, kappa=kappa), loss_fn, jnp.zeros(2), batches,
    ...                       gemjax.arrivals.Gamma(8).trace(300), {"rate": [0.001, 0.05], "kappa": [1.0, 2.0]})
    >>> [(row["rate"] > 0.01, row["loss"] < 0.1) for row in result.table()]
    [(False, False), (False, False), (True, True), (True, True)]
    """
    check_trace(trace)
    points = _grid(over, seeds)
    names = tuple(name for name in points if name != "seed")

    def transition(seed: Any, values: Sequence[Any]) -> Transition:
        tx = make(**dict(zip(names, values, strict=True)))
        return Transition(
            tx, loss_fn, trace.num_workers, seed, diagnostic_names(diagnostics), average_model_state, local
        )

    values = tuple(jnp.asarray(points[name]) for name in names)
    lanes = jnp.asarray(points["seed"], jnp.uint32), values
    init = jax.vmap(lambda seed, values: transition(seed, values).init(params, model_state)[1])
    mend = f"fewer of the {len(points['seed'])} runs at a time, fewer workers, or a method that keeps less a worker"
    batches = that_fit(as_batches(batches), bytes_of(jax.eval_shape(init, *lanes)), default_device(), mend=mend)
    batches = batches if local is None else LocalBatches(batches, local)
    state = jax.jit(init)(*lanes)
    events = trace.events()
    chunk_size = chunk_size or chunk_size_for(events, batches)

    @functools.partial(jax.jit, donate_argnums=1)
    def run_chunk(lanes, state, data, *columns):
        def one(lane, state):
            begun, _ = transition(*lane).init(params, model_state)
            return loop(begun, batches, width_of(chunk_size), 1, with_pulls=not events.commits.all())(
                state, data, *columns
            )

        return jax.vmap(one)(lanes, state)

    parts, done = [], 0
    cuts = [(cut, cut + chunk_size) for cut in range(0, len(events.worker), chunk_size)]
    running = in_chunks(functools.partial(run_chunk, lanes), state, batches, events, cuts, chunk_size, 1)
    for chunk, state, reports in running:  # noqa: B007 (the last state is the result)
        parts.append(_first(reports, len(chunk.worker)))
        done += len(chunk.worker)
        if callback is not None and callback(done, len(events.worker)):
            break
    return SweepResult(points, state, _history(events, parts, trace))


def _grid(over: Mapping[str, Sequence[float]], seeds: Iterable[int]) -> dict[str, np.ndarray]:
    """The product of all values, a column each."""
    if "seed" in over:
        raise ValueError("give seeds= instead of 'seed' among the hyper-parameters")
    if single := [name for name, values in over.items() if np.ndim(values) != 1]:
        raise ValueError(f"the values of {', '.join(single)} must be a list of numbers to try")
    columns = {name: list(values) for name, values in over.items()} | {"seed": list(seeds)}
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


def _history(events: Events, parts: list, trace: Trace) -> History:
    if not parts:
        return {}
    reports = jax.tree.map(lambda *columns: np.concatenate(columns, axis=1), *parts)
    made = events.commits[: reports.loss.shape[1]]
    shared = {
        "worker": events.worker,
        "step": events.step,
        "time": trace.time[events.row],
        "draw": events.draw,
    }
    own = {name: getattr(reports, name) for name in ("loss", "staleness", "pulled_at", "applied", "dropped")}
    return {name: column[: len(made)][made] for name, column in shared.items()} | {
        name: column[:, made] for name, column in (own | reports.metrics).items()
    }
