"""The computation of a worker on a batch: one gradient, or local steps of its own optimizer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.local import Minibatches
from gemjax.engines.loss import checked_loss
from gemjax.protocol import PyTree, slots
from gemjax.protocol.checks import check_alike, kept, with_extra_args
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.nodes import copies_in
from gemjax.protocol.slots import Slots


class KeptView(NamedTuple):
    """The parts of a view that have no other place in the state of a run."""

    params: PyTree
    model_state: PyTree
    local: PyTree = ()  # State of its local optimizer.
    anchors: tuple[PyTree, ...] = ()  # Points that attract local steps, or that a loss reads.


class View(NamedTuple):
    """The point at which a worker computes its gradient, as pulled, and the worker's own state."""

    params: PyTree
    model_state: PyTree
    local: PyTree
    anchors: tuple[PyTree, ...]
    commits: Any  # Twice int32 []: those applied until the pull, of all and its own; () without local steps.


class Gradient(NamedTuple):
    """The gradient or displacement that a worker commits, with its loss."""

    loss: jax.Array
    grads: PyTree
    model_state: PyTree
    metrics: dict[str, jax.Array]
    # 1 if loss, grads and model_state are finite, else 0; a float, so that it is packed with the rest.
    finite: jax.Array
    losses: jax.Array | None = None  # float [longest period]; those of the local steps, then zeros.
    steps: jax.Array | None = None  # Number of local steps, also a float.
    local: PyTree = ()  # State of the local optimizer after them.

    def losses_by_name(self) -> dict[str, Any]:
        """Return the extra arguments of a commit about losses: their mean, that of each local step, and the metrics."""
        common = {"value": self.loss, "metrics": self.metrics}
        if self.steps is None:
            return common | {"local_losses": self.loss[None], "local_steps": jnp.int32(1)}
        return common | {"local_losses": self.losses, "local_steps": self.steps.astype(jnp.int32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerStep:
    """Pure functions that workers compute.

    Args:
      loss_fn: ``loss_fn(params, batch) -> loss`` or ``loss_fn(params, model_state, batch, key) -> (loss, (model_state,
        metrics))``.
      seed: decides every key, together with (worker, step).
      local: the local steps between two commits; ``None``: one gradient per commit.
    """

    loss_fn: Callable
    seed: Any = 0
    local: LocalSteps | None = None

    def gradient(self, view: View, batch: PyTree, worker: jax.Array, step: jax.Array) -> Gradient:
        """Compute a worker's gradient from its view, its batch and its key alone.

        With local steps ``batch`` is their :class:`gemjax.batches.Minibatches`, and the gradient a displacement.
        """
        if self.local is not None:
            return self._displacement(view, batch, worker)
        loss, grads, model_state, metrics = self._value_and_grad(
            view.params, view.model_state, batch, worker, step, view.anchors
        )
        # Workers check in parallel; at the central variable all others would wait for the check.
        finite = all_finite((loss, grads)) & _finite_or_unchanged(view.model_state, model_state)
        return Gradient(loss, grads, model_state, metrics, finite.astype(loss.dtype))

    def _value_and_grad(
        self, params: PyTree, model_state: PyTree, batch: PyTree, worker, step, anchors: tuple = ()
    ) -> tuple:
        with_anchors = getattr(self.loss_fn, "with_anchors", None)
        loss_fn = self.loss_fn if with_anchors is None else with_anchors(anchors)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), worker), step)
        (loss, (model_state, metrics)), grads = jax.value_and_grad(checked_loss(loss_fn), has_aux=True)(
            params, model_state, batch, key
        )
        return loss, grads, model_state, metrics

    def _displacement(self, view: View, batch: Minibatches, worker: jax.Array) -> Gradient:
        """Run the local optimizer from the view; loss and metrics are means over its steps."""
        assert self.local is not None
        carry, step = self.begin(view, batch, worker), functools.partial(self.local_step, view, batch, worker)
        # A loop of one step would copy its carry. For a pull alone the result of the step is not used.
        carry = step(0, carry) if self.local.longest == 1 else jax.lax.fori_loop(0, batch.count, step, carry)
        return self.end(view, batch, worker, carry)

    def begin(self, view: View, batch: Minibatches, worker: jax.Array) -> tuple:
        """Return parameters, model state, local state, losses and sums of metrics before the first local step.

        The optimizer of a worker that has never committed begins at its view.
        """
        assert self.local is not None
        init = self.local.tx.init
        copies = copies_in(lambda params: Slots(init(params)), view.params)
        local = copies.renewed(Slots(view.local), view.params, view.commits[1] == 0).value
        loss, kinds = self._kinds(view, batch, worker)
        # Half precision is too coarse for counts and sums.
        sums = jax.tree.map(lambda m: jnp.zeros(m.shape, _at_least_single(m.dtype)), kinds)
        return view.params, view.model_state, local, jnp.zeros(self.local.longest, loss.dtype), sums

    def local_step(self, view: View, batch: Minibatches, worker: jax.Array, j: Any, carry: tuple) -> tuple:
        """Return what :meth:`begin` returns, after the local step ``j``."""
        assert self.local is not None
        params, model_state, state, losses, sums = carry
        loss, grads, model_state, metrics = self._value_and_grad(
            params, model_state, batch.at(j), worker, batch.first + j, view.anchors
        )
        local_tx = with_extra_args(self.local.tx)
        progress = {"commits": view.commits[0], "local_step": jnp.asarray(j, jnp.int32)}
        updates, moved = local_tx.update(grads, state, params, value=loss, anchors=view.anchors, **progress)
        check_alike("the tree of updates of the local optimizer", updates, grads)
        state = kept("the state of the local optimizer after update", moved, state)
        sums = jax.tree.map(lambda total, m: total + m.astype(total.dtype), sums, metrics)
        return optax.apply_updates(params, updates), model_state, state, losses.at[j].set(loss), sums

    def end(self, view: View, batch: Minibatches, worker: jax.Array, carry: tuple) -> Gradient:
        """Return the displacement after the last local step."""
        params, model_state, state, losses, sums = carry
        displacement = jax.tree.map(jnp.subtract, view.params, params)
        steps = jnp.maximum(batch.count, 1).astype(_at_least_single(losses.dtype))  # The count of a pull is 0.
        loss = (jnp.sum(losses.astype(steps.dtype)) / steps).astype(losses.dtype)
        finite = all_finite((loss, displacement))
        finite &= _finite_or_unchanged((view.local, view.model_state), (state, model_state))
        finite = finite.astype(losses.dtype)
        _, kinds = self._kinds(view, batch, worker)
        metrics = jax.tree.map(lambda total, m: (total / steps).astype(m.dtype), sums, kinds)
        return Gradient(loss, displacement, model_state, metrics, finite, losses, steps, state)

    def _kinds(self, view: View, batch: Minibatches, worker: jax.Array) -> tuple[Any, dict[str, Any]]:
        """Return shapes and dtypes of the loss of a local step and of the means of its metrics."""
        loss, _, _, metrics = jax.eval_shape(
            self._value_and_grad, view.params, view.model_state, batch.at(0), worker, batch.first, view.anchors
        )
        single = _at_least_single(loss.dtype)  # For means of integers, which may be too large for half precision.
        dtype = lambda m: jnp.result_type(m.dtype, loss.dtype if jnp.issubdtype(m.dtype, jnp.inexact) else single)
        return loss, jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, dtype(m)), metrics)


