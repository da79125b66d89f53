"""The one state machine that all engines drive: a gradient at a view, then a commit and a pull."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax import diagnostics, slots, staleness
from gemjax.board import Board
from gemjax.local_steps import LocalSteps, Minibatches
from gemjax.slots import Slots
from gemjax.staleness import asynchronous, is_asynchronous, pull

PyTree = Any


# What engines report of every commit, besides metrics and diagnostics.
COLUMNS = {
    "worker", "step", "time", "loss", "staleness", "pulled_at", "applied", "dropped", "dispatched", "ready", "event",
}  # fmt: skip


class View(NamedTuple):
    """What a worker pulls: where it computes its gradient; and what it keeps itself."""

    params: PyTree
    model_state: PyTree
    local: PyTree = ()  # State of its local optimizer.
    anchors: tuple[PyTree, ...] = ()  # Points that local steps are drawn to.


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
    commits: jax.Array  # int32 []; the engine's clock: commits applied so far.
    arrivals: jax.Array  # int32 []; gradients that arrived so far, whatever became of them.
    dropped: jax.Array  # int32 []; commits that the method refused so far.
    rejected: jax.Array  # int32 []; commits rejected so far, for not being finite.
    rejected_in_a_row: jax.Array  # int32 []; since the last one that was applied.


class Gradient(NamedTuple):
    """What a worker sends."""

    loss: jax.Array
    grads: PyTree
    model_state: PyTree
    metrics: dict[str, jax.Array]
    finite: jax.Array  # 1 if loss, grads and model_state are finite, else 0; a float, so that it travels with the rest.
    losses: jax.Array | tuple = ()  # float [longest period]; of the local steps, then zeros.
    steps: jax.Array | tuple = ()  # How many local steps; a float likewise.
    local: PyTree = ()  # State of the local optimizer after them.


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
      num_workers: number of workers N; must be the number that ``tx`` was made for.
      seed: with (worker, step) it decides every key.
      diagnostics: names of the quantities to report a commit: ``gap`` (RMS distance between the central variable and the
        view), ``update_norm`` (RMS of the update), and what the method offers.
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
          ValueError: if the transformation was made for another number of workers.
        """
        params, model_state = jax.tree.map(jnp.asarray, (params, model_state))
        _check_params(params)
        tx = _with_extra_args(self.tx)
        opt_state = tx.init(params)
        if not is_asynchronous(opt_state):
            tx = _asynchronous(tx, self.num_workers)
            opt_state = tx.init(params)
        made_for = staleness.num_workers_of(opt_state)
        if made_for != self.num_workers:
            raise ValueError(
                f"the method was made with num_workers={made_for}, but the run has {self.num_workers} workers"
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
            commits=jnp.zeros([], jnp.int32),
            arrivals=jnp.zeros([], jnp.int32),
            dropped=jnp.zeros([], jnp.int32),
            rejected=jnp.zeros([], jnp.int32),
            rejected_in_a_row=jnp.zeros([], jnp.int32),
        )
        if staleness.recorded_view(opt_state, params) is None:
            state = state._replace(view=Slots(state.view.value._replace(params=params)))
        state = slots.stack(state, self.num_workers)
        return transition, _with_anchors(state, self.num_workers)

    def gradient(self, view: View, batch: PyTree, worker: jax.Array, step: jax.Array) -> Gradient:
        """What the worker computes; depends on what it holds, its batch and its key alone.

        With local steps ``batch`` is their :class:`gemjax.local_steps.Minibatches`, and the gradient a displacement.
        """
        if self.local is not None:
            return self._displacement(view, batch, worker)
        loss, grads, model_state, metrics = self._value_and_grad(view.params, view.model_state, batch, worker, step)
        # Checked here, where workers do it side by side, and not at the centre, which they all wait for.
        finite = all_finite((loss, grads, model_state)).astype(loss.dtype)
        return Gradient(loss, grads, model_state, metrics, finite)

    def _value_and_grad(self, params: PyTree, model_state: PyTree, batch: PyTree, worker, step) -> tuple:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), worker), step)
        loss_fn = with_model_state(self.loss_fn)
        (loss, (new_model_state, metrics)), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            params, model_state, batch, key
        )
        self._check_model_state(new_model_state, model_state)
        if clash := metrics.keys() & COLUMNS:
            raise ValueError(
                f"loss_fn returns metrics called {sorted(clash)}, which the engines report themselves; rename them"
            )
        return loss, grads, new_model_state, metrics

    def _displacement(self, view: View, batch: Minibatches, worker: jax.Array) -> Gradient:
        """Runs the local optimizer from the view; loss and metrics are means over its steps."""
        assert self.local is not None
        longest, local_tx = self.local.longest, _with_extra_args(self.local.tx)

        def step(j, carry):
            params, model_state, state, losses, sums = carry
            loss, grads, model_state, metrics = self._value_and_grad(
                params, model_state, batch.at(j), worker, batch.first + j
            )
            updates, state = local_tx.update(grads, state, params, value=loss, anchors=view.anchors)
            sums = jax.tree.map(lambda total, m: (total + m).astype(total.dtype), sums, metrics)
            return optax.apply_updates(params, updates), model_state, state, losses.at[j].set(loss), sums

        shapes = jax.eval_shape(self._value_and_grad, view.params, view.model_state, batch.at(0), worker, batch.first)
        losses = jnp.zeros(longest, shapes[0].dtype)
        kinds = jax.tree.map(lambda m: jnp.result_type(m.dtype, losses.dtype), shapes[3])
        # Counts and sums would not come out in a half precision.
        sums = jax.tree.map(lambda m, kind: jnp.zeros(m.shape, _at_least_single(kind)), shapes[3], kinds)
        carry = (view.params, view.model_state, view.local, losses, sums)
        params, model_state, state, losses, sums = jax.lax.fori_loop(0, batch.count, step, carry)
        displacement = jax.tree.map(jnp.subtract, view.params, params)
        steps = jnp.maximum(batch.count, 1).astype(
            _at_least_single(losses.dtype)
        )  # None are made where only a pull is due.
        loss = (jnp.sum(losses.astype(steps.dtype)) / steps).astype(losses.dtype)
        finite = all_finite((loss, displacement, model_state)) & _stays_finite(view.local, state)
        finite = finite.astype(losses.dtype)
        metrics = jax.tree.map(lambda total, kind: (total / steps).astype(kind), sums, kinds)
        return Gradient(loss, displacement, model_state, metrics, finite, losses, steps, state)

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
        observer = diagnostics.Observer(set(self.diagnostics) - _ALWAYS.keys())
        taken = jnp.logical_and(commits, gradient.finite > 0)
        updates, opt_state = self.tx.update(
            gradient.grads, state.opt_state, state.params, worker=worker, observe=observer, applied=taken,
            **_losses(gradient),
        )  # fmt: skip
        refused = staleness.refused(state.opt_state, opt_state)
        dropped = jnp.zeros_like(taken) if refused is None else taken & refused
        applied = taken & ~dropped
        report = Report(
            loss=gradient.loss,
            staleness=state.commits - state.pulled_at.value,
            pulled_at=state.pulled_at.value,
            applied=applied,
            dropped=dropped,
            metrics=gradient.metrics
            | {name: fn(state.params, view, updates) for name, fn in _ALWAYS.items() if name in self.diagnostics}
            | observer.collected(),
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
        state = _select(applied, committed, left)
        params, opt_state = pull(state.opt_state, state.params, worker=worker)
        state = state._replace(opt_state=opt_state, step=Slots(step + used), arrivals=state.arrivals + 1)
        state = state._replace(pulled_at=Slots(state.commits))
        anchors = staleness.anchors_of(state.opt_state) if state.view.value.anchors else ()
        view = View(params, state.model_state, state.view.value.local, anchors)
        return keep_view(state, view), view, report

    @staticmethod
    def _check_model_state(returned: PyTree, given: PyTree) -> None:
        types = [jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree) for tree in (returned, given)]
        if types[0] != types[1]:
            raise ValueError(f"loss_fn returned another model state than it was given: {types[0]}, expected {types[1]}")

    def _merge_model_state(self, central: PyTree, committed: PyTree) -> PyTree:
        if not self.average_model_state:
            return committed
        return jax.tree.map(lambda c, w: (c + (w - c) / self.num_workers).astype(c.dtype), central, committed)


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


