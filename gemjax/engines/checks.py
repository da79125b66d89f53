"""Checks of the arguments of a run, made before anything is computed."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.engines.programs import Kept, Program
from gemjax.protocol import PyTree
from gemjax.protocol.checks import integer, shown, with_extra_args
from gemjax.protocol.diagnostics import Observer
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.nodes import nodes
from gemjax.protocol.staleness import is_asynchronous, needs_local_steps, needs_rounds
from gemjax.protocol.trace import Trace

WIDE = ("float64", "complex128", "int64", "uint64")  # Of JAX arrays with jax_enable_x64 only.


class RunWarning(UserWarning):
    """A condition that does not stop a run: a long wait, two learning rates, or a placement that makes workers wait."""


def check_given(loss_fn: Callable, params: PyTree, model_state: PyTree) -> None:
    """Raise ``TypeError`` if arguments are swapped or not arrays, ``ValueError`` if a parameter is not a real float."""
    if not callable(loss_fn):
        swapped = " and params is a function: swap the two" if callable(params) else ""
        raise TypeError(
            f"loss_fn is of type {type(loss_fn).__name__}{swapped}; engines are called as (tx, loss_fn, params, batches, …) "
            "with loss_fn(params, batch) -> loss"
        )
    for name, tree in (("params", params), ("model_state", model_state)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            place = jax.tree_util.keystr(path) or "the root"
            if not is_numeric(leaf):
                raise TypeError(
                    f"{name} at {place} is {shown(leaf)}, but {name} may have arrays only; give the parameters of a "
                    "module, and keep everything else in the loss function"
                )
            if name == "params" and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ValueError(
                    f"params at {place} is {jnp.result_type(leaf)}, but only real floats can be trained; keep integers and "
                    "keys in model_state, and give real and imaginary parts as two arrays"
                )


def check_one_point(opt_state: Any) -> None:
    """Raise ``TypeError`` for the state of SAM, which steps to a second point and back: commits would end at either."""
    is_sam = lambda node: "SAMState" in type(node).__name__
    if any(map(is_sam, jax.tree.leaves(opt_state, is_leaf=is_sam))):
        raise TypeError(
            "the optimizer is optax.contrib.sam, which goes to a second point and back in steps of its own; give the optimizer "
            "inside of it, and a loss_fn that takes the loss at the second point, loss(params + jax.lax.stop_gradient(step), "
            "batch)"
        )


def is_traced(*trees: PyTree) -> bool:
    """Return True inside of ``jax.jit``, and if one of ``trees`` comes from there or from ``vmap`` or ``grad``."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((trees, jnp.zeros([]))))


def check_callback(callback: Any, name: str = "callback", form: str = "(progress) -> bool") -> None:
    """Raise ``TypeError`` unless ``callback``, the argument ``name``, is ``None``, a function, or a callable object."""
    if callback is not None and (isinstance(callback, type) or not callable(callback)):
        raise TypeError(f"{name} is {shown(callback)}, but must be a function; give {name}{form}")


def check_log(log: Any) -> None:
    """Raise ``TypeError`` unless ``log`` is ``None`` or has the methods ``write`` and ``flush`` of :class:`gemjax.EventLog`."""
    if log is not None and not (hasattr(log, "write") and hasattr(log, "flush")):
        raise TypeError(f"log is {shown(log)}, but must be a gemjax.EventLog; give gemjax.EventLog('run.jsonl')")


def checked_seed(seed: int) -> int:
    """Return a seed of PRNG keys as an int; raise ``ValueError`` unless it is one of 64 bits."""
    return integer("seed", seed, -(2**63), 2**63 - 1)


