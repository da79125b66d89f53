"""The warning that a method's learning rate multiplies the rate of local steps."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.engines.result import RunWarning
from gemjax.protocol.diagnostics import Observer
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.staleness import is_asynchronous, needs_local_steps

PyTree = Any


def warn_of_two_rates(tx: optax.GradientTransformation, params: PyTree, local: LocalSteps | None) -> None:
    """Warns if ``tx`` is a method for gradients with a learning rate other than 1, and the run has local steps.

    A displacement is as long as the rate of the local optimizer made it. Methods for displacements, optimizers that divide
    the length of a gradient out (Adam), schedules, and plain optax transformations, which somebody has put together for the
    purpose, pass without a word.
    """
    rate = None if local is None else _first_rate(tx, params)
    if rate is not None and rate != 1:
        warnings.warn(
            f"the method multiplies the displacements of local steps, which have the rate of their own optimizer, by "
            f"learning_rate={rate:g}; give learning_rate=1.0, or a method made for displacements (downpour, easgd, lsgd, "
            "diloco, …)",
            RunWarning, stacklevel=3,
        )  # fmt: skip


def _first_rate(tx: optax.GradientTransformation, params: PyTree) -> float | None:
    """The rate of the first commit; ``None`` if ``tx`` offers none or several, or is not judged."""
    state = jax.eval_shape(tx.init, params)
    if not is_asynchronous(state) or needs_local_steps(state) or _has(_NOT_JUDGED, state):
        return None
    shapes = jax.eval_shape(lambda params: params, params)
    observer = Observer(["learning_rate"])
    observer.offered.add("learning_rate")  # So that what optax.inject_hyperparams keeps is not offered.

    @jax.jit  # Nothing but the rate is computed.
    def rate():
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        told = {"value": 0.0, "local_losses": jnp.zeros(1), "local_steps": 1, "observe": observer}
        optax.with_extra_args_support(tx).update(zeros, tx.init(zeros), zeros, worker=0, **told)
        return None if observer.several else observer.seen.get("learning_rate")

    found = rate()
    return None if found is None else float(found)


# Adam divides the length of a gradient out. A schedule, such as a warm-up from 0, cannot be judged by its first rate.
_NOT_JUDGED = (optax.ScaleByAdamState, optax.ScaleByScheduleState)


def _has(kinds: tuple[type, ...], state: PyTree) -> bool:
    is_one = lambda node: isinstance(node, kinds)
    return any(map(is_one, jax.tree.leaves(state, is_leaf=is_one)))