_ALWAYS = {
    "gap": lambda params, view, updates: diagnostics.gap(params, view),
    "update_norm": lambda params, view, updates: diagnostics.rms(updates),
}


def _check_params(params: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params holds no array; there is nothing to train")
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"params at {jax.tree_util.keystr(path) or 'the root'} is {leaf.dtype}, but only floats can be trained; "
                "keep integers in model_state or in the loss function"
            )


def with_model_state(loss_fn: Callable) -> Callable:
    """``loss_fn`` in the long form, told by its number of positional arguments (2 or 4).

    Raises:
      TypeError: for any other number.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(loss_fn).parameters.values()
    positional = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(positional) == 4:
        return loss_fn
    if len(positional) != 2:
        raise TypeError(
            "loss_fn must be loss_fn(params, batch) -> loss, or loss_fn(params, model_state, batch, key) -> "
            f"(loss, (model_state, metrics)); got one with the arguments ({', '.join(p.name for p in positional)})"
        )
    return lambda params, model_state, batch, key: (loss_fn(params, batch), (model_state, {}))


def all_finite(tree: PyTree) -> jax.Array:
    """Whether every float in ``tree`` is finite, a bool scalar."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _stays_finite(before: PyTree, after: PyTree) -> jax.Array:
    """Whether nothing became NaN or infinite; what was infinite may stay so, because some optimizers begin like that."""
    floats = lambda tree: [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    pairs = zip(floats(before), floats(after), strict=True)
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(new) | (new == old)) for old, new in pairs], bool))


