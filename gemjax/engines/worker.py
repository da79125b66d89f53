"""What a worker does with a batch: one gradient, or local steps of its own optimizer."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.batches.local import Minibatches
from gemjax.engines.checks import check_metrics
from gemjax.protocol.local_steps import LocalSteps

PyTree = Any


# What engines report of every commit, besides metrics and diagnostics.
COLUMNS = {
    "worker", "step", "time", "loss", "staleness", "pulled_at", "draw", "applied", "dropped", "dispatched", "began", "ready",
    "event",
}  # fmt: skip


class View(NamedTuple):
    """What a worker pulls: where it computes its gradient; and what it keeps itself."""

    params: PyTree
    model_state: PyTree
    local: PyTree = ()  # State of its local optimizer.
    anchors: tuple[PyTree, ...] = ()  # Points that local steps are drawn to.


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


@dataclasses.dataclass(frozen=True)
class Training:
    """The pure functions that workers compute; see :class:`gemjax.engines.transition.Transition` for the arguments."""

    loss_fn: Callable
    seed: Any
    local: LocalSteps | None = None

    def gradient(self, view: View, batch: PyTree, worker: jax.Array, step: jax.Array) -> Gradient:
        """What the worker computes; depends on what it holds, its batch and its key alone.

        With local steps ``batch`` is their :class:`gemjax.batches.Minibatches`, and the gradient a displacement.
        """
        if self.local is not None:
            return self._displacement(view, batch, worker)
        loss, grads, model_state, metrics = self._value_and_grad(view.params, view.model_state, batch, worker, step)
        # Checked here, where workers do it side by side, and not at the centre, which they all wait for.
        finite = all_finite((loss, grads, model_state)).astype(loss.dtype)
        return Gradient(loss, grads, model_state, metrics, finite)

    def _value_and_grad(self, params: PyTree, model_state: PyTree, batch: PyTree, worker, step) -> tuple:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), worker), step)
        loss_fn = _scalar(with_model_state(self.loss_fn))
        (loss, (new_model_state, metrics)), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            params, model_state, batch, key
        )
        self._check_model_state(new_model_state, model_state)
        check_metrics(metrics, COLUMNS)
        return loss, grads, new_model_state, metrics

    def _displacement(self, view: View, batch: Minibatches, worker: jax.Array) -> Gradient:
        """Runs the local optimizer from the view; loss and metrics are means over its steps."""
        assert self.local is not None
        longest, local_tx = self.local.longest, optax.with_extra_args_support(self.local.tx)

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
        # A loop of one step would copy what it carries; where only a pull is due, what comes of the step is not used.
        params, model_state, state, losses, sums = (
            step(0, carry) if self.local.longest == 1 else jax.lax.fori_loop(0, batch.count, step, carry)
        )
        displacement = jax.tree.map(jnp.subtract, view.params, params)
        steps = jnp.maximum(batch.count, 1).astype(
            _at_least_single(losses.dtype)
        )  # None are made where only a pull is due.
        loss = (jnp.sum(losses.astype(steps.dtype)) / steps).astype(losses.dtype)
        finite = all_finite((loss, displacement, model_state)) & _stays_finite(view.local, state)
        finite = finite.astype(losses.dtype)
        metrics = jax.tree.map(lambda total, kind: (total / steps).astype(kind), sums, kinds)
        return Gradient(loss, displacement, model_state, metrics, finite, losses, steps, state)

    @staticmethod
    def _check_model_state(returned: PyTree, given: PyTree) -> None:
        said = "loss_fn returned another model state than it was given"
        found, wanted = jax.tree.structure(returned), jax.tree.structure(given)
        if found != wanted:
            raise ValueError(f"{said}: the tree {found}, expected {wanted}; return a tree like the one given")
        for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(returned), strict=True):
            kinds = [f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in (new, old)]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"{said}: {jax.tree_util.keystr(path) or 'the root'} is {kinds[0]}, expected {kinds[1]}; return the same "
                    "shapes and dtypes"
                )


def _scalar(loss_fn: Callable) -> Callable:
    """``loss_fn`` in the long form, whose writer is told what is wrong if its loss is no single number."""

    def checked(*args):
        # Made anew in the trace of the gradient: Flax NNX refuses to change a variable that was made in another one.
        returned = loss_fn(*jax.tree.map(lambda leaf: leaf, args))
        _check_no_gradient(returned, args[0])
        if not _is_pair(returned) or not _is_pair(returned[1]):
            raise TypeError(
                "loss_fn(params, model_state, batch, key) must return (loss, (model_state, metrics)), got "
                f"{_in_words(returned)}"
            )
        loss, aux = returned
        if jnp.shape(loss):
            raise ValueError(
                f"loss_fn must return one number, got an array of shape {list(jnp.shape(loss))}; take its mean"
            )
        return loss, aux

    return checked


def with_model_state(loss_fn: Callable) -> Callable:
    """``loss_fn`` in the long form, told by its number of positional arguments (2 or 4).

    Raises:
      TypeError: for any other number.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(loss_fn).parameters.values()
    positional = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(positional) == 4:
        return lambda *args: _call(loss_fn, args, batch=args[2], model_state=args[1])
    if len(positional) != 2:
        raise TypeError(
            "loss_fn must be loss_fn(params, batch) -> loss, or loss_fn(params, model_state, batch, key) -> "
            f"(loss, (model_state, metrics)); got one with the arguments ({', '.join(p.name for p in positional)})"
        )

    def long(params, model_state, batch, key):
        del key
        loss = _call(loss_fn, (params, batch), batch)
        _check_no_gradient(loss, params)
        if not jax.tree_util.all_leaves([loss]):
            raise TypeError(
                f"a loss_fn(params, batch) must return one number, got {_in_words(loss)}; for metrics use "
                "loss_fn(params, model_state, batch, key) -> (loss, (model_state, metrics))"
            )
        return loss, (model_state, {})

    return long


