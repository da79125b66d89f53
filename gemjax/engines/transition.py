"""The state machine of all engines: a gradient at a view, then a commit and a pull."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.engines.checks import check_given, check_one_point, is_traced, shapes_of
from gemjax.engines.loss import check_unreserved
from gemjax.engines.programs import Kept, Program, has_hash
from gemjax.engines.worker import Gradient, KeptView, View, WorkerStep, sound_or_unchanged
from gemjax.protocol import PyTree, diagnostics, slots, staleness
from gemjax.protocol.checks import check_alike, check_bool, check_method, check_positive_int, kept, with_extra_args
from gemjax.protocol.delays import spread_blocks, with_block
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.nodes import StalenessState, counting_refusals, in_front, is_wrapper, nodes, refused
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, is_asynchronous, pull_with_anchors
from gemjax.protocol.trace import Trace


class RunState(NamedTuple):
    """The whole state of an asynchronous run between two commits; the contents of a checkpoint.

    Each :class:`gemjax.rules.Slots` has a value per worker. ``view`` has no parameters if the optimizer state records them (as
    ``stale_params``).
    """

    params: PyTree  # The central variable.
    opt_state: optax.OptState
    model_state: PyTree  # Of the central variable: BatchNorm statistics and the like.
    view: Slots  # View per worker: the point of its gradient.
    step: Slots  # int32 [] per worker; the step that it computes.
    pulled_at: Slots  # int32 [] per worker; the engine's clock when it pulled.
    local_step: Any  # Slots of int32 [] per worker: local steps that it has made; () without local steps.
    draw: Any  # Slots of int32 [] per worker: its next draw from a shared stream; all are the first N that no commit has used.
    batch_size: jax.Array  # int32 []; rows per batch; 0 if the source does not tell.
    commits: jax.Array  # int32 []; the engine's clock: commits applied so far.
    arrivals: jax.Array  # int32 []; gradients so far, applied or not, pulls alone, and a simulation's reads of blocks.
    dropped: jax.Array  # int32 []; commits that the method refused so far.
    rejected: jax.Array  # int32 []; commits rejected so far: they, or the state after them, were not finite.
    rejected_in_a_row: jax.Array  # int32 []; rejections since the last applied commit.
    read_at: Any = ()  # Slots of int32 [B] per worker: the engine's clock when it read each block; () without blocks.


def rows_of_trace(state: RunState) -> range:
    """Return the possible lengths, in rows, of the trace that led to ``state``.

    Each applied commit has a row. A rejected or dropped one has a row in a simulated run, and none in a run on devices.
    """
    applied, dropped, rejected = (int(np.asarray(count)) for count in (state.commits, state.dropped, state.rejected))
    return range(applied, applied + dropped + rejected + 1)


def check_led_to(state: RunState, trace: Trace, name: str = "trace") -> None:
    """Raise ``ValueError`` if the last commits of the workers in ``trace`` cannot have led to ``state``.

    After its last commit each worker pulled and began another step; at once, unless a gradient was lost or a worker pulled
    again.
    """
    last = np.full(trace.num_workers, -1)
    np.maximum.at(last, trace.worker, np.arange(len(trace)))
    has, rows = last >= 0, np.maximum(last, 0)
    steps = np.where(has, trace.step[rows], -1) if len(trace) else last
    step, pulled_at = np.asarray(state.step.value), np.asarray(state.pulled_at.value)
    if int(state.commits) != len(trace):  # Rows are of refused commits, too: pulls are at other clocks.
        possible = step > steps
    elif int(state.arrivals) == len(trace):
        possible = (step == steps + 1) & (pulled_at == last + 1)
    else:
        possible = (step > steps) & (pulled_at > last)
    if not possible.all():
        worker = int(np.argmin(possible))
        found = f"the last commit of worker {worker} in it is row {last[worker]} (step {steps[worker]})"
        raise ValueError(
            f"{name} is of another run than the state: {found if has[worker] else f'worker {worker} has no row in it'}, but "
            f"in the state it pulled for its step {step[worker]} after {pulled_at[worker]} commits; give the trace of that "
            "state, result.trace or progress.trace()"
        )


BOUND = Kept()  # Transitions by their parts before they are bound.


class CommitReport(NamedTuple):
    """Facts about one commit."""

    loss: jax.Array
    staleness: jax.Array  # int32 []
    pulled_at: jax.Array  # int32 []
    applied: jax.Array  # bool []; False if it was rejected or dropped, so that only the pull happened.
    dropped: jax.Array  # bool []; True if the method refused it.
    metrics: dict[str, jax.Array]  # Those of the loss, and the requested diagnostics.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transition(WorkerStep):
    """Pure functions of one run: those of its workers, and commits and pulls at the central variable.

    Engines call ``transition = Transition(…).bind(params)`` first.

    Args:
      loss_fn, seed, local: as for :class:`gemjax.engines.worker.WorkerStep`.
      tx: an optax transformation; one without :func:`gemjax.asynchronous` inside is wrapped in it.
      num_workers: number of workers N; must be that of ``tx``, see :func:`workers_of`.
      diagnostics: names of the quantities to report per commit: those of any commit (``OF_ANY_COMMIT`` in
        gemjax/protocol/diagnostics.py), and those of the method. gemjax/results.md has a table of all.
      average_model_state: ``False`` (default): a commit's model state replaces the central one; ``True``: its floats are
        averaged in with weight 1/N.
      joined_bytes: arrays up to this size are checked together after a commit; if none is larger, the old or the new state is
        also selected for all together. That saves time where arrays are parts of vectors between commits, and costs copies
        where they are not. Default: 0.
      num_blocks: B, if workers read their views block by block; 0 (default) if not.
    """

    tx: Any
    num_workers: int
    diagnostics: Iterable[str] = ()
    average_model_state: bool = False
    joined_bytes: int = 0
    num_blocks: int = 0

    def bind(self, params: PyTree) -> "Transition":
        """Check the arguments of a run that begins with ``params``, and return the transition with ``tx`` made asynchronous.

        The same arguments are checked once; what is traced, as in a sweep, is checked each time.

        Raises:
          TypeError: if ``tx`` is no transformation.
          ValueError: if ``tx`` or ``local`` is for another number of workers, ``tx`` needs local steps and has none, or
            ``average_model_state`` is no bool.
        """
        if is_traced(params):
            return self._bound(params)
        return BOUND.get(self, lambda: self._bound(params), params)

    def _bound(self, params: PyTree) -> "Transition":
        check_method("tx", self.tx)
        check_bool("average_model_state", self.average_model_state)
        opt_state = shapes_of(self.tx.init, params)
        check_one_point(opt_state)
        tx = _with_extra_args(self.tx)
        if not is_asynchronous(opt_state):
            tx = _asynchronous(tx, self.num_workers)
        elif (made_for := staleness.num_workers_of(opt_state)) != self.num_workers:
            raise ValueError(
                f"the method was made with num_workers={made_for}, but the run has {self.num_workers} workers; give both the "
                "same number"
            )
        if self.local is not None:
            self.local.check(self.num_workers)
            check_one_point(shapes_of(self.local.tx.init, params))
        elif staleness.needs_local_steps(opt_state):
            raise ValueError(
                "this method takes the displacement of local steps, but the run has none; give "
                "local=gemjax.LocalSteps(optax.sgd(rate), period=…), with period=1 for one step per commit"
            )
        return dataclasses.replace(self, tx=tx)

    def init(self, params: PyTree, model_state: PyTree = ()) -> RunState:
        """Return the state before the first commit; call :meth:`bind` first."""
        params, model_state = jax.tree.map(_strongly_typed, (params, model_state))
        opt_state = jax.tree.map(_no_number_of_python, self.tx.init(params))
        local = () if self.local is None else jax.tree.map(_no_number_of_python, self.local.tx.init(params))
        _, _, anchors = pull_with_anchors(slots.take(opt_state, 0), params)
        counters = ("batch_size", "commits", "arrivals", "dropped", "rejected", "rejected_in_a_row")
        state = RunState(
            params=params,
            opt_state=opt_state,
            model_state=model_state,
            view=_slot(KeptView(params, model_state, local, anchors), opt_state),
            step=Slots(jnp.zeros([], jnp.int32)),
            pulled_at=Slots(jnp.zeros([], jnp.int32)),
            local_step=() if self.local is None else Slots(jnp.zeros([], jnp.int32)),
            draw=Slots(jnp.arange(self.num_workers, dtype=jnp.int32), self.num_workers),
            **{name: jnp.zeros([], jnp.int32) for name in counters},
            read_at=self._read_at(jnp.zeros([], jnp.int32)),
        )
        return slots.stack(state, self.num_workers)

    def commit_and_pull(
        self,
        state: RunState,
        gradient: Gradient,
        worker: jax.Array,
        step: jax.Array,
        is_commit: Any = True,
        own_rows: list | None = None,
    ) -> tuple[RunState, View, CommitReport]:
        """Apply a gradient to the central variable and let its worker pull the next view.

        Args:
          state: with the slot of ``worker`` checked out.
          gradient: that of the worker, or its message if workers keep the errors of :class:`gemjax.protocol.hooks.Sends`. It is
            dropped if the method refuses it, and rejected if its loss or any number in it is not finite, or if the state after
            it would not be sound (:func:`gemjax.engines.worker.sound_or_unchanged`); then only the pull happens.
          worker: the worker that commits.
          step: the worker's step.
          is_commit: bool scalar; False for a pull alone.
          own_rows: those of :meth:`own_rows`. ``None`` (default): a rule reads its row when it writes it, for which a compiled
            loop copies all rows.

        Returns:
          The state after both, the worker's next view, and a report.
        """
        part = in_front(state.opt_state)
        if part is not None and part.error is None:
            gradient = gradient._replace(grads=part.read(gradient.grads, state.params))
        taken = jnp.logical_and(is_commit, gradient.finite > 0)
        before = slots.begin_commit(state.opt_state, worker, own_rows)
        updates, opt_state, measured = self._measured_update(state, gradient, before, worker)
        check_unreserved(gradient.metrics, measured)
        committed = state._replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            model_state=self._merge_model_state(state.model_state, gradient.model_state),
            view=Slots(state.view.value._replace(local=gradient.local)),
            commits=state.commits + 1,
            rejected_in_a_row=jnp.zeros_like(state.rejected_in_a_row),
        )
        dropped = taken & refused(state.opt_state, opt_state)
        applied = taken & ~dropped & self.is_sound(state._replace(opt_state=before), committed)
        report = CommitReport(
            loss=gradient.loss,
            staleness=state.commits - state.pulled_at.value,
            pulled_at=state.pulled_at.value,
            applied=applied,
            dropped=dropped,
            metrics=gradient.metrics | measured,
        )
        # A rejected or dropped gradient uses up its step, a pull alone does not.
        used = jnp.asarray(is_commit, jnp.int32)
        lost = jnp.where(applied | dropped, 0, used)
        left = state._replace(
            opt_state=counting_refusals(state.opt_state, opt_state, dropped),
            dropped=state.dropped + dropped,
            rejected=state.rejected + lost,
            rejected_in_a_row=state.rejected_in_a_row + lost,
        )
        state = slots.select(applied, committed, left, self.joined_bytes)
        params, opt_state, anchors = pull_with_anchors(state.opt_state, state.params, worker)
        model_state = slots.with_own_keys(state.model_state, worker)
        pulled = KeptView(params, model_state, state.view.value.local, anchors)
        state = state._replace(
            opt_state=opt_state, view=_slot(pulled, opt_state), step=Slots(step + used), pulled_at=Slots(state.commits),
            arrivals=state.arrivals + 1, read_at=self._read_at(state.commits),
        )  # fmt: skip
        return state, self._sent(pulled, state.commits, opt_state), report

    def read(self, state: RunState, worker: jax.Array, blocks: jax.Array | int) -> RunState:
        """Let a worker read blocks of its view now; ``blocks`` is bool [B], or an int: the number of one block.

        The rest of its view, its model state, its anchors and the record of its pull stay as they are.
        """
        if isinstance(blocks, int):
            block, blocks = blocks, jnp.arange(self.num_blocks) == blocks
            choose = lambda fresh, view: with_block(view, fresh, block, self.num_blocks)
        else:
            choose = functools.partial(jax.tree.map, jnp.where, spread_blocks(blocks, state.params))
        before = self.view_of(state).params
        view, opt_state = staleness.read_again(state.opt_state, state.params, choose, before, worker)
        return state._replace(
            opt_state=opt_state,
            view=_slot(state.view.value._replace(params=view), opt_state),
            read_at=Slots(jnp.where(blocks, state.commits, state.read_at.value)),
            arrivals=state.arrivals + 1,
        )

    def _read_at(self, clock: jax.Array) -> Any:
        return Slots(jnp.full(self.num_blocks, clock)) if self.num_blocks else ()

    def update(
        self, gradient: Gradient, opt_state: optax.OptState, params: PyTree, worker: jax.Array, **extra_args: Any
    ) -> tuple[PyTree, optax.OptState]:
        """Return the updates of the central variable and the method's state after a commit.

        Raises:
          ValueError: if updates cannot be added to the parameters, or a state is of another structure, shape or dtype.
        """
        updates, after = self.tx.update(
            gradient.grads, opt_state, params, worker=worker, **extra_args, **gradient.losses_by_name()
        )
        check_alike("the tree of updates", updates, gradient.grads)
        if not is_wrapper(after):  # Inside of gemjax.asynchronous it has been checked.
            after = kept("the state after update", after, opt_state)
        return updates, after

    def _measured_update(self, state: RunState, gradient: Gradient, before: optax.OptState, worker: jax.Array) -> tuple:
        """Return what :meth:`update` returns, and the requested diagnostics."""
        of_any = [name for name in diagnostics.OF_ANY_COMMIT if name in self.diagnostics]
        rate = {"learning_rate"} if diagnostics.NEED_RATE & {*of_any} else set()
        observer = diagnostics.Observer({*self.diagnostics} - {*of_any} | rate)
        ages = {"block_staleness": state.commits - state.read_at.value} if self.num_blocks else {}
        updates, after = self.update(gradient, before, state.params, worker, observe=observer, **ages)
        observed = observer.collected(besides=diagnostics.OF_ANY_COMMIT)
        view = self.view_of(state).params
        parts = (state.params, view, gradient.grads, updates, observed.get("learning_rate"))
        observed = {name: value for name, value in observed.items() if name in self.diagnostics}
        check_unreserved(observed, subject="the method observes quantities")
        check_unreserved(observer.offered, of_any, subject="the method observes quantities")
        return updates, after, {name: diagnostics.OF_ANY_COMMIT[name](*parts) for name in of_any} | observed

    def is_sound(self, before: RunState, after: RunState) -> jax.Array:
        """Return True if the commit that led to ``after`` ruined neither parameters nor states.

        A view that overflows is not judged here: the gradient at it is rejected if it is not finite.
        """
        parts = lambda state: (state.params, state.model_state, state.opt_state)
        return sound_or_unchanged(parts(before), parts(after), after.params, self.joined_bytes)

    def view_of(self, state: RunState) -> View:
        """Return the view of the worker whose slot is checked out."""
        recorded = staleness.recorded_view(state.opt_state, state.params)
        view = self._sent(state.view.value, state.pulled_at.value, state.opt_state)
        return view if recorded is None else view._replace(params=recorded)

    def _sent(self, view: KeptView, commits: jax.Array, opt_state: optax.OptState) -> View:
        """Return a view as the worker receives it; without local steps numbers of commits are not sent."""
        counts = () if self.local is None else (commits, nodes(opt_state, StalenessState)[0].own_commits.value)
        return View(view.params, view.model_state, view.local, view.anchors, counts)

    def own_rows(self, state: RunState, worker: jax.Array) -> list:
        """Return the rows that a commit of ``worker`` may write; a loop reads them after the write of the commit before."""
        return slots.read_own_rows(state.opt_state, worker, self.num_workers)

    def _merge_model_state(self, central: PyTree, committed: PyTree) -> PyTree:
        if not self.average_model_state:
            return committed

        def average(c, w):
            if not jnp.issubdtype(c.dtype, jnp.inexact):
                return w  # A mean of counters or keys would be no state of any worker.
            # Where c is infinite the formula is NaN, and the mean is c.
            stays = (w == c) | (jnp.isinf(c) & jnp.isfinite(w))
            return jnp.where(stays, c, c + (w - c) / self.num_workers).astype(c.dtype)

        return jax.tree.map(average, central, committed)


def _strongly_typed(leaf: Any) -> jax.Array:
    """Return an array whose type does not yield to that of others, as that of ``jnp.asarray(0.5)`` does.

    A weak type ends with the first compiled call, after which a loss would be computed in another precision.
    """
    leaf = jnp.asarray(leaf)
    return jnp.asarray(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf


def _no_number_of_python(leaf: Any) -> Any:
    """Return an array in place of a number of Python, with which an optimizer may begin to count."""
    return _strongly_typed(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf


def _slot(view: KeptView, opt_state: optax.OptState) -> Slots:
    """Return ``view`` as a slot, without the parameters if the optimizer state records them."""
    recorded = staleness.recorded_view(opt_state, view.params)
    return Slots(view if recorded is None else view._replace(params=None))


def no_loss(params: PyTree, batch: PyTree) -> float:
    """Return 0: the loss of a transition that computes no gradient."""
    return 0.0


def workers_of(tx: optax.GradientTransformation, params: PyTree) -> int:
    """Return the number of workers of ``tx``; 1 for a plain optax transformation, which has no such number.

    Raises:
      TypeError: if ``tx`` is no transformation.
    """
    check_method("tx", tx)
    opt_state = shapes_of(tx.init, params)
    return staleness.num_workers_of(opt_state) if is_asynchronous(opt_state) else 1


def _cached(wrap: Callable) -> Callable:
    """Return ``wrap`` with a cache, because the compiled programs of a transformation are found by its identity.

    A transformation that is made inside of a compiled function, as in a sweep, may hold traced numbers: it is not kept.
    """
    cached = functools.lru_cache(maxsize=64)(wrap)
    return lambda *args: cached(*args) if has_hash(args) and not is_traced() else wrap(*args)


_with_extra_args, _asynchronous = _cached(with_extra_args), _cached(asynchronous)


def initial_state(
    tx: "optax.GradientTransformation",
    params: "PyTree",
    *,
    num_workers: int | None = None,
    model_state: "PyTree" = (),
    local: "LocalSteps | None" = None,
    num_blocks: int = 0,
) -> "RunState":
    """Return the state of a run before its first commit, for example to load a checkpoint into.

    Args:
      tx: the run's transformation.
      params: its initial central variable (only shapes and dtypes matter to a checkpoint).
      num_workers: number of workers N. Default: that of ``tx``, or 1 for a plain optax transformation.
      model_state: its initial model state.
      local: its local steps, if any.
      num_blocks: that of its trace, 0 unless its workers read block by block.

    >>> import gemjax, jax.numpy as jnp
    >>> state = gemjax.initial_state(gemjax.gem(0.1, num_workers=2), jnp.zeros(3))
    >>> int(state.arrivals), state.opt_state.stale_params[1].shape
    (0, (3,))
    """
    check_given(no_loss, params, model_state)
    num_workers = workers_of(tx, params) if num_workers is None else num_workers
    check_positive_int("num_workers", num_workers)
    transition = Transition(tx=tx, loss_fn=no_loss, num_workers=num_workers, local=local, num_blocks=num_blocks)
    return transition.bind(params).init(params, model_state)


_PROGRAMS, _SHAPES = Kept(), Kept()


def first_state(transition: Transition, params: PyTree, model_state: PyTree = ()) -> RunState:
    """Return ``transition.init(params, model_state)`` in new arrays, none of them twice, which may be donated.

    All arrays are copied, because the owner of an array is unknown (a rule may begin with one of its own).
    """

    def begin(params, model_state):
        return jax.tree.map(copied, transition.init(params, model_state))

    places = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((params, model_state))]
    if all(place is None or len(place.device_set) == 1 for place in places):
        try:
            return _PROGRAMS.get(transition, lambda: Program(begin))(params, model_state)
        except jax.errors.JAXTypeError:  # An `init` that cannot be traced.
            pass
    return begin(params, model_state)  # Not compiled, it puts the state where sharded parameters are.


def first_shapes(transition: Transition, params: PyTree, model_state: PyTree = ()) -> RunState:
    """Return the shapes and dtypes of :func:`first_state`; they are found once for the same transition."""
    shapes = lambda: jax.eval_shape(lambda tree: tree, shapes_of(transition.init, params, model_state))
    return _SHAPES.get(transition, shapes, (params, model_state))


def copied(leaf: jax.Array) -> jax.Array:
    """Return a copy of an array."""
    return jnp.array(leaf, copy=True)
