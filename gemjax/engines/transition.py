"""The one state machine that all engines drive: a gradient at a view, then a commit and a pull."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.engines.checks import check_given, check_params, check_tx
from gemjax.engines.worker import Gradient, Training, View
from gemjax.protocol import diagnostics, slots, staleness
from gemjax.protocol.board import Board
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, is_asynchronous, pull

PyTree = Any


class RunState(NamedTuple):
    """All that an asynchronous run is, between two commits; what a checkpoint holds.

    Its :class:`gemjax.Slots` belong to workers. ``view`` lacks the parameters where the optimizer state has them already
    (as ``stale_params``).
    """

    params: PyTree  # The central variable.
    opt_state: optax.OptState
    model_state: PyTree  # Of the central variable: BatchNorm statistics and the like.
    view: Slots  # View a worker; what it computes on.
    step: Slots  # int32 [] a worker; the step it computes.
    pulled_at: Slots  # int32 [] a worker; the engine's clock when it pulled.
    draw: Slots  # int32 [] a worker; which batch of a shared stream it computes on.
    commits: jax.Array  # int32 []; the engine's clock: commits applied so far.
    arrivals: jax.Array  # int32 []; gradients that arrived so far, whatever became of them.
    dropped: jax.Array  # int32 []; commits that the method refused so far.
    rejected: jax.Array  # int32 []; commits rejected so far, for not being finite.
    rejected_in_a_row: jax.Array  # int32 []; since the last one that was applied.


class Report(NamedTuple):
    """What a commit tells."""

    loss: jax.Array
    staleness: jax.Array  # int32 []
    pulled_at: jax.Array  # int32 []
    applied: jax.Array  # bool []; False: rejected or dropped, nothing but the pull happened.
    dropped: jax.Array  # bool []; the method refused it.
    metrics: dict[str, jax.Array]  # Of the loss, and the diagnostics asked for.


@dataclasses.dataclass(frozen=True)
class Transition:
    """The pure functions of one run; engines call them and nothing else.

    Args:
      tx: an optax transformation; one without :func:`gemjax.asynchronous` inside is wrapped in it.
      loss_fn: ``loss_fn(params, batch) -> loss`` or ``loss_fn(params, model_state, batch, key) -> (loss, (model_state,
        metrics))``.
      num_workers: number of workers N; must be the number that ``tx`` was made for, see :func:`workers_of`.
      seed: with (worker, step) it decides every key.
      diagnostics: names of the quantities to report a commit: ``gap`` (RMS distance between the central variable and the
        view), ``normalised_gap`` (that over the RMS of the gradient), ``update_norm`` (RMS of the update), and what the
        method offers.
      average_model_state: ``False`` (default): a commit's model state replaces the central one (policy *latest*); ``True``:
        it is averaged in with weight 1/N (policy *average*).
      local: what workers do between two commits; ``None``: they compute one gradient.
    """

    tx: Any
    loss_fn: Callable
    num_workers: int
    seed: int = 0
    diagnostics: Iterable[str] = ()
    average_model_state: bool = False
    local: LocalSteps | None = None

    def init(self, params: PyTree, model_state: PyTree = ()) -> "tuple[Transition, RunState]":
        """The transition with its transformation made asynchronous, and the state before the first commit.

        Raises:
          TypeError: if an argument is not what it should be: the loss no function, ``tx`` no transformation, a leaf no array.
          ValueError: if the transformation was made for another number of workers.
        """
        check_given(self.loss_fn, params, model_state)
        check_tx(self.tx)
        params, model_state = jax.tree.map(jnp.asarray, (params, model_state))
        check_params(params)
        if self.local is not None and not isinstance(self.local, LocalSteps):
            raise TypeError(f"local must be gemjax.LocalSteps(optimizer, period), got {type(self.local).__name__}")
        tx = _with_extra_args(self.tx)
        opt_state = tx.init(params)
        if not is_asynchronous(opt_state):
            tx = _asynchronous(tx, self.num_workers)
            opt_state = tx.init(params)
        made_for = staleness.num_workers_of(opt_state)
        if made_for != self.num_workers:
            raise ValueError(
                f"the method was made with num_workers={made_for}, but the run has {self.num_workers} workers; give both the "
                "same number"
            )
        if self.local is None and staleness.needs_local_steps(opt_state):
            raise ValueError(
                "this method takes the displacement of local steps, but the run has none; give "
                "local=gemjax.LocalSteps(optax.sgd(rate), period=…), with period=1 for one step a commit"
            )
        if self.local is not None:
            self.local.check(self.num_workers)
        transition = dataclasses.replace(self, tx=tx)
        state = RunState(
            params=params,
            opt_state=opt_state,
            model_state=model_state,
            view=Slots(View(None, model_state, () if self.local is None else self.local.tx.init(params))),
            step=Slots(jnp.zeros([], jnp.int32)),
            pulled_at=Slots(jnp.zeros([], jnp.int32)),
            draw=Slots(jnp.arange(self.num_workers, dtype=jnp.int32), self.num_workers),
            **{name: jnp.zeros([], jnp.int32) for name in _COUNTERS},
        )
        if staleness.recorded_view(opt_state, params) is None:
            state = state._replace(view=Slots(state.view.value._replace(params=params)))
        state = slots.stack(state, self.num_workers)
        return transition, _with_anchors(state, self.num_workers)

    def gradient(self, view: View, batch: PyTree, worker: jax.Array, step: jax.Array) -> Gradient:
        """What the worker computes; depends on what it holds, its batch and its key alone."""
        return Training(self.loss_fn, self.seed, self.local).gradient(view, batch, worker, step)

    def commit_and_pull(
        self, state: RunState, view: PyTree, gradient: Gradient, worker: jax.Array, step: jax.Array, commits: Any = True
    ) -> tuple[RunState, View, Report]:
        """Applies a gradient to the central variable and hands its worker the next view.

        Args:
          state: with the slot of ``worker`` checked out.
          view: the parameters that the gradient was computed at.
          gradient: what the worker sent. It is rejected, and only the pull happens, if the loss or any number in it is
            not finite; and dropped if the method refuses it.
          worker: who sent it.
          step: which of its steps it was.
          commits: bool scalar; False makes this a pull only.

        Returns:
          The state after both, the worker's next view, and a report.
        """
        observer = diagnostics.Observer(set(self.diagnostics) - diagnostics.OF_ANY_COMMIT.keys())
        taken = jnp.logical_and(commits, gradient.finite > 0)
        updates, opt_state = self.tx.update(
            gradient.grads, state.opt_state, state.params, worker=worker, observe=observer, applied=taken,
            **_losses(gradient),
        )  # fmt: skip
        refused = staleness.refused(state.opt_state, opt_state)
        dropped = jnp.zeros_like(taken) if refused is None else taken & refused
        applied = taken & ~dropped
        parts = (state.params, view, gradient.grads, updates)
        report = Report(
            loss=gradient.loss,
            staleness=state.commits - state.pulled_at.value,
            pulled_at=state.pulled_at.value,
            applied=applied,
            dropped=dropped,
            metrics=gradient.metrics
            | {name: fn(*parts) for name, fn in diagnostics.OF_ANY_COMMIT.items() if name in self.diagnostics}
            | observer.collected(besides=diagnostics.OF_ANY_COMMIT),
        )
        committed = state._replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            model_state=self._merge_model_state(state.model_state, gradient.model_state),
            view=Slots(state.view.value._replace(local=gradient.local)),
            commits=state.commits + 1,
            rejected_in_a_row=jnp.zeros_like(state.rejected_in_a_row),
        )
        # A gradient that does not get through uses its step up, a pull alone does not.
        used, lost = (jnp.asarray(flag, jnp.int32) for flag in (commits, jnp.logical_and(commits, ~taken)))
        left = state._replace(rejected=state.rejected + lost, rejected_in_a_row=state.rejected_in_a_row + lost)
        if refused is not None:
            counted = staleness.counting_refusals(state.opt_state, opt_state)
            left = left._replace(opt_state=_select(dropped, counted, left.opt_state), dropped=state.dropped + dropped)
        # Whatever becomes of a commit, its worker draws the next batch; one that only pulls again keeps what it has.
        drawn = self.num_workers + state.commits + state.dropped + state.rejected
        draw = Slots(jnp.where(commits, drawn, state.draw.value))
        state = _select(applied, committed, left)
        params, opt_state = pull(state.opt_state, state.params, worker=worker)
        state = state._replace(opt_state=opt_state, step=Slots(step + used), arrivals=state.arrivals + 1)
        state = state._replace(pulled_at=Slots(state.commits), draw=draw)
        anchors = staleness.anchors_of(state.opt_state) if state.view.value.anchors else ()
        view = View(params, state.model_state, state.view.value.local, anchors)
        return keep_view(state, view), view, report

    def _merge_model_state(self, central: PyTree, committed: PyTree) -> PyTree:
        if not self.average_model_state:
            return committed
        # The mean of counters or keys would be a state that no worker was ever in.
        average = lambda c, w: (c + (w - c) / self.num_workers).astype(c.dtype)
        floats = lambda c, w: average(c, w) if jnp.issubdtype(c.dtype, jnp.inexact) else w
        return jax.tree.map(floats, central, committed)


def _losses(gradient: Gradient) -> dict[str, Any]:
    """What a commit tells its method of losses: their mean, and each local step's."""
    if isinstance(gradient.steps, tuple):
        return {"value": gradient.loss, "local_losses": gradient.loss[None], "local_steps": jnp.int32(1)}
    return {
        "value": gradient.loss,
        "local_losses": gradient.losses,
        "local_steps": gradient.steps.astype(jnp.int32),
    }