def _at_least_single(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def check_state(state: RunState, initial: RunState) -> None:
    """Raises ``ValueError`` unless ``state`` can continue a run that begins with ``initial``.

    A compiled run would not tell: an index beyond the slots that a state has is clamped there.
    """
    found, expected = jax.tree.structure(state), jax.tree.structure(initial)
    if found != expected:
        raise ValueError(
            "the state to continue from is of another method, model or number of workers: got the tree "
            f"{found}, this run has {expected}"
        )
    with_paths = jax.tree_util.tree_leaves_with_path(initial)
    for (path, wanted), leaf in zip(with_paths, jax.tree.leaves(state), strict=True):
        if (jnp.shape(leaf), jnp.result_type(leaf)) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"the state to continue from does not fit this run: {jax.tree_util.keystr(path)} is "
                f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}, expected {wanted.dtype}{list(wanted.shape)}"
            )


# The same transformation gives the same object each time, by which compiled programs are found again.
_with_extra_args = functools.lru_cache(maxsize=64)(optax.with_extra_args_support)
_asynchronous = functools.lru_cache(maxsize=64)(asynchronous)


def initial_state(
    tx: optax.GradientTransformation,
    params: PyTree,
    *,
    num_workers: int,
    model_state: PyTree = (),
    local: LocalSteps | None = None,
) -> RunState:
    """The state of a run before its first commit; what a checkpoint is loaded into.

    Args:
      tx: the run's transformation.
      params: its initial central variable (only shapes and dtypes matter to a checkpoint).
      num_workers: number of workers N.
      model_state: its initial model state.
      local: its local steps, if it has any.

    >>> import gemjax, jax.numpy as jnp
    >>> state = gemjax.initial_state(gemjax.gem(0.1, num_workers=2), jnp.zeros(3), num_workers=2)
    >>> int(state.arrivals), state.opt_state.stale_params[1].shape
    (0, (3,))
    """
    return Transition(tx, lambda params, batch: 0.0, num_workers, local=local).init(params, model_state)[1]