def all_finite(tree: PyTree) -> jax.Array:
    """Return a bool scalar: True if every float in ``tree`` is finite."""
    return _all(
        [
            jax.lax.platform_dependent(leaf, cpu=_finite_by_product, default=_finite)
            for leaf in _floats(tree)
            if leaf.size
        ]
    )


def _all(checks: list[jax.Array]) -> jax.Array:
    """Return True if all are True.

    XLA:CPU fuses ``jnp.all`` into each selection that depends on it, and compiles for minutes if there are hundreds of them. It
    computes a product once.
    """
    failed = (~jnp.stack([jnp.array(True), *checks])).astype(jnp.float32)
    return jax.lax.platform_dependent(failed, cpu=lambda f: jnp.dot(f, f) == 0, default=lambda f: jnp.all(f == 0))


def _finite(array: jax.Array) -> jax.Array:
    return jnp.all(jnp.isfinite(array))


def _finite_by_product(array: jax.Array) -> jax.Array:
    """Do the same by half the mean of each column: XLA:CPU reduces booleans several times slower than it multiplies.

    A number that is not finite makes the mean of its column not finite, and no mean of finite numbers leaves their range.
    """
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    return _finite(jnp.full(len(rows), 0.5 / len(rows), array.dtype) @ rows)


def sound_or_unchanged(before: PyTree, after: PyTree, params: PyTree, joined_bytes: int = 0) -> jax.Array:
    """Return a bool scalar: True if no commit from ``before`` to ``after`` has ruined an array.

    An array is ruined if a number in it became NaN or infinite. In a tree like ``params`` (momenta, buffers) it is also
    ruined if the sum of squares of its numbers is not finite, in float32 at least: every RMS and every norm would be infinite.
    Numbers that the commit left as they were do not count: an infinity with which some optimizers begin may stay. Arrays up to
    ``joined_bytes`` are checked together, with the same answer.
    """
    structure, shapes = jax.tree.structure(params), [leaf.shape for leaf in jax.tree.leaves(params)]

    def is_like(node):
        return jax.tree.structure(node) == structure and [leaf.shape for leaf in jax.tree.leaves(node)] == shapes

    def flat(tree):
        return jax.tree.leaves(tree, is_leaf=lambda node: slots.is_rows(node) or is_like(node))

    found: dict[int, tuple] = {}  # By the new array: what occurs twice is checked once.
    for old, new in zip(flat(before), flat(after), strict=True):
        old, new = new.change() if slots.is_rows(new) else (old, new)
        for pair in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
            if pair[0] is not pair[1] and jnp.size(pair[1]) and jnp.issubdtype(jnp.result_type(pair[1]), jnp.inexact):
                found.setdefault(id(pair[1]), (*map(jnp.asarray, pair), is_like(new)))

    bundles = _bundles(list(found.values()), joined_bytes)

    def exactly():
        return _all([bundle.is_sound() for bundle in bundles])

    # Sums of all squares are enough for nearly every commit; the exact answer takes several times longer.
    quick = _all([jnp.isfinite(_sum_of_squares(bundle.new)) for bundle in bundles])
    return jax.lax.cond(quick, lambda: jnp.array(True), exactly)