def is_key(leaf: Any) -> bool:
    """Return True if ``leaf``, an array or its shape and dtype, holds typed PRNG keys (``jax.random.key``)."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_numeric(leaf: Any) -> bool:
    """Return True for a number, an array of numbers, truth values or typed keys, and the shape of such an array."""
    if isinstance(leaf, (int, float, complex)):
        return True
    dtype = getattr(leaf, "dtype", None)
    kinds = (np.number, np.bool_, jax.dtypes.prng_key)
    return hasattr(leaf, "shape") and dtype is not None and any(jax.dtypes.issubdtype(dtype, kind) for kind in kinds)


def shapes_of(init: Callable, *args: PyTree) -> PyTree:
    """Return the shapes and dtypes of ``init(*args)``; if it cannot be traced, its arrays."""
    try:
        return jax.eval_shape(init, *args)
    except jax.errors.JAXTypeError:
        return init(*jax.tree.map(jnp.asarray, args))


def warn_of_two_rates(tx: optax.GradientTransformation, params: PyTree, local: LocalSteps | None) -> None:
    """Warn if ``tx`` is a method for gradients with a learning rate other than 1, and the run has local steps.

    A displacement contains the learning rate of the local optimizer, so the two rates multiply. There is no warning for methods
    that expect displacements, for optimizers that divide by the length of a gradient (Adam), for schedules, and for plain optax
    transformations, whose rate the caller chose on purpose.
    """
    rate = None if local is None else _first_rate(tx, params)
    if rate is not None and rate != 1:
        warnings.warn(
            f"the method multiplies the displacements of local steps, which have the rate of their own optimizer, by "
            f"learning_rate={rate:g}; give learning_rate=1.0, or a method made for displacements (downpour, easgd, lsgd, "
            "diloco, …)",
            RunWarning, stacklevel=3,
        )  # fmt: skip


def warn_without_rounds(
    tx: optax.GradientTransformation, params: PyTree, local: LocalSteps | None, *traces: Trace
) -> None:
    """Warn if ``tx`` is defined in rounds, but a trace is not."""
    if local is not None and not all(map(is_in_rounds, traces)) and needs_rounds(shapes_of(tx.init, params)):
        warnings.warn(
            "the method is defined in rounds, whose steps average displacements of all workers from the same view, but the "
            "trace has none; give that of gemjax.arrivals.Barrier(model), or take a method without rounds, such as "
            "gemjax.delayed_nesterov",
            RunWarning, stacklevel=3,
        )  # fmt: skip


def is_in_rounds(trace: Trace) -> bool:
    """Return False if a trace has commits at views that are older than their round of N commits."""
    begins = np.arange(len(trace)) // trace.num_workers * trace.num_workers
    return bool(np.all(trace.pulled_at >= begins))


def _first_rate(tx: optax.GradientTransformation, params: PyTree) -> float | None:
    """Return the rate of the first commit; ``None`` unless ``tx`` reports one, outside of branches, and is not exempt."""
    state = shapes_of(tx.init, params)
    if not is_asynchronous(state) or needs_local_steps(state) or nodes(state, _EXEMPT):
        return None
    shapes = jax.eval_shape(lambda params: params, params)

    def rate():
        observer = Observer(["learning_rate"])
        observer.offered.add("learning_rate")  # So that a rate of optax.inject_hyperparams is not offered.
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        losses = {"value": 0.0, "local_losses": jnp.zeros(1), "local_steps": 1, "observe": observer}
        with_extra_args(tx).update(zeros, tx.init(zeros), zeros, worker=0, **losses)
        return None if observer.several else observer.seen.get("learning_rate")

    # Compiled, so that nothing but the rate is computed.
    program = _RATES.get(tx, lambda: Program(rate), params)
    try:
        found = program()
    except (ValueError, jax.errors.JAXTypeError):  # A rate in optax.apply_if_finite; an `init` that cannot be traced.
        return None
    return None if found is None else float(found)


_RATES = Kept()
# Adam divides by the length of a gradient. The first rate of a schedule, such as a warm-up from 0, says little.
_EXEMPT = (optax.ScaleByAdamState, optax.ScaleByScheduleState)