def _call(loss_fn: Callable, args: tuple, batch: PyTree, model_state: PyTree = None) -> Any:
    """``loss_fn(*args)``; an exception gets notes of what the function was given.

    Args:
      loss_fn: the function as the caller of the engine wrote it.
      args: its arguments.
      batch: the batch among them.
      model_state: the model state among them; ``None`` if the function takes none.
    """
    try:
        return loss_fn(*args)
    except Exception as error:
        leaves = jax.tree_util.tree_leaves_with_path(batch)
        kinds = [
            f"{jax.tree_util.keystr(path)} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".strip()
            for path, leaf in leaves[:12]
        ] + ["…"] * (len(leaves) > 12)
        error.add_note(f"loss_fn was called with a batch of {', '.join(kinds) or 'no arrays'}")
        if model_state is not None and not jax.tree.leaves(model_state):
            error.add_note("no model_state= was given to the engine")
        raise


def _check_no_gradient(returned: Any, params: PyTree) -> None:
    """Raises ``TypeError`` for what a differentiated loss returns: something like ``params``, or a pair that holds it."""
    kind = lambda tree: (jax.tree.structure(tree), [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(tree)])
    if kind(params) == kind(0.0):
        return  # Which of two numbers is a loss cannot be seen.
    found = [kind(part) == kind(params) for part in (returned, *(returned if _is_pair(returned) else ()))]
    if any(found):
        given, what = ("grad", "a gradient") if found[0] or found[1] else ("value_and_grad", "(loss, gradient)")
        raise TypeError(
            f"loss_fn returned {what}, as jax.{given}(loss) does; give the loss itself, which engines differentiate"
        )


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ if isinstance(part, (tuple, dict, list)) else 'array' for part in value)})"
    return type(value).__name__ if isinstance(value, (dict, list, type(None))) else "an array"


def all_finite(tree: PyTree) -> jax.Array:
    """Whether every float in ``tree`` is finite, a bool scalar."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    checks = [jax.lax.platform_dependent(leaf, cpu=_finite_by_product, default=_finite) for leaf in floats if leaf.size]
    return jnp.all(jnp.stack(checks)) if checks else jnp.array(True)


def _finite(array: jax.Array) -> jax.Array:
    return jnp.all(jnp.isfinite(array))


def _finite_by_product(array: jax.Array) -> jax.Array:
    """The same through half the mean of each column: XLA:CPU reduces booleans several times slower than it multiplies.

    What is not finite makes its column's mean so; and no mean of finite numbers leaves their range.
    """
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    return _finite(jnp.full(len(rows), 0.5 / len(rows), array.dtype) @ rows)


def _stays_finite(before: PyTree, after: PyTree) -> jax.Array:
    """Whether nothing became NaN or infinite; what was infinite may stay so, because some optimizers begin like that."""
    floats = lambda tree: [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    pairs = zip(floats(before), floats(after), strict=True)
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(new) | (new == old)) for old, new in pairs], bool))


def _at_least_single(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)