def _select(applied: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """``new`` where ``applied``, else ``old``; boards know by themselves (a choice would copy all their rows)."""

    def choose(n, o):
        return n if isinstance(n, Board) else jnp.where(applied, n, o)

    return jax.tree.map(choose, new, old, is_leaf=lambda node: isinstance(node, Board))


def _with_anchors(state: RunState, num_workers: int) -> RunState:
    """``state``, stacked, with the anchors that the method sends at first."""
    mine = slots.take(state.opt_state, 0)
    anchors = staleness.anchors_of(mine)
    if not anchors:
        return state
    stacked = slots.stack(Slots(anchors), num_workers)
    view = state.view.value._replace(anchors=stacked.value)
    return state._replace(view=Slots(view, num_workers))


def keep_view(state: RunState, view: View) -> RunState:
    """``state``, in which a worker's slot is checked out, with ``view`` in that slot."""
    recorded = staleness.recorded_view(state.opt_state, state.params)
    return state._replace(view=Slots(view if recorded is None else view._replace(params=None)))


def view_of(state: RunState) -> View:
    """What the worker whose slot is checked out computes on."""
    recorded = staleness.recorded_view(state.opt_state, state.params)
    view = state.view.value
    return view if recorded is None else view._replace(params=recorded)


_COUNTERS = ("commits", "arrivals", "dropped", "rejected", "rejected_in_a_row")


def check_state(state: RunState, initial: RunState) -> None:
    """Raises ``ValueError`` unless ``state`` can continue a run that begins with ``initial``.

    A compiled run would not tell: an index beyond the slots that a state has is clamped there.
    """
    found, expected = _kinds(state), _kinds(initial)
    if found == expected:
        if jax.tree.structure(state) != jax.tree.structure(initial):
            raise ValueError(
                "the state to continue from is of another method, model or number of workers: its arrays are those of this "
                "run, but in other containers; give the method and params= as the run had them"
            )
        return
    different = [name for name in expected | found if found.get(name) != expected.get(name)]
    first = different[0]
    advice = "the method, params= and the number of workers as the run had them"
    if _kinds(state.model_state) != _kinds(initial.model_state):
        advice = "model_state= as the run had it"
    raise ValueError(
        "the state to continue from is of another method, model or number of workers; "
        f"{len(different)} arrays differ, the first is {first!r}: found {found.get(first, 'none')}, expected "
        f"{expected.get(first, 'none')}; give {advice}"
    )


def _kinds(tree: PyTree) -> dict[str, str]:
    """The dtype and shape of every array in ``tree``, by its path."""
    return {
        jax.tree_util.keystr(path).removeprefix("."): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _no_loss(params: PyTree, batch: PyTree) -> float:
    return 0.0


def workers_of(tx: optax.GradientTransformation, params: PyTree) -> int:
    """The number of workers that ``tx`` was made for; 1 for a plain optax transformation, which does not say.

    Raises:
      TypeError: if an argument is not what it should be.
    """
    check_given(_no_loss, params, ())
    check_tx(tx)
    opt_state = jax.eval_shape(tx.init, params)
    return staleness.num_workers_of(opt_state) if is_asynchronous(opt_state) else 1


# The same transformation gives the same object each time, by which compiled programs are found again.
_with_extra_args = functools.lru_cache(maxsize=64)(optax.with_extra_args_support)
_asynchronous = functools.lru_cache(maxsize=64)(asynchronous)


def initial_state(
    tx: optax.GradientTransformation,
    params: PyTree,
    *,
    num_workers: int | None = None,
    model_state: PyTree = (),
    local: LocalSteps | None = None,
) -> RunState:
    """The state of a run before its first commit; what a checkpoint is loaded into.

    Args:
      tx: the run's transformation.
      params: its initial central variable (only shapes and dtypes matter to a checkpoint).
      num_workers: number of workers N. Default: that of ``tx``, or 1 for a plain optax transformation.
      model_state: its initial model state.
      local: its local steps, if it has any.

    >>> import gemjax, jax.numpy as jnp
    >>> state = gemjax.initial_state(gemjax.gem(0.1, num_workers=2), jnp.zeros(3))
    >>> int(state.arrivals), state.opt_state.stale_params[1].shape
    (0, (3,))
    """
    num_workers = workers_of(tx, params) if num_workers is None else num_workers
    return Transition(tx, _no_loss, num_workers, local=local).init(params, model_state)[1]