class _Bundle(NamedTuple):
    """An array before and after a commit, or several small arrays as one vector."""

    old: jax.Array
    new: jax.Array
    sizes: list[int]  # Of the arrays.
    like_params: bool

    def is_sound(self) -> jax.Array:
        """Return a bool scalar: True if no array is ruined."""
        same = (self.new == self.old) | (jnp.isnan(self.new) & jnp.isnan(self.old))
        if not self.like_params:
            return jnp.all(same | jnp.isfinite(self.new))
        changed = jnp.where(same, 0, self.new)
        if len(self.sizes) == 1:
            return jnp.isfinite(_sum_of_squares(changed))
        array = jnp.repeat(np.arange(len(self.sizes)), np.array(self.sizes), total_repeat_length=changed.size)
        return jnp.all(jnp.isfinite(jax.ops.segment_sum(_squares(changed), array, len(self.sizes))))


def _bundles(arrays: list[tuple[jax.Array, jax.Array, bool]], joined_bytes: int) -> list[_Bundle]:
    """Join small arrays of a type.

    XLA:CPU makes kernels for each array, and every call prepares all of them, also those of a branch that is not taken.
    """
    bundles = []
    olds, news = [old for old, _, _ in arrays], [new for _, new, _ in arrays]
    alike = [(old.dtype, like_params) for old, _, like_params in arrays]
    for group in slots.joinable(news, alike, joined_bytes):
        old, new = (slots.joined([side[index] for index in group]) for side in (olds, news))
        if len(group) > 1:
            # Otherwise XLA moves the concatenation into the branch, which then receives each array.
            old, new = jax.lax.optimization_barrier((old, new))
        bundles.append(_Bundle(old, new, [news[index].size for index in group], arrays[group[0]][2]))
    return bundles


def _sum_of_squares(array: jax.Array) -> jax.Array:
    array = jnp.abs(array) if jnp.iscomplexobj(array) else array
    # XLA:CPU adds the terms of a product faster than those of a sum.
    product = lambda array: jnp.tensordot(
        array, array, array.ndim, preferred_element_type=_at_least_single(array.dtype)
    )
    return jax.lax.platform_dependent(array, cpu=product, default=lambda array: jnp.sum(_squares(array)))


def _squares(array: jax.Array) -> jax.Array:
    array = jnp.abs(array) if jnp.iscomplexobj(array) else array
    return jnp.square(array.astype(_at_least_single(array.dtype)))


def _finite_or_unchanged(before: PyTree, after: PyTree) -> jax.Array:
    """Return True if no number became NaN or infinite; what was so before, such as infinities of a mask, may stay."""
    if not (pairs := list(zip(_floats(before), _floats(after), strict=True))):
        return jnp.array(True)

    def exactly():
        return _all(
            [jnp.all(jnp.isfinite(new) | (new == old) | (jnp.isnan(new) & jnp.isnan(old))) for old, new in pairs]
        )

    return jax.lax.cond(all_finite(after), lambda: jnp.array(True), exactly)  # As nearly always, and much faster.


def _floats(tree: PyTree) -> list[jax.Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _at_least_single(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)
